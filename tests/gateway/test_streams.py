"""Streams begin early, go on while siblings are sampled, and never end cleanly without their protocol's end."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
import weakref
from collections.abc import AsyncGenerator, Iterator, MutableMapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from bridle.engines.base import Chunk, GenerateRequest
from bridle.engines.script import Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.errors import EngineError
from bridle.gateway import app, control, server
from bridle.gateway.app import AgentApp
from bridle.gateway.asgi import interleaved
from bridle.rendering.template import TemplateRenderer
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import ground

SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 20, delay_s=0.05)
GO = [{"role": "user", "content": "Go."}]
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]}
CALLS: dict[str, tuple[str, dict[str, Any], bytes, bytes]] = {
    "anthropic": (
        "/v1/messages",
        {"model": "bridle", "max_tokens": 999, "stream": True, "messages": GO},
        b"event: error",
        b"message_stop",
    ),
    "openai_chat": (
        "/v1/chat/completions",
        {"model": "bridle", "stream": True, "messages": GO},
        b'"error"',
        b"[DONE]",
    ),
    "openai_responses": (
        "/v1/responses",
        {"model": "bridle", "stream": True, "input": "Go."},
        b"response.failed",
        b"response.completed",
    ),
    "gemini": (
        "/v1beta/models/bridle:streamGenerateContent?alt=sse",
        CONTENTS,
        b'"error"',
        b'"finishReason":"STOP"',
    ),
}
"""Protocol -> path, body, its error in a stream, its end."""


class Dying(ScriptedEngine):
    """Is gone after its first chunk."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                raise EngineError("the engine was killed")


@pytest.mark.parametrize("said", ["<think>\na\n</think>\n\n<think>\nb\n</think>\n\nc", "a <think></think>b"])
@pytest.mark.parametrize("protocol", CALLS)
async def test_a_model_that_begins_to_think_again_at_once_does_not_break_its_stream(  # type: ignore[no-untyped-def]
    grounds, protocol: str, said: str
) -> None:
    path, body, _, end = CALLS[protocol]
    async with grounds(ScriptTurn(raw=f"{said}<|im_end|>")) as g:
        session = await g.open()
        _, answer = await exchange(g.gateway.url, path, session.key, body)
        report = await g.checked()
    assert end in answer
    assert report.kept_percent == 100.0


