"""Tool calls in the Hermes and Qwen form: `{"name": …, "arguments": {…}}` on its own lines between `<tool_call>` tags.

Arguments are the slice of the sampled text in which they stand, never a parsed and re-serialized value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Any, NamedTuple

import orjson

from bridle.messages import CallStatus, ToolCall

SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


class JsonCalls:
    """Reads and writes the text between the tags."""

    open_tag = "<tool_call>"
    close_tag = "</tool_call>"

    def read(self, source: str, closed: bool, known: Set[str]) -> ToolCall | None:
        """-> the call, with a status that says what is wrong with it; None when not even its name can be read."""
        scan = _scan_object(source)
        name = _parsed(scan.value("name"))
        if not isinstance(name, str):
            return None
        arguments = scan.value("arguments")
        return ToolCall("", name, arguments, _status(scan.complete, arguments, closed, name in known))

    def write(self, call: ToolCall) -> str:
        """`arguments` go in as they are."""
        return f'\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}\n'


def _status(complete: bool, arguments: str, closed: bool, known: bool) -> CallStatus:
    if not closed:
        return "unclosed"
    if not complete:
        return "invalid_json"
    if not isinstance(_parsed(arguments), dict):
        return "malformed"
    return "ok" if known else "unknown_tool"


def _parsed(source: str) -> Any:
    """Strictly: no NaN, no lone surrogates, no endless nesting. None where it does not parse."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:
        return None


class Scan(NamedTuple):
    """Where the members of an object stand in `source`. Of a broken object, what was read before it breaks; a value
    that does not end runs to the end of `source`."""

    source: str
    spans: dict[str, tuple[int, int]]
    complete: bool

    def value(self, key: str) -> str:
        start, end = self.spans.get(key, (0, 0))
        return self.source[start:end]


def _scan_object(source: str) -> Scan:
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
