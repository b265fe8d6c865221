"""HTTP over a bare socket: for clients that leave in the middle, and for bodies no SDK would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

PATIENCE_S = 20.0


class Raw:
    """One HTTP/1.1 exchange over a bare socket, for clients that leave in the middle."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def until(self, piece: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(piece), PATIENCE_S)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def raw(
    url: str, path: str, key: str, body: object, *, method: str = "POST", held_back: int = 0, **headers: str
) -> AsyncIterator[Raw]:
    """`held_back`: bytes at the end of the body that are announced and not sent; the caller may write them."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", f"content-length: {len(data)}", "connection: close"]
    lines += [f"authorization: Bearer {key}"] if key else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data[: len(data) - held_back])
    exchange = Raw(reader, writer)
    try:
        await writer.drain()
        yield exchange
    finally:
        writer.close()


async def exchange(*values: Any, **options: Any) -> tuple[int, bytes]:
    """-> status and body of a whole exchange; its arguments are those of `raw`."""
    async with raw(*values, **options) as http:
        head, _, body = (await http.rest()).partition(b"\r\n\r\n")
        return int(head.split()[1]), body
