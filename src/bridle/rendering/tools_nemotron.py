"""Tool calls of NVIDIA's models before Nemotron 3: a JSON list between `<TOOLCALL>` tags.

In some vocabularies the tags are tokens, in others (those of Llama) text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import BLANKS, Block, Found, Tag, TaggedForm, Tools
from bridle.rendering.tools_json import list_calls, read_list, scan_list, write_object

OPEN, CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronCalls(TaggedForm):
    opens = (OPEN,)
    closes = (CLOSE,)
    before = 2
    between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        return read_list(block.text, tools, block.closed)

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(OPEN), _list(calls), Tag(CLOSE)]]


class SpelledNemotronCalls(TaggedForm):
    """The tags are text: what spells them is a call."""

    opens = ()
    closes = ()
    bare = OPEN
    amid = True
    before = 2
    between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        found = list(_spelled(block.text, tools))
        return found if any(isinstance(one.part, ToolCall) for one in found) else []

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[OPEN, _list(calls), CLOSE]]


def _spelled(source: str, tools: Tools) -> Iterator[Found]:
    at = 0
    opened = source.find(OPEN)
    while opened >= 0:
        scan = scan_list(source, opened + len(OPEN))
        closing = source.find(CLOSE, scan.end)
        if not (scan.complete and source[scan.end : max(closing, 0)].strip(BLANKS) == "" and closing >= 0):
            closing = source.find(CLOSE, opened)
            scan = scan_list(source[: closing if closing >= 0 else None], opened + len(OPEN))
        if scan.objects:
            yield from _text(source, at, opened, above=2)
            yield from list_calls(scan, tools, closed=closing >= 0)
            at = closing + len(CLOSE) if closing >= 0 else scan.end
        opened = source.find(OPEN, max(at, opened + 1))
    yield from _text(source, at, len(source))


def _text(source: str, start: int, end: int, above: int = 0) -> Iterator[Found]:
    """`above`: so many newlines at its end belong to what follows."""
    text = source[start:end]
    if text.strip(BLANKS):
        kept = len(text) - min(above, len(text) - len(text.rstrip("\n")))
        yield Found(Text(text[:kept]), start, end)


def _list(calls: Sequence[ToolCall]) -> str:
    return f"[{', '.join(map(write_object, calls))}]"
