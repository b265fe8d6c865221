"""Tool calls of Llama: `{"name": …, "parameters": {…}}`, without a tag where the answer begins with it.

An answer may be an object for another reason, so one is a call only where tools are offered and it has arguments or the
name of one of them. Behind `<|python_tag|>` stands an object too, or, of a tool that Llama has built in,
`NAME.call(KEY="VALUE")`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import BLANKS, Block, Found, Tag, TaggedForm, Tools, is_json, parsed, status_of
from bridle.rendering.parameters import call_status, quoted
from bridle.rendering.tools_json import Scan, scan_object, write_object

BUILT_IN = re.compile(r"\s*([A-Za-z_][\w.-]*)\.call\(")
KEY = re.compile(r'(\w+)="')
VALUE_END = re.compile(r'"(?:, (?=\w+=")|\Z)')
"""Values stand as they are: the template escapes nothing."""
BETWEEN = re.compile(r"[\s;,]*(?=\{)")
KEYS = ("parameters", "arguments")


class LlamaCalls(TaggedForm):
    """Llama 3. Several calls stand in a row."""

    opens = ("<|python_tag|>",)
    closes = ()
    bare = "{"
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        if not tools:
            return []
        return _built_in(block, tools) or list(_objects(block.text, 0, block.closed, tools))

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        """Without the tag."""
        return [["; ".join(write_object(call, KEYS[0]) for call in calls)]]


class Llama4Calls(TaggedForm):
    """Llama 4: what it says beside its calls stands in tags before them."""

    opens = ("<|python_start|>",)
    closes = ()
    inner = ("<|python_end|>",)
    bare = "{"
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        if not tools:
            return []
        end = next((tag for tag in block.tags if tag.tag == self.inner[0]), None)
        found = list(_objects(block.text, end.end if end else 0, block.closed, tools))
        if end and found and block.text[: end.start]:
            return [Found(Text(block.text[: end.start]), 0, end.start), *found]
        return found

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        written = "".join(write_object(call, KEYS[0]) for call in calls)
        return [[Tag(self.opens[0]), Tag(self.inner[0]), written]]


def _objects(source: str, at: int, closed: bool, tools: Tools) -> Iterator[Found]:
    """Calls from `at` on, and the text behind them. Nothing where the first object is no call."""
    any_call, last = False, len(source.rstrip(BLANKS))
    while begins := BETWEEN.match(source, at):
        scan = scan_object(source, begins.end())
        name = parsed(scan.value("name"))
        key = next((key for key in KEYS if key in scan.spans), "")
        if not isinstance(name, str) or not (key or name in tools):
            break
        any_call = True
        # One that something follows was not cut.
        yield _call(name, scan, key, closed or scan.end < last, tools)
        at = scan.end
    if any_call and at < last:
        yield Found(Text(source[at:]), at, len(source))


def _call(name: str, scan: Scan, key: str, closed: bool, tools: Tools) -> Found:
    arguments = scan.value(key)
    status = status_of(name, arguments, tools, closed, scan.complete)
    return Found(ToolCall("", name, arguments, status), scan.start, scan.end)


def _built_in(block: Block, tools: Tools) -> list[Found]:
    head = BUILT_IN.match(block.text)
    if head is None:
        return []
    name, source = head[1], block.text[head.end() :].rstrip()
    ended = source.endswith(")")
    source = source.removesuffix(")")
    pairs = _pairs(source)
    if pairs is None:
        status = status_of(name, source, tools, block.closed or ended, ended and is_json(source))
    else:
        source = f"{{{', '.join(f'{quoted(key)}: {quoted(value)}' for key, value in pairs)}}}"
        status = call_status(name, [key for key, _ in pairs], ended, tools, block.closed or ended)
    return [Found(ToolCall("", name, source, status), 0, len(block.text))]


def _pairs(source: str) -> list[tuple[str, str]] | None:
    """None where `source` is something else than pairs."""
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(source):
        key = KEY.match(source, at)
        end = VALUE_END.search(source, key.end()) if key else None
        if key is None or end is None:
            return None
        pairs.append((key[1], source[key.end() : end.start()]))
        at = end.end()
    return pairs
