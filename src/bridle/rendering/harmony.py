"""Replies that are no tagged text but messages, each behind a header that says what it is for: gpt-oss (harmony).

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>

The prompt ends with `<|start|>assistant`, so a draw begins inside a header. Control ids make the structure; text that
spells one is text. Headers are scaffold: no part of the message, and nothing else is left out of it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import CallSpan, Event, ReplyParser
from bridle.rendering.calls import Block, Found, Tag, Tools, json_call
from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.reply import joined
from bridle.rendering.sections import Calls, SectionParser, Stretch
from bridle.tokens import Ids, Vocabulary, concatenate

Use = Literal["thinking", "text", "call", "strange"]
"""What a message is for. `strange`: its header cannot be read, or says that it is no answer."""

SPEAKER = "assistant"
WORD = re.compile(r"\s*\S+")


class Header(NamedTuple):
    """`recipient`: None where none is named. `constrained`: the kind of its content is marked by a control token.
    `strange`: it holds what the header of an answer does not: `said`, as it was sampled, or the role of another
    (`foreign`)."""

    channel: str
    recipient: str | None
    constrained: bool
    strange: bool
    said: str = ""
    foreign: bool = False


class MessageForm(ABC):
    """One family's headers and calls. A model has it whose vocabulary holds the tags and whose template writes them.

    `start`, `channel`, `message`: the tags that begin a message, its channel ("": none) and its content; `constrain`:
    the one before the kind of its content ("": none). `ends`: the tags that end a message, first the one that another
    message follows; `stops`: those that end a turn too, first the one behind an answer, last the one behind calls."""

    start: str
    channel: str
    message: str
    constrain: str
    ends: tuple[str, ...]
    stops: tuple[str, ...]

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.start, self.channel, self.message, self.constrain, *self.ends)))

    def fits(self, template: ChatTemplate) -> bool:
        return all(tag in template.source for tag in (self.start, self.channel, self.message))

    @abstractmethod
    def use(self, header: Header) -> Use: ...

    @abstractmethod
    def head(self, part: Part, called: bool) -> list[str]:
        """What stands between the role and the content. `called`: a call follows."""

    @abstractmethod
    def read(self, recipient: str, block: Block, tools: Tools) -> list[Found]:
        """Empty where no name can be read."""

    @abstractmethod
    def write(self, call: ToolCall) -> str:
        """The content of a call's message."""


class GptOss(MessageForm):
    """Recipients stand in the role or behind the channel. Functions have the prefix `functions.`, which long contexts
    lose; calls come in every channel (vLLM #28139, #42454), and `to=assistant` where no call is meant (llama.cpp
    #21286)."""

    start = "<|start|>"
    channel = "<|channel|>"
    message = "<|message|>"
    constrain = "<|constrain|>"
    ends = ("<|end|>", "<|return|>", "<|call|>")
    stops = ("<|return|>", "<|call|>")

    def use(self, header: Header) -> Use:
        if header.recipient is not None and header.recipient not in ("assistant", "user", "all"):
            return "call"
        if header.strange:
            return "strange"
        if header.channel == "commentary" and header.constrained:
            return "call"
        return "thinking" if header.channel == "analysis" else "text"

    def head(self, part: Part, called: bool) -> list[str]:
        match part:
            case ToolCall(name=name):
                return [Tag(self.channel), f"commentary to=functions.{one_word(name)} ", Tag(self.constrain), "json"]
            case Thinking():
                return [Tag(self.channel), "analysis"]
            case _:
                return [Tag(self.channel), "commentary" if called else "final"]

    def read(self, recipient: str, block: Block, tools: Tools) -> list[Found]:
        name = recipient.removeprefix("functions.")
        name = recipient if recipient in tools and name not in tools else name
        return [Found(json_call(name, block.text, block.closed, tools), 0, len(block.text))] if name else []

    def write(self, call: ToolCall) -> str:
        return call.arguments


def one_word(name: str) -> str:
    """A recipient ends at the first blank."""
    if not name or name.split() != [name]:
        raise TemplateError(f"this model cannot call a tool named {name!r}: in its calls a name is one word")
    return name


