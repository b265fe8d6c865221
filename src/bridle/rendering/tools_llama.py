"""Tool calls of Llama: `{"name": …, "parameters": {…}}`, without a tag where the answer begins with it.

An answer may be an object for another reason, so one is a call only where tools are offered and it has arguments or the
name of one of them. Behind `<|python_tag|>` stands an object too, or, of a tool that Llama has built in,
`NAME.call(KEY="VALUE")`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import BLANKS, Block, Found, Tag, TaggedForm, Tools, is_json, parsed, status_of
from bridle.rendering.tools_json import Scan, scan_object, write_object

BUILT_IN = re.compile(r"\s*([A-Za-z_][\w.-]*?)\.call\((.*?)(\))?\s*", re.DOTALL)
PAIR = re.compile(r'(\w+)="(.*?)"(?:, (?=\w+=")|$)', re.DOTALL)
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
    any_call = False
    while begins := BETWEEN.match(source, at):
        scan = scan_object(source, begins.end())
        name = parsed(scan.value("name"))
        key = next((key for key in KEYS if key in scan.spans), "")
        if not isinstance(name, str) or not (key or name in tools):
            break
        any_call = True
        yield _call(name, scan, key, closed, tools)
        at = scan.end
    if any_call and source[at:].strip(BLANKS):
        yield Found(Text(source[at:]), at, len(source))


def _call(name: str, scan: Scan, key: str, closed: bool, tools: Tools) -> Found:
    # One that something follows was not cut.
    whole = closed or bool(scan.source[scan.end :].strip(BLANKS))
    arguments = scan.value(key)
    return Found(
        ToolCall("", name, arguments, status_of(name, arguments, tools, whole, scan.complete)), scan.start, scan.end
    )


def _built_in(block: Block, tools: Tools) -> list[Found]:
    found = BUILT_IN.fullmatch(block.text)
    if found is None:
        return []
    name, source, ended = found[1], found[2], found[3] is not None
    pairs = list(PAIR.finditer(source))
    if "".join(pair[0] for pair in pairs) == source:
        source = json.dumps({pair[1]: pair[2] for pair in pairs}, ensure_ascii=False)
    status = status_of(name, source, tools, block.closed or ended, ended and is_json(source))
    return [Found(ToolCall("", name, source, status), 0, len(block.text))]
