"""What a conversation is, independent of any wire format: the values every family passes around.

Knows nothing of HTTP, tokens or templates. All values are frozen; nothing mutates a request in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
Kind = Literal["main", "subagent", "compaction", "auxiliary"]
KINDS: tuple[Kind, ...] = ("main", "subagent", "compaction", "auxiliary")
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
CallStatus = Literal["ok", "invalid_json", "unclosed", "missing_name", "unknown_tool", "malformed"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Thinking(msgspec.Struct, frozen=True, tag="thinking"):
    """Reasoning. `signature` is the opaque field a protocol echoes; the gateway mints the turn's identity into it."""

    text: str
    signature: str = ""


class Image(msgspec.Struct, frozen=True, tag="image"):
    """`data` is base64 or a URL, as it came."""

    media_type: str
    data: str


class Document(msgspec.Struct, frozen=True, tag="document"):
    """A file that is no plain text (a PDF): `data` is base64 or a URL. A document of plain text is a `Text`."""

    media_type: str
    data: str
    title: str = ""


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """`arguments` is JSON text, byte for byte as sampled or as echoed; it is never re-serialized.

    The input of a freeform tool is the one string property `input` of its arguments. `said`: the id that the model
    itself gave the call, where its form has one; `id` is the one that clients see."""

    id: str
    name: str
    arguments: str
    status: CallStatus = "ok"
    said: str = ""


Part = Text | Thinking | Image | Document | ToolCall


class Message(msgspec.Struct, frozen=True):
    """One message. A tool result has role `tool`, `call_id` and `is_error`.

    `form` is "" when the wire form is the one the protocol's own replies use, else the form met ("string", "list",
    "null", "absent"; "ids": calls under other ids): a fact for the echo table, never part of identity.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    call_id: str = ""
    is_error: bool = False
    form: str = ""

    @property
    def text(self) -> str:
        """All text parts, joined by newlines where they are separate parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def thinking(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Thinking))

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(part.signature for part in self.parts if isinstance(part, Thinking) and part.signature)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


ToolForm = Literal["function", "custom", "local_shell"]


class Tool(msgspec.Struct, frozen=True):
    """A tool the agent offers. `parameters` is its JSON Schema, key order kept.

    `form`: in which items the protocol carries its calls. `custom` is a freeform tool: models of ours see a function
    with the one string property `input`, its grammar in the description. `namespace`: what the protocol says beside the
    name in a call; `name` is unique without it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}
    form: ToolForm = "function"
    namespace: str = ""


class Wishes(msgspec.Struct, frozen=True):
    """Sampling as the client asked for it. Recorded; training sessions enforce the trainer's sampling instead."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    tool_choice: Literal["auto", "none", "required"] = "auto"
    """Whether the answer may, may not or must call a tool."""
    allowed: tuple[str, ...] = ()
    """The tools it may call; empty: every one that is offered."""
    logprobs: bool = False
    parallel_calls: bool | None = None
    """False: at most one call in an answer."""


class Switches(msgspec.Struct, frozen=True):
    """What a request, or the operator, sets of a template's own switches. `thinking`: None when nothing is said.
    `effort`: "" or the protocol's own word (minimal, low, medium, high, …)."""

    thinking: bool | None = None
    effort: str = ""


class Note(msgspec.Struct, frozen=True):
    """Something the gateway did to, or found in, a request; it ends up in the fidelity record. Nothing is silent."""

    what: str
    detail: str = ""


