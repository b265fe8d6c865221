"""A canonical request as an official client would send it: the other direction of every protocol's `parse`.

What a wire cannot say is left out. Nothing of the parsers is used here, but for the seal that a client would have got
from an answer and sends back as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from bridle.messages import Document, Image, Message, ModelRequest, Part, Text, Thinking, Tool, ToolCall, Wishes
from bridle.protocols.gemini_wire import sealed


class WireRequest(msgspec.Struct, frozen=True):
    """`target`: path and query below the base URL."""

    target: str
    body: bytes


def write(protocol: str, request: ModelRequest) -> WireRequest:
    target, body = WRITERS[protocol](request)
    return WireRequest(target, msgspec.json.encode(given(body)))


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` without those that say nothing."""
    return {name: value for name, value in fields.items() if value is not None}


def data_url(part: Image | Document) -> str:
    return f"data:{part.media_type};base64,{part.data}" if part.media_type else part.data


def object_or_excuse(arguments: str) -> Any:
    """Clients that hold arguments as an object got what is none under one key."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


def free_text(arguments: str) -> str:
    """What a client got as the input of a freeform tool."""
    value = object_or_excuse(arguments)
    return value["input"] if value.keys() == {"input"} and isinstance(value["input"], str) else arguments


# --- Anthropic Messages ---


def anthropic(request: ModelRequest) -> tuple[str, dict[str, Any]]:
    first, *rest = request.messages
    top = first if first.role == "system" and any(part != Text("") for part in first.parts) and rest else None
    wishes = request.wishes
    schema = {"type": "json_schema", "schema": request.response_schema}
    form = None if request.response_schema is None else schema
    config = given({"effort": request.switches.effort or None, "format": form})
    chosen = {"type": {"auto": "auto", "required": "any", "none": "none"}[wishes.tool_choice]}
    if wishes.tool_choice == "required" and len(wishes.allowed) == 1:
        chosen = {"type": "tool", "name": wishes.allowed[0]}
    apart = {} if wishes.parallel_calls is None else {"disable_parallel_tool_use": not wishes.parallel_calls}
    thinking = {None: None, True: {"type": "enabled", "budget_tokens": 1024}, False: {"type": "disabled"}}
    return "/v1/messages", {
        "model": request.model,
        "system": [_anthropic_block(part) for part in top.parts] if top else None,
        "messages": list(_anthropic_turns(rest if top else request.messages)),
        "tools": [_anthropic_tool(tool) for tool in request.tools] or None,
        "tool_choice": chosen | apart if chosen != {"type": "auto"} or apart else None,
        "max_tokens": wishes.max_tokens,
        "temperature": wishes.temperature,
        "top_p": wishes.top_p,
        "top_k": wishes.top_k,
        "stop_sequences": list(wishes.stop) or None,
        "stream": request.stream or None,
        "thinking": thinking[request.switches.thinking],
        "output_config": config or None,
        "metadata": {"user_id": request.metadata["user_id"]} if "user_id" in request.metadata else None,
    }


def _anthropic_turns(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """The results of one turn, and what the user says behind them, are one user turn."""
    results: list[dict[str, Any]] = []
    for message in messages:
        content = [_anthropic_block(part) for part in message.parts]
        if message.role == "tool":
            results.append(_anthropic_result(message, content))
        elif message.role == "user" and results and any(part != Text("") for part in message.parts):
            yield {"role": "user", "content": [*results, *content]}
            results = []
        else:
            if results:
                yield {"role": "user", "content": results}
                results = []
            role = "system" if message.role == "developer" else message.role
            yield {"role": role, "content": content}
    if results:
        yield {"role": "user", "content": results}


def _anthropic_result(message: Message, content: list[dict[str, Any]]) -> dict[str, Any]:
    error = {"is_error": True} if message.is_error else {}
    return {"type": "tool_result", "tool_use_id": message.call_id, "content": content, **error}


def _anthropic_block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCall(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": object_or_excuse(arguments)}
        case Image():
            return {"type": "image", "source": _anthropic_source(part)}
        case Document():
            return {"type": "document", "source": _anthropic_source(part), "title": part.title or None}


def _anthropic_source(part: Image | Document) -> dict[str, Any]:
    if part.media_type:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "url", "url": part.data}


def _anthropic_tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


# --- OpenAI Chat Completions ---


def openai_chat(request: ModelRequest) -> tuple[str, dict[str, Any]]:
    wishes, metadata = request.wishes, dict(request.metadata)
    freeform = {tool.name for tool in request.tools if tool.form == "custom"}
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": request.response_schema}}
    thinking = request.switches.thinking
    return "/v1/chat/completions", {
        "model": request.model,
        "messages": [_chat_message(message, freeform) for message in request.messages],
        "tools": [_chat_tool(tool) for tool in request.tools] or None,
        "tool_choice": _chat_choice(wishes, freeform),
        "parallel_tool_calls": wishes.parallel_calls,
        "max_completion_tokens": wishes.max_tokens,
        "temperature": wishes.temperature,
        "top_p": wishes.top_p,
        "top_k": wishes.top_k,
        "seed": wishes.seed,
        "stop": list(wishes.stop) or None,
        "n": wishes.n,
        "logprobs": wishes.logprobs or None,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.include_usage else None,
        "response_format": None if request.response_schema is None else schema,
        "reasoning_effort": request.switches.effort or None,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        "user": metadata.pop("user", None),
        "prompt_cache_key": metadata.pop("prompt_cache_key", None),
        "metadata": metadata or None,
    }


def _chat_message(message: Message, freeform: set[str]) -> dict[str, Any]:
    if message.role == "assistant":
        return _chat_assistant(message, freeform)
    body: dict[str, Any] = {"role": message.role, "content": _chat_content(message.parts)}
    return body | {"tool_call_id": message.call_id} if message.role == "tool" else body


def _chat_assistant(message: Message, freeform: set[str]) -> dict[str, Any]:
    texts = [part for part in message.parts if isinstance(part, Text)]
    content = _chat_content(texts) or (None if message.calls else "")
    body: dict[str, Any] = {"role": "assistant", "content": content}
    if thoughts := [part.text for part in message.parts if isinstance(part, Thinking) and part.text]:
        body["reasoning_content"] = "\n".join(thoughts)
    if message.calls:
        body["tool_calls"] = [_chat_call(call, freeform) for call in message.calls]
    return body


def _chat_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """A string where it can say everything."""
    said = [part for part in parts if part != Text("")]
    match said:
        case []:
            return ""
        case [Text(text)]:
            return text
    return [_chat_part(part) for part in said]


def _chat_part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image():
            return {"type": "image_url", "image_url": {"url": data_url(part)}}
        case Document():
            return {"type": "file", "file": given({"file_data": data_url(part), "filename": part.title or None})}
    raise ValueError(f"no content of this protocol holds {part!r}")


def _chat_call(call: ToolCall, freeform: set[str]) -> dict[str, Any]:
    if call.name in freeform:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": free_text(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_tool(tool: Tool) -> dict[str, Any]:
    said = {"name": tool.name, "description": tool.description}
    if tool.form == "custom":
        return {"type": "custom", "custom": said}
    return {"type": "function", "function": said | {"parameters": tool.parameters}}


def _chat_choice(wishes: Wishes, freeform: set[str]) -> Any:
    kinds = [(name, "custom" if name in freeform else "function") for name in wishes.allowed]
    named = [{"type": kind, kind: {"name": name}} for name, kind in kinds]
    if not named:
        return wishes.tool_choice
    if wishes.tool_choice == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": wishes.tool_choice, "tools": named}}


# --- OpenAI Responses ---


def openai_responses(request: ModelRequest) -> tuple[str, dict[str, Any]]:
    first, *rest = request.messages
    instructions = _instructions(first)
    wishes, metadata = request.wishes, dict(request.metadata)
    offered = {tool.name: tool for tool in request.tools}
    schema = {"format": {"type": "json_schema", "name": "answer", "schema": request.response_schema}}
    effort = "none" if request.switches.thinking is False else request.switches.effort
    messages = request.messages if instructions is None else rest
    return "/v1/responses", {
        "model": request.model,
        "instructions": instructions,
        "input": [item for message in messages for item in _response_items(message, offered)],
        "previous_response_id": f"resp_{request.previous}" if request.previous else None,
        "store": request.store,
        "tools": list(_response_tools(request.tools)) or None,
        "tool_choice": _response_choice(wishes, offered),
        "parallel_tool_calls": wishes.parallel_calls,
        "max_output_tokens": wishes.max_tokens,
        "temperature": wishes.temperature,
        "top_p": wishes.top_p,
        "include": ["message.output_text.logprobs"] if wishes.logprobs else None,
        "stream": request.stream or None,
        "text": None if request.response_schema is None else schema,
        "reasoning": {"effort": effort} if effort else None,
        "user": metadata.pop("user", None),
        "prompt_cache_key": metadata.pop("prompt_cache_key", None),
        "metadata": metadata or None,
    }


def _instructions(first: Message) -> str | None:
    match [part for part in first.parts if part != Text("")]:
        case [Text(text)] if first.role == "system":
            return text
    return None


def _response_items(message: Message, offered: Mapping[str, Tool]) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        output = [_response_part(part, "input_text") for part in message.parts]
        yield {"type": "function_call_output", "call_id": message.call_id, "output": output}
    elif message.role != "assistant":
        content = [_response_part(part, "input_text") for part in message.parts]
        yield {"type": "message", "role": message.role, "content": content}
    else:
        for kind, parts in groupby(message.parts, key=type):
            if kind is Text:
                content = [_response_part(part, "output_text") for part in parts]
                yield {"type": "message", "role": "assistant", "content": content}
            else:
                yield from (_response_item(part, offered) for part in parts)


def _response_part(part: Part, kind: str) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": kind, "text": text}
        case Image():
            return {"type": "input_image", "image_url": data_url(part)}
        case Document(media_type, _, title):
            place = "file_data" if media_type else "file_url"
            return {"type": "input_file", place: data_url(part), "filename": title or None}
    raise ValueError(f"no content of this protocol holds {part!r}")


def _response_item(part: Part, offered: Mapping[str, Tool]) -> dict[str, Any]:
    if isinstance(part, Thinking):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        return {"type": "reasoning", "summary": summary, "encrypted_content": part.signature or None}
    if not isinstance(part, ToolCall):
        raise ValueError(f"no answer of this protocol holds {part!r}")
    tool = offered.get(part.name, Tool(part.name))
    call = given({"call_id": part.id, "name": part.name, "namespace": tool.namespace or None})
    if tool.form == "custom":
        return {"type": "custom_tool_call", "input": free_text(part.arguments), **call}
    return {"type": "function_call", "arguments": part.arguments, **call}


def _response_tools(tools: Sequence[Tool]) -> Iterator[dict[str, Any]]:
    for namespace, members in groupby(tools, key=lambda tool: tool.namespace):
        inside = [_response_tool(tool) for tool in members]
        yield from [{"type": "namespace", "name": namespace, "tools": inside}] if namespace else inside


def _response_tool(tool: Tool) -> dict[str, Any]:
    said = {"name": tool.name, "description": tool.description}
    if tool.form == "custom":
        return {"type": "custom", **said}
    return {"type": "function", **said, "parameters": tool.parameters}


def _response_choice(wishes: Wishes, offered: Mapping[str, Tool]) -> Any:
    named = [{"type": offered[name].form, "name": name} for name in wishes.allowed]
    if not named:
        return wishes.tool_choice
    if wishes.tool_choice == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "mode": wishes.tool_choice, "tools": named}


# --- Gemini ---


def gemini(request: ModelRequest) -> tuple[str, dict[str, Any]]:
    first, *rest = request.messages
    top = _gemini_system(first) if rest else None
    method = "streamGenerateContent" if request.stream else "generateContent"
    query = "?alt=sse" if request.stream and request.framing == "sse" else ""
    return f"/v1beta/models/{request.model}:{method}{query}", {
        "systemInstruction": top,
        "contents": list(_gemini_contents(rest if top else request.messages)),
        "tools": [{"functionDeclarations": [_gemini_tool(tool) for tool in request.tools]}] if request.tools else None,
        "toolConfig": {"functionCallingConfig": _gemini_choice(request.wishes)},
        "generationConfig": given(_gemini_config(request)),
        "labels": dict(request.metadata) or None,
    }


def _gemini_system(first: Message) -> dict[str, Any] | None:
    parts = [_gemini_part(part) for part in first.parts if part != Text("")]
    return {"parts": parts} if parts and first.role in ("system", "developer") else None


def _gemini_config(request: ModelRequest) -> dict[str, Any]:
    wishes, thinking = request.wishes, request.switches.thinking
    budget = None if thinking is None else 1024 * thinking
    level = request.switches.effort.upper() or None
    switches = given({"thinkingBudget": budget, "thinkingLevel": level, "includeThoughts": request.show_thinking})
    return {
        "temperature": wishes.temperature,
        "topP": wishes.top_p,
        "topK": None if wishes.top_k is None or wishes.top_k < 0 else wishes.top_k,
        "seed": wishes.seed,
        "stopSequences": list(wishes.stop) or None,
        "maxOutputTokens": wishes.max_tokens,
        "candidateCount": wishes.n,
        "responseLogprobs": wishes.logprobs or None,
        "responseMimeType": None if request.response_schema is None else "application/json",
        "responseJsonSchema": request.response_schema,
        "thinkingConfig": switches,
    }


def _gemini_contents(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """A function's answer names the function. What is said by neither side is said by the user."""
    called = {call.id: call.name for message in messages for call in message.calls}
    for message in messages:
        if message.role == "tool":
            parts = [{"functionResponse": _gemini_response(message, called[message.call_id])}]
        else:
            parts = [_gemini_part(part) for part in message.parts]
        yield {"role": "model" if message.role == "assistant" else "user", "parts": parts}


