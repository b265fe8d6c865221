"""One rollout, from an empty sandbox to graded samples: the one pipeline.

provision → prepare → open → run → collect → grade → build → deliver. A stage that fails ends the attempt with a cause;
what was captured up to there is still built and delivered.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bridle.errors import CreditFailed, GraderError, PatchRefused, ReducerFailed, SandboxError
from bridle.gateway.client import GatewayClient, OpenedSession
from bridle.graders.base import Grade, Grader, grade_patch
from bridle.graders.patch import Base, Patch
from bridle.graders.workspace import prepare
from bridle.harnesses.base import Harness, Installation, Launch, Outcome
from bridle.lifetimes import shielded
from bridle.rollouts.deliver import build, concluded, deliver, keep_patch
from bridle.rollouts.endings import Ending, ending, failure, final, judged, verdict
from bridle.rollouts.records import RolloutRecord
from bridle.rollouts.stages import CONCLUDE_S, Stages, deadline, settle, stage_budgets
from bridle.samples.credit import Graded, Rule, advantages
from bridle.samples.fidelity import Fidelity
from bridle.samples.reduce import Reducer, nothing, reduced
from bridle.samples.sample import Sample
from bridle.sandboxes.base import Mount, Sandbox
from bridle.sessions.records import Limit, SessionOptions
from bridle.tasks.base import Task

RELEASE_S = 90.0
logger = logging.getLogger("bridle.rollouts")

MakeSandbox = Callable[[Task, str, Sequence[Mount]], Sandbox]
"""(task, name, unique in a run; what to show inside) -> a sandbox, not started."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An installed harness; `name` is what people call it."""

    name: str
    harness: Harness
    installation: Installation


@dataclass(frozen=True, slots=True)
class Services:
    """What rollouts share. `samples`: options of the linearization, as the gateway takes them. `agents_url`: where
    agents reach the gateway when that is not where it listens (a proxy in front of it). `reduce`: a user's own, which
    of a rollout's samples are handed on. `credit`, `advantages`: a rollout's reward to its samples, a group's rewards
    to advantages."""

    gateway: GatewayClient
    gateway_url: str
    agent: Callable[[Task], Agent]
    sandbox: MakeSandbox
    grader: Callable[[Task], Grader]
    session: SessionOptions
    samples: dict[str, Any]
    provision_s: float = 60.0
    agents_url: str = ""
    reduce: Reducer | None = None
    credit: Rule = "broadcast"
    advantages: Callable[[Sequence[Graded]], list[float | None]] = advantages


@dataclass(slots=True)
class Held:
    """What a rollout has so far. `ending` None: it was not to its end when it was last heard of."""

    session: OpenedSession | None = None
    samples: Sequence[Sample] = ()
    fidelity: Fidelity | None = None
    refused: Limit | None = None
    grade: Grade | None = None
    ending: Ending | None = None


