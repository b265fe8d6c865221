"""The Gemini API: `POST …/models/{model}:generateContent`, `:streamGenerateContent`, `:countTokens`, `GET …/models`.

Which model answers and how is said in the address, not in the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bridle.errors import BadRequest, BridleError
from bridle.messages import ModelRequest, Note, Reply, Switches, Tool, Wishes
from bridle.protocols.base import ReplyStream, Route, Said, nothing_said
from bridle.protocols.gemini_contents import conversation, system_message
from bridle.protocols.gemini_reply import GeminiStream, error_body, response_body
from bridle.protocols.gemini_schema import json_schema
from bridle.protocols.gemini_wire import (
    Body,
    Declaration,
    GenerationConfig,
    ThinkingConfig,
    ToolConfig,
    ToolSpec,
    read_body,
)
from bridle.protocols.tool_choice import Choice, Chosen, chosen
from bridle.protocols.wire import kept_headers, unfollowed

VERSIONS = ("/v1beta", "/v1")
TARGET = re.compile(r"/models/(?P<model>[^/?]+):(?P<method>\w+)(?:\?(?P<query>.*))?$")


class Gemini:
    name = "gemini"
    routes = tuple(
        route
        for version in VERSIONS
        for route in (
            Route("POST", f"{version}/models/{{model}}:generateContent", "turn"),
            Route("POST", f"{version}/models/{{model}}:streamGenerateContent", "turn"),
            Route("POST", f"{version}/models/{{model}}:countTokens", "count"),
            Route("GET", f"{version}/models", "models"),
            Route("GET", f"{version}/models/{{model}}", "model"),
        )
    )

    def parse(
        self, body: bytes, headers: Mapping[str, str], target: str = "", said: Said = nothing_said
    ) -> ModelRequest:
        wire, mended = read_body(body)
        asked = wire.generate_content_request or wire
        config = asked.generation_config or GenerationConfig()
        notes = [*mended]
        _refuse(asked)
        tools = tuple(_tools(asked.tools or (), notes))
        messages = (
            *system_message(asked.system_instruction, notes),
            *conversation(asked.contents or (), notes),
        )
        return ModelRequest(
            protocol=self.name,
            messages=messages,
            tools=tools,
            wishes=_wishes(config, _chosen(asked.tool_config, tools, notes), notes),
            switches=_switches(config.thinking_config),
            show_thinking=bool(config.thinking_config and config.thinking_config.include_thoughts),
            response_schema=_schema(config),
            headers=kept_headers(headers),
            metadata=asked.labels or {},
            notes=tuple(notes),
            **_addressed(target, asked),
        )

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        return response_body(request, replies)

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        return GeminiStream(request, reply_id, signature)

    def error(self, error: BridleError) -> bytes:
        return msgspec.json.encode(error_body(error))

    def models(self, names: Sequence[str], context_length: int) -> bytes:
        return msgspec.json.encode({"models": [_model(name, context_length) for name in names]})

    def model(self, name: str, context_length: int) -> bytes:
        return msgspec.json.encode(_model(name, context_length))

    def token_count(self, tokens: int) -> bytes:
        return msgspec.json.encode({"totalTokens": tokens})


def _model(name: str, context_length: int) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "version": "001",
        "displayName": name,
        "inputTokenLimit": context_length,
        "outputTokenLimit": context_length,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
        "thinking": True,
    }


def _addressed(target: str, asked: Body) -> dict[str, Any]:
    """What the address says: the model, whether the answer is streamed, and in which framing."""
    found = TARGET.search(target)
    model = found["model"] if found else (asked.model or "").removeprefix("models/")
    if not model:
        raise BadRequest("model: required, as /v1beta/models/MODEL:generateContent, but missing")
    stream = found is not None and found["method"] == "streamGenerateContent"
    query = (found["query"] or "") if found else ""
    return {"model": model, "stream": stream, "framing": "sse" if "alt=sse" in query.split("&") else "array"}


def _refuse(asked: Body) -> None:
    if not asked.contents:
        raise BadRequest("contents: required, with at least one content in it")
    if asked.cached_content:
        raise BadRequest("cachedContent: contents are not kept here; send them in contents and systemInstruction")


def _tools(specs: Sequence[ToolSpec], notes: list[Note]) -> Iterator[Tool]:
    for index, spec in enumerate(specs):
        for field in msgspec.structs.fields(spec):
            value = msgspec.structs.asdict(spec)[field.name]
            if value is not None and field.name != "function_declarations":
                notes.append(Note("server_tool_dropped", f"tools[{index}].{field.encode_name}"))
        yield from (_tool(declared) for declared in spec.function_declarations or ())


def _tool(declared: Declaration) -> Tool:
    schema = declared.parameters_json_schema
    if schema is None:
        schema = json_schema(declared.parameters or {})
    return Tool(declared.name, declared.description or "", schema)


CHOICES: dict[str | None, Choice] = {"ANY": "required", "NONE": "none"}


def _chosen(config: ToolConfig | None, tools: Sequence[Tool], notes: list[Note]) -> Chosen:
    """VALIDATED: the model chooses, and what it calls is one of the tools and fits it."""
    calling = config.function_calling_config if config is not None else None
    if calling is None:
        return Chosen()
    named = calling.allowed_function_names or []
    if calling.mode == "VALIDATED" and not named:
        named = [tool.name for tool in tools]
    where = "toolConfig.functionCallingConfig"
    return chosen(where, CHOICES.get(calling.mode, "auto"), named, tools, notes)


def _wishes(config: GenerationConfig, choice: Chosen, notes: list[Note]) -> Wishes:
    notes.extend(
        unfollowed(
            logprobs=config.logprobs,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
        )
    )
    return Wishes(
        max_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=None if config.top_k is None else int(config.top_k),
        seed=config.seed,
        stop=tuple(config.stop_sequences or ()),
        n=config.candidate_count or 1,
        tool_choice=choice.tool_choice,
        allowed=choice.allowed,
        logprobs=bool(config.response_logprobs),
    )


def _switches(config: ThinkingConfig | None) -> Switches:
    """A budget of -1 leaves it to the model."""
    if config is None:
        return Switches()
    budget = config.thinking_budget
    effort = (config.thinking_level or "").lower()
    return Switches(
        thinking=None if budget is None or budget < 0 else budget > 0,
        effort="" if effort == "thinking_level_unspecified" else effort,
    )


def _schema(config: GenerationConfig) -> Mapping[str, Any] | None:
    if config.response_json_schema is not None:
        return config.response_json_schema
    if config.response_schema is not None:
        return json_schema(config.response_schema)
    return {} if config.response_mime_type == "application/json" else None
