"""The fault proxy between official clients and a real gateway: what each kind does to both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from bridle.doctor.faults import Fault, FaultProxy
from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.testing.ground import Ground

LONG = ScriptTurn(text="One word after the other, " * 14, delay_s=0.03)
MESSAGES: Any = [{"role": "user", "content": "Go."}]


class Place:
    """A gateway with one session, and a proxy in front of it."""

    def __init__(self, g: Ground, session: OpenedSession, proxy: FaultProxy) -> None:
        self.g = g
        self.proxy = proxy
        base = session.base_urls["anthropic"].replace(g.gateway.url, proxy.url)
        self.anthropic: dict[str, Any] = {"api_key": session.key, "base_url": base}
        self.openai: dict[str, Any] = {"api_key": session.key, "base_url": f"{base}/v1"}

    async def streamed(self, retries: int = 2, patience_s: float = 20.0) -> str:
        async with AsyncAnthropic(**self.anthropic, max_retries=retries, timeout=patience_s) as client:
            stream = await client.messages.create(model="bridle", max_tokens=2048, messages=MESSAGES, stream=True)
            return "".join([e.delta.text async for e in stream if e.type == "content_block_delta"])  # type: ignore[union-attr]

    async def whole(self, retries: int = 2) -> str:
        async with AsyncOpenAI(**self.openai, max_retries=retries) as client:
            completion = await client.chat.completions.create(model="bridle", messages=MESSAGES)
            return completion.choices[0].message.content or ""

    @property
    def undelivered(self) -> int:
        return sum(turn.reason == "undelivered" for turn in self.g.turns)


@pytest.fixture
def place(proxied: Any) -> Any:
    @asynccontextmanager
    async def enter(fault: Fault | None, grace_s: float = 0.05) -> AsyncIterator[Place]:
        async with proxied(LONG, fault, grace_s) as (g, session, proxy):
            yield Place(g, session, proxy)

    return enter


async def test_without_a_fault_everything_passes_and_model_calls_are_counted(place: Any) -> None:
    async with place(None) as p:
        assert await p.streamed() == await p.whole() == LONG.text
        async with AsyncAnthropic(**p.anthropic) as client:
            assert (await client.models.list()).data
        assert (p.proxy.calls, p.proxy.fired) == (2, False)
        assert (await p.g.checked()).kept_percent == 100.0


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_a_status_stands_in_for_the_gateway_once_and_the_client_asks_again(place: Any, status: int) -> None:
    async with place(Fault("status", call=1, status=status, retry_after_s=0)) as p:
        assert await p.whole() == LONG.text
        assert (p.proxy.calls, p.proxy.fired) == (2, True)
        await p.g.checked()
        assert len(p.g.turns) == 1


async def test_a_status_says_when_to_come_again(place: Any) -> None:
    async with place(Fault("status", call=1, status=429, retry_after_s=7)) as p:
        with pytest.raises(openai.RateLimitError) as caught:
            await p.whole(retries=0)
        assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("kind", ["reset", "cut"])
async def test_an_answer_that_breaks_off_leaves_an_aborted_draw_and_the_retry_gets_another(
    place: Any, kind: Any
) -> None:
    async with place(Fault(kind, call=1)) as p:
        assert await p.streamed() == LONG.text
        report = await p.g.checked()
        assert (p.proxy.fired, p.undelivered) == (True, 1)
        assert (report.doubled, report.lost, report.generations) == (0, 0, 2)


async def test_a_retry_within_the_grace_joins_the_draw_that_is_under_way(place: Any) -> None:
    async with place(Fault("reset", call=1), grace_s=5) as p:
        assert await p.streamed() == LONG.text
        assert (await p.g.checked()).generations == 1
        assert (p.proxy.calls, p.undelivered) == (2, 0)


@pytest.mark.parametrize(("kind", "error"), [("reset", ConnectionResetError), ("cut", EOFError)])
async def test_the_client_has_what_came_before_the_break_and_then_an_error(place: Any, kind: Any, error: Any) -> None:
    async with place(Fault(kind, call=1, after_bytes=900)) as p:
        got = b""
        with pytest.raises(error):
            async for piece in body(p):
                got += piece
        assert b"message_start" in got
        assert b"message_stop" not in got
        await p.g.checked()
        assert p.undelivered == 1


async def test_a_clean_cut_ends_the_http_message_and_not_the_protocols_own(place: Any) -> None:
    async with place(Fault("cut_clean", call=1, after_bytes=900)) as p:
        got = b"".join([piece async for piece in body(p)])
        assert got.count(b"event: ") == got.count(b"\n\n")
        assert b"message_stop" not in got
        await p.g.checked()
        assert p.undelivered == 1


async def test_a_stall_is_silence_and_a_client_that_leaves_meanwhile_is_gone_for_the_gateway_too(place: Any) -> None:
    async with place(Fault("stall", call=1, seconds=30)) as p:
        with pytest.raises(anthropic.APITimeoutError):
            await p.streamed(retries=0, patience_s=0.2)
        assert await p.whole() == LONG.text
        await p.g.checked()
        assert (p.proxy.fired, p.undelivered) == (True, 1)


async def test_a_stall_that_is_waited_for_changes_nothing(place: Any) -> None:
    async with place(Fault("stall", call=1, seconds=0.3, after_bytes=600)) as p:
        assert await p.streamed(retries=0) == LONG.text
        assert (await p.g.checked()).generations == 1


async def test_only_the_call_it_is_for_fails(place: Any) -> None:
    async with place(Fault("status", call=2, status=500)) as p:
        assert await p.whole(retries=0) == LONG.text
        with pytest.raises(openai.InternalServerError):
            await p.whole(retries=0)
        assert await p.whole(retries=0) == LONG.text


async def body(p: Place) -> AsyncIterator[bytes]:
    """The answer to a streamed call over a bare socket, chunk by chunk. Raises EOFError where it breaks off."""
    host, port = p.proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = (
        b'{"model": "bridle", "max_tokens": 2048, "stream": true, "messages": [{"role": "user", "content": "Go."}]}'
    )
    path = p.anthropic["base_url"].removeprefix(p.proxy.url)
    head = f"POST {path}/v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {p.anthropic['api_key']}\r\n"
    writer.write(f"{head}content-length: {len(request)}\r\n\r\n".encode() + request)
    try:
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
    except asyncio.IncompleteReadError as error:
        yield error.partial
        raise
    finally:
        writer.close()
