"""Replies: is what the model says read as it was meant, however it arrives, wherever it is cut, whatever it spells?"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import takewhile

import orjson

from bridle.errors import BridleError
from bridle.messages import Message, Text, Thinking
from bridle.rendering.base import CallSpan, Event, Renderer, TextDelta, ThinkingDelta
from bridle.tokens import concatenate, ids_of
from bridle.verify.conversations import TOOLS
from bridle.verify.player import Call, Played
from bridle.verify.report import Finding, Ledger

CUTS = 24
"""Places at which a draw is cut."""

REPLACEMENT = "\ufffd"


def check_replies(renderer: Renderer, played: Played, ledger: Ledger, cuts: int = CUTS) -> None:
    for call in played.calls:
        if call.whole:
            _check_meant(renderer, call, ledger)
        try:
            _check_pieces(renderer, call, ledger)
            _check_cuts(renderer, call, ledger, cuts)
        except BridleError as error:
            ledger.fails("parse", Finding(call.play.name, call.number, "raised", error.message))


def _check_meant(renderer: Renderer, call: Call, ledger: Ledger) -> None:
    """The answer that was written is the answer that is read, in what Unicode form the vocabulary writes."""
    meant, heard = call.said, call.heard
    for kind, mine, theirs in (("thinking", heard.thinking, meant.thinking), ("text", heard.text, meant.text)):
        theirs = renderer.vocabulary.decode(renderer.vocabulary.encode(theirs).tolist())
        if mine != theirs:
            same = "".join(mine.split()) == "".join(theirs.split()) and not call.play.plain
            tell = ledger.differs if same else ledger.fails
            tell(
                "parse",
                Finding(call.play.name, call.number, kind, f"{kind} is read otherwise", mine, theirs, declared=same),
            )
            return
    if found := next(_wrong_calls(call), None):
        ledger.fails("parse", found)
    else:
        ledger.passed("parse")


def _wrong_calls(call: Call) -> Iterator[Finding]:
    meant, heard = call.said.calls, call.heard.calls
    names = {tool.name for tool in call.request.tools}
    if [one.name for one in heard] != [one.name for one in meant]:
        found, expected = (str([one.name for one in side]) for side in (heard, meant))
        yield Finding(call.play.name, call.number, "calls", "other calls are read", found, expected)
    for one, asked in zip(heard, meant, strict=False):
        if _value(one.arguments) != _value(asked.arguments):
            what = "arguments are read otherwise"
            yield Finding(call.play.name, call.number, "arguments", what, one.arguments, asked.arguments)
        expected = "ok" if asked.name in names else "unknown_tool"
        if one.status != expected:
            yield Finding(call.play.name, call.number, "status", "a call has another status", one.status, expected)


def _check_pieces(renderer: Renderer, call: Call, ledger: Ledger) -> None:
    """However the draw arrives: the same message, and events that say the beginning of it."""
    ids = call.drawn.ids.tolist()
    whole, events, spans = _parsed(renderer, call, [ids])
    singly, drops, others = _parsed(renderer, call, [[id] for id in ids])
    if (whole, spans) != (singly, others):
        what = "the message depends on the pieces in which its ids arrive"
        ledger.fails("parse", Finding(call.play.name, call.number, "pieces", what, f"{singly}", f"{whole}"))
        return
    for stream in (events, drops):
        thinking, text = _streamed(stream)
        if not _joined(whole, Thinking).startswith(thinking) or not _joined(whole, Text).startswith(text):
            what = "what was streamed is not what the message says"
            ledger.fails("parse", Finding(call.play.name, call.number, "stream", what, text, whole.text))
            return
        if not whole.calls and (thinking, text) != (_joined(whole, Thinking), _joined(whole, Text)):
            what = "the message says more than was streamed"
            ledger.fails("parse", Finding(call.play.name, call.number, "stream", what, text, whole.text))
            return
    ledger.passed("parse")


def _check_cuts(renderer: Renderer, call: Call, ledger: Ledger, cuts: int) -> None:
    """Cut anywhere: what is there says the beginning of the whole, and no call that was cut passes for a whole one."""
    ids = call.drawn.ids.tolist()
    whole, _, _ = _parsed(renderer, call, [ids])
    headed = _headed(renderer, ids, whole)
    step = max(1, len(ids) // cuts) if cuts else len(ids) + 1
    for length in range(1, len(ids), step):
        message, _, spans = _parsed(renderer, call, [ids[:length]])
        if any(not span.name for span in spans):
            continue  # The block is text until its name is there.
        if found := _cut_wrong(renderer, call, message, whole, length):
            ledger.fails("parse", found)
            return
        if not headed and _lost(renderer, ids[:length], message):
            what = f"text is lost, cut at id {length}"
            said = renderer.vocabulary.decode(ids[:length])
            ledger.fails("parse", Finding(call.play.name, call.number, "lost", what, message.text, said))
            return
    ledger.passed("parse")


def _cut_wrong(renderer: Renderer, call: Call, message: Message, whole: Message, length: int) -> Finding | None:
    """What a call or a header begins with is text as long as it says no more."""
    source = renderer.vocabulary.decode(call.drawn.ids[:length].tolist())
    for kind, mine, theirs in (("thinking", message.thinking, whole.thinking), ("text", message.text, whole.text)):
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False)))
        if mine[same:].strip() not in source:
            what = f"cut at id {length} of {len(call.drawn.ids)}, {kind} says something else"
            return Finding(call.play.name, call.number, kind, what, mine, theirs)
    for at, one in enumerate(message.calls):
        finished = at < len(whole.calls) and _value(one.arguments) == _value(whole.calls[at].arguments)
        if one.status in ("ok", "unknown_tool") and not finished:
            what = f"cut at id {length} of {len(call.drawn.ids)}, an unfinished call passes for a whole one"
            return Finding(call.play.name, call.number, "status", what, one.arguments)
    return None


def _headed(renderer: Renderer, ids: Sequence[int], whole: Message) -> bool:
    """Whether a draw begins with text that says what its message is for, and is no part of it."""
    text = list(takewhile(lambda id: id not in renderer.vocabulary.control_ids, ids))
    said = "".join(renderer.vocabulary.decode(text).split())
    goes_on = len(text) < len(ids) and ids[len(text)] not in renderer.stop_ids
    return goes_on and not "".join((whole.thinking + whole.text).split()).startswith(said)


def _lost(renderer: Renderer, ids: Sequence[int], message: Message) -> bool:
    """Of a draw of text alone nothing may be missing."""
    if set(ids) & renderer.vocabulary.control_ids or message.calls:
        return False
    said = "".join(renderer.vocabulary.decode(ids).split()).rstrip(REPLACEMENT)
    return "".join((message.thinking + message.text).split()).rstrip(REPLACEMENT) != said


def check_spelled_tags(renderer: Renderer, ledger: Ledger, most: int = 400) -> None:
    """Ordinary text that spells a control token is text in an answer too."""
    if _read(renderer, "a b") != Message("assistant", (Text("a b"),)):
        ledger.skipped("parse", "an answer is no plain text without a header of control tokens")
        return
    for control in list(renderer.vocabulary.controls)[:most]:
        for said in (f"a {control} b", f"{control}", f'{control}{{"name": "bash"}}{control}'):
            heard = _read(renderer, said)
            if heard.calls or unicodedata.normalize("NFC", heard.text) != unicodedata.normalize("NFC", said):
                what = f"text that spells {control!r} is taken for it"
                ledger.fails("parse", Finding("spelled tags", -1, "tag", what, heard.text, said))
                return
    ledger.passed("parse")


def _read(renderer: Renderer, text: str) -> Message:
    parser = renderer.parser(False, TOOLS)
    parser.feed(concatenate([renderer.vocabulary.encode(text), ids_of(renderer.stop_ids[:1])]).tolist())
    return parser.finish()[0]


def check_noise(renderer: Renderer, ledger: Ledger, seed: int, draws: int) -> None:
    """Tags in any order, doubled, unclosed: read somehow, the same however they arrive, and nothing raises."""
    rng = random.Random(seed)
    controls = sorted(renderer.vocabulary.control_ids)[:200]
    words = [*renderer.vocabulary.encode('text {"name": "bash", "arguments": {}}\n<a>b</a>').tolist()]
    for number in range(draws):
        ids = [rng.choice(controls if rng.random() < 0.4 else words) for _ in range(rng.randint(1, 30))]
        try:
            both = [_finish(renderer, pieces) for pieces in ([ids], [[id] for id in ids])]
        except Exception as error:  # noqa: BLE001 - a parser that raises anything at all loses the turn
            ledger.fails(
                "parse", Finding("noise", number, "raised", f"{type(error).__name__}: {error}", found_ids=tuple(ids))
            )
            return
        if both[0] != both[1]:
            what = "the message depends on the pieces in which its ids arrive"
            ledger.fails("parse", Finding("noise", number, "pieces", what, found_ids=tuple(ids)))
            return
    ledger.passed("parse", draws)


def _finish(renderer: Renderer, pieces: Sequence[Sequence[int]]) -> Message:
    parser = renderer.parser(False, TOOLS)
    for piece in pieces:
        parser.feed(piece)
    return parser.finish()[0]


def _parsed(
    renderer: Renderer, call: Call, pieces: Sequence[Sequence[int]]
) -> tuple[Message, list[Event], tuple[CallSpan, ...]]:
    parser = renderer.parser(call.prompt.thinking_open, call.request.tools)
    events = [event for piece in pieces for event in parser.feed(piece)]
    message, rest = parser.finish()
    return message, [*events, *rest], parser.calls


def _streamed(events: Sequence[Event]) -> tuple[str, str]:
    thinking = "".join(event.text for event in events if isinstance(event, ThinkingDelta))
    return thinking, "".join(event.text for event in events if isinstance(event, TextDelta))


def _joined(message: Message, kind: type[Text] | type[Thinking]) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, kind))


def _value(arguments: str) -> object:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
