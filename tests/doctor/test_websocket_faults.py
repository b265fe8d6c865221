"""The fault proxy on a WebSocket: what each kind does to a client's call in the middle of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK

from bridle.doctor.faults import Fault, FaultProxy
from bridle.doctor.frames import CLOSE, framed, frames, is_model_call, messages
from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.testing.ground import Ground

LONG = ScriptTurn(text="One word after the other, " * 14, delay_s=0.03)
PATIENCE_S = 20.0


class Place:
    """A gateway with one session, and a proxy in front of it."""

    def __init__(self, g: Ground, session: OpenedSession, proxy: FaultProxy) -> None:
        self.g = g
        self.proxy = proxy
        self.url = session.base_urls["openai"].replace(g.gateway.url, proxy.url).replace("http", "ws", 1) + "/responses"
        self.key = session.key

    def connected(self) -> Any:
        return connect(self.url, additional_headers={"authorization": f"Bearer {self.key}"}, max_size=None)

    @property
    def undelivered(self) -> int:
        return sum(turn.reason == "undelivered" for turn in self.g.turns)


@pytest.fixture
def place(proxied: Any) -> Any:
    @asynccontextmanager
    async def enter(fault: Fault | None) -> AsyncIterator[Place]:
        async with proxied(LONG, fault) as (g, session, proxy):
            yield Place(g, session, proxy)

    return enter


async def asked(socket: ClientConnection, **more: Any) -> list[dict[str, Any]]:
    """-> the events of one call. Raises ConnectionClosed, with what had come in its notes."""
    body = {"type": "response.create", "model": "bridle", "input": "Go.", **more}
    await socket.send(orjson.dumps(body).decode())
    events: list[dict[str, Any]] = []
    try:
        while not events or events[-1]["type"] not in ("response.completed", "error"):
            events.append(orjson.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S)))
    except (ConnectionClosedError, ConnectionClosedOK) as error:
        error.add_note(" ".join(event["type"] for event in events))
        raise
    return events


async def test_without_a_fault_every_frame_passes_and_calls_that_make_a_turn_are_counted(place: Any) -> None:
    async with place(None) as p:
        async with p.connected() as socket:
            await asked(socket, generate=False)
            for _ in range(2):
                assert (await asked(socket))[-1]["type"] == "response.completed"
            await (await socket.ping())
        assert (p.proxy.calls, p.proxy.messages, p.proxy.fired) == (0, 2, False)
        assert (await p.g.checked()).kept_percent == 100.0


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_a_status_is_an_error_event_and_the_connection_goes_on(place: Any, status: int) -> None:
    async with place(Fault("status", call=2, status=status, retry_after_s=1)) as p, p.connected() as socket:
        assert (await asked(socket))[-1]["type"] == "response.completed"
        (told,) = await asked(socket)
        assert (told["type"], told["status"], told["headers"]) == ("error", status, {"retry-after": "1"})
        assert (await asked(socket))[-1]["type"] == "response.completed"
        await p.g.checked()
        assert (p.proxy.messages, p.proxy.fired, len(p.g.turns)) == (3, True, 2)


@pytest.mark.parametrize("after_bytes", [0, 2500])
@pytest.mark.parametrize(
    ("kind", "error"),
    [("reset", ConnectionClosedError), ("cut", ConnectionClosedError), ("cut_clean", ConnectionClosedOK)],
)
async def test_a_connection_that_ends_in_a_call_leaves_its_turn_undelivered(
    place: Any, kind: Any, error: Any, after_bytes: int
) -> None:
    async with place(Fault(kind, call=2, after_bytes=after_bytes)) as p:
        async with p.connected() as socket:
            await asked(socket)
            with pytest.raises(error) as broken:
                await asked(socket)
        (came,) = broken.value.__notes__
        assert ("response.output_text.delta" in came) == bool(after_bytes)
        while p.g.live().running:
            await asyncio.sleep(0.01)
        async with p.connected() as socket:
            assert (await asked(socket))[-1]["type"] == "response.completed"
        report = await p.g.checked()
        assert (p.proxy.fired, p.undelivered) == (True, 1)
        assert (report.doubled, report.lost, report.generations) == (0, 0, 3)


async def test_a_stall_that_is_waited_for_changes_nothing(place: Any) -> None:
    async with place(Fault("stall", call=1, seconds=0.3, after_bytes=1000)) as p, p.connected() as socket:
        assert (await asked(socket))[-1]["type"] == "response.completed"
        await p.g.checked()
        assert p.proxy.fired


async def test_a_fault_behind_the_end_of_the_answer_it_was_for_hits_no_other(place: Any) -> None:
    async with place(Fault("reset", call=1, after_bytes=20_000)) as p, p.connected() as socket:
        for _ in range(4):
            events = await asked(socket)
            assert events[-1]["type"] == "response.completed"
            assert sum(len(orjson.dumps(event)) for event in events) > 5_000
        assert (p.proxy.messages, p.proxy.fired) == (4, False)
        await p.g.checked()


# --- frames ---


def reader(data: bytes) -> asyncio.StreamReader:
    source = asyncio.StreamReader()
    source.feed_data(data)
    source.feed_eof()
    return source


def masked(data: bytes, opcode: int, last: bool) -> bytes:
    plain = framed(data, opcode)
    size = 2 if len(data) < 126 else 4 if len(data) < 1 << 16 else 10
    key = b"\x01\x7f\x00\xfe"
    body = bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    return bytes([opcode | last << 7, plain[1] | 128]) + plain[2:size] + key + body


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
async def test_a_frame_of_any_size_is_read_as_it_was_written(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    raw = framed(data[:size]) + masked(data[:size], 2, True)
    read = [frame async for frame in frames(reader(raw))]
    assert [frame.data for frame in read] == [data[:size]] * 2
    assert b"".join(frame.raw for frame in read) == raw


@given(pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=5), ping=st.booleans())
async def test_a_message_in_fragments_is_one_with_or_without_a_control_frame_between(
    pieces: list[bytes], ping: bool
) -> None:
    raw = b""
    for number, piece in enumerate(pieces):
        raw += masked(piece, 0 if number else 1, number == len(pieces) - 1)
        raw += masked(b"", CLOSE + 1, True) if ping and number == 0 else b""
    said = [one async for one in messages(reader(raw))]
    assert [text for text, _ in said if text] == [b"".join(pieces)] * any(pieces)
    assert sorted(b"".join(held for _, held in said)) == sorted(raw)


@pytest.mark.parametrize(
    ("said", "is_call"),
    [
        (b'{"type": "response.create"}', True),
        (b'{"type": "response.create", "generate": true}', True),
        (b'{"type": "response.create", "generate": false}', False),
        (b'{"type": "response.cancel"}', False),
        (b"[]", False),
        (b"\xff", False),
        (b"", False),
    ],
)
def test_what_makes_a_turn_is_a_call(said: bytes, is_call: bool) -> None:
    assert is_model_call(said) == is_call
