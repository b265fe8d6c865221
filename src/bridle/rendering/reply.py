"""One draw read back as a message, and a message written as the draw of a model: reasoning, text and tool calls.

Tags are control ids. Text that merely spells a tag is text, so a model can quote its own format.

The newlines the templates put around the tags are no part of the message: one behind the tag that opens reasoning, one
before the one that closes it, two behind it, and as many around calls as their form says. Each is taken off once where
it stands next to its tag, and nothing else is: the rest is the exact sampled text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import CallSpan, Event, TextDelta, ThinkingDelta
from bridle.rendering.calls import Block, CallForm, Found, Tag
from bridle.rendering.detokenize import Detokenizer
from bridle.tokens import Vocabulary


class Thoughts(NamedTuple):
    """The tags around reasoning. `lead`: what stands behind the first one, before the reasoning's own line."""

    open: str
    close: str
    lead: str = ""


THOUGHTS = (
    Thoughts("<think>", "</think>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<|channel>", "<channel|>", "thought"),
)


@dataclass(frozen=True)
class ReplyFormat:
    """What one model's replies look like; every tag named here is a control token of the vocabulary. `opened_line`: a
    reasoning block that the prompt opens ends in a newline already."""

    vocabulary: Vocabulary
    stop_ids: tuple[int, ...]
    calls: CallForm | None
    opened_line: bool
    thoughts: Thoughts | None = THOUGHTS[0]

    def id(self, tag: str) -> int:
        return self.vocabulary.controls[tag]


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Stretch:
    """Reasoning or text. `lead` and then `skip` newlines are still to be dropped at its start; `hold`: how many at its
    end may belong to the tag that follows. `begun`: text of a lead that is not all there yet."""

    kind: Literal["thinking", "text"]
    lead: str = ""
    skip: int = 0
    hold: int = 1
    begun: str = ""
    held: str = ""
    pieces: list[str] = field(default_factory=list)

    def add(self, text: str) -> str:
        """-> what of it is now certain."""
        text = self._led(text)
        while self.skip and text:
            if not text.startswith("\n"):
                self.skip = 0
            else:
                text, self.skip = text[1:], self.skip - 1
        text = self.held + text
        free = len(text) - min(self.hold, len(text) - len(text.rstrip("\n")))
        self.held = text[free:]
        return self._keep(text[:free])

    def end(self, drop: int) -> str:
        """-> the rest of it. `drop`: so many newlines are written before the tag that ends it."""
        begun, self.begun, self.lead = self.begun, "", ""
        rest, self.held = begun + self.held, ""
        kept = len(rest) - min(drop, len(rest) - len(rest.rstrip("\n")))
        return self._keep(rest[:kept])

    def _led(self, text: str) -> str:
        text, self.begun = self.begun + text, ""
        if not self.lead:
            return text
        if text != self.lead and self.lead.startswith(text):
            self.begun = text
            return ""
        lead, self.lead = self.lead, ""
        return text.removeprefix(lead)

    def _keep(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text


@dataclass
class Calls:
    """A block of calls as it comes. `starts`: the character of its text at which each id begins, and which id of the
    draw that is. `first`: the id that opens the block; `past`: the one behind it."""

    tag: str
    first: int
    pieces: list[str] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    end_tag: str = ""
    closed: bool = False
    past: int = 0

    def add(self, piece: str, at: int) -> None:
        self.starts.append((self.length, at))
        self.length += len(piece)
        if piece:
            self.pieces.append(piece)

    @property
    def source(self) -> str:
        return f"{self.tag}{''.join(self.pieces)}{self.end_tag}"

    def spans(self, found: Sequence[Found]) -> Iterator[CallSpan]:
        """Of the calls among `found`: the first one with what opens the block, the last one with what closes it."""
        calls = [(one.part, one.start, one.end) for one in found if isinstance(one.part, ToolCall)]
        for number, (call, start, end) in enumerate(calls):
            first = self._id_at(start) if number else self.first
            past = self._id_at(end - 1) + 1 if number < len(calls) - 1 else self.past
            yield CallSpan(first, past, call.name, call.status)

    def _id_at(self, character: int) -> int:
        return max((at for start, at in self.starts if start <= character), default=self.first)


class TagParser:
    """The ReplyParser of every family whose reasoning and calls stand between control tokens."""

    def __init__(self, form: ReplyFormat, thinking_open: bool, tools: Sequence[Tool]) -> None:
        self._form = form
        self._tools = {tool.name: tool for tool in tools}
        self._text = Detokenizer(form.vocabulary)
        self.reasoning_ids = 0
        self.calls: tuple[CallSpan, ...] = ()
        self._at = -1
        self._called = False
        self._stop: int | None = None
        self._events: list[ThinkingDelta | TextDelta] = []
        thoughts, calls = form.thoughts, form.calls
        self._think = form.id(thoughts.open) if thoughts else None
        self._think_end = form.id(thoughts.close) if thoughts else None
        self._opens = {form.id(tag): tag for tag in calls.opens} if calls else {}
        self._closes = {form.id(tag): tag for tag in calls.closes} if calls else {}
        self._before = calls.before if calls else 0
        self._after = calls.after if calls else 0
        self._bare = calls.bare if calls else ""
        self._unsure = ""
        if thinking_open:
            opening = Stretch("thinking", skip=0 if form.opened_line else 1)
        else:
            opening = Stretch("text", hold=self._before)
        self._sections: list[Stretch | Calls] = [opening]

    def feed(self, ids: Sequence[int]) -> list[Event]:
        for id in ids:
            self._at += 1
            self._take(int(id))
        return self._new_events()

    def finish(self) -> tuple[Message, list[Event]]:
        self._end_section(drop=0, past=self._at + (self._stop is None))
        last = self._sections[-1]
        if isinstance(last, Calls) and not self._closes:
            last.closed = self._stop is not None
        return Message("assistant", tuple(self._parts())), self._new_events()

    def _parts(self) -> list[Part]:
        """Neighbours of one kind with nothing between them are one part, as their events are one stretch."""
        parts: list[Part] = []
        spans: list[CallSpan] = []
        before = ""
        for section in self._sections:
            if isinstance(section, Calls):
                found = self._read(section)
                spans += section.spans(found) if found else [_unnamed(section)]
                parts += [one.part for one in found] or [Text(section.source)]
                before = ""
            elif text := "".join(section.pieces):
                part = Thinking(text) if section.kind == "thinking" else Text(text)
                if section.kind == before and isinstance(parts[-1], type(part)):
                    parts[-1] = type(part)(parts[-1].text + text)
                else:
                    parts.append(part)
                before = section.kind
        self.calls = tuple(spans)
        return parts

    def _read(self, section: Calls) -> list[Found]:
        if self._form.calls is None:
            return []
        return self._form.calls.read(Block(tuple(section.pieces), section.closed), self._tools)

    def _take(self, id: int) -> None:
        if self._stop is not None:
            # It did not end the draw after all: then it is text like any other id.
            stop, self._stop = self._stop, None
            self.reasoning_ids += self._thinking
            self._emit(self._text.feed(stop), stop, self._at - 1)
        was_thinking = self._thinking
        section = self._sections[-1]
        if id in self._form.stop_ids:
            self._stop = id
        elif isinstance(section, Calls):
            self._take_in_calls(section, id)
        elif not was_thinking and id == self._think:
            lead = self._form.thoughts.lead if self._form.thoughts else ""
            self._open(Stretch("thinking", lead=lead, skip=1), drop=0)
        elif was_thinking and id == self._think_end:
            self._open(Stretch("text", skip=2, hold=self._before), drop=1)
        elif not was_thinking and id in self._opens:
            self._open(Calls(self._opens[id], self._at), drop=self._before)
        else:
            self._emit(self._text.feed(id), id, self._at)
        self.reasoning_ids += self._stop is None and (was_thinking or self._thinking)

    def _take_in_calls(self, section: Calls, id: int) -> None:
        if id in self._closes:
            section.end_tag, section.closed = self._closes[id], True
            self._open(Stretch("text", skip=self._after, hold=self._before), drop=0)
            section.past = self._at + 1
        elif id in self._opens:
            section.closed = not self._closes
            self._open(Calls(self._opens[id], self._at), drop=0)
        else:
            self._emit(self._text.feed(id), id, self._at)

    @property
    def _thinking(self) -> bool:
        section = self._sections[-1]
        return isinstance(section, Stretch) and section.kind == "thinking"

    def _open(self, section: Stretch | Calls, drop: int) -> None:
        self._end_section(drop, past=self._at)
        self._sections.append(section)
        self._called = self._called or isinstance(section, Calls)

    def _end_section(self, drop: int, past: int) -> None:
        self._emit(self._text.flush(), None, past)
        section = self._sections[-1]
        if isinstance(section, Calls):
            section.past = past
        else:
            unsure, self._unsure = self._unsure, ""
            self._tell(section, section.add(unsure) + section.end(drop))

    def _emit(self, text: str, id: int | None, at: int) -> None:
        section = self._sections[-1]
        if isinstance(section, Calls):
            section.add(Tag(text) if id in self._form.vocabulary.control_ids else text, at)
        elif self._bare and section.kind == "text" and not section.pieces and not self._called:
            self._begin_bare(section, text, at)
        else:
            self._tell(section, section.add(text))

    def _begin_bare(self, section: Stretch, text: str, at: int) -> None:
        """The answer's first characters say whether it is a call without a tag."""
        text, self._unsure = self._unsure + text, ""
        start = text.lstrip()
        if start.startswith(self._bare):
            self._called = True
            self._sections.append(Calls("", 0))
            self._emit(text, None, at)
        elif self._bare.startswith(start):
            self._unsure = text
        else:
            self._tell(section, section.add(text))

    def _tell(self, section: Stretch, text: str) -> None:
        if text and not self._called:
            self._events.append(ThinkingDelta(text) if section.kind == "thinking" else TextDelta(text))

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


def _unnamed(section: Calls) -> CallSpan:
    """A block that cannot be read stays in the message as the text it was sampled as."""
    return CallSpan(section.first, section.past, "", "missing_name")


# --- writing ----------------------------------------------------------------------------------------------------------


def write_reply(form: ReplyFormat, message: Message, thinking_open: bool) -> list[str | int]:
    """-> text pieces (none of them empty, no two in a row) and control ids, without the closing token."""
    parts = message.parts
    pieces: list[str] = []
    if thinking_open:
        opened = parts[0].text if parts and isinstance(parts[0], Thinking) else ""
        pieces += ["" if form.opened_line else "\n", opened, "\n", Tag(_thoughts(form).close), "\n\n"]
        parts = parts[1:] if parts and isinstance(parts[0], Thinking) else parts
    before: Part | None = None
    for called, run in groupby(parts, key=lambda part: isinstance(part, ToolCall)):
        for part in _call_blocks(form, run, before) if called else run:
            pieces += part if isinstance(part, list) else _write_part(form, part, before)
            before = part if not isinstance(part, list) else ToolCall("", "", "")
    return _joined(form, pieces)


def _write_part(form: ReplyFormat, part: Part, before: Part | None) -> list[str]:
    match part:
        case Thinking(text):
            thoughts = _thoughts(form)
            return [Tag(thoughts.open), f"{thoughts.lead}\n", text, "\n", Tag(thoughts.close), "\n\n"]
        case Text(text):
            behind_calls = isinstance(before, ToolCall) and form.calls is not None
            return ["\n" * form.calls.after if behind_calls and form.calls else "", text]
        case _:
            raise TemplateError("a reply cannot hold an image")


def _call_blocks(form: ReplyFormat, run: Iterator[Part], before: Part | None) -> list[list[str]]:
    calls = [part for part in run if isinstance(part, ToolCall)]
    if form.calls is None:
        raise TemplateError(f"this model has no known form of tool calls; it cannot call {calls[0].name!r}")
    blocks = form.calls.write(calls)
    lead = "\n" * form.calls.before if isinstance(before, Text) else ""
    return [[lead if number == 0 else "\n" * form.calls.between, *block] for number, block in enumerate(blocks)]


def _thoughts(form: ReplyFormat) -> Thoughts:
    if form.thoughts is None:
        raise TemplateError("this model's vocabulary has no tags for reasoning: leave it out of what it shall say")
    return form.thoughts


def _joined(form: ReplyFormat, pieces: Sequence[str]) -> list[str | int]:
    joined: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, Tag):
            joined.append(form.id(piece))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece:
            joined.append(piece)
    return joined
