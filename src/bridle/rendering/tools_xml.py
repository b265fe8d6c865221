"""Tool calls whose parameters stand between tags that are plain text: Qwen3-Coder, Qwen3.5 and later, Nemotron 3.

`<function=NAME>`, then for each parameter `<parameter=KEY>`, its value on lines of its own, `</parameter>`, then
`</function>`. Values are not escaped, and may hold all of these. So a parameter ends at a closing tag behind which its
call goes on or ends, and where every parameter that its value opens at the beginning of a line is closed again: a value
may quote a whole call. One newline behind the opening tag and one before the closing tag are no part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import Block, Found, Tag, TaggedForm, Tools
from bridle.rendering.parameters import Member, bare, broken_call, make_call, members_of, refuse

NAME = r"[^<>\"\n]{1,256}"
"""Bounded, so that a text full of opening tags is read in one pass."""


class XmlCalls(TaggedForm):
    """One call in each block by custom; several are read all the same.

    `call` and `key`: what stands before and behind a name, and what ends what it opens. `line`: what stands between a
    value and its tags."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    before = 2
    call = ("<function=", ">", "</function>")
    key = ("<parameter=", ">", "</parameter>")
    line = "\n"

    def __init__(self) -> None:
        call, key = (f"{re.escape(before)}({NAME}){re.escape(behind)}" for before, behind, _ in (self.call, self.key))
        end_call, end_key = re.escape(self.call[2]), re.escape(self.key[2])
        self._call = re.compile(call)
        self._key = re.compile(rf"\s*{key}")
        self._call_end = re.compile(rf"\s*{end_call}")
        self._marks = re.compile(rf"^{key}|{end_key}", re.MULTILINE)
        self._goes_on = re.compile(rf"\s*(?:{key}|{end_call}\s*(?:{call}|\Z))")

    def read(self, block: Block, tools: Tools) -> list[Found]:
        source, at = block.text, 0
        found: list[Found] = []
        while opening := self._call.search(source, at):
            if source[at : opening.start()].strip():
                found.append(Found(Text(source[at : opening.start()]), at, opening.start()))
            members, at = self._members(source, opening.end())
            closed = block.closed or self._call.search(source, at) is not None
            if members is None:
                call = broken_call(opening[1], source[opening.end() :], closed)
            else:
                call = make_call(opening[1], members, tools, closed)
            found.append(Found(call, opening.start(), at))
        if found and source[at:].strip():
            found.append(Found(Text(source[at:]), at, len(source)))
        return found

    def _members(self, source: str, at: int) -> tuple[list[Member] | None, int]:
        """-> the parameters of the call that begins at `at`, None where they cannot be read, and where it ends."""
        members: list[Member] = []
        while opening := self._key.match(source, at):
            closing = self._closing(source, opening.end())
            if closing is None:
                return None, len(source)
            value = source[opening.end() : closing.start()]
            members.append(Member(opening[1], value.removeprefix(self.line).removesuffix(self.line)))
            at = closing.end()
        ending = self._call_end.match(source, at)
        return (members, ending.end()) if ending else (None, len(source))

    def _closing(self, source: str, at: int) -> re.Match[str] | None:
        """The tag that closes the parameter whose value begins at `at`."""
        depth = 0
        for mark in self._marks.finditer(source, at):
            if mark.group() != self.key[2]:
                depth += 1
            elif depth:
                depth -= 1
            elif self._goes_on.match(source, mark.end()):
                return mark
        return None

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(self.opens[0]), f"\n{self._written(call)}\n", Tag(self.closes[0])] for call in calls]

    def _written(self, call: ToolCall) -> str:
        members = [Member(key, bare(value)) for key, value in members_of(call)]
        values = [
            f"{self.key[0]}{key}{self.key[1]}{self.line}{text}{self.line}{self.key[2]}\n" for key, text in members
        ]
        written = f"{self.call[0]}{call.name}{self.call[1]}\n{''.join(values)}{self.call[2]}"
        opening = self._call.match(written)
        if (
            opening is None
            or opening[1] != call.name
            or self._members(written, opening.end()) != (members, len(written))
        ):
            raise refuse(call)
        return written
