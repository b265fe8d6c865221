"""The contract every sandbox fulfils: a place with a workspace where commands run and nothing outlives `stop`.

Paths given to a sandbox are paths inside it. `workspace` and `home` are constant where the sandbox isolates, so that
the first prompts of a group are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol as Contract, Self

import msgspec


class SandboxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory_mb: int = 4096
    """Limit over all processes of one command tree; 0 = none."""
    processes: int = 512
    """Processes and threads at once; 0 = no limit."""
    start_timeout_s: float = 30.0


class Mount(msgspec.Struct, frozen=True):
    """A host folder or file shown read-only inside (harness installations). `local` uses the host path itself."""

    source: str
    target: str


class ExecResult(msgspec.Struct, frozen=True):
    """How a command ended. Exactly one of `exit_code` and `signal` is set; both are None only when `timed_out`.

    A command killed from outside reports its signal, never 0. Output past `output_limit` is cut from the middle.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    seconds: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Process(Contract):
    """A detached command. Its output goes to files on the host (`stdout_path`, `stderr_path`)."""

    stdout_path: Path
    stderr_path: Path

    async def poll(self) -> ExecResult | None: ...

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Past `timeout_s` the whole process tree is killed and the result says `timed_out`."""
        ...

    async def kill(self) -> None:
        """Kills the whole tree, setsid children included. Idempotent."""
        ...


class Sandbox(Contract):
    """An async context manager: entered to start, left to stop. `stop` is idempotent and leaves nothing behind."""

    workspace: str
    home: str
    private: str
    """A folder that only commands run with `private=True` can see (the patch's git directory lives there)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

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
        """Runs to its end. `env` is added to a minimal environment (PATH, HOME, LANG) and never on a command line."""
        ...

    async def spawn(
        self, argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None, logs: Path
    ) -> Process:
        """Starts detached; output goes to `logs/stdout` and `logs/stderr`."""
        ...

    async def expose(self, url: str) -> str:
        """Makes the host's `url` (http://127.0.0.1:PORT) reachable for later commands -> the URL to use inside."""
        ...

    async def read(self, path: str) -> bytes: ...

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None: ...

    async def upload(self, source: Path, target: str) -> None:
        """Copies a host tree (or file) to `target`, modes and symlinks kept."""
        ...

    async def download(self, source: str, target: Path) -> None: ...

    async def kill_all(self) -> None:
        """Kills everything started here; files stay."""
        ...

    async def stop(self) -> None: ...
