"""The contract every harness fulfils, and how each is launched: an agent is its installation and one recipe.

A recipe says what to run with which environment and files. Keys are in the environment or in files of the rollout's
own home, never on a command line; the instruction is a file, which stands at the agent's stdin where it reads that.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from bridle.errors import HarnessError
from bridle.messages import KindRule, ThreadRule
from bridle.sandboxes.base import ExecResult, Mount, Sandbox

Log = Callable[[str], None]
ProtocolName = Literal["openai_chat", "openai_responses", "anthropic", "gemini"]
"""The protocols an agent that speaks several may be told to speak."""
Silence = Annotated[int, msgspec.Meta(ge=1)] | None
"""How many seconds of silence from the model an agent bears before it gives a call up; None: as many as it does by
itself. Of agents that do not stream, a whole answer."""
Finish = Literal["finished", "agent_error", "time_budget", "killed", "never_started"]

# $0 is what stands at stdin; the rest is the agent's argv.
_WITH_STDIN = 'exec "$@" <"$0"'


class HarnessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`version`: empty for the one this release was tried with. `env` is added last and wins."""

    version: str = ""
    env: dict[str, str] = {}


class McpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program in the sandbox that offers tools to the agent over stdio. It starts in the workspace."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    env: dict[str, str] = {}

    @property
    def entry(self) -> dict[str, object]:
        """As the settings have it of all agents that call them `mcpServers`."""
        return {"command": self.command[0], "args": self.command[1:], "env": self.env}


McpServers = dict[Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]+$")], McpServer]
"""By name, which most agents make a part of the tools' names."""


class Installation(msgspec.Struct, frozen=True):
    """An agent on the host. `path` and `runtime` (what runs it, where it is no program itself) are the same inside a
    sandbox that was made with `mounts`."""

    version: str
    path: str = ""
    mounts: tuple[Mount, ...] = ()
    runtime: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `base_urls` are as seen from inside the sandbox, by the client family: "anthropic" (the client appends
    /v1/messages), "openai" (/chat/completions, /responses) and "gemini" (/v1beta/models/…). `model`: the name that is
    served. `logs`: a host folder for the agent's stdout and stderr. `resume`: go on in the conversation that this
    sandbox's agent had last; only for a harness that `resumes`."""

    instruction: str
    model: str
    base_urls: Mapping[str, str]
    key: str
    time_budget_s: float
    logs: Path
    resume: bool = False
    env: Mapping[str, str] = {}

    def base_url(self, family: str) -> str:
        if family not in self.base_urls:
            held = ", ".join(self.base_urls) or "none"
            raise HarnessError(f'this agent talks to a base URL of family "{family}"; the session has: {held}')
        return self.base_urls[family]

    def sdk_url(self, protocol: ProtocolName) -> str:
        """The base URL as SDKs for several protocols want it: with the version for Google's too."""
        if protocol == "gemini":
            return f"{self.base_url('gemini')}/v1beta"
        return self.base_url("anthropic" if protocol == "anthropic" else "openai")


class Recipe(msgspec.Struct, frozen=True):
    """`files`: paths in the sandbox, written (mode 0600) before the start. `stdin`: one of them, or /dev/null."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, bytes] = {}
    stdin: str = "/dev/null"


class Outcome(msgspec.Struct, frozen=True):
    """How the agent's process ended: facts, no judgement of its work. An agent that fails may exit with 0, so turns and
    workspace say more. `exit_code` and `signal` are both None for `time_budget` and `never_started`."""

    finish: Finish
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    detail: str = ""


class Harness(ABC):
    """One agent CLI. `protocol` is the wire format it speaks, `artifacts` are paths in the sandbox worth keeping (`~/`
    is the sandbox's home), `kind_rules` name its turns' kinds, `thread_rules` its conversations. `resumes`: started
    again in the same sandbox, it can go on in the conversation it had last."""

    protocol: str
    resumes: bool = False
    default_version: ClassVar[str]
    kind_rules: ClassVar[tuple[KindRule, ...]] = ()
    thread_rules: ClassVar[tuple[ThreadRule, ...]] = ()
    artifacts: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    async def install(self, cache: Path, log: Log) -> Installation:
        """Into the host's `cache`, once for all rollouts. `log` takes progress lines. Raises HarnessError."""

    @abstractmethod
    def recipe(self, installation: Installation, launch: Launch, sandbox: Sandbox) -> Recipe: ...

    async def launch(self, sandbox: Sandbox, installation: Installation, launch: Launch) -> Outcome:
        """Runs the agent in the workspace to its end, or to the end of its time; then its whole tree is dead."""
        recipe = self.recipe(installation, launch, sandbox)
        for path, data in recipe.files.items():
            await sandbox.write(path, data, mode=0o600)
        if missing := await _missing(sandbox, recipe.argv[0]):
            return Outcome("never_started", detail=missing)
        started = time.monotonic()
        process = await sandbox.spawn(
            ["/bin/sh", "-c", _WITH_STDIN, recipe.stdin, *recipe.argv],
            cwd=sandbox.workspace,
            env={**recipe.env, **launch.env},
            logs=launch.logs,
        )
        try:
            result = await process.wait(launch.time_budget_s)
        finally:
            await process.kill()
        return _outcome(result, time.monotonic() - started)


async def _missing(sandbox: Sandbox, program: str) -> str:
    """Asked before the start, because exit code 127 afterwards may be the agent's own."""
    found = await sandbox.exec(["/bin/sh", "-c", 'command -v -- "$1"', "sh", program], cwd=sandbox.workspace)
    return "" if found.ok else f'there is no program "{program}" in the sandbox'


def _outcome(result: ExecResult, seconds: float) -> Outcome:
    if result.timed_out:
        return Outcome("time_budget", seconds=seconds)
    if result.signal is not None:
        return Outcome("killed", signal=result.signal, seconds=seconds)
    finish: Finish = "finished" if result.exit_code == 0 else "agent_error"
    return Outcome(finish, exit_code=result.exit_code, seconds=seconds)
