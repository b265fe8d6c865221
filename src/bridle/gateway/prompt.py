"""From a match to the exact ids an engine consumes: held ids spliced, new messages rendered behind them."""

from __future__ import annotations

from dataclasses import dataclass

from bridle.errors import BadRequest, PromptTooLong
from bridle.messages import Image, ModelRequest, Note
from bridle.rendering.base import GenerationPrompt, Renderer
from bridle.rendering.tail import after_turn
from bridle.sessions.match import Match, Step, match
from bridle.sessions.session import Session
from bridle.sessions.tree import ROOT, Tree
from bridle.tokens import Ids, concatenate


@dataclass(frozen=True, slots=True)
class Prompt:
    """`rendered[i]`: the ids of `found.steps[i]`; `lead`: what stands between them and the first sampled id."""

    found: Match
    rendered: tuple[Ids, ...]
    lead: Ids
    thinking_open: bool
    before_stop: bool
    notes: tuple[Note, ...]
    length: int


def prepare(renderer: Renderer, session: Session, request: ModelRequest, context_length: int) -> Prompt:
    """Raises BadRequest for what a text model cannot take and PromptTooLong where no room is left to answer."""
    _refuse_images(request)
    if renderer.facts.extendable:
        variant = str(request.switches.thinking) if renderer.facts.root_depends_on_thinking else ""
        prompt = extend(renderer, session.tree, match(session.tree, request, variant), request)
    else:
        prompt = _whole(renderer, request)
    limit = min(filter(None, (context_length, session.options.limits.context_tokens)))
    if prompt.length >= limit:
        raise PromptTooLong(prompt.length, limit)
    return prompt


def extend(renderer: Renderer, tree: Tree, found: Match, request: ModelRequest) -> Prompt:
    """Renders what `found` says is new. Cost: the new text, and one pass over the path's nodes."""
    generation = renderer.generation(request.switches.thinking)
    units = [*(_step_ids(renderer, tree, step, request) for step in found.steps), generation.ids]
    units[0], before_stop = _behind(renderer, tree, found.base, units[0])
    for index, step in enumerate(found.steps):
        if step.unit == "transplant":
            units[index + 1], _ = after_turn(renderer.closing, None, units[index + 1])
    *rendered, lead = units
    notes = _not_shown(renderer, request)
    length = tree.length(found.base) - int(before_stop) + sum(map(len, rendered)) + len(lead)
    return Prompt(found, tuple(rendered), lead, generation.thinking_open, before_stop, notes, length)


def _whole(renderer: Renderer, request: ModelRequest) -> Prompt:
    """A template that cannot be extended: every request is rendered anew and is a branch of its own."""
    generation: GenerationPrompt = renderer.generation(request.switches.thinking)
    ids = renderer.whole(request.messages, request.tools, request.switches.thinking)
    step = Step(b"", "root", request.messages)
    found = Match(ROOT, (step,), (), request.notes)
    notes = (Note("not_extendable", renderer.facts.why_not), *_not_shown(renderer, request))
    return Prompt(found, (ids,), generation.ids, generation.thinking_open, False, notes, len(ids) + len(generation.ids))


def _not_shown(renderer: Renderer, request: ModelRequest) -> tuple[Note, ...]:
    if not request.tools or renderer.facts.has_tools:
        return ()
    offered = ", ".join(tool.name for tool in request.tools)
    return (Note("tools_not_shown", f"the chat template shows no tools; the request offers {offered}"),)


def _step_ids(renderer: Renderer, tree: Tree, step: Step, request: ModelRequest) -> Ids:
    if step.unit == "transplant":
        # Without its stop id: what follows closes it, with the same id where the two agree.
        turn = tree.turns[step.turn]
        return concatenate([turn.lead, turn.sampled if turn.stop_id is None else turn.sampled[:-1]])
    if step.unit == "root":
        return renderer.root(step.messages, request.tools, request.switches.thinking)
    return renderer.unit(step.messages, step.before, request.tools)


def _behind(renderer: Renderer, tree: Tree, base: int, unit: Ids) -> tuple[Ids, bool]:
    """-> `unit` as it follows the held node `base`, and whether it leaves that draw before its stop id."""
    origin = "prompt" if base == ROOT else tree.nodes[base].origin
    if origin == "sampled":
        return after_turn(renderer.closing, tree.turns[tree.nodes[base].turn].stop_id, unit)
    return after_turn(renderer.closing, None, unit) if origin == "transplanted" else (unit, False)


def _refuse_images(request: ModelRequest) -> None:
    for index, message in enumerate(request.messages):
        if any(isinstance(part, Image) for part in message.parts):
            raise BadRequest(f"messages[{index}]: an image, but the served model takes text only; send text")
