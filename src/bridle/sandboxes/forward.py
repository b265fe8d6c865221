"""Network without a network: connections made inside a sandbox, carried to one address of the host.

A listening socket belongs to the network it was made in, whoever holds it: the sandbox's first process binds it inside
and hands it out, and the host's event loop accepts on it. No bridge, no veth, no proxy process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bridle.lifetimes import Supervisor

logger = logging.getLogger("bridle.sandboxes")
CHUNK = 65536


@dataclass(frozen=True)
class Forward:
    """`port` inside leads to `host`:`host_port` outside."""

    port: int
    host: str
    host_port: int


class Forwarder:
    """Accepts on `listener` and carries each connection in `background`, which also cuts them."""

    def __init__(self, background: Supervisor, listener: socket.socket, forward: Forward) -> None:
        self._background = background
        self._listener = listener
        self._forward = forward
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener.setblocking(False)
        self._server = await asyncio.start_server(self._accepted, sock=self._listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._background.start(f"forward :{self._forward.port}", self._carry(reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._forward.host, self._forward.host_port)
        except OSError as error:
            logger.warning("nothing answers at %s:%d: %s", self._forward.host, self._forward.host_port, error)
            writer.transport.abort()
            return
        whole = False
        try:
            await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))
            whole = True
        except OSError:
            pass  # one end was reset: the other is reset below
        finally:
            for end in (writer, far_writer):
                end.close() if whole else _reset(end)


def _reset(end: asyncio.StreamWriter) -> None:
    """Aborting alone may look like a proper end to whoever reads there."""
    if end.transport.is_closing():
        return
    connection = end.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carries one direction, no faster than it is read; the end of one side is passed on as its half-close."""
    while data := await source.read(CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
