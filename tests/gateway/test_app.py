"""Bad input costs its sender an answer in its own protocol's shape, and nobody else anything."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import shell

SHORT = ScriptTurn(text="Short.")
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
GO = {"role": "user", "content": "Go."}
BODY: dict[str, Any] = {"model": "bridle", "max_tokens": 64, "messages": [GO]}
PIXEL = "iVBORw0KGgo="

UNKNOWN_RESULT = {
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "nope", "content": "x"}]},
    "openai": {"role": "tool", "tool_call_id": "nope", "content": "x"},
}
IMAGE = {
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
    "openai": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
}


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def with_schema(protocol: str, depth: int) -> bytes:
    """A request with a tool whose schema is nested `depth` deep; no encoder writes one as deep as a decoder refuses."""
    tool: dict[str, Any] = {"name": "t", "input_schema": "HERE"}
    if protocol == "openai":
        tool = {"type": "function", "function": {"name": "t", "parameters": "HERE"}}
    return orjson.dumps({**BODY, "tools": [tool]}).replace(b'"HERE"', nested(depth))


BAD: dict[str, tuple[int, Any]] = {
    "no JSON": (400, lambda protocol: b'{"model": '),
    "not even text": (400, lambda protocol: b"\xff\xfe\x00"),
    "a list": (400, lambda protocol: []),
    "nothing": (400, lambda protocol: b""),
    "no messages": (400, lambda protocol: {**BODY, "messages": []}),
    "messages of a wrong type": (400, lambda protocol: {**BODY, "messages": "hi"}),
    "a wrong role": (400, lambda protocol: {**BODY, "messages": [{"role": "wizard", "content": "x"}]}),
    "content of a wrong type": (400, lambda protocol: {**BODY, "messages": [{"role": "user", "content": 5}]}),
    "a result for an unknown call": (400, lambda protocol: {**BODY, "messages": [GO, UNKNOWN_RESULT[protocol]]}),
    "a result before anything": (400, lambda protocol: {**BODY, "messages": [UNKNOWN_RESULT[protocol]]}),
    "an image": (400, lambda protocol: {**BODY, "messages": [{"role": "user", "content": [IMAGE[protocol]]}]}),
    "an unknown model": (404, lambda protocol: {**BODY, "model": "gpt-9"}),
    "tools of a wrong type": (400, lambda protocol: {**BODY, "tools": {"a": 1}}),
    "a deep tool schema": (400, lambda protocol: with_schema(protocol, 700)),
    "endless nesting": (400, lambda protocol: b'{"model":"bridle","messages":' + b"[" * 100000 + b"]" * 100000 + b"}"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused_in_shape_and_disturbs_nobody(
    grounds, agents, protocol: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level(logging.WARNING, "bridle")
    expected, make = BAD[name]
    async with grounds(shell("ls", delay_s=0.02), SHORT, samples=1) as g:
        bad, good = await g.open("bad"), await g.open("good")
        working = asyncio.create_task(agents(protocol, good).work("Go."))
        status, body = await exchange(g.gateway.url, PATHS[protocol], bad.key, make(protocol))
        await working
        error = orjson.loads(body)
        assert status == expected
        assert error["error"]["message"]
        assert error.get("type") == ("error" if protocol == "anthropic" else None)
        assert [type(record).__name__ for record in g.log("bad")] == ["Opened"], "nothing entered the record"
        await g.finish("bad")
        await g.checked("good")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("session bad: ")
    assert bad.key not in line


async def test_nesting_of_any_depth_is_answered_or_refused(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    """What walks a body has limits a few levels apart: one step takes what the next one does not."""
    async with grounds(SHORT) as g:
        session = await g.open()
        for depth in (100, 600, *range(900, 960)):
            status, body = await exchange(g.gateway.url, PATHS[protocol], session.key, with_schema(protocol, depth))
            assert status == (200 if depth == 100 else 400), body
            if protocol == "anthropic":
                count, _ = await exchange(
                    g.gateway.url, "/v1/messages/count_tokens", session.key, with_schema(protocol, depth)
                )
                assert count == status
        await g.checked()


async def test_an_oversized_body_is_refused_and_no_sdk_sends_it_again(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, max_body_mb=1) as g:
        agent = agents(protocol, await g.open())
        agent.tell("x" * (3 << 20))
        with pytest.raises(Exception, match="max_body_mb") as refused:
            await agent.ask()
        assert refused.value.status_code == 413  # type: ignore[attr-defined]
        assert g.refusals == 1
        await g.finish()
    assert g.turns == ()


FORGED = {
    "a session": ("/s/s%0AFORGED/v1/messages", GO),
    "a route": ("/v1/x%0D%0AFORGED", GO),
    "a line separator": ("/v1/x%E2%80%A8FORGED", GO),
    "a role": ("/v1/chat/completions", {"role": "w\nFORGED", "content": "x"}),
    "a call": (
        "/v1/chat/completions",
        {"role": "assistant", "tool_calls": [{"id": "a\nFORGED", "function": {"name": "f", "arguments": "{}"}}]},
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_what_a_client_writes_stays_on_one_line_of_the_log(
    grounds, name: str, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level(logging.WARNING, "bridle")
    path, message = FORGED[name]
    async with grounds(SHORT) as g:
        session = await g.open()
        body = {**BODY, "messages": [GO, message, UNKNOWN_RESULT["openai"]]}
        status, _ = await exchange(g.gateway.url, path, session.key, body)
    assert status in (400, 403, 404)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "FORGED" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/messages/batches", "/api/nothing", "/s/s/nothing"])
async def test_an_unknown_route_is_a_404_in_the_protocols_shape(grounds, path: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        status, body = await exchange(g.gateway.url, path, session.key, BODY)
        assert status == 404
        assert "no route" in orjson.loads(body)["error"]["message"]
        status, body = await exchange(g.gateway.url, path, session.key, BODY, anthropic_version="2023-06-01")
        assert (status, orjson.loads(body)["type"]) == (404, "error")


@pytest.mark.parametrize("path", ["/", "/s/s/api/hello", "/v1/messages", "/nowhere"])
async def test_a_head_request_is_answered(grounds, path: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        assert await exchange(g.gateway.url, path, "", b"", method="HEAD") == (200, b"")


async def test_models_come_in_the_shape_of_who_asks(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        for protocol in ("anthropic", "openai"):
            names = [model.id async for model in agents(protocol, session).client.models.list()]
            assert names == ["bridle"]
        status, _ = await exchange(g.gateway.url, "/api/v1/models", session.key, b"", method="GET")
        assert status == 200


@pytest.mark.parametrize("prefix", ["", "/v1", "/s/s", "/s/s/v1"])
async def test_calls_arrive_bare_by_session_and_with_a_doubled_version(grounds, protocol: str, prefix: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        session = await g.open()
        status, body = await exchange(g.gateway.url, prefix + PATHS[protocol], session.key, BODY)
        assert status == 200
        assert b"Short." in body
        await g.checked()


async def test_a_websocket_is_refused_where_no_protocol_speaks_over_one(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        upgrade = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec_websocket_version": "13",
            "sec_websocket_key": "x3JJHMbDL1EzLkh9GBhXDw==",
        }
        async with raw(g.gateway.url, "/v1/messages", session.key, b"", method="GET", **upgrade) as http:
            assert b"403" in await http.until(b"\r\n")


async def test_a_silent_stream_is_kept_alive(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Short.", delay_s=0.3), samples=1, ping_s=0.05) as g:
        session = await g.open()
        _, body = await exchange(g.gateway.url, PATHS[protocol], session.key, {**BODY, "stream": True})
        await g.checked()
    assert body.count(b"event: ping" if protocol == "anthropic" else b'"delta":{}') >= 4


async def test_health_needs_no_key_and_metrics_count(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        await agents("openai", await g.open()).work("Go.")
        await g.finish()
        assert (await exchange(g.gateway.url, "/healthz", "", b"", method="GET"))[0] == 200
        _, metrics = await exchange(g.gateway.url, "/metrics", g.gateway.control_token, b"", method="GET")
    assert b'bridle_turns_total{protocol="openai_chat"} 1.0' in metrics
    assert b"bridle_sessions_open 0.0" in metrics
