"""The OpenAI Responses API: `POST /v1/responses`, and the same over a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from bridle.errors import BadRequest, BridleError
from bridle.messages import Message, ModelRequest, Note, Reply, Switches, Text, Tool, Wishes
from bridle.protocols.arguments import freeform_tool
from bridle.protocols.base import ReplyStream, Route
from bridle.protocols.openai_chat import OpenAIChat
from bridle.protocols.openai_responses_items import Names, input_messages
from bridle.protocols.openai_responses_reply import (
    NAMESPACED,
    RESPONSE_ID,
    OpenAIResponsesStream,
    error_body,
    response_body,
)
from bridle.protocols.wire import Count, kept_headers, read

T = TypeVar("T")

LOCAL_SHELL = Tool(
    "local_shell",
    "Runs a command on the user's machine and returns its output.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
    "local_shell",
)

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class FunctionSpec(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Format(msgspec.Struct):
    type: Literal["text", "grammar"]
    syntax: str = ""
    definition: str = ""


class CustomSpec(msgspec.Struct):
    name: str
    description: str | None = None
    format: Format | None = None


class NamespaceSpec(msgspec.Struct):
    name: str
    tools: list[msgspec.Raw]


class ToolHead(msgspec.Struct):
    type: str


class ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class Reasoning(msgspec.Struct):
    effort: str | None = None


class Body(msgspec.Struct):
    model: str
    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    include: list[str] | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


BODY = msgspec.json.Decoder(Body)
HEAD = msgspec.json.Decoder(ToolHead)
FUNCTION = msgspec.json.Decoder(FunctionSpec)
CUSTOM = msgspec.json.Decoder(CustomSpec)
NAMESPACE = msgspec.json.Decoder(NamespaceSpec)
KNOWN = {
    "tool_choice": "auto, none, required, or an object that names a tool",
    "text.format.type": "text, json_object, json_schema",
    "format.type": "text, grammar",
}
UNSERVED = {
    "background": "responses are not made in the background; ask with `stream` instead",
    "conversation": "conversations are not kept by an id; send the whole input, or previous_response_id",
    "prompt": "prompts are not kept here; send `input`",
}


class OpenAIResponses:
    """Lists and errors are those of the other OpenAI protocol."""

    name = "openai_responses"
    routes = (
        Route("POST", "/v1/responses", "turn"),
        Route("POST", "/v1/responses/input_tokens", "count"),
        Route("WEBSOCKET", "/v1/responses", "turn"),
    )

    def __init__(self) -> None:
        self._chat = OpenAIChat()

    def parse(self, body: bytes, headers: Mapping[str, str], target: str = "") -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN)
        _refuse_unserved(wire)
        notes = [*mended]
        tools = tuple(_tools(wire.tools or [], notes))
        own = (Message("system", (Text(wire.instructions),)),) if wire.instructions else ()
        new = () if wire.input is None else tuple(input_messages(wire.input, _names(tools), notes))
        if not own and not new and not wire.previous_response_id:
            raise BadRequest("input: required, but missing or empty")
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=(*own, *new),
            tools=tools,
            wishes=_wishes(wire, notes),
            stream=bool(wire.stream),
            switches=_switches(wire.reasoning),
            response_schema=_schema(wire.text),
            previous=(wire.previous_response_id or "").removeprefix(RESPONSE_ID),
            instructions=len(own),
            store=wire.store is not False,
            headers=kept_headers({**headers, **_told_as_headers(wire)}),
            metadata=_metadata(wire),
            notes=tuple(notes),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        return msgspec.json.encode(response_body(request, reply))

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        return OpenAIResponsesStream(request, reply_id, signature)

    def error(self, error: BridleError) -> bytes:
        return msgspec.json.encode(error_body(error))

    def models(self, names: Sequence[str], context_length: int) -> bytes:
        return self._chat.models(names, context_length)

    def model(self, name: str, context_length: int) -> bytes:
        return self._chat.model(name, context_length)

    def token_count(self, tokens: int) -> bytes:
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})


def _refuse_unserved(wire: Body) -> None:
    given = {"background": wire.background, "conversation": wire.conversation, "prompt": wire.prompt}
    for name, instead in UNSERVED.items():
        if given[name]:
            raise BadRequest(f"{name}: {instead}")


def _tools(specs: Sequence[msgspec.Raw], notes: list[Note]) -> Iterator[Tool]:
    """Names that are taken, or would look as if they were made here, get their namespace in front."""
    taken: set[str] = set()
    for where, namespace, raw in _flat(specs, notes):
        tool = _tool(where, namespace, raw, notes)
        if tool is None:
            continue
        prefix = namespace + NAMESPACED
        if namespace and (tool.name in taken or tool.name.startswith(prefix)):
            tool = msgspec.structs.replace(tool, name=prefix + tool.name)
        taken.add(tool.name)
        yield tool


def _flat(specs: Sequence[msgspec.Raw], notes: list[Note]) -> Iterator[tuple[str, str, msgspec.Raw]]:
    """(path, namespace, tool) of every tool, those in namespaces where they stand."""
    for index, raw in enumerate(specs):
        where = f"tools[{index}]"
        if _read(where, raw, HEAD, notes).type != "namespace":
            yield where, "", raw
            continue
        space = _read(where, raw, NAMESPACE, notes)
        for position, inner in enumerate(space.tools):
            yield f"{where}.tools[{position}]", space.name, inner


def _tool(where: str, namespace: str, raw: msgspec.Raw, notes: list[Note]) -> Tool | None:
    match _read(where, raw, HEAD, notes).type:
        case "function":
            function = _read(where, raw, FUNCTION, notes)
            return Tool(
                function.name, function.description or "", function.parameters or {}, "function", namespace=namespace
            )
        case "custom":
            custom = _read(where, raw, CUSTOM, notes)
            form = custom.format or Format("text")
            return freeform_tool(custom.name, custom.description or "", form.syntax, form.definition, namespace)
        case "local_shell":
            return LOCAL_SHELL
        case hosted:
            notes.append(Note("server_tool_dropped", f"{where} ({hosted})"))
            return None


def _read(where: str, raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], notes: list[Note]) -> T:
    try:
        value, mended = read(bytes(raw), decoder, KNOWN)
    except BadRequest as error:
        raise BadRequest(f"{where}: {error.message}") from error
    notes.extend(mended)
    return value


def _names(tools: Sequence[Tool]) -> Names:
    return {(tool.namespace, tool.name.removeprefix(tool.namespace + NAMESPACED)): tool.name for tool in tools}


def _wishes(wire: Body, notes: list[Note]) -> Wishes:
    return Wishes(
        max_tokens=wire.max_output_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        tool_choice=_tool_choice(wire.tool_choice, notes),
        logprobs="message.output_text.logprobs" in (wire.include or []),
        parallel_calls=wire.parallel_tool_calls,
    )


def _tool_choice(choice: str | ToolChoice | None, notes: list[Note]) -> str:
    if not isinstance(choice, ToolChoice):
        return choice or "auto"
    if choice.type in ("function", "custom"):
        if not choice.name:
            raise BadRequest(f'tool_choice.name: required when tool_choice.type is "{choice.type}", but missing')
        return choice.name
    if choice.type == "allowed_tools":
        return choice.mode or "auto"
    notes.append(Note("tool_choice_dropped", choice.type))
    return "auto"


def _switches(reasoning: Reasoning | None) -> Switches:
    effort = reasoning.effort if reasoning is not None else None
    return Switches(thinking=False) if effort == "none" else Switches(effort=effort or "")


def _schema(text: TextConfig | None) -> Mapping[str, Any] | None:
    wanted = text.format if text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.schema is None:
        raise BadRequest('text.format.schema: required when text.format.type is "json_schema", but missing')
    return wanted.schema


def _metadata(wire: Body) -> dict[str, str]:
    own = {"user": wire.user, "safety_identifier": wire.safety_identifier, "prompt_cache_key": wire.prompt_cache_key}
    told = {**(wire.metadata or {}), **(wire.client_metadata or {}), **own}
    return {name: value for name, value in told.items() if isinstance(value, str)}


def _told_as_headers(wire: Body) -> dict[str, str]:
    """A WebSocket has headers once, for the connection; what Codex tells of each call in headers stands here there."""
    told = wire.client_metadata or {}
    return {name: value for name, value in told.items() if name.startswith("x-") and isinstance(value, str)}
