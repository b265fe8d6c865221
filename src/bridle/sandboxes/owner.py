"""Who a sandbox's directory belongs to, and the removal of what dead owners left.

Ownership is a lock on the file `owner`: the kernel drops it with the process, however that ended, and neither a reused
pid nor another pid namespace can fake it. The file is locked before it gets its name, so no one can find it free.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from bridle.errors import SandboxError
from bridle.sandboxes import cgroups, processes

OWNER = "owner"
logger = logging.getLogger("bridle.sandboxes")


class Claim(msgspec.Struct, frozen=True):
    """What the file says: enough to find everything of the sandbox without its owner."""

    name: str
    pid: int
    cgroups: tuple[str, ...]


class Owner:
    """Holds the lock on a sandbox directory."""

    def __init__(self, descriptor: int, claim: Claim) -> None:
        self._descriptor = descriptor
        self.claim = claim

    @classmethod
    def of_new(cls, root: Path, name: str) -> Self:
        claim = Claim(name, os.getpid(), tuple(str(hierarchy.base) for hierarchy in cgroups.hierarchies()))
        unnamed = root / f"{OWNER}.new"
        descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, msgspec.json.encode(claim))
        unnamed.rename(root / OWNER)
        return cls(descriptor, claim)

    @classmethod
    def of_dead(cls, root: Path) -> Self | None:
        """Takes the directory over if its owner is gone."""
        try:
            descriptor = os.open(root / OWNER, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor, msgspec.json.decode(os.read(descriptor, 65536), type=Claim))

    async def clear(self, root: Path) -> None:
        """Kills and removes all there is of the sandbox; the directory and the lock go last."""
        name = self.claim.name
        for cgroup in cgroups.left_by(name, map(Path, self.claim.cgroups)):
            await cgroup.kill()
            await cgroup.remove()
        await processes.end(lambda: processes.families(processes.marked(name)), f"sandbox {name}")
        await asyncio.to_thread(remove, [path for path in root.iterdir() if path.name != OWNER])
        (root / OWNER).unlink()
        root.rmdir()
        os.close(self._descriptor)


async def reap(directory: Path) -> list[str]:
    """Removes the sandboxes in `directory` whose owners are dead -> their names. For the start of the next run."""
    reaped = []
    for path in sorted(directory.glob(f"*/{OWNER}")):
        if (owner := Owner.of_dead(path.parent)) is not None:
            logger.warning("removing sandbox %s: its owner, process %d, is gone", path.parent, owner.claim.pid)
            await owner.clear(path.parent)
            reaped.append(owner.claim.name)
    return reaped


def remove(paths: Sequence[Path]) -> None:
    """Removes trees that an agent shaped: any depth (`shutil.rmtree` recurses), folders without permissions."""
    if not paths:
        return
    words = ["--", *map(str, paths)]
    if subprocess.run(["rm", "-rf", *words], capture_output=True, check=False).returncode == 0:
        return
    subprocess.run(["chmod", "-R", "u+rwX", *words], capture_output=True, check=False)
    done = subprocess.run(["rm", "-rf", *words], capture_output=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"cannot remove what a sandbox left: {done.stderr.decode(errors='replace').strip()}")
