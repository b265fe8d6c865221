"""Valid request bodies per protocol, rich in everything the wire can say: what the fuzzer damages.

`CALL` and `SIGNATURE` stand for identities that a session minted; the fuzzer puts real ones there, so that damaged
histories still reach the matching of draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODEL = "bridle"
CALL = "CALLID"
SIGNATURE = "SIGNATURE"
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": ["integer", "null"], "default": 5}},
    "required": ["command"],
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(frozen=True)
class Seed:
    """`first`: a body that opens a conversation, from whose answer the identities of the others are taken."""

    protocol: str
    target: str
    body: dict[str, Any]
    first: bool = False


def _anthropic() -> list[Seed]:
    tools = [
        {"name": "bash", "description": "run", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ]
    opening: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 64,
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        "tools": tools,
        "messages": [{"role": "user", "content": "Fix it."}],
    }
    history = [
        {"role": "user", "content": "Fix it."},
        {"role": "system", "content": [{"type": "text", "text": "A reminder."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE},
                {"type": "redacted_thinking", "data": "b3BhcXVl"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": CALL, "name": "bash", "input": {"command": "ls", "timeout": 5}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": CALL,
                    "is_error": True,
                    "content": [
                        {"type": "text", "text": "calc.py"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                    ],
                },
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "notes"}},
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    full = opening | {
        "messages": history,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stop_sequences": ["STOP"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "metadata": {"user_id": "u"},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "output_config": {"effort": "high"},
    }
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL, "content": "calc.py"}]}
    plain = [*history[:3], answered]
    return [
        Seed("anthropic", "/v1/messages", opening, first=True),
        Seed("anthropic", "/v1/messages?beta=true", full),
        Seed("anthropic", "/v1/messages", opening | {"messages": plain, "stream": True}),
        Seed("anthropic", "/v1/messages/count_tokens", opening | {"messages": plain}),
    ]


def _openai_chat() -> list[Seed]:
    function = {"name": "bash", "description": "run", "parameters": SCHEMA, "strict": False}
    opening: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Fix it."}],
        "tools": [{"type": "function", "function": function}],
    }
    call = {"id": CALL, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "You are an agent."}]},
        {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL, "content": [{"type": "text", "text": "calc.py"}]},
        {"role": "assistant", "content": "Done.", "refusal": None},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
            ],
        },
    ]
    full = opening | {
        "messages": history,
        "n": 2,
        "stop": ["STOP", "\n\n\n"],
        "max_completion_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "bash"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "metadata": {"a": "b"},
        "user": "u",
        "logit_bias": {"50256": -100},
    }
    plain = history[:4]
    streamed = opening | {"messages": plain, "stream": True, "stream_options": {"include_usage": True}}
    return [
        Seed("openai_chat", "/v1/chat/completions", opening, first=True),
        Seed("openai_chat", "/v1/chat/completions", full),
        Seed("openai_chat", "/v1/chat/completions", streamed),
        Seed("openai_chat", "/v1/chat/completions", opening | {"messages": plain, "n": 2}),
    ]


def _openai_responses() -> list[Seed]:
    tools = [
        {"type": "function", "name": "bash", "description": "run", "parameters": SCHEMA, "strict": False},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
        },
        {
            "type": "namespace",
            "name": "agents",
            "tools": [{"type": "function", "name": "spawn", "parameters": SCHEMA}],
        },
        {"type": "web_search"},
        {"type": "local_shell"},
    ]
    opening: dict[str, Any] = {
        "model": MODEL,
        "instructions": "You are an agent.",
        "input": "Fix it.",
        "tools": tools[:1],
        "max_output_tokens": 64,
    }
    history = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": SIGNATURE,
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": CALL, "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call_output", "call_id": CALL, "output": "calc.py"},
    ]
    more = [
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        {
            "type": "local_shell_call",
            "call_id": "c3",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls", "-l"], "env": {}},
        },
        {"type": "local_shell_call_output", "call_id": "c3", "output": "[]"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "item_reference", "id": f"msg_{SIGNATURE}_0"},
        {"type": "compaction", "encrypted_content": SIGNATURE},
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]},
    ]
    full = opening | {
        "input": history + more,
        "tools": tools,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "parallel_tool_calls": True,
        "previous_response_id": "resp_0",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "tool_choice": {"type": "function", "name": "bash"},
    }
    return [
        Seed("openai_responses", "/v1/responses", opening, first=True),
        Seed("openai_responses", "/v1/responses", full),
        Seed("openai_responses", "/v1/responses", opening | {"input": history, "stream": True, "store": False}),
        Seed("openai_responses", "/v1/responses", opening | {"input": history}),
        Seed("openai_responses", "/v1/responses", opening | {"input": [*history, {"type": "compaction_trigger"}]}),
        Seed("openai_responses", "/v1/responses/compact", opening | {"input": history}),
        Seed("openai_responses", "/v1/responses/input_tokens", opening | {"input": history}),
    ]


def _gemini() -> list[Seed]:
    declarations = [
        {
            "name": "bash",
            "description": "run",
            "parameters": {"type": "OBJECT", "properties": {"command": {"type": "STRING"}}, "required": ["command"]},
        },
        {"name": "read", "parametersJsonSchema": SCHEMA},
    ]
    opening: dict[str, Any] = {
        "systemInstruction": {"parts": [{"text": "You are an agent."}], "role": "user"},
        "contents": [{"role": "user", "parts": [{"text": "Fix it."}]}],
        "tools": [{"functionDeclarations": declarations}, {"googleSearch": {}}],
        "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64, "maxOutputTokens": 64},
    }
    history = [
        {"role": "user", "parts": [{"text": "Fix it."}]},
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "I look.", "thoughtSignature": SIGNATURE},
                {"functionCall": {"id": CALL, "name": "bash", "args": {"command": "ls"}}},
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": CALL, "name": "bash", "response": {"output": "calc.py"}}}],
        },
    ]
    full = {
        "system_instruction": "You are an agent.",
        "contents": [*history, {"parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}]}],
        "tools": opening["tools"],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["bash"]}},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "generationConfig": {
            "temperature": 0.5,
            "stopSequences": ["STOP"],
            "candidateCount": 2,
            "responseMimeType": "application/json",
            "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
            "thinkingConfig": {"thinkingBudget": -1, "includeThoughts": True},
            "seed": 3,
        },
    }
    base = f"/v1beta/models/{MODEL}"
    return [
        Seed("gemini", f"{base}:generateContent", opening, first=True),
        Seed("gemini", f"{base}:generateContent", full),
        Seed("gemini", f"{base}:streamGenerateContent?alt=sse", opening | {"contents": history}),
        Seed("gemini", f"{base}:streamGenerateContent", opening | {"contents": history}),
        Seed("gemini", f"{base}:countTokens", {"contents": history}),
    ]


def seeds(protocol: str) -> list[Seed]:
    made = {
        "anthropic": _anthropic,
        "openai_chat": _openai_chat,
        "openai_responses": _openai_responses,
        "gemini": _gemini,
    }
    return made[protocol]()
