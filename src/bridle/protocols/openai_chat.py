"""The OpenAI Chat Completions API: `POST /v1/chat/completions`, `GET /v1/models`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from bridle.errors import BadRequest, BridleError, NotFound
from bridle.messages import ModelRequest, Note, Reply, Switches, Tool, Wishes
from bridle.protocols.arguments import freeform_tool
from bridle.protocols.base import ReplyStream, Route, Said, nothing_said
from bridle.protocols.openai_chat_messages import KNOWN, Turn, message
from bridle.protocols.openai_chat_reply import OpenAIChatStream, completion_body, error_body
from bridle.protocols.tool_choice import Chosen, chosen
from bridle.protocols.wire import Count, Integer, StopText, kept_headers, read, unfollowed

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class OfferedFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Grammar(msgspec.Struct):
    syntax: str
    definition: str


class CustomFormat(msgspec.Struct):
    grammar: Grammar | None = None


class OfferedCustom(msgspec.Struct):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class ToolSpec(msgspec.Struct):
    type: str
    function: OfferedFunction | None = None
    custom: OfferedCustom | None = None


class Named(msgspec.Struct):
    name: str


class FunctionChoice(msgspec.Struct, tag="function"):
    function: Named


class CustomChoice(msgspec.Struct, tag="custom"):
    custom: Named


class AllowedTool(msgspec.Struct):
    function: Named | None = None
    custom: Named | None = None


class AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AllowedChoice(msgspec.Struct, tag="allowed_tools"):
    allowed_tools: AllowedTools


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    schema: dict[str, Any] = {}


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class TemplateSwitches(msgspec.Struct):
    """What SGLang and vLLM hand to the chat template; the one field with a meaning here."""

    enable_thinking: bool | None = None


class Body(msgspec.Struct):
    model: str
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    tools: list[ToolSpec] | None = None
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    web_search_options: dict[str, Any] | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    stop: StopText | list[StopText] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Integer | None = None
    seed: Integer | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


BODY = msgspec.json.Decoder(Body)
KNOWN_HERE = KNOWN | {
    "tool_choice": "auto, none, required, or an object that names a tool",
    "tool_choice.type": "function, custom, allowed_tools",
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

    def parse(
        self, body: bytes, headers: Mapping[str, str], target: str = "", said: Said = nothing_said
    ) -> ModelRequest:
        wire, mended = read(body, BODY, KNOWN_HERE)
        if wire.functions:
            raise BadRequest('functions: no longer spoken; offer them as tools of type "function"')
        notes = [*mended]
        tools = tuple(_tools(wire, notes))
        return ModelRequest(
            protocol=self.name,
            model=wire.model,
            messages=tuple(message(turn, f"messages[{index}]") for index, turn in enumerate(wire.messages)),
            tools=tools,
            wishes=_wishes(wire, _chosen(wire, tools, notes), notes),
            stream=bool(wire.stream),
            switches=_switches(wire),
            response_schema=_schema(wire.response_format),
            include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
            headers=kept_headers(headers),
            metadata=_metadata(wire),
            notes=tuple(notes),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        return msgspec.json.encode(completion_body(request, replies))

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


def _tools(wire: Body, notes: list[Note]) -> Iterator[Tool]:
    for index, spec in enumerate(wire.tools or []):
        match spec:
            case ToolSpec("function", function=OfferedFunction(name, description, parameters)):
                yield Tool(name, description or "", parameters or {})
            case ToolSpec("custom", custom=OfferedCustom(name, description, form)):
                grammar = form.grammar if form is not None and form.grammar is not None else Grammar("", "")
                yield freeform_tool(name, description or "", grammar.syntax, grammar.definition)
            case ToolSpec("function" | "custom" as kind):
                raise BadRequest(f"tools[{index}].{kind}: required, but missing")
            case _:
                notes.append(Note("server_tool_dropped", f"tools[{index}] ({spec.type})"))
    if wire.web_search_options is not None:
        notes.append(Note("server_tool_dropped", "web_search_options"))


def _wishes(wire: Body, choice: Chosen, notes: list[Note]) -> Wishes:
    notes.extend(
        unfollowed(
            top_logprobs=wire.top_logprobs,
            presence_penalty=wire.presence_penalty,
            frequency_penalty=wire.frequency_penalty,
            logit_bias=wire.logit_bias,
        )
    )
    return Wishes(
        max_tokens=wire.max_completion_tokens or wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        seed=wire.seed,
        stop=(wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ()),
        n=wire.n or 1,
        tool_choice=choice.tool_choice,
        allowed=choice.allowed,
        logprobs=bool(wire.logprobs),
        parallel_calls=wire.parallel_tool_calls,
    )


def _chosen(wire: Body, tools: Sequence[Tool], notes: list[Note]) -> Chosen:
    match wire.tool_choice:
        case FunctionChoice(named) | CustomChoice(named):
            return chosen("tool_choice", "required", [named.name], tools, notes)
        case AllowedChoice(allowed):
            names = [own.name for tool in allowed.tools if (own := tool.function or tool.custom)]
            return chosen("tool_choice", allowed.mode, names, tools, notes)
        case choice:
            return chosen("tool_choice", choice or "auto", (), tools, notes)


def _switches(wire: Body) -> Switches:
    """What SGLang and vLLM hand to the template is plainer than an effort, so it wins."""
    said = wire.chat_template_kwargs.enable_thinking if wire.chat_template_kwargs else None
    if wire.reasoning_effort == "none":
        return Switches(False if said is None else said)
    return Switches(said, wire.reasoning_effort or "")


def _metadata(wire: Body) -> dict[str, str]:
    own = {"user": wire.user, "safety_identifier": wire.safety_identifier, "prompt_cache_key": wire.prompt_cache_key}
    return {name: value for name, value in ((wire.metadata or {}) | own).items() if isinstance(value, str)}


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
