"""Starts one command through `launch` and follows it to its end: what it wrote, how it ended, and that all of it ended.

Knows nothing of how a place isolates (that is the `wrapper`, the words before the launcher) or how it limits (`Cell`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process as Child
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bridle.errors import BadRequest, SandboxError
from bridle.lifetimes import Supervisor, shielded
from bridle.sandboxes.base import ExecResult
from bridle.sandboxes.cell import Cell
from bridle.sandboxes.forward import Forward, Forwarder
from bridle.sandboxes.output import Captured, Logged, feed

PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""The interpreter below the virtual environment: the one that a sandbox can show without showing the environment."""
LAUNCHER = Path(__file__).with_name("launch.py")
KILL_TIMEOUT_S = 30.0
DRAIN_S = 5.0
"""How long output is read after the end; it takes longer only where a process that escaped holds the pipe."""


@dataclass(frozen=True)
class Command:
    """What shall run, and where. `wrapper` makes the isolation, `launcher` is the launcher's path inside it."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    wrapper: Sequence[str] = ()
    launcher: str = str(LAUNCHER)
    forwards: Sequence[Forward] = ()
    stdin: bytes = b""
    marked: bool = False
    """Its environment names its cell: for places where a process that lost its parents is found by nothing else."""

    def __post_init__(self) -> None:
        if not self.argv:
            raise BadRequest("a command needs at least its program: argv is empty")
        if any("\0" in text for text in (*self.argv, self.cwd, *self.env, *self.env.values())):
            raise BadRequest(f"{self.argv[0]!r}: an argument, a variable or the folder holds a NUL byte")

    def request(self, mark: Mapping[str, str]) -> bytes:
        """What `launch.receive` reads. The environment travels here, so no process list ever shows it."""
        ports = " ".join(str(forward.port) for forward in self.forwards)
        env = {**self.env, **mark} if self.marked else self.env
        pairs = (f"{name}={value}" for name, value in env.items())
        body = b"\0".join(os.fsencode(text) for text in (self.cwd, ports, str(len(self.argv)), *self.argv, *pairs))
        return len(body).to_bytes(8, "big") + body


class Job:
    """A running command, followed by one task that ends only when every process of it has."""

    def __init__(self, child: Child, cell: Cell, command: Command, output: Captured | Logged) -> None:
        self._child = child
        self._cell = cell
        self._command = command
        self._output = output
        self._began = time.monotonic()
        self._ended = 0.0
        self._killed = False
        self._timed_out = False

    def follow(self, control: socket.socket, listeners: Sequence[socket.socket]) -> None:
        work = self._follow(control, listeners)
        self._task = asyncio.create_task(work, name=f"sandbox command {self._cell.name}")

    def when_done(self, call: Callable[[Job], object]) -> None:
        self._task.add_done_callback(lambda _: call(self))

    async def poll(self) -> ExecResult | None:
        return self._task.result() if self._task.done() else None

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._timed_out = not self._ended
            await self.kill()
        return self._task.result()

    async def kill(self) -> None:
        if not self._task.done():
            self._killed = not self._ended
            await shielded(self._kill(), KILL_TIMEOUT_S, f"killing sandbox command {self._cell.name}")

    async def _kill(self) -> None:
        await self._cell.kill(self._root)
        await asyncio.wait({self._task})

    @property
    def _root(self) -> int | None:
        return self._child.pid if self._child.returncode is None else None

    async def _follow(self, control: socket.socket, listeners: Sequence[socket.socket]) -> ExecResult:
        try:
            async with Supervisor(f"sandbox command {self._cell.name}") as background, AsyncExitStack() as opened:
                for listener, forward in zip(listeners, self._command.forwards, strict=True):
                    await opened.enter_async_context(Forwarder(background, listener, forward))
                background.start("limits", self._cell.watch(self._child.pid))
                background.start("input", feed(self._child, self._command.stdin))
                reading = background.start("output", self._output.read())
                status = await self._end(control)
                await asyncio.wait({reading}, timeout=DRAIN_S)
        finally:
            control.close()
            await clear(self._child, self._cell)
        return self._result(status)

    async def _end(self, control: socket.socket) -> int | None:
        """-> the raw wait status of the command, None where it was killed together with its launcher."""
        status = await asyncio.get_running_loop().sock_recv(control, 32)
        self._ended = time.monotonic()
        if not status:
            await self._cell.kill(self._root)
        return int(status) if status else None

    def _result(self, status: int | None) -> ExecResult:
        stdout, stderr = self._output.taken()
        exit_code = signal = None
        if self._timed_out:
            pass
        elif self._killed or status is None:
            signal = 9
        elif (code := os.waitstatus_to_exitcode(status)) >= 0:
            exit_code = code
        else:
            signal = -code
        return ExecResult(exit_code, signal, stdout, stderr, self._timed_out, self._ended - self._began)


class DetachedJob(Job):
    """A Job whose output goes to files: what `Sandbox.spawn` gives."""

    _output: Logged

    @property
    def stdout_path(self) -> Path:
        return self._output.stdout_path

    @property
    def stderr_path(self) -> Path:
        return self._output.stderr_path


async def execute(command: Command, cell: Cell, limit: int, start_timeout_s: float) -> Job:
    output = Captured(limit)
    child, control, listeners = await start(command, cell, output, start_timeout_s)
    job = Job(child, cell, command, output)
    job.follow(control, listeners)
    return job


async def spawn(command: Command, cell: Cell, logs: Path, start_timeout_s: float) -> DetachedJob:
    output = Logged(logs)
    child, control, listeners = await start(command, cell, output, start_timeout_s)
    job = DetachedJob(child, cell, command, output)
    job.follow(control, listeners)
    return job


async def start(
    command: Command, cell: Cell, output: Captured | Logged, timeout_s: float
) -> tuple[Child, socket.socket, list[socket.socket]]:
    """-> the first process, the socket to its launcher, the sockets that listen inside; the command is running."""
    control, inside = socket.socketpair()
    control.setblocking(False)
    try:
        with inside:
            child = await launch(command, cell, output, inside.fileno())
    except BaseException:
        control.close()
        await shielded(give_up(cell, output), KILL_TIMEOUT_S, f"clearing {cell.name}")
        raise
    try:
        async with asyncio.timeout(timeout_s):
            listeners = await hand_over(control, command, cell)
    except BaseException as error:
        control.close()
        problem = await shielded(post_mortem(child, cell, output), KILL_TIMEOUT_S, f"clearing {cell.name}")
        if isinstance(error, (OSError, EOFError, TimeoutError)):
            late = f" within {timeout_s} s" if isinstance(error, TimeoutError) else ""
            raise SandboxError(f"sandbox command {command.argv[0]!r} did not start{late}: {problem}") from error
        raise
    return child, control, listeners


async def launch(command: Command, cell: Cell, output: Captured | Logged, inside: int) -> Child:
    words = [*cell.enter(), *command.wrapper, PYTHON, "-I", "-S", "-B", command.launcher, str(inside)]
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            pass_fds=(inside,),
            env=cell.mark,
            stdin=PIPE if command.stdin else DEVNULL,
            stdout=output.stdout,
            stderr=output.stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"cannot start {words[0]}: {error}") from error
    finally:
        output.started()


async def hand_over(control: socket.socket, command: Command, cell: Cell) -> list[socket.socket]:
    """Gives the launcher its command and takes the listening sockets it made."""
    await asyncio.get_running_loop().sock_sendall(control, command.request(cell.mark))
    await readable(control)
    answer, numbers, _, _ = socket.recv_fds(control, 1, len(command.forwards))
    if answer != b"R":
        raise EOFError("the launcher ended before it answered")
    return [socket.socket(fileno=number) for number in numbers]


async def readable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(control)


async def give_up(cell: Cell, output: Captured | Logged) -> None:
    await cell.kill(None)
    await output.read()
    await cell.remove()


async def post_mortem(child: Child, cell: Cell, output: Captured | Logged) -> str:
    await clear(child, cell)
    await output.read()
    return output.problem().decode(errors="replace").strip()[-2000:] or f"no message, exit code {child.returncode}"


async def clear(child: Child, cell: Cell) -> None:
    """Ends what is left of a command, whatever happened to it."""
    await cell.kill(child.pid if child.returncode is None else None)
    if child.stdin is not None:
        child.stdin.close()
    await child.wait()
    await cell.remove()
