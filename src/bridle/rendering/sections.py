"""What the parsers of replies share: a draw is a row of stretches (reasoning, text) and blocks of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

from bridle.messages import CallStatus, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import CallSpan, Event, TextDelta, ThinkingDelta
from bridle.rendering.calls import Found, Tag
from bridle.rendering.detokenize import Detokenizer
from bridle.tokens import Vocabulary


@dataclass
class Stretch:
    """Reasoning or text. `lead` and then `skip` newlines are still to be dropped at its start; `hold`: how many at its
    end may belong to the tag that follows, `dropped`: those that did. `begun`: text of a lead that is not all there
    yet."""

    kind: Literal["thinking", "text"]
    lead: str = ""
    skip: int = 0
    hold: int = 1
    begun: str = ""
    held: str = ""
    dropped: str = ""
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
        self.dropped = rest[kept:]
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


NAMELESS: tuple[str, CallStatus] = ("", "missing_name")


@dataclass
class Calls:
    """A block of calls as it comes. `starts`: the character of its text at which each id begins, and which id of the
    draw that is; neither ever falls. `first`: the id that opens the block; `past`: the one behind it. `bare`: no tag
    opened it, its first text did; `lead`: newlines that were taken off before that."""

    tag: str
    first: int
    bare: bool = False
    lead: str = ""
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
        """Of the calls among `found`: the first one with the tag that opens the block, the last one with what closes
        it."""
        calls = [one for one in found if one.unnamed or isinstance(one.part, ToolCall)]
        for one in calls:
            opening = one is calls[0] and (bool(self.tag) or one is found[0])
            closing = one is calls[-1] and (bool(self.end_tag) or one is found[-1])
            first = self.first if opening else self._id_at(one.start)
            past = self.past if closing else self._id_at(one.end - 1) + 1
            named = (one.part.name, one.part.status) if isinstance(one.part, ToolCall) else NAMELESS
            yield CallSpan(first, past, *named)

    def _id_at(self, character: int) -> int:
        before = bisect_right(self.starts, character, key=itemgetter(0))
        return self.starts[before - 1][1] if before else self.first


class SectionParser(ABC):
    """What the parsers of all families share: a draw is a row of stretches and blocks of calls, and what is told of it
    while it comes is what its message says."""

    def __init__(self, vocabulary: Vocabulary, tools: Sequence[Tool], opening: Sequence[Stretch | Calls]) -> None:
        self._controls = vocabulary.control_ids
        self._tools = {tool.name: tool for tool in tools}
        self._text = Detokenizer(vocabulary)
        self.reasoning_ids = 0
        self.calls: tuple[CallSpan, ...] = ()
        self._at = -1
        self._called = False
        self._events: list[ThinkingDelta | TextDelta] = []
        self._sections: list[Stretch | Calls] = [*opening]

    def feed(self, ids: Sequence[int]) -> list[Event]:
        for id in ids:
            self._at += 1
            self._take(int(id))
        return self._new_events()

    @abstractmethod
    def _take(self, id: int) -> None:
        """The id at `_at` of the draw."""

    @abstractmethod
    def _emit(self, piece: str, at: int) -> None:
        """Text of the id at `at` of the draw, or a control token."""

    @abstractmethod
    def _read(self, section: Calls) -> list[Found]: ...

    def _add(self, id: int) -> None:
        if id in self._controls:
            # What is left of an unfinished character is no part of a tag.
            self._emit(self._text.flush(), self._at)
            self._emit(Tag(self._text.feed(id)), self._at)
        else:
            self._emit(self._text.feed(id), self._at)

    def _parts(self) -> list[Part]:
        """Neighbours of one kind with nothing between them are one part, as their events are one stretch."""
        parts: list[Part] = []
        spans: list[CallSpan] = []
        before = ""
        for section in self._sections:
            if isinstance(section, Calls):
                found = self._read(section)
                spans += section.spans(found) if found or section.bare else [_unnamed(section)]
                shown: list[Part] = [one.part for one in found] or [Text(section.source)]
                first, told = shown[0], parts[-1] if parts and before == "text" else None
                if section.bare and isinstance(first, Text):
                    # It only looked like the beginning of a call.
                    shown[0] = Text(f"{told.text if isinstance(told, Text) else ''}{section.lead}{first.text}")
                    del parts[len(parts) - (told is not None) :]
                parts += shown
                before = "text" if section.bare and not found else ""
            elif text := "".join(section.pieces):
                part = Thinking(text) if section.kind == "thinking" else Text(text)
                if section.kind == before and isinstance(parts[-1], type(part)):
                    parts[-1] = type(part)(parts[-1].text + text)
                else:
                    parts.append(part)
                before = section.kind
        self.calls = tuple(spans)
        return parts

    @property
    def _thinking(self) -> bool:
        section = self._sections[-1]
        return isinstance(section, Stretch) and section.kind == "thinking"

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
    return CallSpan(section.first, section.past, *NAMELESS)