class Attempt:
    """The stages up to the grade. Whatever goes wrong in one is raised."""

    def __init__(self, task: Task, rollout_id: str, directory: Path, services: Services, stages: Stages) -> None:
        self.task = task
        self.id = rollout_id
        self.directory = directory
        self.services = services
        self.agent = services.agent(task)
        self.stage = stages.stage
        self.held = Held()

    async def run(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        async with self._sandbox("agent", self.agent.installation.mounts) as sandbox:
            await self._provision(sandbox)
            base = await self._prepare(sandbox)
            session = await self._open()
            outcome = await self._run(sandbox, session)
            judgement, work = await self._collect(sandbox, base, outcome)
        if judgement.status != "failed":
            self.held.grade = work if isinstance(work, Grade) else await self._grade(work)
        self.held.ending = verdict(judgement, self.held.grade)

    @asynccontextmanager
    async def _sandbox(self, name: str, mounts: Sequence[Mount] = ()) -> AsyncIterator[Sandbox]:
        """Not started yet, so that starting it is inside what releases it."""
        sandbox = self.services.sandbox(self.task, f"{self.id}-{name}", mounts)
        try:
            yield sandbox
        finally:
            await shielded(sandbox.stop(), RELEASE_S, f"releasing the {name} sandbox of {self.id}")

    async def _provision(self, sandbox: Sandbox) -> None:
        with self.stage("provision"):
            await sandbox.__aenter__()

    async def _prepare(self, sandbox: Sandbox) -> Base:
        with self.stage("prepare"):
            return await prepare(sandbox, self.task)

    async def _open(self) -> OpenedSession:
        with self.stage("open"):
            given = self.services.session
            harness = self.agent.harness
            options = msgspec.structs.replace(
                given,
                kinds=(*given.kinds, *harness.kind_rules),
                threads=(*given.threads, *harness.thread_rules),
            )
            self.held.session = await self.services.gateway.open(self.id, options)
            return self.held.session

    async def _run(self, sandbox: Sandbox, session: OpenedSession) -> Outcome:
        """The harness keeps the agent's time; the stage's own only catches a harness that does not."""
        with self.stage("run"):
            inside = await sandbox.expose(self.services.agents_url or self.services.gateway_url)
            urls = {name: url.replace(self.services.gateway_url, inside) for name, url in session.base_urls.items()}
            return await self._converse(sandbox, session, urls)

    async def _converse(self, sandbox: Sandbox, session: OpenedSession, urls: Mapping[str, str]) -> Outcome:
        """One prompt after the other, until one does not end well -> the last one's outcome. They share their time."""
        ends = time.monotonic() + self.task.budgets.agent_s
        prompts = (self.task.instruction, *self.task.follow_ups)
        for number, prompt in enumerate(prompts, start=1):
            launch = Launch(
                instruction=prompt,
                model=session.model,
                base_urls=urls,
                key=session.key,
                time_budget_s=ends - time.monotonic(),
                logs=self.directory / ("agent" if number == 1 else f"agent-{number}"),
                resume=number > 1,
            )
            outcome = await self.agent.harness.launch(sandbox, self.agent.installation, launch)
            if outcome.finish != "finished":
                break
        return outcome

    async def _collect(self, sandbox: Sandbox, base: Base, outcome: Outcome) -> tuple[Ending, Patch | Grade]:
        """The agent is killed and its session sealed (a late call must not enter the data) before its work is taken."""
        with self.stage("collect"):
            await sandbox.kill_all()
            fidelity = await finish(self.services, self.id, self.held, outcome.finish)
            await self._keep_artifacts(sandbox)
            judgement = judged(outcome, fidelity, self.services.session.limits, self.held.refused)
            return judgement, await self._work(base)

    async def _work(self, base: Base) -> Patch | Grade:
        """What the agent changed; where that can be no patch, it was the agent's doing and the grade is zero."""
        try:
            patch = await base.collect()
        except PatchRefused as error:
            return Grade(reward=0.0, cause=error.kind, detail=error.message)
        keep_patch(self.directory, patch)
        return patch

    async def _keep_artifacts(self, sandbox: Sandbox) -> None:
        """The agent shapes them, so one that cannot be taken is no failure."""
        for path in self.agent.harness.artifacts:
            inside = path.replace("~", sandbox.home, 1)
            try:
                if (await sandbox.exec(["test", "-e", inside])).ok:
                    await sandbox.download(inside, self.directory / "artifacts" / Path(path).name)
            except SandboxError as error:
                logger.warning("%s: %s was not kept: %s", self.id, path, error.message)

    async def _grade(self, patch: Patch) -> Grade:
        with self.stage("grade"):
            async with self._sandbox("grader") as sandbox:
                await sandbox.__aenter__()
                return await grade_patch(self.services.grader(self.task), sandbox, self.task, patch)


class Rollout:
    """Nothing is started or written by making one. `on_stage(rollout)` is called as each stage begins."""

    def __init__(
        self,
        task: Task,
        rollout_id: str,
        directory: Path,
        services: Services,
        on_stage: Callable[[Rollout], None] = lambda rollout: None,
    ) -> None:
        self.task = task
        self.id = rollout_id
        self.directory = directory
        self.services = services
        budgets = stage_budgets(task, services.provision_s)
        self.stages = Stages(budgets, deadline(task, budgets), lambda: on_stage(self))
        self.held = Held()

    async def run(self) -> RolloutRecord:
        """Never raises for what a record can say; a cancellation is passed on once all is released and delivered."""
        self.stages.begin()
        try:
            await self._attempt()
        finally:
            await shielded(self._conclude(), CONCLUDE_S, f"concluding {self.id}")
        return self.record()

    async def _attempt(self) -> None:
        attempt = Attempt(self.task, self.id, self.directory, self.services, self.stages)
        self.held = attempt.held
        error = await settle(attempt.run(), f"rollout {self.id}", self.stages)
        # Copies: an attempt that could not be ended goes on writing into the others, which nobody reads.
        self.held, self.stages = copy.copy(attempt.held), self.stages.apart()
        self._fail(error)

    async def _conclude(self) -> None:
        """Builds and delivers whatever there is."""
        self.stages.conclude()
        self._fail(await settle(self._build_and_deliver(), f"conclusion of {self.id}", self.stages))

    async def _build_and_deliver(self) -> None:
        with self.stages.stage("build"):
            if self.held.session is not None and self.held.fidelity is None:
                await finish(self.services, self.id, self.held, self.ending.cause)
            if self.held.fidelity is not None:
                await self._build(self.held.samples, self.held.fidelity)
        with self.stages.stage("deliver"):
            self._deliver(None)

    async def _build(self, samples: Sequence[Sample], fidelity: Fidelity) -> None:
        """A user's own code takes part: what it does wrong ends this rollout alone, with no sample and all counted."""
        held, services = self.held, self.services
        held.samples, held.fidelity = reduced(samples, fidelity, nothing)
        try:
            held.samples, held.fidelity = await asyncio.to_thread(
                build, samples, fidelity, self.graded, services.credit, services.reduce
            )
        except (ReducerFailed, CreditFailed, GraderError) as error:
            self._fail(error)

    def advance(self, advantage: float | None) -> None:
        """The group is complete: every sample gets the rollout's advantage."""
        try:
            self._deliver(advantage)
        except OSError as error:
            self._fail(error)

    def _deliver(self, advantage: float | None) -> None:
        held, status = self.held, self.ending.status
        held.samples = concluded(held.samples, self.task, self.id, status, self.graded, advantage)
        deliver(self.directory, held.samples, held.fidelity, held.grade, self.record())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None:
            self.held.ending = final(self.held.ending, failure(error, self.stages.current))

    @property
    def ending(self) -> Ending:
        return self.held.ending or ending("cancelled")

    @property
    def stage(self) -> str:
        return self.stages.current

    @property
    def graded(self) -> Graded:
        grade = self.held.grade
        cause = None if self.ending.cause == "finished" else self.ending.cause
        if grade is None:
            return Graded(None, False, cause)
        return Graded(grade.reward, grade.reward_valid, cause, grade.turn_rewards)

    def record(self) -> RolloutRecord:
        counted = self.held.fidelity.totals if self.held.fidelity else None
        agent, graded, grade = self.services.agent(self.task), self.graded, self.held.grade
        return RolloutRecord(
            id=self.id,
            task=self.task.id,
            group=self.task.id,
            harness=agent.name,
            harness_version=agent.installation.version,
            status=self.ending.status,
            cause=self.ending.cause,
            detail=self.ending.detail,
            retryable=self.ending.retryable,
            reward=graded.reward,
            reward_valid=graded.reward_valid,
            grade_cause=grade.cause if grade else "",
            turns=counted.turns if counted else 0,
            sampled_tokens=counted.sampled if counted else 0,
            trained_tokens=counted.trained if counted else 0,
            untrained=msgspec.to_builtins(counted.untrained) if counted else {},
            samples=len(self.held.samples),
            stages=dict(self.stages.seconds),
            directory=str(self.directory),
        )


async def finish(services: Services, rollout_id: str, held: Held, cause: str) -> Fidelity:
    """Seals the session and takes what it comes to."""
    finished = await services.gateway.finish(rollout_id, cause, services.samples)
    held.samples = [Sample.from_dict(fields) for fields in finished["samples"]]
    held.fidelity = msgspec.convert(finished["fidelity"], Fidelity)
    held.refused = finished["refused"]
    return held.fidelity
