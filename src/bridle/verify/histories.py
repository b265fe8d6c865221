"""Histories: does each prompt extend what is held, is it what the stock template writes, is every turn closed once?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import groupby

import msgspec
import numpy as np
import numpy.typing as npt

from bridle.errors import TemplateError
from bridle.messages import Message, Note
from bridle.rendering.base import Renderer
from bridle.rendering.reply import THOUGHTS
from bridle.rendering.roles import DEVELOPER, LATE_SYSTEM
from bridle.samples.linearize import linearize
from bridle.tokens import Ids, Vocabulary
from bridle.verify.compare import Difference, Owner, compare
from bridle.verify.player import Call, Played, settings_of
from bridle.verify.report import Finding, Ledger, Property, broken
from bridle.verify.stock import Stock

EVERY = 25
"""Of long plays only some calls are compared with the stock rendering: prompts nest."""

SHORT = 12

RULES = ("role_mapped", "calls_split", "calls_not_shown")
"""Notes of a message that is rendered otherwise than the stock template would."""


def check_prefix(renderer: Renderer, played: Played, ledger: Ledger, property: Property = "prefix") -> None:
    for call in played.calls:
        if call.before is not None and not renderer.facts.extendable:
            what = f"every turn forks: {renderer.facts.why_not}"
            ledger.differs(property, Finding(call.play.name, call.number, "forks", what, declared=True))
        elif call.before is not None:
            _check_extension(renderer, call, call.before, ledger, property)
        if call.carried is not None and renderer.facts.extendable:
            _check_carried(renderer, call, call.carried, ledger, property)
    if played.calls:
        _check_samples(played, ledger, property)


def tell_broken(played: Played, ledger: Ledger, property: Property = "prefix") -> None:
    if played.broken is not None:
        ledger.fails(property, broken(played.play.name, len(played.calls), played.broken))


def _check_extension(renderer: Renderer, call: Call, before: Call, ledger: Ledger, property: Property) -> None:
    held = [*before.ids.tolist(), *before.drawn.ids.tolist()]
    ids = call.ids.tolist()
    length = held_length(call, before)
    if ids[:length] == held[:length]:
        ledger.passed(property)
    elif _root_changed(renderer, call, before):
        ledger.skipped(property, "another setting of a switch that the root depends on: a branch of its own")
    else:
        at = next((n for n, pair in enumerate(zip(ids, held, strict=False)) if pair[0] != pair[1]), len(ids))
        what = f"the prompt leaves what is held at id {at} of {len(held)}"
        ledger.fails(property, _finding(renderer.vocabulary, call, "fork", what, ids[at : at + 40], held[at : at + 40]))


def _check_carried(renderer: Renderer, call: Call, carried: Call, ledger: Ledger, property: Property) -> None:
    """The answer that stands behind a summary has the ids it was sampled as."""
    draw = _unstopped(carried)
    if _place(draw, call.ids) >= 0:
        ledger.passed(property)
    else:
        what = "an answer that was carried behind a summary has other ids"
        found, expected = call.ids[-60:].tolist(), draw.tolist()
        ledger.fails(property, _finding(renderer.vocabulary, call, "carried", what, found, expected))


def _unstopped(call: Call) -> Ids:
    return call.drawn.ids if call.drawn.stop_id is None else call.drawn.ids[:-1]


def _place(ids: Ids, within: Ids) -> int:
    """Where `ids` begin there; -1 where they do not stand in a row."""
    starts = range(len(within) - len(ids) + 1)
    return next((at for at in starts if np.array_equal(within[at : at + len(ids)], ids)), -1)


def held_length(call: Call, before: Call) -> int:
    """How much of `before` the prompt of `call` must begin with: without the stop id where it leaves before that."""
    leaves = call.prompt.before_stop or _left_earlier(call, before)
    return len(before.ids) + len(before.drawn.ids) - int(leaves)


def _left_earlier(call: Call, before: Call) -> bool:
    """The stop id was split off by another branch, and this one goes on without it too."""
    if len(before.turn.nodes) < 2:
        return False
    stop = len(before.ids) + len(before.drawn.ids) - 1
    return len(call.ids) <= stop or int(call.ids[stop]) != int(before.drawn.ids[-1])


def _root_changed(renderer: Renderer, call: Call, before: Call) -> bool:
    now, then = renderer.taken(settings_of(call)), renderer.taken(settings_of(before))
    return any(
        (name == "thinking" and now.thinking != then.thinking) or (name == "effort" and now.effort != then.effort)
        for name in renderer.facts.root_switches
    )


def _check_samples(played: Played, ledger: Ledger, property: Property) -> None:
    """Every sampled id stands in a sample, trained, behind exactly the ids it was sampled behind."""
    result = linearize(played.session.tree, facts=played.session.facts)
    trained = sum(sample.trained for sample in result.samples)
    sampled = sum(len(call.drawn.ids) for call in played.calls)
    if trained != sampled:
        ledger.fails(property, Finding(played.play.name, -1, "samples", f"{trained} of {sampled} sampled ids train"))
    for call in played.calls:
        end = len(call.ids) + len(call.drawn.ids)
        rows = (sample.tokens[: end - 1] for sample in result.samples if len(sample.tokens) >= end - 1)
        journal = np.concatenate([call.ids, call.drawn.ids])[: end - 1]
        if any(np.array_equal(row, journal) for row in rows):
            ledger.passed(property)
        else:
            what = "no sample holds the draw behind the prompt it was sampled behind"
            ledger.fails(property, Finding(played.play.name, call.number, "samples", what))


# --- the stock rendering ----------------------------------------------------------------------------------------------


def check_splice(
    renderer: Renderer, stock: Stock, played: Played, ledger: Ledger, property: Property = "splice"
) -> None:
    """`played` with draws as the vocabulary segments them."""
    calls = played.calls
    for call in calls if len(calls) <= SHORT else [*calls[EVERY - 1 :: EVERY], calls[-1]]:
        if reason := _incomparable(renderer, call):
            ledger.skipped(property, reason)
            continue
        try:
            expected = stock.ids(_history(renderer, call), call.request.tools, renderer.taken(settings_of(call)))
        except TemplateError as error:
            ledger.skipped(property, f"the stock template refuses the conversation: {error.message}")
            continue
        differences = compare(renderer.vocabulary, call.ids, owners(renderer, call), expected)
        if not differences:
            ledger.passed(property)
        for difference in differences:
            _tell(renderer, call, difference, expected, ledger, property)


def _history(renderer: Renderer, call: Call) -> Sequence[Message]:
    """What stock is shown: answers as they were given where those are held, else as they came back; roles renamed as
    the rules rename them, in place."""
    messages = call.history if renderer.facts.extendable else call.request.messages
    notes = {note for one in chain(call) for note in one.prompt.notes}
    return _in_order([_renamed(message, at == 0, notes) for at, message in enumerate(messages)])


def _in_order(messages: Sequence[Message]) -> list[Message]:
    """Tool results in the order of the calls they answer, as they are matched."""
    order: dict[str, int] = {}
    found: list[Message] = []
    for results, run in groupby(messages, key=lambda message: message.role == "tool"):
        together = list(run)
        found += sorted(together, key=lambda m: order.get(m.call_id, len(order))) if results else together
        order = {call.id: rank for rank, call in enumerate(found[-1].calls)}
    return found


def _renamed(message: Message, first: bool, notes: Set[Note]) -> Message:
    role = "system" if message.role == "developer" and DEVELOPER in notes else message.role
    role = "user" if role == "system" and not first and LATE_SYSTEM in notes else role
    return msgspec.structs.replace(message, role=role)


def _incomparable(renderer: Renderer, call: Call) -> str:
    for note in (note for one in chain(call) for note in one.prompt.notes):
        if note.what in RULES and note not in (DEVELOPER, LATE_SYSTEM):
            return f"the stock template does not take the conversation as it is: {note.detail}"
    if reason := _calls_it_cannot_take(renderer, call):
        return reason
    if any(settings_of(one) != settings_of(call) for one in chain(call)):
        return "the stock template knows one setting of the switches for the whole conversation"
    texts = [part for message in call.history for part in (message.text, message.thinking)]
    texts += [asked.arguments for message in call.history for asked in message.calls]
    if any(isinstance(piece, int) for text in texts for piece in renderer.vocabulary.split(text)):
        return "a text spells a control token, which a stock tokenizer would take for one"
    return ""


def _calls_it_cannot_take(renderer: Renderer, call: Call) -> str:
    """Sampled calls are held as they are; the facts say what the template would not write of them."""
    style = renderer.facts.calls
    answers = [message for message in call.history if message.role == "assistant" and message.calls]
    if answers and not style.shown:
        return "the stock template writes no calls"
    if not style.parallel and any(len(message.calls) > 1 for message in answers):
        return "the stock template takes one call in a message"
    if not style.beside and any(message.text.strip() for message in answers):
        return "the stock template takes no text beside calls"
    return ""


def _tell(
    renderer: Renderer, call: Call, found: Difference, stock: Sequence[int], ledger: Ledger, property: Property
) -> None:
    around = slice(max(0, found.at - 8), found.at + 24)
    finding = Finding(
        call.play.name,
        call.number,
        found.kind,
        f"{found.kind} differs from the stock rendering",
        found.ours,
        found.stock,
        tuple(call.ids[around].tolist()),
        tuple(stock[around]),
        _declared(renderer, call, found),
    )
    if found.kept or found.kind == "reasoning":
        ledger.differs(property, finding)
    else:
        ledger.fails(property, finding)


def _declared(renderer: Renderer, call: Call, found: Difference) -> bool:
    """Whether the facts say so. What no template would write is kept as it was sampled: `history` says so."""
    meant = call.play.plain and all(one.whole for one in chain(call))
    if found.kind != "reasoning":
        return not meant or (found.kept and _rewritten(renderer, found))
    # With reasoning switched off the generation prompt holds an empty block, which histories need not have.
    said = found.ours
    for tag in (tag for thoughts in THOUGHTS for tag in (thoughts.lead, thoughts.open, thoughts.close) if tag):
        said = said.replace(tag, "")
    return not meant or not said.strip() or bool(renderer.facts.strips_reasoning)


def _rewritten(renderer: Renderer, found: Difference) -> bool:
    """Whether the facts name what the stock template writes otherwise: an end token, or more of an answer."""
    ends = {renderer.vocabulary.decode([id]) for id in renderer.stop_ids}
    if found.ours in ends and found.stock in renderer.vocabulary.controls:
        return "end" in renderer.facts.rewrites
    return bool({"answer", "calls", "text_beside_calls"} & set(renderer.facts.rewrites))


def chain(call: Call) -> Iterator[Call]:
    """The call and those it goes on from."""
    at: Call | None = call
    while at is not None:
        yield at
        at = at.before


def owners(renderer: Renderer, call: Call) -> Sequence[int]:
    """Whose each id of the prompt is."""
    found = np.zeros(len(call.ids), np.int8)
    if not renderer.facts.extendable:
        return found.tolist()
    after = call
    *_, first = chain(call)
    if first.carried is not None and (start := _place(_unstopped(first.carried), call.ids)) >= 0:
        _mark(renderer, found, first.carried, start, start + len(_unstopped(first.carried)))
    for one in list(chain(call))[1:]:
        _mark(renderer, found, one, len(one.ids), min(held_length(after, one), len(found)))
        after = one
    return found.tolist()


def _mark(renderer: Renderer, owners: npt.NDArray[np.int8], call: Call, start: int, end: int) -> None:
    """The draw of `call` stands from `start` to `end`, behind its generation prompt."""
    lead = start - len(call.prompt.lead)
    owners[lead:start] = Owner.LEAD
    owners[start:end] = Owner.SAMPLED
    owners[[lead + at for at in _reasoning(renderer, call) if lead + at < end]] = Owner.REASONING


def _reasoning(renderer: Renderer, call: Call) -> list[int]:
    """Places in the generation prompt and draw of `call` that hold reasoning, its tags and the white space behind."""
    vocabulary, lead = renderer.vocabulary, call.prompt.lead.tolist()
    ids = [*lead, *call.drawn.ids.tolist()]
    inside = _counted(renderer, call)
    tags = {vocabulary.controls.get(tag) for thoughts in THOUGHTS for tag in (thoughts.open, thoughts.close)}
    opened = [at for at, id in enumerate(lead) if id in tags]
    found = {*(range(opened[0], len(lead)) if opened else ()), *(len(lead) + at for at in inside)}
    for at in range(1, len(ids)):
        if at - 1 in found and not vocabulary.token_bytes(ids[at]).strip() and ids[at] not in vocabulary.control_ids:
            found.add(at)
    return sorted(found)


def _counted(renderer: Renderer, call: Call) -> list[int]:
    """The ids of the draw that the parser counts as spent on reasoning."""
    parser = renderer.parser(call.prompt.thinking_open, call.request.tools)
    found = []
    for at, id in enumerate(call.drawn.ids.tolist()):
        before = parser.reasoning_ids
        parser.feed([id])
        if parser.reasoning_ids > before:
            found.append(at)
    return found


# --- the end of a turn ------------------------------------------------------------------------------------------------


def check_ends(renderer: Renderer, played: Played, ledger: Ledger, property: Property = "end_of_turn") -> None:
    for call in played.calls:
        if doubled := _doubled(renderer, call.ids):
            what = "two end tokens in a row"
            ledger.fails(property, _finding(renderer.vocabulary, call, "doubled", what, doubled, []))
        elif call.before is not None and renderer.facts.extendable:
            _check_end(renderer, call, call.before, ledger, property)
        else:
            ledger.passed(property)


def _check_end(renderer: Renderer, call: Call, before: Call, ledger: Ledger, property: Property) -> None:
    held = held_length(call, before)
    tail = call.ids[held:].tolist()
    whole = held == len(before.ids) + len(before.drawn.ids)
    stopped = before.drawn.stop_id is not None
    if stopped and whole:
        ledger.passed(property)
    elif not tail or tail[0] not in renderer.vocabulary.control_ids:
        what = "what follows the turn does not begin with a control token"
        ledger.fails(property, _finding(renderer.vocabulary, call, "open", what, tail[:20], renderer.closing.tolist()))
    elif not stopped and not _closed(renderer, before, tail):
        what = "a turn that ended without its stop id is not closed as the template closes one"
        ledger.fails(property, _finding(renderer.vocabulary, call, "open", what, tail[:20], renderer.closing.tolist()))
    elif stopped and before.step.end != "other_stop":
        stop = renderer.vocabulary.decode([before.drawn.stop_id or 0])
        what = (
            f"the stop id {stop} is not what the template writes behind an answer: it trains, and no history holds it"
        )
        ledger.differs(property, Finding(call.play.name, call.number, "stop", what, declared=True))
    else:
        ledger.passed(property)


def _closed(renderer: Renderer, before: Call, tail: list[int]) -> bool:
    closing: list[int] = (renderer.call_closing if before.heard.calls else renderer.closing).tolist()
    return tail[: len(closing)] == list(closing)


def _doubled(renderer: Renderer, ids: Ids) -> list[int]:
    """An end token that stands twice, with nothing but white space between."""
    vocabulary, stops = renderer.vocabulary, set(renderer.stop_ids)
    last, at = -1, -1
    held = ids.tolist()
    for here in np.flatnonzero(np.isin(ids, list(stops))).tolist():
        between = held[at + 1 : here]
        if held[here] == last and not vocabulary.decode(between).strip() and len(between) < 3:
            found: list[int] = held[max(0, at - 4) : here + 3]
            return found
        last, at = held[here], here
    return []


def _finding(
    vocabulary: Vocabulary, call: Call, kind: str, what: str, found: Sequence[int], expected: Sequence[int]
) -> Finding:
    return Finding(
        call.play.name,
        call.number,
        kind,
        what,
        vocabulary.decode(found),
        vocabulary.decode(expected),
        tuple(found),
        tuple(expected),
    )


def check_stops(renderer: Renderer, ledger: Ledger) -> None:
    """What ends a turn is there, and is control."""
    plain = [id for id in renderer.stop_ids if id not in renderer.vocabulary.control_ids]
    if not renderer.stop_ids or plain:
        what = "no id ends a turn" if not renderer.stop_ids else f"ids {plain} end a turn and are ordinary text"
        ledger.fails("end_of_turn", Finding("stop ids", -1, "stop", what))
    else:
        ledger.passed("end_of_turn")
