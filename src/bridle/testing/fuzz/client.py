"""A client that sends whatever bytes it is told: official ones refuse to say most of what a fuzzer has to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class RawClient:
    """One connection to host:port, opened anew after the server closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises ConnectionError when the server closes without an answer."""
        lines = [f"{method} {target} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        assert self._reader is not None
        sending = asyncio.create_task(_write(self._writer, head + body))
        try:
            return await self._receive(self._reader)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _receive(self, reader: asyncio.StreamReader) -> Answer:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            named = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in named}
            body = await _body(reader, headers)
        except asyncio.IncompleteReadError as error:
            await self.close()
            raise ConnectionResetError("the server closed the connection before its answer was complete") from error
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return Answer(int(head[0].split(" ")[1]), headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    chunks = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(chunks)


class RawSocket:
    """One WebSocket, opened anew after the server closed it or when another key is asked for."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("http", "ws", 1)
        self._key = ""
        self._socket: ClientConnection | None = None

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def ask(self, key: str, frame: bytes) -> bytes:
        """-> the frame that ends the answer. Bytes that are no text go out as a binary frame."""
        if self._socket is None or key != self._key:
            await self.close()
            self._socket = await connect(
                self._url, additional_headers={"authorization": f"Bearer {key}"}, max_size=None
            )
            self._key = key
        try:
            await self._socket.send(frame.decode())
        except UnicodeDecodeError:
            await self._socket.send(frame)
        try:
            answer = await self._socket.recv(decode=False)
            while not any(end in answer for end in ENDS):
                answer = await self._socket.recv(decode=False)
        except ConnectionClosed as error:
            self._socket = None
            raise ConnectionResetError(f"the server closed the WebSocket: {error}") from error
        return answer


FINAL = ("response.completed", "response.incomplete", "response.failed", "error")
ENDS = tuple(f'"type":"{kind}"'.encode() for kind in FINAL)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Beside the reading: a server may refuse a body long before all of it was sent."""
    writer.write(data)
    await writer.drain()
