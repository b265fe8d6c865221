"""The Anthropic Messages API: `POST /v1/messages`, `/v1/messages/count_tokens`, `GET /v1/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from bridle.errors import BadRequest, BridleError
from bridle.messages import (
    Image,
    Message,
    ModelRequest,
    Note,
    Part,
    Reply,
    Switches,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Wishes,
)
from bridle.protocols.anthropic_reply import AnthropicStream, error_body, message_body
from bridle.protocols.base import ReplyStream, Route
from bridle.protocols.wire import kept_headers, read

ATTRIBUTION = "x-anthropic-billing-header"
"""Claude Code heads its system prompt with a block of this name; in some versions it changes with every request."""

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class Base64Source(msgspec.Struct, tag="base64"):
    media_type: str
    data: str


class UrlSource(msgspec.Struct, tag="url"):
    url: str


class ImageBlock(msgspec.Struct, tag="image"):
    source: Base64Source | UrlSource


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking"):
    data: str


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextBlock | ImageBlock | ToolResultBlock]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock]


class SystemTurn(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextBlock]


class ToolSpec(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""


class ThinkingSwitch(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None


class Body(msgspec.Struct):
    """`max_tokens` may be missing: the count-tokens call has the same body without it."""

    model: str
    messages: Annotated[list[UserTurn | AssistantTurn | SystemTurn], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    stream: bool | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None


BODY = msgspec.json.Decoder(Body)
KNOWN = {
    "messages[].role": "user, assistant, system",
    "messages[].content[].type": (
        "text, image, tool_result in user messages; text, thinking, redacted_thinking, tool_use in assistant messages; "
        "text in system messages"
    ),
    "messages[].content[].content[].type": "text, image",
    "messages[].content[].source.type": "base64, url",
    "system[].type": "text",
    "tool_choice.type": "auto, any, tool, none",
    "thinking.type": "enabled, disabled, adaptive",
    "output_config.format.type": "json_schema",
}


class Anthropic:
    name = "anthropic"
    routes = (
        Route("POST", "/v1/messages", "turn"),
        Route("POST", "/v1/messages/count_tokens", "count"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
    )

    def parse(self, body: bytes, headers: Mapping[str, str], target: str = "") -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN)
        notes = [*mended]
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=(*_system(wire.system, notes), *_messages(wire, notes)),
            tools=_tools(wire.tools or [], notes),
            wishes=_wishes(wire),
            stream=bool(wire.stream),
            switches=Switches(_thinking(wire.thinking)),
            response_schema=_schema(wire.output_config),
            headers=kept_headers(headers),
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


def _system(system: str | list[TextBlock] | None, notes: list[Note]) -> Iterator[Message]:
    blocks = system
    if isinstance(blocks, list) and blocks and blocks[0].text.startswith(ATTRIBUTION):
        notes.append(Note("attribution_removed", blocks[0].text))
        blocks = blocks[1:]
    if parts := _texts(blocks or ""):
        yield Message("system", parts)


def _messages(wire: Body, notes: list[Note]) -> Iterator[Message]:
    for index, turn in enumerate(wire.messages):
        match turn:
            case UserTurn():
                yield from _user(turn)
            case AssistantTurn():
                yield _assistant(turn, index, notes)
            case SystemTurn():
                yield Message("system", _texts(turn.content))


def _user(turn: UserTurn) -> Iterator[Message]:
    """Tool results become messages of their own; what stands between them stays where it stands."""
    if isinstance(turn.content, str):
        yield Message("user", _texts(turn.content))
        return
    parts: list[Part] = []
    results = False
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            if parts:
                yield Message("user", tuple(parts))
            parts, results = [], True
            yield Message("tool", _seen(block.content or ""), call_id=block.tool_use_id, is_error=bool(block.is_error))
        else:
            parts.extend(_seen([block]))
    if parts or not results:
        yield Message("user", tuple(parts))


def _assistant(turn: AssistantTurn, index: int, notes: list[Note]) -> Message:
    if isinstance(turn.content, str):
        return Message("assistant", _texts(turn.content), form="string")
    parts: list[Part] = []
    for position, block in enumerate(turn.content):
        match block:
            case TextBlock():
                parts.extend(_texts([block]))
            case ThinkingBlock():
                if block.thinking or block.signature:
                    parts.append(Thinking(block.thinking, block.signature))
            case RedactedThinkingBlock():
                notes.append(Note("redacted_thinking", f"messages[{index}].content[{position}] left out"))
            case ToolUseBlock():
                parts.append(ToolCall(block.id, block.name, msgspec.json.encode(block.input).decode()))
    return Message("assistant", tuple(parts))


def _seen(content: str | Sequence[TextBlock | ImageBlock]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return _texts(content)
    parts: list[Part] = []
    for block in content:
        parts.extend(_texts([block]) if isinstance(block, TextBlock) else [_image(block.source)])
    return tuple(parts)


def _texts(content: str | Sequence[TextBlock]) -> tuple[Text, ...]:
    """Empty text is dropped: agents add and remove it at will."""
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    return tuple(Text(text) for text in texts if text)


def _image(source: Base64Source | UrlSource) -> Image:
    return Image(source.media_type, source.data) if isinstance(source, Base64Source) else Image("", source.url)


def _tools(specs: Sequence[ToolSpec], notes: list[Note]) -> tuple[Tool, ...]:
    """Typed tools without a schema run at the provider, or have a schema that only its models know."""
    tools = []
    for index, spec in enumerate(specs):
        if spec.input_schema is None and spec.type not in (None, "custom"):
            notes.append(Note("server_tool_dropped", f"{spec.name} ({spec.type})"))
            continue
        if not spec.name or spec.input_schema is None:
            raise BadRequest(f"tools[{index}]: a tool of the client's own needs a name and an input_schema")
        tools.append(Tool(spec.name, spec.description or "", spec.input_schema))
    return tuple(tools)


def _wishes(wire: Body) -> Wishes:
    return Wishes(
        max_tokens=wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        stop=tuple(wire.stop_sequences or ()),
        tool_choice=_tool_choice(wire.tool_choice),
    )


def _tool_choice(choice: ToolChoice | None) -> str:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type != "tool":
        return "required" if choice.type == "any" else "none"
    if not choice.name:
        raise BadRequest('tool_choice.name: required when tool_choice.type is "tool", but missing')
    return choice.name


def _thinking(switch: ThinkingSwitch | None) -> bool | None:
    if switch is None or switch.type == "adaptive":
        return None
    return switch.type == "enabled"


def _schema(config: OutputConfig | None) -> Mapping[str, Any] | None:
    return config.format.schema if config is not None and config.format is not None else None
