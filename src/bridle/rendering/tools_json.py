"""Tool calls in the Hermes and Qwen form: `{"name": …, "arguments": {…}}` on its own lines between `<tool_call>` tags.

Arguments are the slice of the sampled text in which they stand, never a parsed and re-serialized value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from bridle.messages import ToolCall
from bridle.rendering.calls import Block, Found, Tag, TaggedForm, Tools, parsed, status_of

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
        status = status_of(name, arguments, tools, block.closed, scan.complete)
        return [Found(ToolCall("", name, arguments, status), 0, len(block.text))]

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        """`arguments` go in as they are."""
        return [[Tag(self.opens[0]), f"\n{_object(call)}\n", Tag(self.closes[0])] for call in calls]


def _object(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


class Scan(NamedTuple):
    """Where the members of an object stand in `source`. Of a broken object, what was read before it breaks; a value
    that does not end runs to the end of `source`."""

    source: str
    spans: dict[str, tuple[int, int]]
    complete: bool

    def value(self, key: str) -> str:
        start, end = self.spans.get(key, (0, 0))
        return self.source[start:end]


def scan_object(source: str) -> Scan:
    spans: dict[str, tuple[int, int]] = {}
    key, start, at = "", -1, 0
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
        complete = _skip(source, _expect(source, at, "}")) == len(source)
    except (ValueError, RecursionError):
        # Sampled text nests as deep as it likes; the scanner recurses over it.
        if start >= 0 and key != "name":
            spans[key] = (start, len(source))
        return Scan(source, spans, complete=False)
    return Scan(source, spans, complete)


def _skip(source: str, at: int) -> int:
    found = SPACE.match(source, at)
    return found.end() if found else at


def _expect(source: str, at: int, character: str) -> int:
    at = _skip(source, at)
    if source[at : at + 1] != character:
        raise ValueError(f"expected {character} at {at}")
    return at + 1
