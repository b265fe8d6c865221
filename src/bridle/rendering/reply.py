"""One draw read back as a message, and a message written as the draw of a model: reasoning, text and tool calls.

Tags are control ids. Text that merely spells a tag is text, so a model can quote its own format.

The newlines that the template writes around the tags (`seams` counts them) are no part of the message. Each is taken
off once where it stands next to its tag, and nothing else is: the rest is the exact sampled text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Event, ReplyParser
from bridle.rendering.calls import Block, CallForm, Found, Tag
from bridle.rendering.history import same_but_reasoning
from bridle.rendering.sections import Calls, SectionParser, Stretch
from bridle.tokens import Ids, Vocabulary


class Thoughts(NamedTuple):
    """The tags around reasoning. `lead`: what stands behind the first one, before the reasoning's own line. `begin`,
    `end`, `behind`: newlines behind the first tag, before the last one and behind it; `called`: behind it where a call
    follows at once."""

    open: str
    close: str
    lead: str = ""
    begin: int = 1
    end: int = 1
    behind: int = 2
    called: int = 2


class Lines(NamedTuple):
    """Newlines around blocks of calls, as in `CallForm`; `last`: behind one that ends the answer."""

    before: int = 0
    alone: int = 0
    between: int = 0
    after: int = 0
    last: int = 0


THOUGHTS = (
    Thoughts("<think>", "</think>"),
    Thoughts("[THINK]", "[/THINK]"),
    Thoughts("<|channel>", "<channel|>", "thought", behind=0, called=0),
)


@dataclass(frozen=True)
class ReplyFormat:
    """What one model's replies look like; every tag named here is a control token of the vocabulary. `opened_line`: a
    reasoning block that the prompt opens ends in a newline already. `start`: newlines that an answer begins with.
    `lines`: what the template writes around calls, instead of what their form says. `endings`: the stop ids of an
    answer that says something last, and of one that calls."""

    vocabulary: Vocabulary
    stop_ids: tuple[int, ...]
    calls: CallForm | None
    opened_line: bool
    thoughts: Thoughts | None = THOUGHTS[0]
    start: int = 0
    lines: Lines | None = None
    endings: tuple[int, int] | None = None

    ends: frozenset[int] = frozenset()

    def id(self, tag: str) -> int:
        return self.vocabulary.controls[tag]

    def tag(self, id: int) -> Tag:
        return Tag(self.vocabulary.decode([id]))

    @property
    def around(self) -> Lines:
        if self.lines is not None or self.calls is None:
            return self.lines or Lines()
        return Lines(self.calls.before, self.calls.alone, self.calls.between, self.calls.after)

    @property
    def thinking_end(self) -> int | None:
        return self.id(self.thoughts.close) if self.thoughts else None

    def thinking_open(self, prompt: Ids) -> bool:
        return self.thoughts is not None and left_open(self.vocabulary, self.thoughts, prompt)

    def reasons(self, ids: Ids) -> bool:
        tags = [self.id(tag) for tag in self.thoughts[:2]] if self.thoughts else []
        return bool(np.isin(ids, tags).any())

    def same_but_reasoning(self, one: Ids, other: Ids) -> bool:
        if self.thoughts is None:
            return np.array_equal(one, other)
        tags = (self.id(self.thoughts.open), self.id(self.thoughts.close))
        return same_but_reasoning(self.vocabulary, tags, one, other)

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser:
        return TagParser(self, thinking_open, tools)

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        calls = bool(message.parts) and isinstance(message.parts[-1], ToolCall)
        stop = self.endings[calls] if self.endings else self.stop_ids[0]
        return [*write_reply(self, message, thinking_open), stop]


def left_open(vocabulary: Vocabulary, thoughts: Thoughts, ids: Ids) -> bool:
    """Whether reasoning is opened in `ids` and not closed again."""
    held = ids.tolist()
    opened, closed = ([at for at, id in enumerate(held) if id == vocabulary.controls[tag]] for tag in thoughts[:2])
    return max(opened, default=-1) > max(closed, default=-1)


# --- reading ----------------------------------------------------------------------------------------------------------


class TagParser(SectionParser):
    """The ReplyParser of every family whose reasoning and calls stand between control tokens."""

    def __init__(self, form: ReplyFormat, thinking_open: bool, tools: Sequence[Tool]) -> None:
        around = form.around
        self._before = max(around.before, around.alone)
        self._after = max(around.after, around.last)
        super().__init__(form.vocabulary, tools, [_opening(form, thinking_open, self._before)])
        self._form = form
        self._stop: int | None = None
        thoughts, calls = form.thoughts, form.calls
        self._think = form.id(thoughts.open) if thoughts else None
        self._think_end = form.id(thoughts.close) if thoughts else None
        self._opens = {form.id(tag): tag for tag in calls.opens} if calls else {}
        self._closes = {form.id(tag): tag for tag in calls.closes} if calls else {}
        bare = form.vocabulary.split(calls.bare) if calls else []
        self._bare = [symbol for piece in bare for symbol in (piece if isinstance(piece, str) else [form.tag(piece)])]
        self._amid = calls is not None and calls.amid
        self._unsure: list[tuple[str, int]] = []
        self._blanks = 0

    def finish(self) -> tuple[Message, list[Event]]:
        self._end_section(drop=0, past=self._at + (self._stop is None))
        last = self._sections[-1]
        if isinstance(last, Calls) and not self._closes:
            last.closed = self._stop is not None
        return Message("assistant", tuple(self._parts())), self._new_events()

    def _read(self, section: Calls) -> list[Found]:
        if self._form.calls is None:
            return []
        return self._form.calls.read(Block(tuple(section.pieces), section.closed), self._tools)

    def _take(self, id: int) -> None:
        if self._stop is not None:
            # It did not end the draw after all: then it is text like any other id.
            stop, self._stop = self._stop, None
            self.reasoning_ids += self._thinking
            self._at -= 1
            self._add(stop)
            self._at += 1
        was_thinking, thoughts = self._thinking, self._form.thoughts
        section = self._sections[-1]
        if id in self._form.stop_ids:
            self._stop = id
        elif isinstance(section, Calls):
            self._take_in_calls(section, id)
        elif thoughts is not None and not was_thinking and id == self._think:
            self._open(Stretch("thinking", lead=thoughts.lead, skip=thoughts.begin, hold=thoughts.end), drop=0)
        elif thoughts is not None and was_thinking and id == self._think_end:
            self._open(Stretch("text", skip=thoughts.behind, hold=self._before), drop=thoughts.end)
        elif not was_thinking and id in self._opens:
            self._open(Calls(self._opens[id], self._at), drop=self._before)
        else:
            self._add(id)
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
            self._add(id)

    def _open(self, section: Stretch | Calls, drop: int) -> None:
        self._end_section(drop, past=self._at)
        self._sections.append(section)
        self._called = self._called or isinstance(section, Calls)

    def _end_section(self, drop: int, past: int) -> None:
        self._emit(self._text.flush(), past)
        section = self._sections[-1]
        if isinstance(section, Calls):
            section.past = past
        else:
            self._settle(section)
            self._tell(section, section.end(drop))

    def _emit(self, piece: str, at: int) -> None:
        section = self._sections[-1]
        if isinstance(section, Calls):
            section.add(piece, at)
        elif self._bare and section.kind == "text" and (self._amid or not (section.pieces or self._called)):
            self._watch(section, piece, at)
        else:
            self._tell(section, section.add(piece))

    def _watch(self, section: Stretch, piece: str, at: int) -> None:
        """Text that may begin a block without a tag waits until it does or does not."""
        self._unsure += [(symbol, at) for symbol in ([piece] if isinstance(piece, Tag) else piece)]
        start, begun = self._bare_at()
        if start:
            self._settle(section, start)
        if begun:
            self._tell(section, section.end(self._before))
            calls = Calls("", self._unsure[0][1], bare=True, lead=section.dropped)
            for symbol in self._unsure:
                calls.add(*symbol)
            self._unsure, self._blanks = [], 0
            self._sections.append(calls)
            self._called = True

    def _bare_at(self) -> tuple[int, bool]:
        """-> where among what waits it begins, or may begin, and whether it does."""
        count = len(self._unsure)
        while self._blanks < count and not self._amid and self._unsure[self._blanks][0].isspace():
            # Blanks before it may be many: each is looked at once.
            self._blanks += 1
        for at in range(count) if self._amid else [self._blanks]:
            waiting = [symbol for symbol, _ in self._unsure[at : at + len(self._bare)]]
            if waiting == self._bare[: len(waiting)]:
                return at if self._amid else 0, len(waiting) == len(self._bare)
        return count, False

    def _settle(self, section: Stretch, count: int | None = None) -> None:
        """So many of the characters that wait are text; all of them where nothing is said."""
        text = "".join(symbol for symbol, _ in self._unsure[:count])
        self._unsure, self._blanks = [] if count is None else self._unsure[count:], 0
        self._tell(section, section.add(text))


def _opening(form: ReplyFormat, thinking_open: bool, hold: int) -> Stretch:
    if thinking_open and form.thoughts is not None:
        return Stretch("thinking", skip=0 if form.opened_line else form.thoughts.begin, hold=form.thoughts.end)
    return Stretch("text", skip=form.start, hold=hold)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_reply(form: ReplyFormat, message: Message, thinking_open: bool) -> list[str | int]:
    """-> text pieces (none of them empty, no two in a row) and control ids, without the closing token."""
    parts = message.parts
    if thinking_open and not (parts and isinstance(parts[0], Thinking)):
        parts = (Thinking(""), *parts)
    pieces: list[str] = []
    before: Part | None = None
    said = False
    for part, row in _rows(parts):
        opened = thinking_open and before is None
        pieces.append("" if opened else "\n" * _gap(form, before, part))
        pieces += _blocks(form, row, said) if row else _spelled(form, part, opened)
        before, said = part, said or not isinstance(part, Thinking)
    pieces.append("\n" * (_gap(form, before, None) if before else 0))
    return joined(form.vocabulary, pieces)


def _rows(parts: Sequence[Part]) -> Iterator[tuple[Part, list[ToolCall]]]:
    """Parts that are no calls with nothing; the first of calls in a row with all of them."""
    for _, run in groupby(parts, key=lambda part: isinstance(part, ToolCall)):
        row = [*run]
        calls = [part for part in row if isinstance(part, ToolCall)]
        yield from [(calls[0], calls)] if calls else ((part, []) for part in row)


def _gap(form: ReplyFormat, before: Part | None, part: Part | None) -> int:
    """How many newlines stand between two parts; None: where the answer begins or ends."""
    match before, part:
        case None, ToolCall():
            return max(form.start, form.around.alone)
        case None, _:
            return form.start
        case Thinking(), ToolCall():
            return form.thoughts.called if form.thoughts else 0
        case Thinking(), _:
            return form.thoughts.behind if form.thoughts else 0
        case Text(), ToolCall():
            return form.around.before
        case ToolCall(), _:
            return form.around.after if part else form.around.last
    return 0


def _blocks(form: ReplyFormat, row: Sequence[ToolCall], said: bool) -> Iterator[str]:
    """`said`: text or calls stand somewhere before."""
    calls = form.calls
    if calls is None:
        raise TemplateError(f"this model has no known form of tool calls; it cannot call {row[0].name!r}")
    for number, block in enumerate(calls.write(row)):
        if number:
            yield "\n" * form.around.between
        elif said and calls.bare and not calls.amid and not isinstance(block[0], Tag):
            # Without a tag only an answer's beginning is one.
            yield Tag(calls.opens[0])
        yield from block


def _spelled(form: ReplyFormat, part: Part, opened: bool) -> list[str]:
    """Text, or reasoning between its tags. `opened`: the prompt has the first one."""
    match part:
        case Text(text):
            return [text]
        case Thinking(text):
            if (tags := form.thoughts) is None:
                raise TemplateError(
                    "this model's vocabulary has no tags for reasoning: leave it out of what it shall say"
                )
            line = "" if opened and form.opened_line else "\n" * tags.begin
            head = [] if opened else [Tag(tags.open), tags.lead]
            return [*head, line, text, "\n" * tags.end, Tag(tags.close)]
        case _:
            raise TemplateError("a reply cannot hold an image")


def joined(vocabulary: Vocabulary, pieces: Sequence[str]) -> list[str | int]:
    """Tags as ids, what stands between two as one text."""
    found: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, Tag):
            found.append(vocabulary.controls[piece])
        elif found and isinstance(found[-1], str):
            found[-1] += piece
        elif piece:
            found.append(piece)
    return found
