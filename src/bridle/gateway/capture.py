"""What went over the wire in one session, for debugging and replay: one compressed frame for each call, appended.

No credential is in it: headers that carry one are left out, and session keys are struck out of everything else. A
frame that a crash cut off at the end is dropped by the reader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from bridle.errors import LogCorrupt
from bridle.gateway.asgi import Exchange
from bridle.gateway.keys import strike_out, strike_out_bytes
from bridle.protocols.wire import CREDENTIAL

log = logging.getLogger("bridle.gateway")

BLOCK = 1 << 16
CLOSE_S = 2.0
"""How long an ending session waits for calls whose clients take their time; what comes later is not kept."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One call: request and reply as received and sent. `at`: Unix seconds. `status` 0: nothing was sent. `complete`:
    the reply was sent to its end. Of a WebSocket each frame is a call, its `reply` the events sent as frames."""

    at: float
    seconds: float
    method: str
    target: str
    request_headers: Mapping[str, str]
    request: bytes
    status: int
    reply_headers: Mapping[str, str]
    reply: bytes
    complete: bool


class Taped:
    """An exchange that keeps what it sends."""

    def __init__(self, exchange: Exchange) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent: list[bytes] = []
        self.complete = False
        self._exchange = exchange

    @property
    def started(self) -> bool:
        return self._exchange.started

    @property
    def ended(self) -> bool:
        return self._exchange.ended

    @property
    def gone(self) -> bool:
        return self._exchange.gone

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.headers = status, {"content-type": "application/json", **(headers or {})}
        await self._exchange.answer(status, body, headers)
        self.sent.append(body)
        self.complete = True

    async def start_stream(self, content_type: str) -> None:
        self.status, self.headers = 200, {"content-type": content_type}
        await self._exchange.start_stream(content_type)

    async def chunk(self, data: bytes, *, last: bool = False) -> None:
        await self._exchange.chunk(data, last=last)
        self.sent.append(data)
        self.complete = last

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        await self._exchange.unless_gone(work)


class Capture:
    """The file of one session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._writing = asyncio.Lock()
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def call(
        self, exchange: Exchange, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Exchange]:
        """-> the exchange to answer on. What was sent of it is written when the call ends, however it ends."""
        at, clock = time.time(), time.monotonic()
        taped = Taped(exchange)
        self._under_way += 1
        self._quiet.clear()
        try:
            yield taped
        finally:
            wire = Wire(
                at=at,
                seconds=time.monotonic() - clock,
                method=method,
                target=strike_out(target),
                request_headers=_harmless(headers),
                request=strike_out_bytes(body),
                status=taped.status,
                reply_headers=taped.headers,
                reply=strike_out_bytes(b"".join(taped.sent)),
                complete=taped.complete,
            )
            try:
                await asyncio.shield(self._write(wire))
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._quiet.set()

    async def close(self) -> None:
        """After the calls that are under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._quiet.wait()
        async with self._writing:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    async def _write(self, wire: Wire) -> None:
        async with self._writing:
            if self._file >= 0:
                await asyncio.to_thread(self._append, wire)

    def _append(self, wire: Wire) -> None:
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        frame = memoryview(compressor.compress(msgspec.msgpack.encode(wire)))
        length = os.fstat(self._file).st_size
        try:
            while frame:
                frame = frame[os.write(self._file, frame) :]
        except OSError as error:
            os.ftruncate(self._file, length)
            log.warning("%s: a call was not kept: %s; make room", self.path, error.strerror)


def read_capture(path: Path) -> Iterator[Wire]:
    """The calls in the order they ended. Raises LogCorrupt with the number of the one that cannot be read."""
    for number, content in enumerate(_frames(path)):
        try:
            yield msgspec.msgpack.decode(content, type=Wire)
        except msgspec.DecodeError as error:
            raise LogCorrupt(f"{path}: call {number} cannot be read: {error}") from error


def _frames(path: Path) -> Iterator[bytes]:
    """Whole ones. In blocks: what a frame leaves of its block is copied."""
    frame, content = zstandard.ZstdDecompressor().decompressobj(), b""
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            while data:
                try:
                    content += frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise LogCorrupt(f"{path}: a frame before byte {file.tell()} cannot be read: {error}") from error
                data = frame.unused_data
                if frame.eof:
                    yield content
                    frame, content = zstandard.ZstdDecompressor().decompressobj(), b""


def _harmless(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: strike_out(value) for name, value in headers.items() if not CREDENTIAL.search(name)}
