"""The Anthropic Messages API: `POST /v1/messages`, `/v1/messages/count_tokens`, `GET /v1/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from bridle.errors import BadRequest, BridleError
from bridle.messages import Message, ModelRequest, Note, Reply, Switches, Tool, Wishes
from bridle.protocols.anthropic_blocks import KNOWN, AnyHosted, TextBlock, Turn, system_message, turn_messages
from bridle.protocols.anthropic_reply import AnthropicStream, error_body, message_body
from bridle.protocols.base import ReplyStream, Route, Said, nothing_said
from bridle.protocols.tool_choice import Choice, Chosen, chosen
from bridle.protocols.wire import Count, Integer, StopText, kept_headers, read

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class ToolSpec(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class ThinkingSwitch(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class McpServer(msgspec.Struct):
    name: str = ""


class Body(msgspec.Struct):
    """`max_tokens` may be missing: the count-tokens call has the same body without it."""

    model: str
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    max_tokens: Count | None = None
    system: str | list[TextBlock | AnyHosted] | None = None
    tools: list[ToolSpec] | None = None
    mcp_servers: list[McpServer] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[StopText] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Integer | None = None
    stream: bool | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    metadata: Metadata | None = None


BODY = msgspec.json.Decoder(Body)
KNOWN_HERE = KNOWN | {
    "tool_choice.type": "auto, any, tool, none",
    "thinking.type": "enabled, disabled, adaptive",
    "output_config.format.type": "json_schema",
    "output_format.type": "json_schema",
}


class Anthropic:
    name = "anthropic"
    routes = (
        Route("POST", "/v1/messages", "turn"),
        Route("POST", "/v1/messages/count_tokens", "count"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
    )

    def parse(
        self, body: bytes, headers: Mapping[str, str], target: str = "", said: Said = nothing_said
    ) -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN_HERE)
        notes = [*mended]
        tools = tuple(_tools(wire, notes))
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=tuple(_messages(wire, notes)),
            tools=tools,
            wishes=_wishes(wire, _chosen(wire.tool_choice, tools, notes)),
            stream=bool(wire.stream),
            switches=_switches(wire),
            response_schema=_schema(wire),
            headers=kept_headers(headers),
            metadata={"user_id": wire.metadata.user_id} if wire.metadata and wire.metadata.user_id else {},
            notes=tuple(notes),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        return msgspec.json.encode(message_body(reply))

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        return AnthropicStream(request.model, reply_id, signature)

    def error(self, error: BridleError) -> bytes:
        return msgspec.json.encode(error_body(error))

    def models(self, names: Sequence[str], context_length: int) -> bytes:
        data = [_model(name, context_length) for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return msgspec.json.encode({"data": data, "has_more": False, **ends})

    def model(self, name: str, context_length: int) -> bytes:
        return msgspec.json.encode(_model(name, context_length))

    def token_count(self, tokens: int) -> bytes:
        return msgspec.json.encode({"input_tokens": tokens})


def _model(name: str, context_length: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": context_length,
    }


def _messages(wire: Body, notes: list[Note]) -> Iterator[Message]:
    if wire.system and (system := system_message(wire.system, "system", notes)).parts:
        yield system
    for index, turn in enumerate(wire.messages):
        yield from turn_messages(turn, f"messages[{index}]", notes)


def _tools(wire: Body, notes: list[Note]) -> Iterator[Tool]:
    """Typed tools without a schema run at the provider, or have a schema that only its models know."""
    for index, spec in enumerate(wire.tools or []):
        if spec.input_schema is None and spec.type not in (None, "custom"):
            notes.append(Note("server_tool_dropped", f"{spec.name or f'tools[{index}]'} ({spec.type})"))
        elif not spec.name or spec.input_schema is None:
            raise BadRequest(f"tools[{index}]: a tool of the client's own needs a name and an input_schema")
        else:
            yield Tool(spec.name, spec.description or "", spec.input_schema)
    notes.extend(Note("server_tool_dropped", f"{server.name} (mcp server)") for server in wire.mcp_servers or [])


def _wishes(wire: Body, choice: Chosen) -> Wishes:
    apart = wire.tool_choice.disable_parallel_tool_use if wire.tool_choice is not None else None
    return Wishes(
        max_tokens=wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        stop=tuple(wire.stop_sequences or ()),
        tool_choice=choice.tool_choice,
        allowed=choice.allowed,
        parallel_calls=None if apart is None else not apart,
    )


CHOICES: dict[str, Choice] = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}


def _chosen(choice: ToolChoice | None, tools: Sequence[Tool], notes: list[Note]) -> Chosen:
    if choice is None:
        return Chosen()
    if choice.type == "tool" and not choice.name:
        raise BadRequest('tool_choice.name: required when tool_choice.type is "tool", but missing')
    return chosen("tool_choice", CHOICES[choice.type], [choice.name] if choice.type == "tool" else [], tools, notes)


def _switches(wire: Body) -> Switches:
    """Adaptive thinking is the model's own choice."""
    switch, config = wire.thinking, wire.output_config
    thinking = None if switch is None or switch.type == "adaptive" else switch.type == "enabled"
    return Switches(thinking, config.effort or "" if config is not None else "")


def _schema(wire: Body) -> Mapping[str, Any] | None:
    wanted = wire.output_config.format if wire.output_config is not None else None
    wanted = wanted or wire.output_format
    return wanted.schema if wanted is not None else None