@pytest.mark.parametrize("protocol", CALLS)
async def test_an_engine_killed_in_mid_stream_is_an_error_event_and_no_end(
    renderer: TemplateRenderer, tmp_path: Path, protocol: str
) -> None:
    path, body, error, end = CALLS[protocol]
    script = Script((Thread((SLOW,)),), resegment=0.4)
    engine = Dying(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl", score="fake")
    async with ground(tmp_path, renderer, script, engine) as g:
        session = await g.open()
        status, answer = await exchange(g.gateway.url, path, session.key, body)
        report = await g.checked()
    assert status == 200
    assert b"One word" in answer
    assert b"the engine was killed" in answer
    assert error in answer
    assert end not in answer
    assert report.untrained == {"undelivered": 16}


@pytest.mark.parametrize("delay_s", [0.05, 2.0], ids=["speaking", "silent"])
@pytest.mark.parametrize("protocol", CALLS)
async def test_a_gateway_that_stops_ends_its_streams_with_their_protocols_error(  # type: ignore[no-untyped-def]
    grounds, protocol: str, delay_s: float
) -> None:
    """A stream without it is taken for whole by some clients, a connection that breaks for the end of all by others."""
    path, body, error, end = CALLS[protocol]
    async with grounds(ScriptTurn(text=SLOW.text * 20, delay_s=delay_s)) as g:
        session = await g.open()
        http = raw(g.gateway.url, path, session.key, body)
        exchange = await http.__aenter__()
        assert b" 200 " in await exchange.until(b"\r\n")
        await exchange.until(b"One word")
    rest = await exchange.rest()
    await http.__aexit__(None, None, None)
    assert end not in rest
    assert error in rest
    assert b"the gateway is being stopped; ask again" in rest


async def test_an_answer_that_had_its_end_when_the_gateway_stops_gets_no_other(  # type: ignore[no-untyped-def]
    grounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a WebSocket nothing else keeps a second one from its client."""
    apps: list[AgentApp] = []

    def kept(*args: Any, **options: Any) -> AgentApp:
        apps.append(AgentApp(*args, **options))
        return apps[-1]

    monkeypatch.setattr(server, "AgentApp", kept)
    sent: list[str] = []
    ended = asyncio.Event()
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "websocket.send":
            sent.append(orjson.loads(message["text"])["type"])
            if sent[-1] == "response.completed":
                ended.set()
                await asyncio.sleep(20)

    async with grounds(SHORT) as g:
        session = await g.open()
        headers = [(b"authorization", f"Bearer {session.key}".encode())]
        received.put_nowait({"type": "websocket.connect"})
        create = {"type": "response.create", "model": "bridle", "input": "Go."}
        received.put_nowait({"type": "websocket.receive", "text": orjson.dumps(create).decode()})
        scope = {"type": "websocket", "path": "/v1/responses", "headers": headers}
        serving = asyncio.create_task(apps[0](scope, received.get, send))
        await asyncio.wait_for(ended.wait(), 20)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert sent[-1] == "response.completed"


@pytest.mark.parametrize("protocol", CALLS)
async def test_a_gateway_that_stops_answers_the_calls_it_has_not_answered_yet(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    path, body, _, _ = CALLS[protocol]
    path = path.replace("streamGenerateContent?alt=sse", "generateContent")
    body = {key: value for key, value in body.items() if key != "stream"}
    async with grounds(ScriptTurn(text=SLOW.text, delay_s=4.0)) as g:
        session = await g.open()
        http = raw(g.gateway.url, path, session.key, body)
        exchange = await http.__aenter__()
        while not g.live().running:
            await asyncio.sleep(0.01)
    head, _, answer = (await exchange.rest()).partition(b"\r\n\r\n")
    await http.__aexit__(None, None, None)
    assert b" 503 " in head.splitlines()[0]
    assert b"retry-after: 1" in head
    assert "the gateway is being stopped; ask again" in str(orjson.loads(answer)["error"]["message"])


@pytest.mark.parametrize("protocol", CALLS)
async def test_a_stream_begins_before_its_first_word(grounds, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(app, "BEGIN_S", 0.05)
    path, body, _, _ = CALLS[protocol]
    async with grounds(ScriptTurn(text="Short.", delay_s=0.6), ping_s=60.0) as g:
        session = await g.open()
        started = time.monotonic()
        async with raw(g.gateway.url, path, session.key, body) as http:
            head = await http.until(b"\r\n\r\n")
            begun = time.monotonic() - started
            assert b"Short." in await http.rest()
            assert time.monotonic() - started >= 0.6
    assert b" 200 " in head.splitlines()[0]
    assert begun < 0.5


async def test_siblings_are_streamed_as_they_are_sampled(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=3) as g:
        session = await g.open()
        path, body, _, _ = CALLS["openai_chat"]
        _, answer = await exchange(g.gateway.url, path, session.key, {**body, "n": 3})
        report = await g.checked()
    chunks = [orjson.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    order = [choice["index"] for choice in choices if choice["delta"].get("content")]
    first_end = min(order[::-1].index(index) for index in range(3))
    assert set(order[: len(order) // 2]) == {0, 1, 2}, "none waits for another to end"
    assert first_end < 6
    for index in range(3):
        assert "".join(c["delta"].get("content") or "" for c in choices if c["index"] == index) == SLOW.text
    assert report.kept_percent == 100.0


async def counting(until: int, pause_s: float) -> AsyncGenerator[int, None]:
    for number in range(until):
        await asyncio.sleep(pause_s)
        yield number


async def test_sources_are_interleaved_whole_and_in_their_own_order() -> None:
    got = [pair async for pair in interleaved([counting(3, 0.01), counting(0, 0), counting(5, 0.001)])]
    assert [value for index, value in got if index == 0] == [0, 1, 2]
    assert [value for index, value in got if index == 2] == [0, 1, 2, 3, 4]
    assert len(got) == 8


async def test_what_one_source_raises_ends_them_all() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise EngineError("gone")

    other = counting(1000, 0.001)
    with pytest.raises(EngineError, match="gone"):
        async for _ in interleaved([failing(), other]):
            pass
    assert await anext(other, None) is None, "the other one is closed"


async def test_a_session_is_finished_beside_the_calls_of_others(  # type: ignore[no-untyped-def]
    grounds, agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long session takes seconds to linearize."""
    linearize = control.linearize

    def slowly(*values: Any) -> Any:
        time.sleep(0.5)
        return linearize(*values)

    monkeypatch.setattr(control, "linearize", slowly)
    async with grounds(SHORT) as g:
        ended, other = await g.open("ended"), await g.open("other")
        await agents("openai", ended).work("Go.")
        finishing = asyncio.create_task(g.finish("ended"))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(agents("openai", other).work("Go."), 0.4)
        assert not finishing.done()
        await finishing
        await g.checked("other")


async def test_a_finished_session_is_let_go_and_finished_again_from_its_log(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.client.open("s", control.SessionOptions())
        await agents("openai", session).work("Go.")
        tree = weakref.ref(g.gateway.control.access.get("s").session)
        first = await g.client.finish("s", "finished", {})
        await agents("openai", await g.client.open("t", control.SessionOptions())).work("Go.")
        gc.collect()
        assert tree() is None
        assert await g.client.finish("s", "finished", {}) == first
        other = await g.client.finish("s", "finished", {"kinds": {"main": "context"}})
        assert other["fidelity"]["totals"]["trained"] == 0, "another question gets another answer"
        assert await g.client.show("s") == {
            "id": "s",
            "sealed": "finished",
            "turns": 1,
            "running": 0,
            "sampled_tokens": first["fidelity"]["totals"]["sampled"],
            "log": str(g.directory / "rollouts/s/session.log"),
        }


def sockets_of_this_process() -> Iterator[socket.socket]:
    """The gateway's among them: it runs in the test's own process."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            yield found


async def test_an_answer_is_sent_at_once_and_not_when_its_head_is_acknowledged(grounds) -> None:  # type: ignore[no-untyped-def]
    """On a kept connection that would be 40 ms for each call."""
    async with grounds(SLOW) as g:
        session = await g.open()
        path, body, _, _ = CALLS["openai_chat"]
        async with raw(g.gateway.url, path, session.key, body) as http:
            await http.until(b"data: ")
            ours = http.writer.get_extra_info("sockname")
            options = []
            for found in sockets_of_this_process():
                with suppress(OSError):
                    if found.getpeername() == ours:
                        options.append(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    assert options == [1]
