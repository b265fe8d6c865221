"""The contract every grader fulfils, and the one path a grade is taken on: a fresh workspace, only the patch.

No grade is not a zero: what the agent did is graded as it stands, and only a failure outside the agent's doing leaves
`reward` None.
"""

from __future__ import annotations

import math
import time
from typing import Protocol as Contract

import msgspec

from bridle.errors import BridleError, GraderError, PatchRefused
from bridle.graders.patch import Applied, Patch
from bridle.graders.workspace import prepare
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import Task


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """`reward_valid` is False exactly when `reward` is None. `cause` is a stable word ("passed", "failed",
    "grade_timeout", "patch_refused", or an error's kind), `detail` is for people. `parts`: rewards of which `reward` is
    made, by name. `turn_rewards`: of single turns, by turn id (the rollout's id, "-" and the turn's number), on top of
    `reward`. `applied` is None when it did not come to that."""

    reward: float | None
    cause: str
    detail: str = ""
    parts: dict[str, float] = {}
    turn_rewards: dict[str, float] = {}
    seconds: float = 0.0
    applied: Applied | None = None

    def __post_init__(self) -> None:
        for reward in (self.reward, *self.turn_rewards.values()):
            if reward is not None and not math.isfinite(reward):
                raise GraderError(f"a reward must be a finite number or None, got {reward}")

    @property
    def reward_valid(self) -> bool:
        return self.reward is not None


class Grader(Contract):
    """Made from its own Config. One grader grades any number of tasks, at once."""

    async def grade(self, sandbox: Sandbox, task: Task) -> Grade:
        """In a sandbox that no agent has run in; its workspace is the task's with the patch applied.

        Raises GraderError or SandboxError when there is no grade to be had.
        """
        ...


async def grade_patch(grader: Grader, sandbox: Sandbox, task: Task, patch: Patch) -> Grade:
    """The whole of grading, in a started, empty sandbox. Never raises for what a rollout should record."""
    started = time.monotonic()
    applied: Applied | None = None
    try:
        base = await prepare(sandbox, task)
        applied = await base.apply(patch, task.protected)
        grade = await grader.grade(sandbox, task)
    except PatchRefused as error:
        grade = Grade(reward=0.0, cause=error.kind, detail=error.message)
    except BridleError as error:
        grade = Grade(reward=None, cause=error.kind, detail=error.message)
    return msgspec.structs.replace(grade, applied=applied, seconds=time.monotonic() - started)
