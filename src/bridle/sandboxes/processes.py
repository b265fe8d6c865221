"""Processes as /proc shows them: who descends from whom, who carries a mark, what they hold, and how to end them all.

For places where no cgroup can be made, and for what a dead owner left. A mark is an environment entry, which every
child inherits unless it clears its environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from bridle.errors import SandboxError

PROC = Path("/proc")
MARK = "BRIDLE_SANDBOX"
KILL_TIMEOUT_S = 10.0
QUIET_LOOKS, LOOK_S = 3, 0.005


def running() -> dict[int, int]:
    """-> parent by pid, zombies left out."""
    parents = {}
    for name in os.listdir(PROC):
        if name.isdigit() and (fields := _stat(name)) and fields[0] not in (b"Z", b"X"):
            parents[int(name)] = int(fields[1])
    return parents


def families(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that run, and everything below them that does."""
    below: dict[int, list[int]] = {}
    parents = running()
    for child, parent in parents.items():
        below.setdefault(parent, []).append(child)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        current = waiting.pop()
        found.add(current)
        waiting.extend(below.get(current, ()))
    return found & parents.keys()


def marked(name: str) -> set[int]:
    """Every running process whose environment carries the mark `name`, or a mark below it (`name`.NUMBER)."""
    mark = f"{MARK}={name}".encode()
    return {pid for pid in running() if _carries(_read(pid, "environ"), mark)}


def _carries(environ: bytes, mark: bytes) -> bool:
    return any(entry == mark or entry.startswith(mark + b".") for entry in environ.split(b"\0"))


def memory_bytes(pids: set[int]) -> int:
    """Memory of their own: anonymous and shared-memory pages, not the files they map."""
    total = 0
    for pid in pids:
        for line in _read(pid, "status").splitlines():
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def threads(pids: set[int]) -> int:
    """Processes and threads together, as the pids controller counts."""
    return sum(int(fields[17]) for pid in pids if (fields := _stat(str(pid))))


async def end(find: Callable[[], set[int]], what: str) -> None:
    """Kills what `find` finds until it found nothing several times: within an execve a process shows no environment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + KILL_TIMEOUT_S
    quiet = 0
    while quiet < QUIET_LOOKS:
        pids = find()
        quiet = 0 if pids else quiet + 1
        kill(pids)
        if loop.time() > deadline:
            raise SandboxError(f"{what}: processes {sorted(pids)} did not die within {KILL_TIMEOUT_S} s of SIGKILL")
        await asyncio.sleep(LOOK_S)


def kill(pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _stat(name: str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; a command's name may hold blanks and brackets."""
    return _read(int(name), "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    """Empty where the process is gone or belongs to someone else."""
    try:
        return (PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
