"""How a model writes calls, for engines that hold an answer to them: found by writing some.

Arguments are written as a hole. What stands before and behind it is how a call of that tool is written, and two calls
and three show how several go together, so a new form of calls needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.tokens import CallSpelling, Pieces, ToolSpelling

Writer = Callable[[Message, bool], list[str | int]]
"""`Renderer.write`."""

Symbols = list[str | int]
"""Single characters and control ids."""

HOLE = '{"\ufdd0": "\ufdd0"}'
"""A noncharacter, so that no template holds it; an object, because some forms write members and no JSON."""

THOUGHT = "\ufdd1"
"""Another one, for reasoning."""


def spell_calls(write: Writer, tools: Sequence[Tool]) -> CallSpelling | None:
    """Of `tools`, one at least. None for a model whose calls are not known, or cannot be told apart by their tool."""
    offered = {tool.name: tool for tool in tools}.values()
    try:
        alone = [_alone(write, tool) for tool in offered]
        together = [_together(write, spelled) for spelled in alone]
    except TemplateError:
        return None
    if len({tool.begin for tool in alone}) < len(alone):
        return None
    first = together[0]
    if first is None or any(other is None or _around(other) != _around(first) for other in together):
        return _introduced(write, CallSpelling(tuple(alone)))
    parts = tuple(other.tools[0] for other in together if other is not None)
    return _introduced(write, CallSpelling(parts, *_around(first)))


def _alone(write: Writer, tool: Tool) -> ToolSpelling:
    """A call that is all of an answer."""
    _, filled = _calls(write, ToolCall("", tool.name, HOLE))
    at = _find(filled, list(HOLE))
    if at >= 0:
        begin, end = filled[:at], filled[at + len(HOLE) :]
        return ToolSpelling(tool.name, _pieces(begin), _pieces(end), {"type": "object", **tool.parameters})
    _, empty = _calls(write, ToolCall("", tool.name, "{}"))
    begin = _common(filled, empty)
    end = _common(filled[len(begin) :][::-1], empty[len(begin) :][::-1])[::-1]
    inner = filled[len(begin) : len(filled) - len(end)]
    ids = tuple(dict.fromkeys(symbol for symbol in inner if isinstance(symbol, int)))
    return ToolSpelling(tool.name, _pieces(begin), _pieces(end), None, ids)


def _together(write: Writer, tool: ToolSpelling) -> CallSpelling | None:
    """How calls of `tool` stand in a row: what every one begins and ends with is taken apart from what stands around
    them all. None where three are not written as two would have it (some forms number their calls), and where arguments
    that are text end in text that goes on behind them."""
    call = ToolCall("", tool.name, "{}" if tool.schema is None else HOLE)
    hole = [] if tool.schema is None else list(HOLE)
    before, behind = _symbols(tool.begin), _symbols(tool.end)
    (_, two), (_, three) = _calls(write, call, call), _calls(write, call, call, call)
    middle = two[len(before) + len(hole) : len(two) - len(hole) - len(behind)]
    begin = _common(before[::-1], middle[::-1])[::-1]
    rest = middle[: len(middle) - len(begin)]
    end = _common(rest, behind)
    between, close = rest[len(end) :], behind[len(end) :]
    if three != [*before, *hole, *middle, *hole, *middle, *hole, *behind]:
        return None
    if tool.schema is None and _ends_in_text(end) and any(map(_begins_with_text, (between, close))):
        return None
    return CallSpelling(
        (ToolSpelling(tool.name, _pieces(begin), _pieces(end), tool.schema, tool.inner),),
        _pieces(before[: len(before) - len(begin)]),
        _pieces(between),
        _pieces(close),
    )


def _around(spelled: CallSpelling) -> tuple[Pieces, Pieces | None, Pieces]:
    return spelled.open, spelled.between, spelled.close


def _introduced(write: Writer, spelling: CallSpelling) -> CallSpelling:
    """With what may stand before calls, and the ids that calls and reasoning begin with, where nothing else does:
    gpt-oss begins all it says alike."""
    call = ToolCall("", spelling.tools[0].name, HOLE)
    lead, calls = _calls(write, call)
    opened, closed = _around_thought(write, call, len(calls))
    text = _tried(write, Text("x"))
    firsts = {(*spelling.open, *tool.begin)[0] for tool in spelling.tools}
    mark = next(iter(firsts)) if len(firsts) == 1 else ""
    thinking = next((symbol for symbol in opened if isinstance(symbol, int)), "")
    return msgspec.structs.replace(
        spelling,
        lead=lead,
        thought=(_pieces(_from_id(_from_id(opened)[::-1])[::-1]), _pieces(_from_id(closed))) if opened else None,
        mark=mark if isinstance(mark, int) and mark not in (*opened, *closed, *text) else None,
        thinking=thinking if isinstance(thinking, int) and thinking not in (*text, *calls) else None,
    )


def _around_thought(write: Writer, call: ToolCall, length: int) -> tuple[Symbols, Symbols]:
    """What stands before and behind reasoning in front of a call of that length; nothing for a model without any."""
    written = _tried(write, Thinking(THOUGHT), call)
    at = _find(written, list(THOUGHT))
    return (written[:at], written[at + 1 : len(written) - length]) if at >= 0 else ([], [])


def _calls(write: Writer, *calls: ToolCall) -> tuple[str, Symbols]:
    """-> the blanks before the id with which they begin, where they begin with one, and the rest."""
    written = _written(write, *calls)
    rest = _from_id(written)
    return "".join(map(str, written[: len(written) - len(rest)])), rest


def _tried(write: Writer, *parts: Part) -> Symbols:
    """Nothing, where the family does not write such."""
    try:
        return _written(write, *parts)
    except TemplateError:
        return []


def _written(write: Writer, *parts: Part) -> Symbols:
    """Without the token that closes the answer."""
    return _symbols(write(Message("assistant", parts), False)[:-1])


def _from_id(symbols: Symbols) -> Symbols:
    """Without blanks that stand in front of an id."""
    blanks = len(list(takewhile(lambda symbol: isinstance(symbol, str) and symbol.isspace(), symbols)))
    return symbols[blanks:] if blanks < len(symbols) and isinstance(symbols[blanks], int) else symbols


def _begins_with_text(symbols: Symbols) -> bool:
    return isinstance(next(iter(symbols), 0), str)


def _ends_in_text(symbols: Symbols) -> bool:
    return not symbols or isinstance(symbols[-1], str)


def _symbols(pieces: Sequence[str | int]) -> Symbols:
    return [symbol for piece in pieces for symbol in ([piece] if isinstance(piece, int) else piece)]


def _pieces(symbols: Symbols) -> Pieces:
    pieces: list[str | int] = []
    for symbol in symbols:
        if isinstance(symbol, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += symbol
        else:
            pieces.append(symbol)
    return tuple(pieces)


def _common(first: Symbols, second: Symbols) -> Symbols:
    """What both begin with."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return [symbol for symbol, _ in pairs]


def _find(symbols: Symbols, wanted: Symbols) -> int:
    places = (at for at in range(len(symbols)) if symbols[at : at + len(wanted)] == wanted)
    return next(places, -1)
