"""Agents on the host: installed once per version into a cache folder, however many rollouts ask at the same time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bridle.errors import HarnessError
from bridle.harnesses.base import Log

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_POLL_S = 0.2
_TAIL_LINES = 15
_CHATTER = re.compile(r"\s*$|WARNING:|\[notice\]|npm (notice|warn)|\d+ packages? (are|is) looking|\s+run `npm fund`")
"""What package tools say that nobody can act on here."""

Build = Callable[[Path], Awaitable[None]]


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bridle" / "harnesses"


async def installed(cache: Path, name: str, version: str, build: Build, log: Log) -> Path:
    """-> the folder of this version, filled by `build(folder)` if it was not there.

    It appears under its name only when complete: an installation that was cut off is started anew. `build` gets another
    name than the final one, so nothing in it may hold its own path.
    """
    if not _VERSION.fullmatch(version):
        raise HarnessError(f"{name}: {version!r} is no version; expected something like 1.2.3")
    target = cache / name / version
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    async with _locked(target.parent / f".{version}.lock", f"{name} {version}", log):
        if not target.is_dir():
            log(f"installing {name} {version} into {target}")
            await _built(target, build)
            log(f"installed {name} {version}")
    return target


async def _built(target: Path, build: Build) -> None:
    unfinished = target.parent / f".{target.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    await build(unfinished)
    unfinished.rename(target)


@asynccontextmanager
async def _locked(path: Path, what: str, log: Log) -> AsyncIterator[None]:
    """The kernel lets go of the lock when its holder dies, so a stale one cannot be."""
    with path.open("w") as file:
        told = False
        while not _try_lock(file.fileno()):
            if not told:
                log(f"waiting for another process that installs {what}")
                told = True
            await asyncio.sleep(_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def run_installer(argv: Sequence[str], log: Log) -> None:
    """Runs a package tool on the host, its output going to `log`. Raises HarnessError with the last lines of it."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=1 << 20,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async for line in process.stdout:
            lines.append(line.decode("utf-8", "replace").rstrip())
            if not _CHATTER.match(lines[-1]):
                log(lines[-1])
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code != 0:
        tail = "\n".join(lines[-_TAIL_LINES:])
        raise HarnessError(f"{' '.join(argv[:4])} … ended with {code}:\n{tail}")
