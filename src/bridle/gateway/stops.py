"""Stop texts of a client: nothing of one reaches it, neither in a stream nor in the finished message.

The engine ends the draw with the id that completes a stop text; the sampled ids keep all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bridle.messages import Message, Part, Text, Thinking, ToolCall
from bridle.rendering.base import Event, TextDelta, ThinkingDelta


class Withheld:
    """Text and thinking on their way out, without what is, or may begin, a stop text. What is left at the end of a draw
    goes out with its message."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._kind: type[Event] = TextDelta
        self._held = ""
        self._begun = False

    def pass_on(self, events: Iterable[Event]) -> list[Event]:
        if not self._stops:
            return list(events)
        return [event for each in events for event in self._certain(each)]

    def _certain(self, event: Event) -> list[Event]:
        match event:
            case TextDelta(text) | ThinkingDelta(text):
                out = []
                if type(event) is not self._kind:
                    out.append((self._kind, self._held))
                    self._kind, self._held, self._begun = type(event), "", False
                self._held += text
                safe = 0 if self._may_have_begun() else len(self._held) - _may_be_stop(self._held, self._stops)
                out.append((self._kind, self._held[:safe]))
                self._held = self._held[safe:]
                self._begun = self._begun or safe > 0
                return [_delta(kind, text) for kind, text in out if text]
        return [event]

    def _may_have_begun(self) -> bool:
        """Whether a stop text may have begun in the white space that the format takes off before a stretch."""
        rests = () if self._begun else (rest for stop in self._stops for rest in _rests(stop))
        return any(self._held.startswith(rest) or rest.startswith(self._held) for rest in rests)


def cut(message: Message, stop: str) -> Message:
    """`message` without `stop`, which ended it, and without what the last id said behind it."""
    if not stop or not message.parts:
        return message
    *parts, last = message.parts
    shortened = _cut_part(last, stop)
    return msgspec.structs.replace(message, parts=(*parts, *([shortened] if shortened else [])))


def _cut_part(part: Part, stop: str) -> Part | None:
    match part:
        case Text(text) | Thinking(text):
            kept = _before(text, stop)
            return msgspec.structs.replace(part, text=kept) if kept else None
        case ToolCall():
            return msgspec.structs.replace(part, arguments=_before(part.arguments, stop))
    return part


def _before(text: str, stop: str) -> str:
    at = text.find(stop)
    if at >= 0:
        return text[:at]
    # It began in what the format takes off around a tag.
    return "" if any(text.startswith(rest) for rest in _rests(stop)) else text


def _rests(stop: str) -> list[str]:
    """What is left of a stop text whose first characters, all of them white space, are taken off."""
    blank = len(stop) - len(stop.lstrip())
    return [stop[begun:] for begun in range(1, min(blank, len(stop) - 1) + 1)]


def _may_be_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the end of `text` that holds a stop text or may be the beginning of one."""
    whole = [len(text) - at for stop in stops if (at := text.find(stop)) >= 0]
    begun = (n for stop in stops for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n]))
    return max([*whole, *begun], default=0)


def _delta(kind: type[Event], text: str) -> Event:
    return ThinkingDelta(text) if kind is ThinkingDelta else TextDelta(text)
