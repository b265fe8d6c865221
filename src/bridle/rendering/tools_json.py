"""Tool calls in the Hermes and Qwen form: `{"name": …, "arguments": {…}}` on its own lines between `<tool_call>` tags;
and what every form of JSON objects needs.

Arguments are the slice of the sampled text in which they stand, never a parsed and re-serialized value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import BLANKS, Block, Found, Tag, TaggedForm, Tools, parsed, status_of

SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


class JsonCalls(TaggedForm):
    """One call in each block."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)

    def read(self, block: Block, tools: Tools) -> list[Found]:
        scan = scan_object(block.text)
        name = parsed(scan.value("name"))
        if not isinstance(name, str):
            return []
        arguments = scan.value("arguments")
        complete = scan.complete and not block.text[scan.end :].strip(BLANKS)
        status = status_of(name, arguments, tools, block.closed, complete)
        return [Found(ToolCall("", name, arguments, status), 0, len(block.text))]

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        """`arguments` go in as they are."""
        return [[Tag(self.opens[0]), f"\n{write_object(call)}\n", Tag(self.closes[0])] for call in calls]


def write_object(call: ToolCall, key: str = "arguments", id: str = "") -> str:
    """`key`: under which the arguments stand."""
    last = f', "id": {json.dumps(id, ensure_ascii=False)}' if id else ""
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{key}": {call.arguments}{last}}}'


# --- lists of calls ---------------------------------------------------------------------------------------------------


def read_list(source: str, tools: Tools, closed: bool) -> list[Found]:
    """The calls of a JSON list, as Mistral and Nemotron write them, and what stands behind it. `closed`: what closes
    the list in the draw came."""
    scan = scan_list(source)
    rest = Found(Text(source[scan.end :]), scan.end, len(source), unnamed=not scan.complete)
    behind = [rest] if source[scan.end :].strip(BLANKS) else []
    found = [*list_calls(scan, tools, closed or bool(scan.complete and behind)), *behind]
    return found if any(isinstance(one.part, ToolCall) for one in found) else []


class ListScan(NamedTuple):
    """The objects of a list, each with whether the list is one up to what follows it, and where it ends. Of a broken
    list, what was read before it breaks."""

    source: str
    objects: list[tuple[Scan, bool]]
    complete: bool
    end: int


def scan_list(source: str, at: int = 0) -> ListScan:
    """The list that begins at `at`."""
    objects: list[tuple[Scan, bool]] = []
    at = _skip(source, at)
    listed = source.startswith("[", at)
    at = _skip(source, at + listed)
    while source.startswith("{", at):
        scan = scan_object(source, at)
        behind = _skip(source, scan.end)
        following = _skip(source, behind + 1)
        last = source.startswith("]", behind)
        more = source.startswith(",", behind) and source.startswith("{", following)
        whole = listed and scan.complete and (last or more)
        objects.append((scan, whole))
        if not whole or last:
            return ListScan(source, objects, whole, behind + 1 if whole else scan.end)
        at = following
    return ListScan(source, objects, complete=False, end=at)


def list_calls(scan: ListScan, tools: Tools, closed: bool) -> Iterator[Found]:
    for number, (item, whole) in enumerate(scan.objects):
        text = scan.source[item.start : item.end]
        name, said = parsed(item.value("name")), parsed(item.value("id"))
        if not isinstance(name, str):
            yield Found(Text(text), item.start, item.end, unnamed=True)
            continue
        arguments = item.value("arguments")
        status = status_of(name, arguments, tools, closed or number < len(scan.objects) - 1, whole)
        call = ToolCall("", name, arguments, status, said if isinstance(said, str) else "")
        yield Found(call, item.start, item.end)


# --- scanning ---------------------------------------------------------------------------------------------------------


class Scan(NamedTuple):
    """Where the members of an object stand in `source`, and where it ends. Of a broken object, what was read before it
    breaks; a value that does not end runs to the end of `source`."""

    source: str
    spans: dict[str, tuple[int, int]]
    complete: bool
    start: int
    end: int

    def value(self, key: str) -> str:
        start, end = self.spans.get(key, (0, 0))
        return self.source[start:end]


def scan_object(source: str, at: int = 0) -> Scan:
    """The object that begins at `at`."""
    spans: dict[str, tuple[int, int]] = {}
    key, first, start = "", at, -1
    try:
        at = _expect(source, at, "{")
        while True:
            key, at = DECODER.raw_decode(source, _expect(source, at, '"') - 1)
            start = at = _skip(source, _expect(source, at, ":"))
            _, at = DECODER.raw_decode(source, at)
            spans[key], start = (start, at), -1
            at = _skip(source, at)
            if source[at : at + 1] != ",":
                break
            at += 1
        at = _expect(source, at, "}")
    except (ValueError, RecursionError):
        # Sampled text nests as deep as it likes; the scanner recurses over it.
        if start >= 0 and key != "name":
            spans[key] = (start, len(source))
        return Scan(source, spans, complete=False, start=first, end=len(source))
    return Scan(source, spans, complete=True, start=first, end=at)


def _skip(source: str, at: int) -> int:
    found = SPACE.match(source, at)
    return found.end() if found else at


def _expect(source: str, at: int, character: str) -> int:
    at = _skip(source, at)
    if source[at : at + 1] != character:
        raise ValueError(f"expected {character} at {at}")
    return at + 1
