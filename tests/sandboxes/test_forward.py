"""Bytes carried from one socket to another: whole, no faster than they are read, and cut when it is over."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from bridle.lifetimes import Supervisor
from bridle.sandboxes.forward import Forward, Forwarder

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Ends, Ends]]:
    """-> the two ends of one carried connection."""
    arrived: asyncio.Queue[Ends] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: arrived.put_nowait((reader, writer)), "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    forward = Forward(4180, "127.0.0.1", server.sockets[0].getsockname()[1])
    async with asyncio.timeout(20), server, Supervisor("test") as background, Forwarder(background, listener, forward):
        near = await asyncio.open_connection(*listener.getsockname())
        far = await arrived.get()
        yield near, far
        for _, writer in (near, far):
            writer.close()


async def test_each_direction_ends_on_its_own_and_nothing_is_lost(ends: tuple[Ends, Ends]) -> None:
    (near_reader, near_writer), (far_reader, far_writer) = ends
    question, answer = os.urandom(3_000_000), os.urandom(3_000_000)
    near_writer.write(question)
    near_writer.write_eof()
    assert await far_reader.read(-1) == question
    far_writer.write(answer)
    far_writer.write_eof()
    assert await near_reader.read(-1) == answer


async def test_a_reader_that_does_not_read_holds_the_writer_back(ends: tuple[Ends, Ends]) -> None:
    _, (_, far_writer) = ends
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while True:
            far_writer.write(bytes(2**20))
            await far_writer.drain()
            sent += 2**20

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flood(), timeout=1.0)
    assert sent < 40 * 2**20


async def test_a_reset_of_one_end_reaches_the_other(ends: tuple[Ends, Ends]) -> None:
    (near_reader, _), (_, far_writer) = ends
    far_writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far_writer.transport.abort()
    with pytest.raises(ConnectionResetError):
        await near_reader.read(-1)
