"""What every form of tool calls fulfils, and what the forms share. A form is how a model family spells its calls.

A draw is cut into blocks at the form's control tokens (`reply`); a form reads one block and writes calls. Arguments
that a family spells as JSON are the slice of the sampled text in which they stand, never parsed and written anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol as Contract

import orjson

from bridle.errors import TemplateError
from bridle.messages import CallStatus, Text, Tool, ToolCall

Tools = Mapping[str, Tool]
"""What the request offers, by name."""

BLANKS = " \t\r\n"
"""What JSON may have around it."""


class Tag(str):
    """A control token among text: its spelling."""


class Placed(NamedTuple):
    """A control token and where it stands: characters of `Block.text`."""

    tag: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """What was sampled between the tags of one block, in order. `closed`: its closing tag came, or, of a form that has
    none, the end of the answer."""

    pieces: tuple[str, ...]
    closed: bool

    @cached_property
    def text(self) -> str:
        """With control tokens spelled out."""
        return "".join(self.pieces)

    @cached_property
    def tags(self) -> tuple[Placed, ...]:
        ends = accumulate(len(piece) for piece in self.pieces)
        placed = zip(self.pieces, ends, strict=True)
        return tuple(Placed(piece, end - len(piece), end) for piece, end in placed if isinstance(piece, Tag))


class Found(NamedTuple):
    """A call, or text that stands outside of one, and where: characters of `Block.text`. `unnamed`: the text is a call
    whose name cannot be read, beside others that can."""

    part: ToolCall | Text
    start: int
    end: int
    unnamed: bool = False


class CallForm(Contract):
    """`opens`: tags that begin a block; `closes`: those that end it, none where it goes on to the end of the reply.
    `inner`: other tags it needs. A vocabulary that lacks one of all these as a token has no calls of this form.

    `bare`: a text that begins a block where an answer begins with it, without any tag; `amid`: anywhere in an answer.
    `before`, `between` and `after`: newlines that stand before a block that follows text, between two and behind one:
    they are scaffold, and no part of the message. `alone`: those that are written where no text stands before."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    inner: tuple[str, ...]
    bare: str
    amid: bool
    before: int
    alone: int
    between: int
    after: int

    def read(self, block: Block, tools: Tools) -> list[Found]:
        """In order. Empty where not even one name can be read: then the whole block is text."""
        ...

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        """-> the blocks, their tags included. One that does not fit the form (arguments that are no object, where they
        are no JSON there) raises TemplateError."""
        ...


class TaggedForm:
    """What a form is unless it says otherwise: blocks between one pair of tags on lines of their own."""

    inner: tuple[str, ...] = ()
    bare: str = ""
    amid: bool = False
    before: int = 1
    alone: int = 0
    between: int = 1
    after: int = 1


class SectionForm(TaggedForm):
    """A form whose block is a section of calls, each between tags of its own: `begin`, what names it, `separator`, its
    arguments as JSON, `end`. Blanks between calls are scaffold, other text there is text. A call that its own tag
    closes is whole, whether or not the section is."""

    begin: str
    separator: str
    end: str
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        found = list(self._found(block, tools))
        return found if any(isinstance(one.part, ToolCall) for one in found) else []

    def call(self, head: str, tail: str, closed: bool, tools: Tools) -> ToolCall | None:
        """`head`: what stands before the separator, `tail`: behind it. None where no name can be read."""
        raise NotImplementedError

    def _found(self, block: Block, tools: Tools) -> Iterator[Found]:
        at, start, separator = 0, -1, None
        for tag in (*block.tags, Placed(self.begin, len(block.text), len(block.text))):
            if tag.tag == self.separator and start >= 0 and separator is None:
                separator = tag
            elif tag.tag == self.begin or (tag.tag == self.end and start >= 0):
                end = tag.end if tag.tag == self.end else tag.start
                if start >= 0:
                    yield self._call(block, start, separator, (tag.start, end), tools)
                elif text := block.text[at:end].strip(BLANKS) and block.text[at:end]:
                    yield Found(Text(text), at, end)
                at, start, separator = end, tag.start if tag.tag == self.begin else -1, None

    def _call(self, block: Block, start: int, separator: Placed | None, ends: tuple[int, int], tools: Tools) -> Found:
        body, end = ends
        call = None
        if separator is not None:
            head, tail = block.text[start + len(self.begin) : separator.start], block.text[separator.end : body]
            call = self.call(head, tail, body < end, tools)
        return Found(call or Text(block.text[start:end]), start, end, unnamed=call is None)


def status_of(name: str, arguments: str, tools: Tools, closed: bool = True, complete: bool = True) -> CallStatus:
    """What is wrong with a call, the gravest first. `complete`: its spelling is well-formed as far as it goes."""
    if not closed:
        return "unclosed"
    if not complete:
        return "invalid_json"
    if not isinstance(parsed(arguments), dict):
        return "malformed"
    return "ok" if name in tools else "unknown_tool"


def json_call(name: str, arguments: str, closed: bool, tools: Tools, said: str = "") -> ToolCall:
    """A call whose arguments are all of a text, without the blanks around it."""
    arguments = arguments.strip(BLANKS)
    status = status_of(name, arguments, tools, closed, complete=not arguments or is_json(arguments))
    return ToolCall("", name, arguments, status, said)


def plain_name(call: ToolCall) -> str:
    """The name of a call, where nothing is put around it. Raises TemplateError for one that could not be read back."""
    if not call.name or call.name != call.name.strip() or "\n" in call.name:
        raise TemplateError(f"this model cannot call {call.name!r}: it writes names on a line of their own")
    return call.name


def is_json(source: str) -> bool:
    return parsed(source) is not None or source.strip(BLANKS) == "null"


def parsed(source: str) -> Any:
    """JSON, strictly: no NaN, no lone surrogates, no endless nesting. None where it does not parse."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:
        return None
