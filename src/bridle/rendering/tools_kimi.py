"""Tool calls of Kimi K2: a section of calls, each its own id `functions.NAME:NUMBER` and its arguments.

The id is the model's: results name it, so it is kept beside the one that clients see (`ToolCall.said`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridle.messages import ToolCall
from bridle.rendering.calls import BLANKS, SectionForm, Tag, Tools, json_call, plain_name

ID = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?", re.DOTALL)


class KimiCalls(SectionForm):
    opens = ("<|tool_calls_section_begin|>",)
    closes = ("<|tool_calls_section_end|>",)
    begin = "<|tool_call_begin|>"
    separator = "<|tool_call_argument_begin|>"
    end = "<|tool_call_end|>"
    inner = (begin, separator, end)

    def call(self, head: str, tail: str, closed: bool, tools: Tools) -> ToolCall | None:
        said = head.strip(BLANKS)
        found = ID.fullmatch(said)
        return json_call(found[1], tail, closed, tools, said) if found and found[1] else None

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        pieces: list[str] = [Tag(self.opens[0])]
        for number, call in enumerate(calls):
            said = call.said or f"functions.{plain_name(call)}:{number}"
            pieces += [Tag(self.begin), said, Tag(self.separator), call.arguments, Tag(self.end)]
        return [[*pieces, Tag(self.closes[0])]]
