"""Agents on the host: installed once per version into a cache folder, however many rollouts ask at the same time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import re
import shutil
import signal
import sys
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


async def npm_packages(cache: Path, name: str, version: str, packages: Sequence[str], log: Log) -> Path:
    """-> the folder whose node_modules hold `packages` ("name@version", the agent's first).

    Their own scripts do not run: of the agents here they only fetch or link what npm has brought already."""

    async def build(folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise HarnessError(
                f"npm not found: {name} is an npm package; install Node.js with npm, or take another agent"
            )
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        await run_installer([npm, "install", "--prefix", str(folder), *flags, *packages], log)

    return await installed(cache, name, version, build, log)


async def node(cache: Path, major: int, log: Log) -> Path:
    """-> the `node` program of a major version, from npm: the host's own may be too old for an agent.

    Raises HarnessError on platforms for which there is no such package."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if machine is None or sys.platform != "linux":
        raise HarnessError(f"Node.js {major} is installed for Linux on x86_64 and aarch64 only, not on {sys.platform}")
    package = f"node-linux-{machine}"
    folder = await npm_packages(cache, "node", str(major), [f"{package}@{major}"], log)
    return folder / "node_modules" / package / "bin" / "node"


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
