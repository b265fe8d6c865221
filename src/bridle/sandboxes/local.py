"""No isolation: a private folder and HOME for code that is trusted as much as the one who runs it.

Commands see the whole host with the user's rights. What holds: no command outlives `stop`, limits are kept, the
environment is not inherited.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from bridle.sandboxes.base import Mount, SandboxConfig
from bridle.sandboxes.detached import PYTHON, Command
from bridle.sandboxes.directories import SYSTEM_PATH, DirectorySandbox

logger = logging.getLogger("bridle.sandboxes")


class LocalSandbox(DirectorySandbox):
    """Paths inside are the host's own; mounts are used where they lie."""

    def __init__(self, root: Path, config: SandboxConfig, mounts: Sequence[Mount] = ()) -> None:
        super().__init__(root, config, mounts)
        warn_once()

    @staticmethod
    def available() -> tuple[bool, str]:
        return True, "works everywhere, but isolates nothing: for trusted code only"

    async def expose(self, url: str) -> str:
        return url

    def _environment(self) -> dict[str, str]:
        path = f"{Path(PYTHON).parent}:{SYSTEM_PATH}"
        return {"PATH": path, "HOME": self.home, "LANG": "C.UTF-8", "TMPDIR": str(self._folders["tmp"])}

    def _command(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, private: bool) -> Command:
        return Command(argv, cwd, env, stdin=stdin, marked=True)


@functools.cache
def warn_once() -> None:
    logger.warning("sandbox `local` isolates nothing: commands run with your rights on your files. Trusted code only.")