def _gemini_response(message: Message, name: str) -> dict[str, Any]:
    text = "\n".join(part.text for part in message.parts if isinstance(part, Text) and part.text)
    files = [_gemini_part(part) for part in message.parts if isinstance(part, Image | Document)]
    response = {"error" if message.is_error else "output": text}
    return given({"id": message.call_id, "name": name, "response": response, "parts": files or None})


def _gemini_part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"text": text}
        case Thinking(text, signature):
            return given({"text": text, "thought": True, "thoughtSignature": sealed(signature) or None})
        case ToolCall(id, name, arguments):
            return {"functionCall": {"id": id, "name": name, "args": object_or_excuse(arguments)}}
        case Image(media_type, data):
            kind = media_type or "image/*"
        case Document(media_type, data):
            kind = media_type
    title = {"displayName": part.title} if isinstance(part, Document) and part.title else {}
    if not part.media_type:
        return {"fileData": {"fileUri": data, "mimeType": kind, **title}}
    return {"inlineData": {"mimeType": kind, "data": data, **title}}


def _gemini_tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}


def _gemini_choice(wishes: Wishes) -> dict[str, Any]:
    modes = {"auto": "VALIDATED" if wishes.allowed else "AUTO", "none": "NONE", "required": "ANY"}
    return given({"mode": modes[wishes.tool_choice], "allowedFunctionNames": list(wishes.allowed) or None})


WRITERS: dict[str, Callable[[ModelRequest], tuple[str, dict[str, Any]]]] = {
    "anthropic": anthropic,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "gemini": gemini,
}
