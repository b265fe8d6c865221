"""Model calls over a WebSocket: each text frame is one call, answered by the events of its stream, one frame an event.

Codex's own provider speaks so. Calls of one connection are answered one after the other; what a frame asks is told
apart here, and everything else is done as for an HTTP call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from bridle.errors import BadRequest
from bridle.gateway.asgi import Receive, Send

METHOD = "WEBSOCKET"
"""What stands for the HTTP method in a protocol's routes."""
WAITING = 16
"""Frames that may wait for their turn; a client that sends more does not read its answers."""
POLICY_VIOLATION = 1008


class Create(msgspec.Struct):
    """What a frame says of itself; the rest of it is the body of a call. `generate` false only says what is coming."""

    type: str
    generate: bool = True


CREATE = msgspec.json.Decoder(Create)


def read_create(body: bytes) -> Create:
    try:
        frame = CREATE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the frame cannot be read: {error}; send a JSON object of type response.create") from error
    if frame.type != "response.create":
        raise BadRequest(f"a frame of type {frame.type!r}; known: response.create")
    return frame


class Frame:
    """One call of a connection, as an exchange of its own."""

    def __init__(self, socket: Socket, body: bytes) -> None:
        self.body = body
        self.started = False
        self.ended = False
        self._socket = socket

    @property
    def gone(self) -> bool:
        return self._socket.gone

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """An error before the first event; `body` is what an HTTP call would be answered with."""
        self.started = True
        told = {"type": "error", "status": status, **msgspec.json.decode(body), "headers": headers or {}}
        await self._socket.text(msgspec.json.encode(told))

    async def start_stream(self, content_type: str) -> None:
        self.started = True

    async def chunk(self, data: bytes, *, last: bool = False) -> None:
        """`data`: server-sent events."""
        if last:
            # A client whose leaving was noticed was not sent this: the reader cancels the call.
            await asyncio.sleep(0)
        payloads = [payload for event in data.split(b"\n\n") if (payload := event.partition(b"data: ")[2])]
        for number, payload in enumerate(payloads, 1):
            self.ended = last and number == len(payloads)
            await self._socket.text(payload)

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        await self._socket.work(work)


class Socket:
    """An open connection. `read` runs beside it, so that a client that leaves in the middle is noticed."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    async def read(self) -> None:
        while (message := await self._receive())["type"] == "websocket.receive":
            if self._frames.qsize() >= WAITING:
                await self._send({"type": "websocket.close", "code": POLICY_VIOLATION})
                break
            body = message.get("bytes")
            self._frames.put_nowait(Frame(self, message["text"].encode() if body is None else body))
        self._gone.set()
        if self._working is not None:
            self._working.cancel()
        self._frames.put_nowait(None)

    async def frames(self) -> AsyncIterator[Frame]:
        while not self._gone.is_set() and (frame := await self._frames.get()) is not None:
            yield frame

    async def text(self, data: bytes) -> None:
        with suppress(OSError):
            await self._send({"type": "websocket.send", "text": data.decode()})
            return
        # The server refuses to send to a client that left; its leaving is about to be read, which ends the call.
        await self._gone.wait()

    async def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; cancels it when the client goes away first."""
        self._working = asyncio.create_task(work, name="answer")
        try:
            await asyncio.wait((self._working,))
            if not self._gone.is_set():
                await self._working
        finally:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
            self._working = None


@asynccontextmanager
async def accepted(receive: Receive, send: Send) -> AsyncIterator[Socket]:
    await receive()
    await send({"type": "websocket.accept"})
    socket = Socket(receive, send)
    reading = asyncio.create_task(socket.read(), name="frames")
    try:
        yield socket
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def refuse(receive: Receive, send: Send) -> None:
    """Before the connection is open, so that the client sees a 403 and falls back to HTTP at once."""
    await receive()
    await send({"type": "websocket.close", "code": POLICY_VIOLATION})
