"""The contract every renderer fulfils: messages to token ids for one model, and sampled ids back to messages.

A conversation is rendered in units: the root (tools, the leading system messages and the first message after them),
then one unit per message, consecutive tool results together. Units and the generation prompt meet only at control
tokens, so their ids can be computed apart and still be the ids of the whole; the start-up probe proves that or refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol as Contract

import msgspec

from bridle.messages import CallStatus, Message, Note, Role, Switches, Tool
from bridle.rendering.chat_template import CallStyle
from bridle.tokens import Ids, Vocabulary

Switch = Literal["thinking", "effort"]
"""The fields of `Switches`."""

Strips = Literal["", "user", "answer", "always"]
"""Which reasoning the stock template drops: none; that of messages with a user message behind them; that of a final
answer and of everything before it; all of it."""


Rewritten = Literal["answer", "calls", "text_beside_calls", "end"]
"""What of an answer a stock template writes otherwise than the model says it."""


class TemplateFacts(msgspec.Struct, frozen=True):
    """What the probe found out about one chat template.

    `extendable`: units concatenate to the template's own rendering, but for reasoning blocks of earlier messages.
    `why_not` says what broke when they do not; then every request is rendered whole and forks. `strips_reasoning`: the
    reasoning that the stock template drops (under history=keep the sampled ids stay all the same). `why_not_template`:
    why histories cannot follow it in units (history=template); then every request of such a session is rendered whole.
    `role_rules`: rules applied in place where the template raises. `switches`: those it reads; `root_switches`: those
    of them that the text of the root or of a message depends on. `calls`: how it takes calls. `has_results`: it writes
    tool results out. `rewrites`: what of an answer it writes otherwise in a history than the model says it; what was
    sampled stays all the same.
    """

    fingerprint: str
    extendable: bool
    why_not: str = ""
    strips_reasoning: Strips = ""
    why_not_template: str = ""
    switches: tuple[Switch, ...] = ()
    root_switches: tuple[Switch, ...] = ()
    has_tools: bool = True
    has_results: bool = True
    calls: CallStyle = CallStyle()
    role_rules: tuple[Note, ...] = ()
    rewrites: tuple[Rewritten, ...] = ()


class GenerationPrompt(msgspec.Struct, frozen=True):
    """`thinking_open`: it ends inside an opened reasoning block."""

    ids: Ids
    thinking_open: bool


class Event(msgspec.Struct, frozen=True, tag_field="type"):
    """What an incremental parse yields: more thinking or more text. Calls come with the finished message only."""


class ThinkingDelta(Event, frozen=True, tag="thinking"):
    text: str


class TextDelta(Event, frozen=True, tag="text"):
    text: str


class CallSpan(msgspec.Struct, frozen=True):
    """Where a call stands in its draw: ids `start` to `end` (exclusive), tags included. `name`: "" for a block in which
    none can be read (`missing_name`): it is in the message as text."""

    start: int
    end: int
    name: str
    status: CallStatus


class ReplyParser(Contract):
    """Parses one draw as it arrives. Thinking and text before the first call are passed on at once; from the first
    possible start of a call on, everything waits for `finish`."""

    reasoning_ids: int
    """How many of the ids fed so far stand in reasoning blocks, tags included."""

    calls: tuple[CallSpan, ...]
    """Once finished: in the order of the draw."""

    def feed(self, ids: Sequence[int]) -> list[Event]: ...

    def finish(self) -> tuple[Message, list[Event]]:
        """-> the whole assistant message (calls without ids) and the thinking/text not yet passed on.

        Text that was held back because it stood after a call is not among the events: it is in the message."""
        ...


class Replies(Contract):
    """How one model's replies are spelled, whatever its template does with a history."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn, the one behind an answer first."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """Ids each of which ends a message: a model samples one where its template writes another one in a history."""
        ...

    @property
    def thinking_end(self) -> int | None:
        """The id that closes a reasoning block, where the model has one."""
        ...

    def thinking_open(self, prompt: Ids) -> bool:
        """Whether a generation prompt ends inside an opened reasoning block."""
        ...

    def reasons(self, ids: Ids) -> bool:
        """Whether `ids` hold any part of a reasoning block."""
        ...

    def same_but_reasoning(self, one: Ids, other: Ids) -> bool:
        """Whether two renderings of a message differ in reasoning blocks alone."""
        ...

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser: ...

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        """As `Renderer.write`. Raises TemplateError for what the model has no spelling of."""
        ...


class Renderer(Contract):
    vocabulary: Vocabulary
    facts: TemplateFacts
    stop_ids: tuple[int, ...]
    """Ids that end a turn."""
    closing: Ids
    """What the template puts between the end of an assistant message and the next unit; of one that can be extended,
    the closing token stands first."""
    call_closing: Ids
    """The same behind a message that calls."""

    ends: frozenset[int]
    """Ids each of which ends a message (`Replies.ends`)."""

    thinking_end: int | None
    """The id that closes a reasoning block, where the model has one."""

    def taken(self, asked: Switches) -> Switches:
        """What of `asked` the template reads and takes; the rest is unset."""
        ...

    def root(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids: ...

    def mapped(
        self, roles: Sequence[Role], at: int, message: Message, before: Message | None = None
    ) -> tuple[Note, ...]:
        """The rules that `message`, at `at` in a conversation of these roles, takes: for its role, and for its calls or
        those that it answers (of `before`)."""
        ...

    def settled(self, messages: Sequence[Message]) -> int:
        """-> the messages before this one are those whose reasoning the stock template drops."""
        ...

    def reasons(self, ids: Ids) -> bool:
        """Whether `ids` hold any part of a reasoning block."""
        ...

    def unit(
        self,
        messages: Sequence[Message],
        before: Message | None,
        tools: Sequence[Tool],
        switches: Switches = Switches(),
        behind: Role = "user",
        settled: bool = False,
    ) -> Ids:
        """Ids of one unit. `before`: the assistant message whose calls a tool-result unit answers. `behind`: the role
        of the message before. `settled`: as the stock template writes it once it drops reasoning.

        Raises TemplateError (400) when the template cannot express the message."""
        ...

    def whole(self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches) -> Ids:
        """The stock rendering of everything, without generation prompt."""
        ...

    def prompted(
        self, messages: Sequence[Message], tools: Sequence[Tool], switches: Switches
    ) -> tuple[Ids, GenerationPrompt]:
        """The stock rendering of everything and the generation prompt that it has behind this very history: for
        templates that cannot be extended, whose generation prompt may depend on it."""
        ...

    def generation(self, switches: Switches, behind: Role = "user") -> GenerationPrompt:
        """`behind`: the role of the last message."""
        ...

    def parser(self, thinking_open: bool, tools: Sequence[Tool]) -> ReplyParser: ...

    def write(self, message: Message, thinking_open: bool) -> list[str | int]:
        """The reply a model would sample for `message`: text pieces and control ids in order, closing token last.

        Engines that answer from text encode the text pieces in whatever valid segmentation they like."""
        ...
