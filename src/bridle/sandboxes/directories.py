"""What sandboxes share whose files are folders of the host below one root: life, files, and the jobs they run.

The root is made by `start` and gone after `stop`; it must not exist, or be empty, so that nothing of the user's can be
lost with it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bridle.errors import SandboxError
from bridle.lifetimes import shielded
from bridle.sandboxes import detached, files
from bridle.sandboxes.base import ExecResult, Mount, SandboxConfig
from bridle.sandboxes.cell import Cell
from bridle.sandboxes.detached import Command, Job
from bridle.sandboxes.owner import Owner

STOP_TIMEOUT_S = 60.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AnyJob = TypeVar("AnyJob", bound=Job)


class DirectorySandbox(ABC):
    """`shown` says under which names the folders workspace, home, private and tmp are seen inside."""

    def __init__(
        self, root: Path, config: SandboxConfig, mounts: Sequence[Mount], shown: Mapping[str, str] | None = None
    ) -> None:
        self.name = secrets.token_hex(8)
        self.root = root.absolute()
        self.config = config
        self.mounts = tuple(mounts)
        self._folders = {name: self.root / name for name in ("workspace", "home", "private", "tmp")}
        self._shown = dict(shown) if shown else {name: str(folder) for name, folder in self._folders.items()}
        self.workspace, self.home, self.private = (self._shown[name] for name in ("workspace", "home", "private"))
        self._places = [files.Place(folder, self._shown[name]) for name, folder in self._folders.items()]
        self._numbers = itertools.count(1)
        self._jobs: set[Job] = set()
        self._owner: Owner | None = None

    @staticmethod
    @abstractmethod
    def available() -> tuple[bool, str]:
        """-> whether it works on this machine, and why (not)."""

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

    @abstractmethod
    def _command(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, private: bool) -> Command:
        """The command with the isolation it runs in."""

    @abstractmethod
    async def expose(self, url: str) -> str: ...

    async def __aenter__(self) -> Self:
        try:
            works, reason = await asyncio.to_thread(self.available)
            if not works:
                raise SandboxError(reason)
            self._prepare()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _prepare(self) -> None:
        """Closed to other users: through the folders they could reach set-uid files of the agent's."""
        for mount in self.mounts:
            if not Path(mount.source).exists():
                raise SandboxError(f"mount {mount.source} → {mount.target}: the host has no {mount.source}")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self.root.iterdir()):
            raise SandboxError(f"{self.root} is not empty: a sandbox needs a folder of its own, removed with it")
        self.root.chmod(0o700)
        self._owner = Owner.of_new(self.root, self.name)
        for folder in self._folders.values():
            folder.mkdir(mode=0o755)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        output_limit: int = 1_000_000,
        private: bool = False,
    ) -> ExecResult:
        command = self._complete(argv, cwd, env, stdin, private)
        job = self._known(await detached.execute(command, self._cell(), output_limit, self.config.start_timeout_s))
        try:
            return await job.wait(timeout_s)
        finally:
            await job.kill()

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None, logs: Path
    ) -> detached.DetachedJob:
        command = self._complete(argv, cwd, env, b"", False)
        return self._known(await detached.spawn(command, self._cell(), logs, self.config.start_timeout_s))

    def _complete(
        self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None, stdin: bytes, private: bool
    ) -> Command:
        if self._owner is None:
            raise SandboxError(f"sandbox {self.root} is not running: it was not entered, or was stopped")
        return self._command(argv, cwd or self.workspace, {**self._environment(), **(env or {})}, stdin, private)

    def _cell(self) -> Cell:
        return Cell(f"{self.name}.{next(self._numbers)}", self.config)

    def _known(self, job: AnyJob) -> AnyJob:
        self._jobs.add(job)
        job.when_done(self._jobs.discard)
        return job

    async def read(self, path: str) -> bytes:
        place, parts = self._find(path)
        return await asyncio.to_thread(place.read, parts)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        place, parts = self._find(path)
        await asyncio.to_thread(place.write, parts, data, mode)

    async def upload(self, source: Path, target: str) -> None:
        place, parts = self._find(target)
        source = source.resolve()
        host = files.Place(source.parent, str(source.parent))
        await asyncio.to_thread(files.copy, host, (source.name,), place, parts)

    async def download(self, source: str, target: Path) -> None:
        place, parts = self._find(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        host = files.Place(target.parent, str(target.parent))
        await asyncio.to_thread(files.copy, place, parts, host, (target.name,))

    def _find(self, path: str) -> tuple[files.Place, files.Parts]:
        return files.within(path if path.startswith("/") else f"{self.workspace}/{path}", self._places)

    async def kill_all(self) -> None:
        await asyncio.gather(*(job.kill() for job in self._jobs))

    async def stop(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            await shielded(self._release(owner), STOP_TIMEOUT_S, f"stopping sandbox {self.name}")

    async def _release(self, owner: Owner) -> None:
        try:
            await self.kill_all()
        finally:
            await owner.clear(self.root)
