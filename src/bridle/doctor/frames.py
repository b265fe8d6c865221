"""WebSocket frames, as far as a proxy has to know them: where one ends, and what a message says. No extensions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

TEXT, CLOSE = 1, 8
NORMAL_CLOSURE = b"\x03\xe8"


class Frame(NamedTuple):
    """`raw`: as it came, `data`: what it carries. `last`: its message ends with it; opcode 0 goes on with one."""

    opcode: int
    last: bool
    data: bytes
    raw: bytes

    @property
    def control(self) -> bool:
        return self.opcode >= CLOSE


class Create(msgspec.Struct):
    """What a client's message says of itself."""

    type: str = ""
    generate: bool = True


async def frames(source: asyncio.StreamReader) -> AsyncIterator[Frame]:
    while not source.at_eof():
        head = await source.readexactly(2)
        more = {126: 2, 127: 8}.get(head[1] & 127, 0)
        wide = await source.readexactly(more)
        size = int.from_bytes(wide) if more else head[1] & 127
        key = await source.readexactly(4 if head[1] & 128 else 0)
        body = await source.readexactly(size)
        yield Frame(head[0] & 15, bool(head[0] & 128), _unmasked(body, key), head + wide + key + body)


async def messages(source: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """(what was said, its frames as they came): one of both for each message; control frames say nothing."""
    said, raw = b"", b""
    async for frame in frames(source):
        if frame.control:
            yield b"", frame.raw
            continue
        said, raw = said + frame.data, raw + frame.raw
        if frame.last:
            yield said, raw
            said, raw = b"", b""


def is_model_call(said: bytes) -> bool:
    """Codex announces its first call by one that makes no turn."""
    try:
        create = msgspec.json.decode(said, type=Create)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return create.type == "response.create" and create.generate


def framed(data: bytes, opcode: int = TEXT) -> bytes:
    """As servers send it: whole and unmasked."""
    if len(data) < 126:
        size = bytes([len(data)])
    else:
        size = b"\x7e" + len(data).to_bytes(2) if len(data) < 1 << 16 else b"\x7f" + len(data).to_bytes(8)
    return bytes([128 | opcode]) + size + data


def _unmasked(body: bytes, key: bytes) -> bytes:
    if not key:
        return body
    mask = (key * (len(body) // 4 + 1))[: len(body)]
    return (int.from_bytes(body) ^ int.from_bytes(mask)).to_bytes(len(body))
