"""While sampling is paused, turns wait: recorded as started, kept alive, and sampled once it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.errors import AccessDenied
from bridle.gateway import app
from bridle.gateway.client import GatewayClient
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground

SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 5, delay_s=0.02)
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/bridle:streamGenerateContent?alt=sse",
}
ENDS = {"anthropic": b"message_stop", "openai_chat": b"[DONE]", "openai_responses": b"response.completed"}
GO = [{"role": "user", "content": "Go."}]
STREAMED: dict[str, dict[str, Any]] = {
    "anthropic": {"model": "bridle", "max_tokens": 99, "stream": True, "messages": GO},
    "openai_chat": {"model": "bridle", "stream": True, "messages": GO},
    "openai_responses": {"model": "bridle", "stream": True, "input": "Go."},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BEGIN_S", 0.05)


async def until_held(g: Ground, count: int = 1) -> None:
    async with asyncio.timeout(10):
        while (await g.client.pause())["held"] < count:
            await asyncio.sleep(0.01)


async def test_a_turn_that_comes_in_a_pause_is_held_and_answered_after_it(grounds, say) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        session = await g.open()
        assert await g.client.pause() == {"paused": True, "running": 0, "held": 0}
        asking = asyncio.create_task(say(session, "Go."))
        await until_held(g)
        assert not g.journal(), "the engine was not asked"
        assert [type(record).__name__ for record in g.log()] == ["Opened", "Started"]
        assert (await g.client.resume())["paused"] is False
        assert await asking == "Short."
        await g.checked()


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_held_stream_begins_and_is_kept_alive(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1, ping_s=0.05) as g:
        session = await g.open()
        await g.client.pause()
        async with raw(g.gateway.url, PATHS[protocol], session.key, STREAMED[protocol]) as http:
            assert b"200" in await http.until(b"\r\n")
            await http.until(b"\r\n\r\n")
            early = b""
            while early.count(b"\n\n") + early.count(b"\r\n\r\n") < 4:
                early += await http.reader.read(65536)
            assert b"Short" not in early
            await g.client.resume()
            assert b"Short." in await http.rest()
        await g.checked()


async def test_draws_under_way_finish_in_a_pause(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=1) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        asking = asyncio.create_task(agent.ask())
        while not g.live().running or not next(iter(g.live().running)).events:
            await asyncio.sleep(0.01)
        assert await g.client.pause() == {"paused": True, "running": 1, "held": 0}
        assert (await asking).text == SLOW.text
        await g.checked()


@pytest.mark.parametrize(
    ("protocol", "status"), [("anthropic", 529), ("openai_chat", 503), ("openai_responses", 503), ("gemini", 503)]
)
async def test_past_the_longest_hold_a_call_is_told_to_come_back(grounds, protocol: str, status: int) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, max_hold_s=0.01) as g:
        session = await g.open()
        await g.client.pause()
        async with raw(g.gateway.url, PATHS[protocol], session.key, STREAMED[protocol]) as http:
            answer = await http.rest()
        await g.finish()
    assert f" {status} ".encode() in answer.splitlines()[0]
    assert b"retry-after: 1" in answer
    assert ("overloaded_error" in answer.decode()) == (protocol == "anthropic")
    told = orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    if protocol == "gemini":
        assert (told["code"], told["status"]) == (503, "UNAVAILABLE"), "the body says what the status line says"
    assert [turn.reason for turn in g.turns] == ["undelivered"]


@pytest.mark.parametrize("protocol", PATHS)
async def test_past_the_longest_hold_a_begun_stream_ends_with_its_protocols_error(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, max_hold_s=0.2) as g:
        session = await g.open()
        await g.client.pause()
        status, body = await exchange(g.gateway.url, PATHS[protocol], session.key, STREAMED[protocol])
        await g.finish()
    assert status == 200
    assert b"paused for more than 0.2 s" in body
    assert protocol == "gemini" or ENDS[protocol] not in body


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
async def test_a_client_that_is_told_comes_back_by_itself(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1, max_hold_s=0.3) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        await g.client.pause()
        asking = asyncio.create_task(agent.ask())
        while not g.refusals:
            await asyncio.sleep(0.02)
        await g.client.resume()
        assert (await asking).text == "Short."
        await g.checked()
    assert [turn.reason for turn in g.turns] == ["undelivered", None]


async def test_a_client_that_leaves_while_held_samples_nothing(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, abort_grace_s=0.05) as g:
        session = await g.open()
        await g.client.pause()
        async with raw(g.gateway.url, PATHS["anthropic"], session.key, STREAMED["anthropic"]) as http:
            await until_held(g)
            await http.leave()
        while g.live().running:
            await asyncio.sleep(0.01)
        assert (await g.client.resume())["held"] == 0
        assert g.journal() == []
        await g.finish()
    assert [(turn.reason, turn.sampled) for turn in g.turns] == [("undelivered", 0)]


async def test_a_session_that_ends_in_a_pause_does_not_wait_for_its_end(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        await g.client.pause()
        async with raw(g.gateway.url, PATHS["openai_chat"], session.key, {**STREAMED["openai_chat"], "stream": False}):
            await until_held(g)
            async with asyncio.timeout(5):
                await g.finish()
    assert [turn.reason for turn in g.turns] == ["undelivered"]


async def test_only_the_control_token_pauses(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        async with GatewayClient(g.gateway.url, session.key) as agent:
            for act in (agent.pause, agent.resume):
                with pytest.raises(AccessDenied):
                    await act()
        status, body = await exchange(g.gateway.url, "/s/s/pause", session.key, b"")
        assert (status, "no route" in orjson.loads(body)["error"]["message"]) == (404, True)
