"""Where a command's output goes: into memory, bounded, or into files; and how its input gets there."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process as Child
from pathlib import Path

CHUNK = 65536


class Captured:
    """Output kept in memory, at most `limit` bytes of each stream.

    The pipes are not asyncio's: `Process.wait` waits for the end of those, and a process that escaped may hold them.
    """

    def __init__(self, limit: int) -> None:
        self._clips = Clip(limit), Clip(limit)
        (out, self.stdout), (err, self.stderr) = os.pipe(), os.pipe()
        self._ends = out, err

    def started(self) -> None:
        os.close(self.stdout)
        os.close(self.stderr)

    async def read(self) -> None:
        await asyncio.gather(*(_read_pipe(end, clip) for end, clip in zip(self._ends, self._clips, strict=True)))

    def taken(self) -> tuple[bytes, bytes]:
        return self._clips[0].value(), self._clips[1].value()

    def problem(self) -> bytes:
        return self._clips[1].value()


class Logged:
    """Output in the files `stdout` and `stderr` of a folder on the host."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stdout_path, self.stderr_path = folder / "stdout", folder / "stderr"
        self.stdout, self.stderr = self.stdout_path.open("wb"), self.stderr_path.open("wb")

    def started(self) -> None:
        self.stdout.close()
        self.stderr.close()

    async def read(self) -> None: ...

    def taken(self) -> tuple[bytes, bytes]:
        return b"", b""

    def problem(self) -> bytes:
        return self.stderr_path.read_bytes()


class Clip:
    """Keeps `limit` bytes of what it is given: the first half, a line that says what is missing, the last half."""

    def __init__(self, limit: int) -> None:
        self._head, self._tail, self._left_out = bytearray(), bytearray(), 0
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_limit + CHUNK:
            self._trim()

    def value(self) -> bytes:
        self._trim()
        note = b"\n[bridle: %d bytes left out]\n" % self._left_out if self._left_out else b""
        return bytes(self._head + note + self._tail)

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._tail_limit)
        del self._tail[:surplus]
        self._left_out += surplus


async def _read_pipe(end: int, clip: Clip) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", 0))
    try:
        while data := await reader.read(CHUNK):
            clip.add(data)
    finally:
        transport.close()


async def feed(child: Child, data: bytes) -> None:
    if child.stdin is None:
        return
    try:
        child.stdin.write(data)
        await child.stdin.drain()
    except ConnectionError:
        pass  # the command did not read all of it
    finally:
        child.stdin.close()
