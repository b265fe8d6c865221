"""What a client of each dialect reads out of a live stream: two calls in one turn, in order, counted and closed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.testing.answers import events
from bridle.testing.exchange import exchange
from bridle.testing.ground import Ground, shell

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "run", "parameters": SCHEMA}
GO = [{"role": "user", "content": "Go."}]
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "/v1/messages",
        {"max_tokens": 4096, "messages": GO, "tools": [{"name": "bash", "input_schema": SCHEMA}]},
    ),
    "openai_chat": ("/v1/chat/completions", {"messages": GO, "tools": [{"type": "function", "function": FUNCTION}]}),
    "openai_responses": ("/v1/responses", {"input": GO, "tools": [{"type": "function", **FUNCTION}]}),
    "gemini": (
        "/v1beta/models/bridle:streamGenerateContent?alt=sse",
        {
            "contents": [{"parts": [{"text": "Go."}]}],
            "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        },
    ),
}
TURN = shell("ls", "pwd", text="Looking.", thinking="Hm.")
ARGUMENTS = [{"command": "ls"}, {"command": "pwd"}]


async def streamed(g: Ground, dialect: str, **more: Any) -> list[dict[str, Any]]:
    """The events of one streamed call in a session of its own, which is then held to the checker."""
    path, body = ASKS[dialect]
    session = await g.open()
    head = {} if dialect == "gemini" else {"model": "bridle", "stream": True}
    status, answer = await exchange(g.gateway.url, path, session.key, {**head, **body, **more})
    assert status == 200
    await g.checked()
    return events(answer.replace(b"\r\n", b"\n"))


@pytest.mark.parametrize("include_usage", [True, False])
async def test_chat_numbers_its_calls_and_ends_for_them_and_counts_when_asked(grounds, include_usage: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(TURN, samples=1) as g:
        chunks = await streamed(g, "openai_chat", stream_options={"include_usage": include_usage})
        (turn,) = g.turns
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    whole: dict[int, str] = {}
    for call in calls:
        whole[call["index"]] = whole.get(call["index"], "") + call["function"]["arguments"]
    assert [orjson.loads(whole[index]) for index in (0, 1)] == ARGUMENTS
    assert sorted(whole) == [0, 1]
    assert len({call["id"] for call in calls if call.get("id")}) == 2
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert finishes == ["tool_calls"]
    counted = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert len(counted) == include_usage
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert counted[0]["completion_tokens"] == turn.sampled
        assert counted[0]["prompt_tokens"] == len(g.journal()[0].prompt)


async def test_anthropic_opens_and_closes_its_blocks_in_order_and_counts_from_the_first_event(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(TURN, samples=1) as g:
        told = [event for event in await streamed(g, "anthropic") if event["type"] != "ping"]
        sampled, prompt = g.turns[0].sampled, len(g.journal()[0].prompt)
    blocks = [
        (event["type"], event["index"])
        for event in told
        if event["type"] in ("content_block_start", "content_block_stop")
    ]
    assert blocks == [(kind, index) for index in range(4) for kind in ("content_block_start", "content_block_stop")]
    kinds = [event["content_block"]["type"] for event in told if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    inputs = [
        "".join(
            e["delta"]["partial_json"] for e in told if e.get("index") == index and e["type"] == "content_block_delta"
        )
        for index in (2, 3)
    ]
    assert [orjson.loads(text) for text in inputs] == ARGUMENTS
    assert [event["type"] for event in (told[0], *told[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[0]["message"]["usage"]["input_tokens"] == prompt
    assert told[-2]["usage"]["output_tokens"] == sampled


async def test_responses_number_events_and_items_and_count_at_the_end(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(TURN, samples=1) as g:
        told = await streamed(g, "openai_responses")
        sampled, prompt = g.turns[0].sampled, len(g.journal()[0].prompt)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    for kind in ("response.output_item.added", "response.output_item.done"):
        assert [event["output_index"] for event in told if event["type"] == kind] == [0, 1, 2, 3]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert [orjson.loads(item["arguments"]) for item in done[2:]] == ARGUMENTS
    assert told[-1]["type"] == "response.completed"
    assert told[-1]["response"]["output"] == done
    usage = told[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (prompt, sampled)


async def test_gemini_says_its_calls_whole_and_counts_at_both_ends(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(TURN, samples=1) as g:
        chunks = await streamed(g, "gemini")
        sampled, prompt = g.turns[0].sampled, len(g.journal()[0].prompt)
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == ARGUMENTS
    assert "".join(part["text"] for part in parts if part.get("thought")) == "Hm."
    assert [chunk["candidates"][0]["finishReason"] for chunk in chunks if "finishReason" in chunk["candidates"][0]] == [
        "STOP"
    ]
    first, last = chunks[0]["usageMetadata"], chunks[-1]["usageMetadata"]
    assert first["promptTokenCount"] == last["promptTokenCount"] == prompt
    assert last["candidatesTokenCount"] + last["thoughtsTokenCount"] == sampled


async def test_what_was_said_without_a_call_ends_as_a_stop_in_every_dialect(grounds) -> None:  # type: ignore[no-untyped-def]
    ends = {
        "anthropic": lambda told: told[-2]["delta"]["stop_reason"] == "end_turn",
        "openai_chat": lambda told: told[-1]["choices"][0]["finish_reason"] == "stop",
        "openai_responses": lambda told: told[-1]["response"]["status"] == "completed",
        "gemini": lambda told: told[-1]["candidates"][0]["finishReason"] == "STOP",
    }
    async with grounds(ScriptTurn(text="Short.")) as g:
        for dialect, ended in ends.items():
            path, body = ASKS[dialect]
            session = await g.open(dialect)
            head = {} if dialect == "gemini" else {"model": "bridle", "stream": True}
            _, answer = await exchange(g.gateway.url, path, session.key, {**head, **body})
            assert ended(events(answer.replace(b"\r\n", b"\n"))), dialect
            await g.finish(dialect)
        g.check()
