"""The OpenAI Responses API: `POST /v1/responses`, and the same over a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from bridle.errors import BadRequest, BridleError
from bridle.messages import Message, ModelRequest, Note, Reply, Switches, Text, Tool, Wishes
from bridle.protocols.arguments import freeform_tool
from bridle.protocols.base import ReplyStream, Route, Said, nothing_said
from bridle.protocols.openai_chat import OpenAIChat
from bridle.protocols.openai_responses_compaction import INSTRUCTION, OpenAICompactionStream, window_body
from bridle.protocols.openai_responses_items import Names, ends_in_trigger, input_messages
from bridle.protocols.openai_responses_reply import (
    NAMESPACED,
    RESPONSE_ID,
    OpenAIResponsesStream,
    error_body,
    response_body,
)
from bridle.protocols.tool_choice import Choice, Chosen, chosen
from bridle.protocols.wire import Count, kept_headers, read, unfollowed

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


class AllowedTool(msgspec.Struct):
    type: str
    name: str | None = None


class ToolChoice(AllowedTool):
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


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
    context_management: list[dict[str, Any]] | None = None
    conversation: Any = None
    prompt: Any = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: Choice | ToolChoice | None = None
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


COMPACT = "/v1/responses/compact"


class OpenAIResponses:
    """Lists and errors are those of the other OpenAI protocol."""

    name = "openai_responses"
    routes = (
        Route("POST", "/v1/responses", "turn"),
        Route("POST", COMPACT, "turn"),
        Route("POST", "/v1/responses/input_tokens", "count"),
        Route("WEBSOCKET", "/v1/responses", "turn"),
    )

    def __init__(self) -> None:
        self._chat = OpenAIChat()

    def parse(
        self, body: bytes, headers: Mapping[str, str], target: str = "", said: Said = nothing_said
    ) -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN)
        _refuse_unserved(wire)
        notes = [*mended, *unfollowed(context_management=wire.context_management)]
        tools = tuple(_tools(wire.tools or [], notes))
        window = target.partition("?")[0] == COMPACT
        triggered = ends_in_trigger(wire.input or "")
        items = (wire.input or "")[:-1] if triggered else wire.input
        own = (Message("system", (Text(wire.instructions),)),) if wire.instructions else ()
        new = () if items is None else tuple(input_messages(items, _names(tools), notes, said))
        if not own and not new and not wire.previous_response_id:
            raise BadRequest("input: required, but missing or empty")
        compacting = window or triggered
        choice, schema = _summarized(wire, notes) if compacting else _form(wire, tools, notes)
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=(*own, *new, *((INSTRUCTION,) if compacting else ())),
            tools=tools,
            wishes=_wishes(wire, choice),
            stream=bool(wire.stream) and not window,
            kind="compaction" if compacting else None,
            framing="window" if window else "sse",
            switches=_switches(wire.reasoning),
            response_schema=schema,
            previous=(wire.previous_response_id or "").removeprefix(RESPONSE_ID),
            instructions=len(own),
            store=wire.store is not False,
            headers=kept_headers({**headers, **_told_as_headers(wire)}),
            metadata=_metadata(wire),
            notes=tuple(notes),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        (reply,) = replies
        write = window_body if request.framing == "window" else response_body
        return msgspec.json.encode(write(request, reply))

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        kind = OpenAICompactionStream if request.kind == "compaction" else OpenAIResponsesStream
        return kind(request, reply_id, signature)

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


Form = tuple[Chosen, Mapping[str, Any] | None]
"""What an answer is held to: a choice of tools, a schema."""


def _form(wire: Body, tools: Sequence[Tool], notes: list[Note]) -> Form:
    return _chosen(wire.tool_choice, tools, notes), _schema(wire.text)


def _summarized(wire: Body, notes: list[Note]) -> Form:
    """A summary is text whatever the answers beside it are held to: clients send the same fields with every call."""
    choice = wire.tool_choice if wire.tool_choice != "auto" else None
    notes += unfollowed(**{"tool_choice": choice, "text.format": _schema(wire.text)})
    return Chosen(), None


def _wishes(wire: Body, choice: Chosen) -> Wishes:
    return Wishes(
        max_tokens=wire.max_output_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        tool_choice=choice.tool_choice,
        allowed=choice.allowed,
        logprobs="message.output_text.logprobs" in (wire.include or []),
        parallel_calls=wire.parallel_tool_calls,
    )


OWN = ("function", "custom", "local_shell")
"""Types of tools that a client runs itself."""


def _chosen(choice: Choice | ToolChoice | None, tools: Sequence[Tool], notes: list[Note]) -> Chosen:
    """A choice of tools that run at the provider, and of none else, is left out."""
    if not isinstance(choice, ToolChoice):
        return chosen("tool_choice", choice or "auto", (), tools, notes)
    listed = choice.type == "allowed_tools"
    some = (choice.tools or []) if listed else [choice]
    own = [tool for tool in some if tool.type in OWN]
    if some and not own:
        notes.append(Note("tool_choice_dropped", ", ".join(tool.type for tool in some)))
        return Chosen()
    named = [name for tool in own for name in _named(tool, tools)]
    return chosen("tool_choice", (choice.mode or "auto") if listed else "required", named, tools, notes)


def _named(choice: AllowedTool, tools: Sequence[Tool]) -> list[str]:
    """The tools of that name, whatever namespace stands in front of it."""
    name = choice.name or ("local_shell" if choice.type == "local_shell" else "")
    if not name:
        raise BadRequest(f'tool_choice.name: required when tool_choice.type is "{choice.type}", but missing')
    return [tool for (_, bare), tool in _names(tools).items() if name in (bare, tool)] or [name]


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
