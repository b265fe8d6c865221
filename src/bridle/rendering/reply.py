"""One draw read back as a message, and a message written as the draw of a model: reasoning, text and tool calls.

Tags are control ids. Text that merely spells a tag is text, so a model can quote its own format.

The newlines the templates put around the tags are no part of the message: one behind `<think>`, one before `</think>`,
two behind it, one before and one behind each call. Each is taken off once where it stands next to its tag, and nothing
else is: the rest is the exact sampled text.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol as Contract

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Event, TextDelta, ThinkingDelta
from bridle.rendering.detokenize import Detokenizer
from bridle.tokens import Vocabulary

THINK = "<think>"
THINK_END = "</think>"


class CallFormat(Contract):
    """How a model family spells a tool call between two tags."""

    open_tag: str
    close_tag: str

    def read(self, source: str, closed: bool, known: Set[str]) -> ToolCall | None: ...

    def write(self, call: ToolCall) -> str: ...


@dataclass(frozen=True)
class ReplyFormat:
    """What one model's replies look like. A tag whose string is no control token of the vocabulary has no id and is
    never looked for. `opened_line`: a reasoning block that the prompt opens ends in a newline already."""

    vocabulary: Vocabulary
    stop_ids: tuple[int, ...]
    calls: CallFormat | None
    opened_line: bool

    def id(self, tag: str) -> int | None:
        return self.vocabulary.controls.get(tag)

    @property
    def thinks(self) -> bool:
        return THINK in self.vocabulary.controls and THINK_END in self.vocabulary.controls


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Section:
    """A run of one kind. `skip`: separator newlines still to be dropped at its start; `held`: one at its end that may
    belong to the tag that follows."""

    kind: Literal["thinking", "text", "call"]
    skip: int = 0
    held: str = ""
    closed: bool = False
    pieces: list[str] = field(default_factory=list)

    def add(self, text: str) -> str:
        """-> what of the section is now certain."""
        while self.skip and text:
            if not text.startswith("\n"):
                self.skip = 0
            else:
                text, self.skip = text[1:], self.skip - 1
        text = self.held + text
        self.held = "\n" if text.endswith("\n") else ""
        return self._keep(text[: len(text) - len(self.held)])

    def end(self, drop_newline: bool) -> str:
        """-> the rest of it. `drop_newline`: the tag that ends it is written on a line of its own."""
        rest, self.held = "" if drop_newline else self.held, ""
        return self._keep(rest)

    def _keep(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class TagParser:
    """The ReplyParser of every family whose reasoning and calls stand between control tokens."""

    def __init__(self, form: ReplyFormat, thinking_open: bool, tools: Sequence[Tool]) -> None:
        self._form = form
        self._known = frozenset(tool.name for tool in tools)
        self._text = Detokenizer(form.vocabulary)
        opening = Section("thinking", skip=0 if form.opened_line else 1) if thinking_open else Section("text")
        self._sections = [opening]
        self.reasoning_ids = 0
        self._called = False
        self._stop: int | None = None
        self._events: list[ThinkingDelta | TextDelta] = []
        calls = form.calls
        self._think = form.id(THINK) if form.thinks else None
        self._think_end = form.id(THINK_END) if form.thinks else None
        self._call = form.id(calls.open_tag) if calls else None
        self._call_end = form.id(calls.close_tag) if calls else None

    def feed(self, ids: Sequence[int]) -> list[Event]:
        for id in ids:
            self._take(int(id))
        return self._new_events()

    def finish(self) -> tuple[Message, list[Event]]:
        self._end_section(drop_newline=False)
        return Message("assistant", tuple(self._parts())), self._new_events()

    def _parts(self) -> list[Part]:
        """Neighbours of one kind with nothing between them are one part, as their events are one stretch."""
        parts: list[Part] = []
        before = ""
        for section in self._sections:
            part = self._part(section)
            if part is None:
                continue
            if section.kind == before and isinstance(part, Text | Thinking) and isinstance(parts[-1], type(part)):
                parts[-1] = type(part)(parts[-1].text + part.text)
            else:
                parts.append(part)
            before = "" if section.kind == "call" else section.kind
        return parts

    def _take(self, id: int) -> None:
        if self._stop is not None:
            # It did not end the draw after all: then it is text like any other id.
            stop, self._stop = self._stop, None
            self.reasoning_ids += self._sections[-1].kind == "thinking"
            self._emit(self._text.feed(stop))
        kind = self._sections[-1].kind
        if id in self._form.stop_ids:
            self._stop = id
        elif kind == "text" and id == self._think:
            self._open(Section("thinking", skip=1), drop_newline=False)
        elif kind == "thinking" and id == self._think_end:
            self._open(Section("text", skip=2), drop_newline=True)
        elif kind in ("text", "call") and id == self._call:
            self._open(Section("call"), drop_newline=kind == "text")
        elif kind == "call" and id == self._call_end:
            self._sections[-1].closed = True
            self._open(Section("text", skip=1), drop_newline=False)
        else:
            self._emit(self._text.feed(id))
        self.reasoning_ids += self._stop is None and "thinking" in (kind, self._sections[-1].kind)

    def _open(self, section: Section, drop_newline: bool) -> None:
        self._end_section(drop_newline)
        self._sections.append(section)
        self._called = self._called or section.kind == "call"

    def _end_section(self, drop_newline: bool) -> None:
        self._emit(self._text.flush())
        self._tell(self._sections[-1].end(drop_newline))

    def _emit(self, text: str) -> None:
        self._tell(self._sections[-1].add(text))

    def _tell(self, text: str) -> None:
        if text and not self._called:
            kind = self._sections[-1].kind
            self._events.append(ThinkingDelta(text) if kind == "thinking" else TextDelta(text))

    def _new_events(self) -> list[Event]:
        """Neighbours of one kind together."""
        merged: list[ThinkingDelta | TextDelta] = []
        for event in self._events:
            if merged and type(merged[-1]) is type(event):
                merged[-1] = type(event)(merged[-1].text + event.text)
            else:
                merged.append(event)
        self._events = []
        return list(merged)

    def _part(self, section: Section) -> Part | None:
        text = section.text
        if section.kind == "call" and self._form.calls is not None:
            call = self._form.calls.read(text, section.closed, self._known)
            return call or Text(_source(self._form.calls, section))
        if not text:
            return None
        return Thinking(text) if section.kind == "thinking" else Text(text)


def _source(calls: CallFormat, section: Section) -> str:
    """A call that cannot be read stays in the message as the text it was sampled as."""
    return f"{calls.open_tag}{section.text}{calls.close_tag if section.closed else ''}"


# --- writing ----------------------------------------------------------------------------------------------------------


def write_reply(form: ReplyFormat, message: Message, thinking_open: bool) -> list[str | int]:
    """-> text pieces (none of them empty, no two in a row) and control ids, without the closing token."""
    parts = message.parts
    pieces: list[str | int] = []
    if thinking_open:
        opened = parts[0].text if parts and isinstance(parts[0], Thinking) else ""
        pieces += ["" if form.opened_line else "\n", opened, "\n", _tag(form, THINK_END), "\n\n"]
        parts = parts[1:] if parts and isinstance(parts[0], Thinking) else parts
    before: Part | None = None
    for part in parts:
        pieces += _write_part(form, part, before)
        before = part
    return _joined(pieces)


def _write_part(form: ReplyFormat, part: Part, before: Part | None) -> list[str | int]:
    match part:
        case Thinking(text):
            return [_tag(form, THINK), "\n", text, "\n", _tag(form, THINK_END), "\n\n"]
        case Text(text):
            return ["\n" if isinstance(before, ToolCall) else "", text]
        case ToolCall():
            calls = form.calls
            if calls is None:
                raise TemplateError(f"this model has no known form of tool calls; it cannot call {part.name!r}")
            gap = "\n" if isinstance(before, Text | ToolCall) else ""
            return [gap, _tag(form, calls.open_tag), calls.write(part), _tag(form, calls.close_tag)]
        case _:
            raise TemplateError("a reply cannot hold an image")


def _tag(form: ReplyFormat, tag: str) -> int:
    id = form.id(tag)
    if id is None:
        raise TemplateError(
            f"this model's vocabulary has no {tag}: leave reasoning and calls it cannot write out of it"
        )
    return id


def _joined(pieces: list[str | int]) -> list[str | int]:
    joined: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