@dataclass(frozen=True)
class MessageReplies:
    """The replies of one model whose tags are all control tokens of the vocabulary. `stop_ids`: without those that end
    a message and no turn. `calls`: whether calls are looked for."""

    vocabulary: Vocabulary
    stop_ids: tuple[int, ...]
    form: MessageForm
    calls: bool = True

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, stop_ids: Sequence[int], form: MessageForm, calls: bool = True
    ) -> MessageReplies:
        """`stop_ids`: what the model's files name."""
        ends = {vocabulary.controls[tag] for tag in form.ends}
        own = [vocabulary.controls[tag] for tag in form.stops]
        return cls(vocabulary, (*own, *(id for id in stop_ids if id not in ends)), form, calls)

    @property
    def ends(self) -> frozenset[int]:
        return frozenset(self.vocabulary.controls[tag] for tag in self.form.ends)

    @property
    def thinking_end(self) -> int | None:
        return self.vocabulary.controls[self.form.ends[0]]

    def thinking_open(self, prompt: Ids) -> bool:
        parser = MessageParser(self, False, ())
        parser.feed(prompt.tolist())
        return parser.thinking

    def reasons(self, ids: Ids) -> bool:
        parser = MessageParser(self, False, ())
        parser.feed(ids.tolist())
        return parser.reasoning_ids > 0

    def same_but_reasoning(self, one: Ids, other: Ids) -> bool:
        return np.array_equal(self._without_reasoning(one), self._without_reasoning(other))

    def _without_reasoning(self, ids: Ids) -> Ids:
        start = self.vocabulary.controls[self.form.start]
        said = np.split(ids, np.flatnonzero(ids == start))
        return concatenate([one for one in said if not self.reasons(one)])

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser:
        return MessageParser(self, thinking_open, tools)

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        return joined(self.vocabulary, [*_written(self, message, thinking_open)])


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Head:
    """A header as it comes. `first`: the id it begins with."""

    first: int
    pieces: list[str] = field(default_factory=list)


@dataclass
class Addressed(Calls):
    """The content of a message that is a call."""

    recipient: str = ""


class MessageParser(SectionParser):
    """A message ends at any of its tags, at the start of the next one, and with the draw."""

    def __init__(self, replies: MessageReplies, thinking_open: bool, tools: Sequence[Tool]) -> None:
        super().__init__(replies.vocabulary, tools, [Stretch("thinking", hold=0)] if thinking_open else [])
        self._replies = replies
        self._form = replies.form
        tags = (replies.form.start, replies.form.message, *replies.form.ends)
        self._tags = {replies.vocabulary.controls[tag]: tag for tag in tags}
        self._head: Head | None = None if thinking_open else Head(0)
        self._lost: list[CallSpan] = []
        self._first = 0
        self._stop: int | None = None

    @property
    def thinking(self) -> bool:
        return self._head is None and self._thinking

    def finish(self) -> tuple[Message, list[Event]]:
        stopped = self._stop is not None
        self._end("", past=self._at + (not stopped), closed=stopped)
        parts = tuple(self._parts())
        self.calls = tuple(sorted((*self.calls, *self._lost), key=lambda span: span.start))
        return Message("assistant", parts), self._new_events()

    def _take(self, id: int) -> None:
        if self._stop is not None:
            # It did not end the draw after all: then it is text like any other id.
            stop, self._stop = self._stop, None
            self._at -= 1
            self._add(stop)
            self._at += 1
        tag = self._tags.get(id, "")
        if tag == self._form.start:
            self._end(tag, past=self._at)
            self._head = Head(self._at, [Tag(tag)])
        elif tag in self._form.ends:
            self._end(tag, past=self._at + 1, closed=True)
            self._head = Head(self._at + 1)
        elif tag and self._head is not None:
            self._open(self._head)
        elif id in self._replies.stop_ids:
            self._stop = id
        else:
            self._add(id)

    def _add(self, id: int) -> None:
        super()._add(id)
        self.reasoning_ids += self.thinking

    def _emit(self, piece: str, at: int) -> None:
        if self._head is not None:
            self._head.pieces += [piece] if piece else []
        elif isinstance(section := self._sections[-1], Calls):
            section.add(piece, at)
        else:
            self._tell(section, section.add(piece))

    def _open(self, head: Head) -> None:
        """The content of a message begins."""
        self._emit(self._text.flush(), self._at)
        header = read_header(self._form, head.pieces)
        use = self._use(header)
        self._head, self._first = None, head.first
        source = "".join([*head.pieces, self._form.message])
        if use == "call":
            self._say(header.said)
            self._call(source, head.first, header)
            return
        self._sections.append(Stretch("thinking" if use == "thinking" else "text", hold=0))
        self.reasoning_ids += (self._at - head.first + 1) * self.thinking
        if use == "strange":
            self._emit(source, self._at)

    def _call(self, source: str, first: int, header: Header) -> None:
        self._called = True
        self._sections.append(Addressed(source, first, recipient=header.recipient or ""))

    def _end(self, tag: str, past: int, closed: bool = False) -> None:
        """`tag`: what ends the message, "" for the end of the draw."""
        self._emit(self._text.flush(), past)
        if self._head is not None:
            self._end_head(self._head, cut=not (tag or closed))
        section = self._sections[-1] if self._sections else None
        if isinstance(section, Calls):
            if not section.past:
                section.closed, section.end_tag, section.past = closed, tag if closed else "", past
        elif self._means_call(tag):
            self._lost.append(CallSpan(self._first, past, "", "missing_name"))
        self.reasoning_ids += self.thinking and tag in self._form.ends and tag not in self._form.stops

    def _end_head(self, head: Head, cut: bool) -> None:
        """A header without content says nothing, but for a call without arguments and for what is no header. `cut`: it
        may have gone on."""
        header = read_header(self._form, head.pieces, cut)
        use = "strange" if header.strange else self._use(header)
        source = "".join(head.pieces)
        self._first = head.first
        if use == "call" and not cut:
            self._call(source, head.first, header)
        elif use == "strange":
            self._say(source)

    def _say(self, text: str) -> None:
        """What stands in a header and is none."""
        if text:
            self._sections.append(section := Stretch("text", hold=0))
            self._tell(section, section.add(text))

    def _use(self, header: Header) -> Use:
        use = self._form.use(header)
        if use != "call":
            return use
        nameless = header.strange and not self._form.read(header.recipient or "", Block((), False), self._tools)
        return "strange" if header.foreign or nameless or not self._replies.calls else "call"

    def _means_call(self, tag: str) -> bool:
        """Whether `tag` ends calls alone."""
        return self._replies.calls and tag == self._form.stops[-1] != self._form.stops[0]

    def _read(self, section: Calls) -> list[Found]:
        assert isinstance(section, Addressed)
        return self._form.read(section.recipient, Block(tuple(section.pieces), section.closed), self._tools)


