"""The OpenAI Chat Completions API: `POST /v1/chat/completions`, `GET /v1/models`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from bridle.errors import BadRequest, BridleError, NotFound
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
from bridle.protocols.base import ReplyStream, Route
from bridle.protocols.openai_chat_reply import OpenAIChatStream, completion_body, error_body
from bridle.protocols.wire import kept_headers, read

DATA_URL = re.compile(r"data:(?P<media_type>[^;,]*);base64,(?P<data>.*)", re.DOTALL)

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class TextPart(msgspec.Struct, tag="text"):
    text: str


class RefusalPart(msgspec.Struct, tag="refusal"):
    refusal: str


class ImageUrl(msgspec.Struct):
    url: str


class ImagePart(msgspec.Struct, tag="image_url"):
    image_url: ImageUrl


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class Call(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class SystemTurn(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextPart]


class DeveloperTurn(msgspec.Struct, tag_field="role", tag="developer"):
    content: str | list[TextPart]


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextPart | ImagePart]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextPart | RefusalPart] | UnsetType | None = UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


class ToolTurn(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[TextPart | ImagePart]


class OfferedFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpec(msgspec.Struct):
    type: str
    function: OfferedFunction | None = None


class ChosenFunction(msgspec.Struct):
    name: str


class ToolChoice(msgspec.Struct):
    type: Literal["function"]
    function: ChosenFunction


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    schema: dict[str, Any]


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class TemplateSwitches(msgspec.Struct):
    """What SGLang and vLLM hand to the chat template; the one field with a meaning here."""

    enable_thinking: bool | None = None


Turn = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn
Count = Annotated[int, msgspec.Meta(ge=1)]


class Body(msgspec.Struct):
    model: str
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    tools: list[ToolSpec] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    seed: int | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: TemplateSwitches | None = None


BODY = msgspec.json.Decoder(Body)
KNOWN = {
    "messages[].role": "system, developer, user, assistant, tool",
    "messages[].content[].type": (
        "text, image_url in user and tool messages; text, refusal in assistant messages; text in system messages"
    ),
    "messages[].tool_calls[].type": "function",
    "tool_choice": "auto, none, required, or an object that names a function",
    "tool_choice.type": "function",
    "response_format.type": "text, json_object, json_schema",
}


class OpenAIChat:
    name = "openai_chat"
    routes = (
        Route("POST", "/v1/chat/completions", "turn"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/api/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
    )

    def parse(self, body: bytes, headers: Mapping[str, str], target: str = "") -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN)
        notes = [*mended]
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=tuple(_message(turn) for turn in wire.messages),
            tools=tuple(_tools(wire.tools or [], notes)),
            wishes=_wishes(wire),
            stream=bool(wire.stream),
            switches=Switches(wire.chat_template_kwargs.enable_thinking if wire.chat_template_kwargs else None),
            response_schema=_schema(wire.response_format),
            include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
            headers=kept_headers(headers),
            notes=tuple(notes),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        return msgspec.json.encode(completion_body(replies))

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        return OpenAIChatStream(request, reply_id)

    def error(self, error: BridleError) -> bytes:
        return msgspec.json.encode(error_body(error))

    def models(self, names: Sequence[str], context_length: int) -> bytes:
        """`max_model_len` is where SGLang and vLLM say it, `context_length` where OpenRouter does."""
        data = [_model(name, context_length) for name in names]
        return msgspec.json.encode({"object": "list", "data": data})

    def model(self, name: str, context_length: int) -> bytes:
        return msgspec.json.encode(_model(name, context_length))

    def token_count(self, tokens: int) -> bytes:
        raise NotFound("chat completions have no call that counts tokens; the anthropic protocol has one")


def _model(name: str, context_length: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "bridle",
        "max_model_len": context_length,
        "context_length": context_length,
    }


def _message(turn: Turn) -> Message:
    match turn:
        case SystemTurn():
            return Message("system", _parts(turn.content))
        case DeveloperTurn():
            return Message("developer", _parts(turn.content))
        case UserTurn():
            return Message("user", _parts(turn.content))
        case AssistantTurn():
            return _assistant(turn)
        case ToolTurn():
            return Message("tool", _parts(turn.content), call_id=turn.tool_call_id)


def _assistant(turn: AssistantTurn) -> Message:
    """Reasoning comes back in the field it was read from, which is one of two."""
    reasoning = turn.reasoning_content or turn.reasoning
    parts = (
        *([Thinking(reasoning)] if reasoning else []),
        *(_parts(turn.content) if turn.content else ()),
        *(ToolCall(call.id, call.function.name, call.function.arguments) for call in turn.tool_calls or []),
    )
    return Message("assistant", parts, form=_form(turn))


def _form(turn: AssistantTurn) -> str:
    """Own form: a string; without text null beside calls and "" alone."""
    match turn.content:
        case list():
            return "list"
        case UnsetType():
            return "absent"
        case None:
            return "" if turn.tool_calls else "null"
        case "":
            return "string" if turn.tool_calls else ""
    return ""


def _parts(content: str | Sequence[TextPart | RefusalPart | ImagePart]) -> tuple[Part, ...]:
    """Empty text is dropped: agents add and remove it at will."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(part for wire in content for part in _part(wire))


def _part(wire: TextPart | RefusalPart | ImagePart) -> Iterator[Part]:
    match wire:
        case TextPart():
            if wire.text:
                yield Text(wire.text)
        case ImagePart():
            inline = DATA_URL.fullmatch(wire.image_url.url)
            yield Image(inline["media_type"], inline["data"]) if inline else Image("", wire.image_url.url)


def _tools(specs: Sequence[ToolSpec], notes: list[Note]) -> Iterator[Tool]:
    for index, spec in enumerate(specs):
        if spec.type != "function":
            notes.append(Note("tool_dropped", f"tools[{index}] has type {spec.type}; only functions are offered"))
            continue
        if spec.function is None:
            raise BadRequest(f"tools[{index}].function: required, but missing")
        yield Tool(spec.function.name, spec.function.description or "", spec.function.parameters or {})


def _wishes(wire: Body) -> Wishes:
    return Wishes(
        max_tokens=wire.max_completion_tokens or wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        seed=wire.seed,
        stop=(wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ()),
        n=wire.n or 1,
        tool_choice=wire.tool_choice.function.name
        if isinstance(wire.tool_choice, ToolChoice)
        else wire.tool_choice or "auto",
        logprobs=bool(wire.logprobs),
    )


def _schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        raise BadRequest(
            'response_format.json_schema: required when response_format.type is "json_schema", but missing'
        )
    return wanted.json_schema.schema
