"""What every form of tool calls fulfils, and what the forms share. A form is how a model family spells its calls.

A draw is cut into blocks at the form's control tokens (`reply`); a form reads one block and writes calls. Arguments
that a family spells as JSON are the slice of the sampled text in which they stand, never parsed and written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol as Contract

import orjson

from bridle.messages import CallStatus, Text, Tool, ToolCall

Tools = Mapping[str, Tool]
"""What the request offers, by name."""


class Tag(str):
    """A control token among text: its spelling."""


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


class Found(NamedTuple):
    """A call, or text that stands outside of one, and where: characters of `Block.text`."""

    part: ToolCall | Text
    start: int
    end: int


class CallForm(Contract):
    """`opens`: tags that begin a block; `closes`: those that end it, none where it goes on to the end of the reply.
    `inner`: other tags it needs. A vocabulary that lacks one of all these as a token has no calls of this form.

    `bare`: a text that begins a block where an answer begins with it, without any tag. `before`, `between` and `after`:
    newlines that stand before a block, between two and behind one: they are scaffold, and no part of the message."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    inner: tuple[str, ...]
    bare: str
    before: int
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
    before: int = 1
    between: int = 1
    after: int = 1


def status_of(name: str, arguments: str, tools: Tools, closed: bool = True, complete: bool = True) -> CallStatus:
    """What is wrong with a call, the gravest first. `complete`: its spelling is well-formed as far as it goes."""
    if not closed:
        return "unclosed"
    if not complete:
        return "invalid_json"
    if not isinstance(parsed(arguments), dict):
        return "malformed"
    return "ok" if name in tools else "unknown_tool"


def parsed(source: str) -> Any:
    """JSON, strictly: no NaN, no lone surrogates, no endless nesting. None where it does not parse."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:
        return None
