"""From a match to the exact ids an engine consumes: held ids spliced, new messages rendered behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from bridle.errors import BadRequest, PromptTooLong
from bridle.messages import Document, Image, Message, ModelRequest, Note, Switches, Text
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
    if session.options.media == "refuse":
        _refuse_media(request)
    switches = renderer.taken(request.switches)
    notes = _ignored(renderer, request.switches, switches)
    if renderer.facts.extendable:
        found = match(session.tree, request, _root_variant(renderer, switches))
        prompt = extend(renderer, session.tree, found, request, switches, notes)
    else:
        prompt = _whole(renderer, request, switches, notes)
    limit = min(filter(None, (context_length, session.options.limits.context_tokens)))
    if prompt.length >= limit:
        raise PromptTooLong(prompt.length, limit)
    return prompt


def extend(
    renderer: Renderer,
    tree: Tree,
    found: Match,
    request: ModelRequest,
    switches: Switches,
    notes: tuple[Note, ...] = (),
) -> Prompt:
    """Renders what `found` says is new. Cost: the new text, and one pass over the path's nodes."""
    generation = renderer.generation(switches)
    units = [*(_step_ids(renderer, tree, step, request, switches) for step in found.steps), generation.ids]
    units[0], before_stop = _behind(renderer, tree, found.base, units[0])
    for index, step in enumerate(found.steps):
        if step.unit == "transplant":
            units[index + 1], _ = after_turn(renderer.closing, None, units[index + 1])
    *rendered, lead = units
    told = (*notes, *_not_shown(renderer, request), *_replaced(found.steps), *_mapped(renderer, request, found.steps))
    length = tree.length(found.base) - int(before_stop) + sum(map(len, rendered)) + len(lead)
    return Prompt(found, tuple(rendered), lead, generation.thinking_open, before_stop, told, length)


def _whole(renderer: Renderer, request: ModelRequest, switches: Switches, notes: tuple[Note, ...]) -> Prompt:
    """A template that cannot be extended: every request is rendered anew and is a branch of its own."""
    generation: GenerationPrompt = renderer.generation(switches)
    ids = renderer.whole(_texts(request.messages), request.tools, switches)
    step = Step(b"", "root", request.messages)
    found = Match(ROOT, (step,), (), request.notes)
    told = (Note("not_extendable", renderer.facts.why_not), *notes, *_not_shown(renderer, request), *_replaced([step]))
    return Prompt(found, (ids,), generation.ids, generation.thinking_open, False, told, len(ids) + len(generation.ids))


def _step_ids(renderer: Renderer, tree: Tree, step: Step, request: ModelRequest, switches: Switches) -> Ids:
    if step.unit == "transplant":
        # Without its stop id: what follows closes it, with the same id where the two agree.
        turn = tree.turns[step.turn]
        return concatenate([turn.lead, turn.sampled if turn.stop_id is None else turn.sampled[:-1]])
    messages = _texts(step.messages)
    if step.unit == "root":
        return renderer.root(messages, request.tools, switches)
    return renderer.unit(messages, step.before, request.tools)


def _behind(renderer: Renderer, tree: Tree, base: int, unit: Ids) -> tuple[Ids, bool]:
    """-> `unit` as it follows the held node `base`, and whether it leaves that draw before its stop id."""
    origin = "prompt" if base == ROOT else tree.nodes[base].origin
    if origin == "sampled":
        return after_turn(renderer.closing, tree.turns[tree.nodes[base].turn].stop_id, unit)
    return after_turn(renderer.closing, None, unit) if origin == "transplanted" else (unit, False)


# --- switches ---------------------------------------------------------------------------------------------------------


def _ignored(renderer: Renderer, asked: Switches, taken: Switches) -> tuple[Note, ...]:
    """The settings that the template does not get."""
    has = ", ".join(renderer.facts.switches) or "no switch"
    missed = [
        *([f"thinking={asked.thinking}"] if asked.thinking != taken.thinking else []),
        *([f"effort={asked.effort}"] if asked.effort != taken.effort else []),
    ]
    return tuple(
        Note("switch_ignored", f"{setting}: the chat template does not take it (has {has})") for setting in missed
    )


def _root_variant(renderer: Renderer, switches: Switches) -> str:
    """What of the switches the root's text depends on."""
    named = {"thinking": str(switches.thinking), "effort": switches.effort}
    return " ".join(named[name] for name in renderer.facts.root_switches)


# --- what a template does not take ------------------------------------------------------------------------------------


def _not_shown(renderer: Renderer, request: ModelRequest) -> tuple[Note, ...]:
    if not request.tools or renderer.facts.has_tools:
        return ()
    offered = ", ".join(tool.name for tool in request.tools)
    return (Note("tools_not_shown", f"the chat template shows no tools; the request offers {offered}"),)


def _mapped(renderer: Renderer, request: ModelRequest, steps: Sequence[Step]) -> Iterator[Note]:
    """The role rules that the new messages take."""
    if not steps or not renderer.facts.role_rules:
        return
    new = {id(message) for step in steps for message in step.messages}
    roles = [message.role for message in request.messages]
    rules = (renderer.mapped(roles, at) for at, message in enumerate(request.messages) if id(message) in new)
    yield from dict.fromkeys(note for notes in rules for note in notes)


def _refuse_media(request: ModelRequest) -> None:
    for index, message in enumerate(request.messages):
        for part in message.parts:
            if isinstance(part, Image | Document):
                what = "an image" if isinstance(part, Image) else "a document"
                raise BadRequest(f"messages[{index}]: {what}, but the served model takes text only; send text")


def _texts(messages: Sequence[Message]) -> Sequence[Message]:
    """`messages` with a line of text in the place of every image and document."""
    return [_text_only(message) for message in messages]


def _text_only(message: Message) -> Message:
    if not any(isinstance(part, Image | Document) for part in message.parts):
        return message
    parts = [Text(_left_out(part)) if isinstance(part, Image | Document) else part for part in message.parts]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _left_out(part: Image | Document) -> str:
    return f"[{part.media_type or type(part).__name__.lower()} left out: the model takes text only]"


def _replaced(steps: Sequence[Step]) -> tuple[Note, ...]:
    parts = [part for step in steps for message in step.messages for part in message.parts]
    kinds = Counter(part.media_type for part in parts if isinstance(part, Image | Document))
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (Note("media_replaced", f"text in the place of {found}"),) if kinds else ()