class ModelRequest(msgspec.Struct, frozen=True):
    """One model call in canonical form, as a protocol's parser produced it.

    `framing`: how an answer is framed where the protocol has a choice; window: as all that is left of the conversation
    once its summary stands for the rest. `kind`: what the call itself is made for, whatever rules say. `previous`: the
    reply this request goes on from; its `messages` are then only the new ones. `instructions`: so many leading messages
    hold for this request alone: one that goes on from its reply does not get them. `store`: whether a later request may
    go on from this one. `headers`: lower-cased, credentials removed; `metadata`: what the body says of itself (user id,
    cache key): evidence for kinds and retries, never part of the conversation.
    """

    protocol: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    wishes: Wishes = Wishes()
    stream: bool = False
    kind: Kind | None = None
    framing: Literal["sse", "array", "window"] = "sse"
    switches: Switches = Switches()
    response_schema: Mapping[str, Any] | None = None
    include_usage: bool = False
    show_thinking: bool = True
    """False: the client wants no thinking among what it is sent."""
    previous: str = ""
    instructions: int = 0
    store: bool = False
    headers: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts: `input` is the whole prompt, `cached` the part of it that was held before this turn, `reasoning`
    the part of `output` spent thinking."""

    input: int
    output: int
    cached: int = 0
    reasoning: int = 0


class TokenLogprob(msgspec.Struct, frozen=True):
    """`token`: the text of one sampled id, U+FFFD where its bytes are no text by themselves."""

    token: str
    logprob: float
    data: bytes


class Reply(msgspec.Struct, frozen=True):
    """A finished turn as the client shall see it. Ids are already minted into `message`."""

    id: str
    model: str
    message: Message
    finish_reason: FinishReason
    usage: Usage
    stop_sequence: str = ""
    """The client's own stop text that ended the turn; it is not part of `message`."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for every sampled id but the stop id; None when none were asked for."""
    signature: str = ""
    """The turn's identity, for fields that a protocol echoes with text alone; `message` holds it where it thinks."""


class KindRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that names a turn's kind from facts of its request; every condition given must hold. First match wins.

    Harnesses list theirs, rollouts pass them into the session's options.
    """

    kind: Kind
    name: str
    header: str = ""
    """A header that must be present (lower case)."""
    header_contains: str = ""
    """What that header must contain."""
    tools: Literal["", "none", "some"] = ""
    lacks_tool: str = ""
    """The name of a tool that is not offered."""
    system_contains: str = ""
    last_user_contains: str = ""
    response_schema: bool | None = None

    def holds(self, request: ModelRequest) -> bool:
        if self.header and self.header_contains not in request.headers.get(self.header, ""):
            return False
        if self.header and self.header not in request.headers:
            return False
        if self.tools and (self.tools == "some") != bool(request.tools):
            return False
        if self.lacks_tool and any(tool.name == self.lacks_tool for tool in request.tools):
            return False
        if self.response_schema is not None and self.response_schema != (request.response_schema is not None):
            return False
        if self.system_contains and not any(
            self.system_contains in message.text
            for message in request.messages
            if message.role in ("system", "developer")
        ):
            return False
        return not self.last_user_contains or self.last_user_contains in last_user_text(request.messages)


class ThreadRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which headers say whose call it is where an agent runs sub-agents (lower case). First one that is present wins.

    `thread`: names the conversation a call belongs to. `parent`: names the one that dispatched it, and is absent where
    that is the first one or none; "" where the agent never names it. `depth`: of a thread without a parent; 1 where
    the first conversation sends no `thread`."""

    thread: str
    parent: str = ""
    depth: int = 0


class ThreadFacts(msgspec.Struct, frozen=True):
    """Whose call it was, as its headers say. `depth`: 0 for the conversation nobody dispatched, None where the headers
    name no chain up to it."""

    thread: str
    parent: str = ""
    depth: int | None = None


def thread_of(
    request: ModelRequest, rules: tuple[ThreadRule, ...], depths: Mapping[str, int | None]
) -> ThreadFacts | None:
    """`depths`: of the threads met so far. None where no rule applies."""
    for rule in rules:
        if (thread := request.headers.get(rule.thread)) is not None:
            parent = request.headers.get(rule.parent, "")
            above = depths.get(parent)
            below = None if above is None else above + 1
            return ThreadFacts(thread, parent, rule.depth if rule.parent and not parent else below)
    return None


def last_user_text(messages: tuple[Message, ...]) -> str:
    for message in reversed(messages):
        if message.role == "user":
            return message.text
    return ""


def signed(message: Message, identity: str) -> Message:
    """`message` with the identity of its turn where it has no part to carry it: before text, as thinking without a
    word."""
    if not identity or not all(isinstance(part, Text) for part in message.parts):
        return message
    return msgspec.structs.replace(message, parts=(Thinking("", identity), *message.parts))


def beside_summary(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What stays beside the summary of a conversation that ends in the instruction to write it: all the user said."""
    return tuple(message for message in messages[:-1] if message.role == "user")


def kind_of(request: ModelRequest, rules: tuple[KindRule, ...]) -> tuple[Kind, str]:
    """-> the kind and the name of the rule that said so ("call": the call itself, "default": nothing)."""
    if request.kind is not None:
        return request.kind, "call"
    for rule in rules:
        if rule.holds(request):
            return rule.kind, rule.name
    return "main", "default"
