"""A whole small world for rollouts, real but for the model: an embedded gateway over a scripted engine, a repository
with one bug, the agent of `bridle.testing.agent` through the command harness, and this machine's default sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bridle.engines.script import Script
from bridle.engines.scripted import ScriptedEngine
from bridle.gateway.client import GatewayClient
from bridle.gateway.server import GatewayConfig, serve
from bridle.graders.command import CommandConfig, CommandGrader
from bridle.harnesses.command import CommandConfig as HarnessOptions, CommandHarness
from bridle.registry import resolve
from bridle.rendering.base import Renderer
from bridle.rollouts.records import RolloutRecord
from bridle.rollouts.run import Agent, Services
from bridle.rollouts.scheduler import Watcher, run_batch
from bridle.sandboxes import NAMES, default_sandbox
from bridle.sandboxes.base import Sandbox, SandboxConfig
from bridle.sessions.records import SessionOptions
from bridle.tasks.base import Budgets, Spec, Task, Workspace
from bridle.testing import agent

AGENT = str(Path(agent.__file__))
FIX = "sed -i 's/a + b/a - b/' calc.py"
CHECK = "from calc import subtract\nassert subtract(7, 3) == 4\nprint('passed')\n"


def make_repository(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "calc.py").write_text("def subtract(a, b):\n    return a + b\n")
    (folder / "tests" / "check.py").write_text(CHECK)
    return folder


def turns(*commands: str, last: str = "Done.") -> list[dict[str, Any]]:
    """A script's turns: one shell call each, then a word."""
    return [{"text": "Next.", "calls": [{"shell": command}]} for command in commands] + [{"text": last}]


@dataclass
class World:
    """Fields are what a test changes before it runs rollouts in it."""

    directory: Path
    repository: Path
    renderer: Renderer
    turns: Sequence[dict[str, Any]] = field(default_factory=lambda: turns(FIX))
    argv: tuple[str, ...] = ("python3", AGENT)
    resume_argv: tuple[str, ...] = ("python3", AGENT, "--resume")
    harness: type[CommandHarness] = CommandHarness
    grader: Callable[[Task], Any] = lambda task: CommandGrader(msgspec.convert(task.grader.options, CommandConfig))
    session: SessionOptions = field(default_factory=SessionOptions)
    make_sandbox: Callable[[Sandbox], Sandbox] = lambda sandbox: sandbox

    @property
    def sandboxes(self) -> Path:
        return self.directory / "sandboxes"

    def task(self, **changes: Any) -> Task:
        command = {"command": ["python3", "tests/check.py"], "env": {"PYTHONPATH": "."}, "expect": "passed"}
        fields: dict[str, Any] = {
            "id": "subtract",
            "instruction": "subtract(7, 3) should be 4. Fix it.",
            "workspace": Workspace(str(self.repository)),
            "grader": Spec("command", command),
            "budgets": Budgets(prepare_s=20, agent_s=20, collect_s=20, grade_s=20),
        }
        return Task(**{**fields, **changes})

    @asynccontextmanager
    async def services(self) -> AsyncIterator[Services]:
        script = msgspec.convert({"threads": [{"turns": self.turns}], "resegment": 0.3}, Script)
        vocabulary, write = self.renderer.vocabulary, self.renderer.write
        harness = self.harness(HarnessOptions(argv=self.argv, resume_argv=self.resume_argv, mounts=(AGENT,)))
        installed = Agent("command", harness, await harness.install(self.directory / "cache", lambda line: None))
        kind = resolve("sandbox", NAMES, default_sandbox()[0])
        self.directory.mkdir(exist_ok=True)
        async with (
            ScriptedEngine(script, vocabulary, write, self.directory / "journal.jsonl", score="fake") as engine,
            serve(GatewayConfig(abort_grace_s=0.1), self.renderer, engine, self.directory) as gateway,
            GatewayClient(gateway.url, gateway.control_token) as client,
        ):
            yield Services(
                gateway=client,
                gateway_url=gateway.url,
                agent=lambda task: installed,
                sandbox=lambda task, name, mounts: self.make_sandbox(
                    kind(self.sandboxes / name, SandboxConfig(), mounts)
                ),
                grader=self.grader,
                session=self.session,
                samples={},
            )

    async def run(
        self, *tasks: Task, n: int = 1, concurrency: int = 2, watcher: Watcher = Watcher()
    ) -> list[RolloutRecord]:
        async with self.services() as services:
            return await run_batch(tasks or (self.task(),), n, concurrency, self.directory, services, watcher)

    async def one(self, **changes: Any) -> RolloutRecord:
        (record,) = await self.run(self.task(**changes))
        return record
