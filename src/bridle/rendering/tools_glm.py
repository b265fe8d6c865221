"""Tool calls of GLM: the tool's name, then `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>` by turns.

These tags are control tokens: a value ends at the token, whatever it spells. GLM-4.5 and 4.6 put a newline behind
the name and behind each tag that closes, GLM-4.7 and 5 none: either form reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridle.messages import ToolCall
from bridle.rendering.calls import Block, Found, Tag, TaggedForm, Tools
from bridle.rendering.parameters import Member, bare, broken_call, cut, make_call, members_of, refuse

KEY, KEY_END, VALUE, VALUE_END = INNER = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


class GlmCalls(TaggedForm):
    """One call in each block. `line`: what ends the name and stands behind each of the inner tags that close."""

    opens = ("<tool_call>",)
    closes = ("</tool_call>",)
    inner = INNER
    line = "\n"

    def read(self, block: Block, tools: Tools) -> list[Found]:
        name, *rest = cut(block, INNER)
        ended = rest or block.closed or name[-1:].isspace()
        if len(name.split()) != 1 or not ended:
            return []
        members = _members(rest)
        if members is None:
            call = broken_call(name.strip(), "".join(rest), block.closed)
        else:
            call = make_call(name.strip(), members, tools, block.closed)
        return [Found(call, 0, len(block.text))]

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(self.opens[0]), *self._written(call), Tag(self.closes[0])] for call in calls]

    def _written(self, call: ToolCall) -> Iterator[str]:
        if call.name.split() != [call.name]:
            raise refuse(call)
        yield f"{call.name}{self.line}"
        for key, value in members_of(call):
            yield from (Tag(KEY), key, Tag(KEY_END), self.line, Tag(VALUE), bare(value), Tag(VALUE_END), self.line)


class CompactGlmCalls(GlmCalls):
    """As GLM-4.7 and 5 write them."""

    before = between = after = 0
    line = ""


def _members(rest: Sequence[str]) -> list[Member] | None:
    """`rest`: what stands behind the name, as `cut` has it. None where the tags do not come by turns."""
    tags, texts = rest[::2], rest[1::2]
    count, left = divmod(len(tags), len(INNER))
    if left or list(tags) != [*INNER] * count or any(text.strip() for text in texts[1::2]):
        return None
    return [Member(*pair) for pair in zip(texts[::4], texts[2::4], strict=True)]
