"""From a match to the exact ids an engine consumes: held ids spliced, new messages rendered behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from bridle.errors import BadRequest, PromptTooLong, SeamError
from bridle.messages import Document, Image, Message, ModelRequest, Note, Switches, Text, ToolCall
from bridle.rendering.base import Renderer
from bridle.rendering.tail import after_turn
from bridle.sessions.match import KEPT, Match, Settled, Step, match
from bridle.sessions.session import Session
from bridle.sessions.tree import ROOT, Tree, Turn
from bridle.tokens import EMPTY, Ids, concatenate


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
    request = _as_said(session.tree, request)
    switches = renderer.taken(request.switches)
    notes = _ignored(renderer, request.switches, switches)
    follow = session.options.history == "template"
    if why_not := renderer.facts.why_not_template if follow else renderer.facts.why_not:
        prompt = _whole(renderer, request, switches, (Note("not_extendable", why_not), *notes))
    else:
        settled = _settled(renderer, request) if follow else KEPT
        found = match(session.tree, request, _root_variant(renderer, switches), settled=settled)
        prompt = extend(renderer, session.tree, found, request, switches, notes)
    limit = min(filter(None, (context_length, session.options.limits.context_tokens)))
    if prompt.length >= limit:
        raise PromptTooLong(prompt.length, limit)
    return prompt


def _settled(renderer: Renderer, request: ModelRequest) -> Settled:
    """Draws without any part of a reasoning block are what the template writes: they stay."""
    return Settled(
        renderer.settled(request.messages),
        lambda turn: renderer.reasons(turn.lead) or renderer.reasons(turn.sampled),
    )


def _as_said(tree: Tree, request: ModelRequest) -> ModelRequest:
    """No client sends back the id that the model itself gave a call; a call that is rendered anew is known by it."""
    if not tree.said:
        return request
    messages = [_parts_as_said(tree, message) for message in request.messages]
    return msgspec.structs.replace(request, messages=tuple(messages))


def _parts_as_said(tree: Tree, message: Message) -> Message:
    if not any(call.id in tree.said for call in message.calls):
        return message
    parts = (
        msgspec.structs.replace(part, said=tree.said.get(part.id, "")) if isinstance(part, ToolCall) else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=tuple(parts))


def extend(
    renderer: Renderer,
    tree: Tree,
    found: Match,
    request: ModelRequest,
    switches: Switches,
    notes: tuple[Note, ...] = (),
) -> Prompt:
    """Renders what `found` says is new. Cost: the new text, and one pass over the path's nodes."""
    generation = renderer.generation(switches, found.behind)
    units = [*(_step_ids(renderer, tree, step, request, switches) for step in found.steps), generation.ids]
    units[0], before_stop = _behind(renderer, tree, found.base, units[0])
    for index, step in enumerate(found.steps):
        if step.unit == "transplant":
            units[index + 1], _ = after_turn(_closing(renderer, tree.turns[step.turn]), None, units[index + 1])
    _check_seams(renderer, _last_held(tree, found.base, before_stop), units)
    *rendered, lead = units
    told = (*notes, *_not_shown(renderer, request), *_replaced(found.steps), *_mapped(renderer, request, found.steps))
    length = tree.length(found.base) - int(before_stop) + sum(map(len, rendered)) + len(lead)
    return Prompt(found, tuple(rendered), lead, generation.thinking_open, before_stop, told, length)


def _whole(renderer: Renderer, request: ModelRequest, switches: Switches, notes: tuple[Note, ...]) -> Prompt:
    """A template that cannot be extended: every request is rendered anew and is a branch of its own."""
    ids, generation = renderer.prompted(_texts(request.messages), request.tools, switches)
    step = Step(b"", "root", request.messages)
    found = Match(ROOT, (step,), (), request.notes)
    told = (*notes, *_not_shown(renderer, request), *_replaced([step]))
    return Prompt(found, (ids,), generation.ids, generation.thinking_open, False, told, len(ids) + len(generation.ids))


def _step_ids(renderer: Renderer, tree: Tree, step: Step, request: ModelRequest, switches: Switches) -> Ids:
    if step.unit == "transplant":
        # Without its stop id: what follows closes it, with the same id where the two agree.
        turn = tree.turns[step.turn]
        lead, here = _opening(renderer, tree, turn), renderer.generation(switches, step.behind).ids
        if not len(lead) or not len(here):
            # Some templates go on with the turn behind tool results, without a header: then its place decides.
            lead = here
        return concatenate([lead, turn.sampled if turn.stop_id is None else turn.sampled[:-1]])
    messages = _texts(step.messages)
    if step.unit == "root":
        return renderer.root(messages, request.tools, switches)
    return renderer.unit(messages, step.before, request.tools, switches, step.behind, step.settled)


def _opening(renderer: Renderer, tree: Tree, turn: Turn) -> Ids:
    """What opened the turn, without what closed the draw right before it: that stays where it was."""
    if turn.parent == ROOT or tree.nodes[turn.parent].origin not in ("sampled", "transplanted"):
        return turn.lead
    closing = _closing(renderer, tree.turns[tree.nodes[turn.parent].turn])
    rest = next((ids for ids in (closing, closing[1:]) if np.array_equal(turn.lead[: len(ids)], ids)), EMPTY)
    return turn.lead[len(rest) :]


def _behind(renderer: Renderer, tree: Tree, base: int, unit: Ids) -> tuple[Ids, bool]:
    """-> `unit` as it follows the held node `base`, and whether it leaves that draw before its stop id."""
    origin = "prompt" if base == ROOT else tree.nodes[base].origin
    if origin not in ("sampled", "transplanted"):
        return unit, False
    turn = tree.turns[tree.nodes[base].turn]
    stop_id = turn.stop_id if origin == "sampled" else None
    return after_turn(_closing(renderer, turn), stop_id, unit, renderer.ends)


def _closing(renderer: Renderer, turn: Turn) -> Ids:
    return renderer.call_closing if turn.message is not None and turn.message.calls else renderer.closing


def _last_held(tree: Tree, base: int, before_stop: bool) -> Ids:
    """int32[1], or none: the id that new text follows."""
    if before_stop:
        return tree.ids(base)[-2:-1]
    return tree.nodes[base].ids[-1:] if base != ROOT else EMPTY


def _check_seams(renderer: Renderer, held: Ids, units: Sequence[Ids]) -> None:
    """Text is encoded from one control token to the next: where two units meet, there must be one."""
    present = [ids for ids in (held, *units) if len(ids)]
    for before, unit in pairwise(present):
        if not {int(before[-1]), int(unit[0])} & renderer.vocabulary.control_ids:
            around = renderer.vocabulary.decode([*before[-5:].tolist(), *unit[:5].tolist()])
            raise SeamError(
                f"no control token stands where new text follows what is held, around {around!r}: their ids together "
                "cannot be shown to be those of the conversation; report the model's chat template"
            )


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
    new = {id(message): step.before for step in steps for message in step.messages}
    roles = [message.role for message in request.messages]
    rules = (
        renderer.mapped(roles, at, message, new[id(message)])
        for at, message in enumerate(request.messages)
        if id(message) in new
    )
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