def read_header(form: MessageForm, pieces: Iterable[str], cut: bool = False) -> Header:
    """`pieces`: of a header, the tag that starts it included where it was sampled. `cut`: its last word may not be all
    there."""
    role: list[str] = []
    rest: list[str] = []
    kind: list[str] = []
    words, started, stray = role, False, False
    for piece in pieces:
        if not isinstance(piece, Tag):
            words.append(piece)
        elif piece == form.channel:
            words = rest
            rest.append(" ")
        elif piece == form.constrain:
            words = kind
            kind.append(" ")
        elif piece == form.start:
            started = True
        else:
            stray = True
    header = _read_words(form, _words(role), _words(rest), _words(kind), started, cut)
    strange, foreign = header.strange or stray, header.foreign or stray
    return header._replace(constrained=bool(kind), strange=strange, foreign=foreign)


def _read_words(
    form: MessageForm, role: list[str], rest: list[str], kind: list[str], started: bool, cut: bool
) -> Header:
    """`role`: up to the channel, `rest`: behind it; `kind`: behind the tag that constrains the content."""
    to = next((word.strip() for word in (*role, *rest, *kind) if _names(word)), None)
    at = next((at for at, word in enumerate(role) if _names(word)), len(role))
    speakers, behind, rest, kind = ([w for w in part if w.strip() != to] for part in (role[:at], role[at:], rest, kind))
    if cut and speakers and any(word.startswith(speakers[-1].strip()) for word in (SPEAKER, "to=")):
        speakers.pop()
    if to is None and not rest:
        speakers, kind = [*speakers, *kind], []
    own = bool(speakers) and speakers[0].strip() == SPEAKER
    foreign = started and bool(speakers) and not own
    said = speakers[own:]
    # One word may stand behind the channel or the recipient: the kind of the content. What is longer is text.
    kinds = [*behind, *rest[1:], *kind]
    if len(kinds) > bool(form.constrain) or any(_names(word) for word in kinds):
        said += [*behind, *rest[1:], *kind[1:]]
    recipient = None if to is None else to.removeprefix("to=")
    return Header(rest[0].strip() if rest else "", recipient, False, bool(said) or foreign, "".join(said), foreign)


def _words(pieces: Sequence[str]) -> list[str]:
    """Each with the blanks before it."""
    return WORD.findall("".join(pieces).rstrip())


def _names(word: str) -> bool:
    return word.lstrip().startswith("to=")


# --- writing ----------------------------------------------------------------------------------------------------------


def _written(replies: MessageReplies, message: Message, thinking_open: bool) -> Iterator[str]:
    form, parts = replies.form, list(message.parts)
    if thinking_open and not (parts and isinstance(parts[0], Thinking)):
        parts.insert(0, Thinking(""))
    for number, part in enumerate(parts):
        if number:
            yield from (Tag(form.ends[0]), Tag(form.start), SPEAKER)
        if number or not thinking_open:
            called = any(isinstance(later, ToolCall) for later in parts[number:])
            yield from (*form.head(part, called), Tag(form.message))
        yield _content(replies, part)
    yield Tag(form.stops[-1] if parts and isinstance(parts[-1], ToolCall) else form.stops[0])


def _content(replies: MessageReplies, part: Part) -> str:
    match part:
        case Text(text) | Thinking(text):
            return text
        case ToolCall(name=name) if not replies.calls:
            raise TemplateError(f"this model's calls are left alone (calls = none); it cannot call {name!r}")
        case ToolCall():
            return replies.form.write(part)
        case _:
            raise TemplateError("a reply cannot hold an image")
