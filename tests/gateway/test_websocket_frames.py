"""What a raw WebSocket client may send, and where it may end: each is answered, or ends its own connection alone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.sessions.records import Finished
from bridle.testing.ground import Ground

SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="word " * 400, delay_s=0.01)
CREATE = orjson.dumps({"type": "response.create", "model": "bridle", "input": "Gö."})
PATIENCE_S = 20.0


@asynccontextmanager
async def talking(session: OpenedSession) -> AsyncIterator[ClientConnection]:
    url = session.base_urls["openai"].replace("http", "ws", 1) + "/responses"
    headers = {"authorization": f"Bearer {session.key}"}
    async with connect(url, additional_headers=headers, max_size=None) as socket:
        yield socket


async def event(socket: ClientConnection) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))
    return told


async def until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    events = [await event(socket)]
    while events[-1]["type"] != kind:
        events.append(await event(socket))
    return events


async def idle(g: Ground) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while g.live().running:
            await asyncio.sleep(0.01)


async def test_a_message_in_fragments_with_a_ping_between_them_is_one_call(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        async with talking(await g.open()) as socket:

            async def pieces() -> AsyncIterator[str]:
                for letter in CREATE.decode():
                    yield letter
                    if letter == "{":
                        await (await socket.ping())

            await socket.send(pieces())
            assert (await until(socket, "response.completed"))[-1]["response"]["status"] == "completed"
        await g.checked()


async def test_a_binary_message_is_read_as_text_is(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        async with talking(await g.open()) as socket:
            await socket.send(CREATE, text=False)
            await until(socket, "response.completed")
        await g.checked()


async def test_a_ping_is_answered_while_a_call_runs(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="word " * 20, delay_s=0.02), samples=1) as g:
        async with talking(await g.open()) as socket:
            await socket.send(CREATE.decode())
            await until(socket, "response.output_text.delta")
            waiter = await socket.ping()
            await until(socket, "response.output_text.delta")
            await asyncio.wait_for(waiter, PATIENCE_S)
            await until(socket, "response.completed")
        await g.checked()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b'{"type": "response.create", "input": "\xff\xfe"}', 1007),
        (b'{"type": "response.create", "input": "' + b"x" * (1 << 20) + b'"}', 1009),
    ],
    ids=["no UTF-8", "too large"],
)
async def test_a_message_no_call_can_be_closes_its_connection_with_the_code_for_it(  # type: ignore[no-untyped-def]
    grounds, message: bytes, code: int
) -> None:
    async with grounds(SHORT, samples=1, max_body_mb=1) as g:
        session = await g.open()
        async with talking(session) as other:
            async with talking(session) as socket:
                await socket.send(message, text=True)
                with pytest.raises(ConnectionClosed) as closed:
                    await asyncio.wait_for(socket.recv(), PATIENCE_S)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == code
            await other.send(CREATE.decode())
            await until(other, "response.completed")
        await g.checked()
    assert len(g.turns) == 1


async def test_a_message_as_large_as_a_body_may_be_is_a_call(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, max_body_mb=1) as g:
        async with talking(await g.open()) as socket:
            body = CREATE.replace("Gö.".encode(), b"x" * 900_000)
            await socket.send(body.decode())
            told = await event(socket)
        await g.finish()
    assert (told["status"], told["error"]["code"]) == (400, "context_length_exceeded")


async def test_two_calls_sent_while_one_runs_wait_for_their_turn(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="word " * 10, delay_s=0.01), samples=3) as g:
        async with talking(await g.open()) as socket:
            for word in ("One.", "Two.", "Three."):
                await socket.send(CREATE.decode().replace("Gö.", word))
            ids = []
            for _ in range(3):
                events = await until(socket, "response.completed")
                ids += list({told["response"]["id"] for told in events if "response" in told})
        await g.checked()
    assert len(set(ids)) == len(ids) == 3, "the events of one call are not mixed with another's"


async def break_off(socket: ClientConnection) -> None:
    """As a client that was killed: a reset, no closing frame."""
    raw = socket.transport.get_extra_info("socket")
    raw.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    socket.transport.abort()


@pytest.mark.parametrize("ended", ["closed", "reset"])
@pytest.mark.parametrize("waiting", [0, 2])
async def test_a_connection_that_ends_in_a_call_leaves_it_undelivered_and_its_engine_is_stopped_past_the_grace(  # type: ignore[no-untyped-def]
    grounds, ended: str, waiting: int
) -> None:
    """Calls that waited behind it are never made."""
    async with grounds(SLOW, abort_grace_s=0.3, samples=0, reasons=("undelivered",)) as g:
        session = await g.open()
        async with talking(session) as socket:
            await socket.send(CREATE.decode())
            for number in range(waiting):
                await socket.send(CREATE.decode().replace("Gö.", str(number)))
            await until(socket, "response.output_text.delta")
            await (socket.close() if ended == "closed" else break_off(socket))
        left = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        assert g.live().running, "a retry may still join"
        await idle(g)
        assert 0.2 < asyncio.get_running_loop().time() - left < 2.0
        assert [record.delivered for record in g.log() if isinstance(record, Finished)] == [False]
        await g.checked()
    assert len(g.turns) == 1


async def test_a_call_whose_connection_was_reset_is_joined_over_the_next_one(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="word " * 40, delay_s=0.01), samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        async with talking(session) as socket:
            await socket.send(CREATE.decode())
            await until(socket, "response.output_text.delta")
            await break_off(socket)
        async with asyncio.timeout(PATIENCE_S):
            while any(draw.listeners for draw in g.live().running):
                await asyncio.sleep(0.01)
        async with talking(session) as socket:
            await socket.send(CREATE.decode())
            await until(socket, "response.completed")
        report = await g.checked()
    assert (report.generations, report.untrained) == (1, {})


async def test_a_gateway_that_stops_closes_its_connections_as_one_that_comes_back(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW) as g:
        opened = talking(await g.open())
        socket = await opened.__aenter__()
        await socket.send(CREATE.decode())
        await until(socket, "response.output_text.delta")
    with pytest.raises(ConnectionClosed) as closed:
        while (await event(socket))["type"] != "response.completed":
            pass
    await opened.__aexit__(None, None, None)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
