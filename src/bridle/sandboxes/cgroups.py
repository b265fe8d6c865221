"""One cgroup per command: limits over all its processes at once, and a death that nothing in it survives.

Version 2 where it is mounted (also without controllers: `cgroup.kill` needs none), version 1 for the controllers it
holds. Children are made where this process may make them: beside its own cgroup in version 2, because a cgroup with
processes cannot hand controllers to its children, and below it in version 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import secrets
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bridle.errors import SandboxError
from bridle.sandboxes.base import SandboxConfig

PREFIX = "bridle-"
CONTROLLERS = ("memory", "pids")
REMOVE_TIMEOUT_S = 2.0
KILL_TIMEOUT_S = 10.0
ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
"""A shell moves itself into each cgroup named before `--`: the command is limited from its first instruction."""


@dataclass(frozen=True)
class Hierarchy:
    base: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class Cgroup:
    """The directories of one command's cgroup, one per hierarchy."""

    folders: tuple[Path, ...]
    limits: frozenset[str]

    def enter(self) -> list[str]:
        return ["/bin/sh", "-c", ENTER, "sh", *map(str, self.folders), "--"]

    async def kill(self) -> None:
        """Kills every process in it. No fork escapes: `cgroup.kill` is atomic, and version 1 forbids new ones first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_TIMEOUT_S
        while pids := self.pids():
            self._kill_once(pids)
            if loop.time() > deadline:
                raise SandboxError(f"{self.folders[0]}: processes {sorted(pids)} did not die of SIGKILL")
            await asyncio.sleep(0.002)

    def pids(self) -> set[int]:
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found

    def _kill_once(self, pids: Iterable[int]) -> None:
        for folder in self.folders:
            if (folder / "cgroup.kill").exists():
                (folder / "cgroup.kill").write_text("1")
                return
            if (folder / "pids.max").exists():
                (folder / "pids.max").write_text("0")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Removes the emptied directories; the kernel may need a moment after the last process."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REMOVE_TIMEOUT_S
        while left := [folder for folder in self.folders if not _removed(folder)]:
            if loop.time() > deadline:
                raise SandboxError(f"cgroup {left[0]} is still busy {REMOVE_TIMEOUT_S} s after it was emptied")
            await asyncio.sleep(0.002)


def create(name: str, config: SandboxConfig) -> Cgroup | None:
    """-> the cgroup `name` under the limits of `config`, or None where this process may make none."""
    usable = hierarchies()
    if not usable:
        return None
    folders = []
    for hierarchy in usable:
        folder = hierarchy.base / f"{PREFIX}{name}"
        folder.mkdir()
        folders.append(folder)
        for file, value in settings(hierarchy, config):
            if (folder / file).exists():
                (folder / file).write_text(value)
    return Cgroup(tuple(folders), frozenset().union(*(hierarchy.controllers for hierarchy in usable)))


def left_by(name: str, bases: Iterable[Path]) -> Iterator[Cgroup]:
    """The cgroups of every command of the sandbox `name`, wherever its owner made them."""
    for base in bases:
        for folder in sorted(base.glob(f"{PREFIX}{name}.*")):
            yield Cgroup((folder,), frozenset())


@functools.cache
def hierarchies() -> tuple[Hierarchy, ...]:
    """What this process may use, found by trying once."""
    found: list[Hierarchy] = []
    missing = set(CONTROLLERS)
    for version, wanted, bases in _candidates():
        tried = [hierarchy for base in bases if (hierarchy := _try(base, version, wanted))]
        if not tried:
            continue
        best = max(tried, key=lambda hierarchy: len(hierarchy.controllers))
        if version == 2 or best.controllers & missing:
            found.append(Hierarchy(best.base, version, best.controllers & missing))
            missing -= best.controllers
    return tuple(found)


def _candidates() -> Iterator[tuple[int, frozenset[str], list[Path]]]:
    """(version, controllers wanted of it, places to try), version 2 first."""
    own = dict(_own_paths())
    mounts = sorted(_mounts(), key=lambda mount: -mount[0])
    for version, options, root, point in mounts:
        wanted = frozenset(CONTROLLERS) if version == 2 else frozenset(CONTROLLERS) & options
        key = "" if version == 2 else next(iter(wanted), None)
        if key is None or key not in own:
            continue
        here = point / own[key].removeprefix(root.rstrip("/")).lstrip("/")
        yield version, wanted, [here] if version == 1 or here == point else [here.parent, here]


def _own_paths() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts() -> Iterator[tuple[int, frozenset[str], str, Path]]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = before.split(" ")
            yield (2 if kind == "cgroup2" else 1), frozenset(options.split(",")), fields[3], Path(fields[4])


def _try(base: Path, version: int, wanted: frozenset[str]) -> Hierarchy | None:
    probe = base / f"{PREFIX}probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError:
        return None
    try:
        if version == 2:
            _hand_down(base, wanted - _limits_of(probe, wanted))
        usable = os.access(base / "cgroup.procs", os.W_OK)
        return Hierarchy(base, version, _limits_of(probe, wanted)) if usable else None
    finally:
        probe.rmdir()


def _hand_down(base: Path, controllers: Iterable[str]) -> None:
    for controller in controllers:
        with contextlib.suppress(OSError):
            (base / "cgroup.subtree_control").write_text(f"+{controller}")


def _limits_of(folder: Path, wanted: frozenset[str]) -> frozenset[str]:
    files = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max",)}
    return frozenset(name for name in wanted if any((folder / file).exists() for file in files[name]))


def settings(hierarchy: Hierarchy, config: SandboxConfig) -> Iterator[tuple[str, str]]:
    if config.processes and "pids" in hierarchy.controllers:
        yield "pids.max", str(config.processes)
    if config.memory_mb and "memory" in hierarchy.controllers:
        size = str(config.memory_mb * 2**20)
        if hierarchy.version == 2:
            yield "memory.max", size
            yield "memory.swap.max", "0"
        else:
            yield "memory.limit_in_bytes", size
            yield "memory.memsw.limit_in_bytes", size


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
