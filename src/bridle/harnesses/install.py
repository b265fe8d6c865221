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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bridle.errors import HarnessError
from bridle.harnesses.base import Installation, Log
from bridle.sandboxes.base import Mount

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_POLL_S = 0.2
_TAIL_LINES = 15
_CHATTER = re.compile(r"\s*$|WARNING:|\[notice\]|npm (notice|warn)|\d+ packages? (are|is) looking|\s+run `npm fund`")
"""What package tools say that nobody can act on here."""

_NEWEST_MINOR = 19
_ABOUT = """
import ensurepip, json, sys, venv
from pathlib import Path
prefix = Path(sys.base_prefix).resolve()
name = "python%d.%d" % sys.version_info[:2]
print(json.dumps({"program": str(prefix / "bin" / name), "prefix": str(prefix), "version": sys.version_info[:2]}))
"""

Build = Callable[[Path], Awaitable[None]]
Check = Callable[[Path], object]


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


async def npm_packages(
    cache: Path, name: str, version: str, packages: Sequence[str], log: Log, check: Check = lambda folder: None
) -> Path:
    """-> the folder whose node_modules hold `packages` ("name@version", the agent's first).

    Their own scripts do not run: of the agents here they only fetch or link what npm has brought already. `check`
    raises HarnessError where something did not come all the same (npm passes over an optional package that it cannot
    have); the folder is then not kept."""

    async def build(folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise HarnessError(
                f"npm not found: {name} is an npm package; install Node.js with npm, or take another agent"
            )
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        await run_installer([npm, "install", "--prefix", str(folder), *flags, *packages], log)
        check(folder)

    return await installed(cache, name, version, build, log)


async def native_agent(cache: Path, name: str, package: str, version: str, pattern: str, log: Log) -> Installation:
    """An npm package that brings a program of its own, found by `pattern` below the folder it is installed in."""

    def program(folder: Path) -> Path:
        """npm leaves out the packages of other platforms, so there is one."""
        found = sorted(folder.glob(pattern))
        if len(found) != 1:
            held = ", ".join(str(path) for path in found) or "none"
            raise HarnessError(f"{name} for this platform: expected one program below {folder}, found {held}")
        return found[0]

    folder = await npm_packages(cache, name, version, [f"{package}@{version}"], log, program)
    return Installation(version, str(program(folder)), (Mount(str(folder), str(folder)),))


async def node(cache: Path, major: int, log: Log) -> Path:
    """-> the `node` program of a major version, from npm: the host's own may be too old for an agent.

    Raises HarnessError on platforms for which there is no such package."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if machine is None or sys.platform != "linux":
        raise HarnessError(f"Node.js {major} is installed for Linux on x86_64 and aarch64 only, not on {sys.platform}")
    package = f"node-linux-{machine}"
    folder = await npm_packages(cache, "node", str(major), [f"{package}@{major}"], log)
    return folder / "node_modules" / package / "bin" / "node"


async def node_agent(
    cache: Path, name: str, package: str, version: str, script: str, major: int, log: Log
) -> Installation:
    """An npm package whose `script` runs on a Node.js of that major version -> both, as a sandbox needs them."""
    folder = await npm_packages(cache, name, version, [f"{package}@{version}"], log)
    runtime = str(await node(cache, major, log))
    mounts = (Mount(str(folder), str(folder)), Mount(runtime, runtime))
    return Installation(version, f"{folder}/node_modules/{package}/{script}", mounts, runtime)


async def python_packages(
    cache: Path,
    name: str,
    version: str,
    packages: Sequence[str],
    log: Log,
    minimum: tuple[int, int] = (3, 12),
    below: tuple[int, int] = (4, 0),
) -> Installation:
    """-> a virtual environment that holds `packages` ("name==version", the agent's first): `runtime` is its Python,
    `path` where its modules lie. The interpreter it was made with is a mount too."""
    python = await _interpreter(name, minimum, below)

    async def build(folder: Path) -> None:
        await run_installer([python.program, "-m", "venv", str(folder)], log)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        await run_installer([*pip, *packages], log)

    extras = packages[0].partition("[")[2].partition("]")[0]
    made = "-".join(part for part in (version, python.name, extras) if part)
    folder = str(await installed(cache, name, made, build, log))
    # every sandbox has a /usr
    prefixes = () if python.prefix.startswith("/usr") else (Mount(python.prefix, python.prefix),)
    mounts = (Mount(folder, folder), *prefixes)
    return Installation(version, f"{folder}/lib/{python.name}/site-packages", mounts, f"{folder}/bin/python")


class _Python(msgspec.Struct, frozen=True):
    program: str
    prefix: str
    version: tuple[int, int]

    @property
    def name(self) -> str:
        return f"python{self.version[0]}.{self.version[1]}"


async def _interpreter(name: str, minimum: tuple[int, int], below: tuple[int, int]) -> _Python:
    """This process's own if it will do, else the oldest that will: an agent's packages have wheels for it first."""
    for candidate in (sys.executable, *_pythons(minimum, below)):
        python = await _asked(candidate)
        if python is not None and minimum <= python.version < below:
            return python
    wanted = f"{minimum[0]}.{minimum[1]}" + ("" if below >= (4, 0) else f" to before {below[0]}.{below[1]}")
    raise HarnessError(
        f"{name} needs Python {wanted} with its venv module: this is {platform.python_version()}, and there is none on "
        f"PATH (python{minimum[0]}.{minimum[1]}, …) nor below {_pyenv()}; install one, or take another agent"
    )


def _pythons(minimum: tuple[int, int], below: tuple[int, int]) -> Iterator[str]:
    """Programs that may be a Python in the range: names on PATH may be shims that start none."""
    last = min(below[1], _NEWEST_MINOR + 1) if below[0] == minimum[0] else _NEWEST_MINOR + 1
    for minor in range(minimum[1], last):
        found = shutil.which(f"python{minimum[0]}.{minor}")
        yield from [found] if found else []
        yield from map(str, sorted(_pyenv().glob(f"versions/{minimum[0]}.{minor}.*/bin/python{minimum[0]}.{minor}")))


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


async def _asked(program: str) -> _Python | None:
    """What a program says of itself; None if it does not start or cannot make a virtual environment."""
    process = await asyncio.create_subprocess_exec(
        *(program, "-I", "-c", _ABOUT),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return msgspec.json.decode(output, type=_Python) if process.returncode == 0 else None


async def run_installer(argv: Sequence[str], log: Log) -> None:
    """Runs a package tool on the host, its output going to `log`. Raises HarnessError with the last lines of it."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
            start_new_session=True,
        )
    )
    lines: list[str] = []
    try:
        # a cancellation from within would leave what the program has started by then
        process = await asyncio.shield(starting)
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(line.decode("utf-8", "replace").rstrip())
            if not _CHATTER.match(lines[-1]):
                log(lines[-1])
        code = await process.wait()
    finally:
        process = await starting
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code != 0:
        tail = "\n".join(lines[-_TAIL_LINES:])
        raise HarnessError(f"{' '.join(argv[:4])} … ended with {code}:\n{tail}")
