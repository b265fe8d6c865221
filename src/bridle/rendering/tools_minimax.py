"""Tool calls of MiniMax M2: `<invoke name="NAME">` with `<parameter name="KEY">VALUE</parameter>` lines, one for each
call, all of them between two tags. A value begins and ends at its tags: newlines there are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridle.messages import ToolCall
from bridle.rendering.calls import Tag
from bridle.rendering.tools_xml import XmlCalls


class MinimaxCalls(XmlCalls):
    """All calls in one block."""

    opens = ("<minimax:tool_call>",)
    closes = ("</minimax:tool_call>",)
    before = 1
    call = ('<invoke name="', '">', "</invoke>")
    key = ('<parameter name="', '">', "</parameter>")
    line = ""

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        written = "".join(f"{self._written(call)}\n" for call in calls)
        return [[Tag(self.opens[0]), f"\n{written}", Tag(self.closes[0])]]
