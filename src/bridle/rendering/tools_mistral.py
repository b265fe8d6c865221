"""Tool calls of Mistral behind `[TOOL_CALLS]`: a JSON list up to version 7 of its tokenizers, from version 11 on the
name and the arguments of each call behind tags. Nothing closes a call but the next one or the end of the answer.

A model before version 13 gives each call an id of nine characters, which its result names (`ToolCall.said`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from bridle.messages import ToolCall
from bridle.rendering.calls import BLANKS, Block, Found, Tag, TaggedForm, Tools, json_call, plain_name
from bridle.rendering.tools_json import read_list, write_object

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class ListedCalls(TaggedForm):
    """Version 3 to 7."""

    opens = (TOOL_CALLS,)
    closes = ()
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        return read_list(block.text, tools, block.closed)

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        written = (write_object(call, id=_id(call, number)) for number, call in enumerate(calls))
        return [[Tag(TOOL_CALLS), f"[{', '.join(written)}]"]]


class NumberedCalls(TaggedForm):
    """Version 11: name, id, arguments. A call without an id is one too."""

    opens = (TOOL_CALLS,)
    closes = ()
    inner: tuple[str, ...] = (CALL_ID, ARGS)
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        separator = next((tag for tag in block.tags if tag.tag == ARGS), None)
        if separator is None:
            return []
        head, tail = block.text[: separator.start], block.text[separator.end :]
        numbered = next((tag for tag in block.tags if tag.tag == CALL_ID and tag.end <= separator.start), None)
        name = head if numbered is None else head[: numbered.start]
        said = "" if numbered is None else head[numbered.end :].strip(BLANKS)
        if not (name := name.strip(BLANKS)):
            return []
        return [Found(json_call(name, tail, block.closed, tools, said), 0, len(block.text))]

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [
            [Tag(TOOL_CALLS), plain_name(call), Tag(CALL_ID), _id(call, number), Tag(ARGS), call.arguments]
            for number, call in enumerate(calls)
        ]


class NamedCalls(NumberedCalls):
    """From version 13 on: name, arguments."""

    inner = (ARGS,)

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(TOOL_CALLS), plain_name(call), Tag(ARGS), call.arguments] for call in calls]


def _id(call: ToolCall, number: int) -> str:
    """Where the call has none: one that looks sampled and is the same each time."""
    seed = f"{number} {call.name} {call.arguments}".encode(errors="surrogatepass")
    return call.said or blake2b(seed, digest_size=5).hexdigest()[:9]
