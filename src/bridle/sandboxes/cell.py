"""All processes of one command, as one thing to limit and to kill: by a cgroup where one can be made, else by polling.

A polled limit cannot refuse a fork or a page: it kills the whole command soon after it went past the limit.
"""

from __future__ import annotations

import asyncio
import logging

from bridle.sandboxes import cgroups, processes
from bridle.sandboxes.base import SandboxConfig

logger = logging.getLogger("bridle.sandboxes")
POLL_S = 0.2


class Cell:
    """`name` is SANDBOX.NUMBER: the mark its processes carry and, where it has one, the name of its cgroup."""

    def __init__(self, name: str, config: SandboxConfig) -> None:
        self.name = name
        self._cgroup = cgroups.create(name, config)
        enforced = self._cgroup.limits if self._cgroup else frozenset()
        self._memory_bytes = 0 if "memory" in enforced else config.memory_mb * 2**20
        self._processes = 0 if "pids" in enforced else config.processes

    @property
    def mark(self) -> dict[str, str]:
        return {processes.MARK: self.name}

    def enter(self) -> list[str]:
        """The words before a command that make it start inside."""
        return self._cgroup.enter() if self._cgroup else []

    def members(self, root: int | None) -> set[int]:
        return processes.families(processes.marked(self.name) | ({root} if root else set()))

    async def watch(self, root: int) -> None:
        """Polls the limits that no cgroup holds; `root` is the first process of the command."""
        while self._memory_bytes or self._processes:
            await asyncio.sleep(POLL_S)
            pids = await asyncio.to_thread(processes.families, [root])
            if passed := self._limit_passed(pids):
                logger.warning("sandbox command %s killed: %s", self.name, passed)
                await self.kill(root)
                return

    def _limit_passed(self, pids: set[int]) -> str:
        if self._memory_bytes and (memory := processes.memory_bytes(pids)) > self._memory_bytes:
            return f"{memory} bytes of memory > {self._memory_bytes}"
        if self._processes and (count := processes.threads(pids)) > self._processes:
            return f"{count} processes and threads > {self._processes}"
        return ""

    async def kill(self, root: int | None) -> None:
        """`root` is None once the first process was reaped: its number may be another's by now."""
        if self._cgroup:
            await self._cgroup.kill()
        else:
            await processes.end(lambda: self.members(root), f"sandbox command {self.name}")

    async def remove(self) -> None:
        if self._cgroup:
            await self._cgroup.remove()
