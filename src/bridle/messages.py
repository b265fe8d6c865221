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


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """`arguments` is JSON text, byte for byte as sampled or as echoed; it is never re-serialized."""

    id: str
    name: str
    arguments: str
    status: CallStatus = "ok"


Part = Text | Thinking | Image | ToolCall


class Message(msgspec.Struct, frozen=True):
    """One message. A tool result has role `tool`, `call_id` and `is_error`.

    `form` is "" when the wire form is the one the protocol's own replies use, else the form met
    ("string", "list", "null", "absent"): a fact for the echo table, never part of identity.
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


class Tool(msgspec.Struct, frozen=True):
    """A tool the agent offers. `parameters` is its JSON Schema, key order kept."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}


class Wishes(msgspec.Struct, frozen=True):
    """Sampling as the client asked for it. Recorded; training sessions enforce the trainer's sampling instead."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    tool_choice: str = "auto"
    """"auto", "none", "required", or a tool's name."""
    logprobs: bool = False


class Note(msgspec.Struct, frozen=True):
    """Something the gateway did to, or found in, a request; it ends up in the fidelity record. Nothing is silent."""

    what: str
    detail: str = ""


class ModelRequest(msgspec.Struct, frozen=True):
    """One model call in canonical form, as a protocol's parser produced it.

    `thinking`: True/False when the request switches it, None when it says nothing.
    `headers`: lower-cased, credentials removed; evidence for kinds and retries.
    """

    protocol: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    wishes: Wishes = Wishes()
    stream: bool = False
    thinking: bool | None = None
    response_schema: Mapping[str, Any] | None = None
    include_usage: bool = False
    headers: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts: `input` is the whole prompt, `cached` the part of it that was held before this turn."""

    input: int
    output: int
    cached: int = 0


class Reply(msgspec.Struct, frozen=True):
    """A finished turn as the client shall see it. Ids are already minted into `message`."""

    id: str
    model: str
    message: Message
    finish_reason: FinishReason
    usage: Usage


class KindRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that names a turn's kind from facts of its request; every condition given must hold. First match wins.

    Harnesses list theirs, rollouts pass them into the session's options.
    """

    kind: Kind
    name: str
    header: str = ""
    """A header that must be present (lower case)."""
    tools: Literal["", "none", "some"] = ""
    system_contains: str = ""
    last_user_contains: str = ""
    response_schema: bool | None = None

    def holds(self, request: ModelRequest) -> bool:
        if self.header and self.header not in request.headers:
            return False
        if self.tools and (self.tools == "some") != bool(request.tools):
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


def last_user_text(messages: tuple[Message, ...]) -> str:
    for message in reversed(messages):
        if message.role == "user":
            return message.text
    return ""


def kind_of(request: ModelRequest, rules: tuple[KindRule, ...]) -> tuple[Kind, str]:
    """-> the kind and the name of the rule that said so ("default" when none did)."""
    for rule in rules:
        if rule.holds(request):
            return rule.kind, rule.name
    return "main", "default"
