"""Time of a rollout: what each stage may take and took, and an end to whatever does not end by itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bridle.errors import WallClock
from bridle.lifetimes import shielded
from bridle.tasks.base import Task

OPEN_S = 60.0
BUILD_S = 120.0
DELIVER_S = 120.0
SLACK_S = 30.0
"""What a stage gets beyond the budget its own work keeps, so that the work's better-informed end comes first."""
MARGIN_S = 60.0
"""Added to the budgets of all stages for the deadline of the whole: it covers what lies between them."""
RESERVE_S = 30.0
"""What building and delivering have at least, however late it is: what was captured is not lost to a deadline."""
CONCLUDE_S = BUILD_S + DELIVER_S + SLACK_S
LOOK_S = 0.1
CANCELS = 3
UNWIND_S = 10.0
"""How long a cancelled rollout may take, each of CANCELS times, before its group goes on without it."""

orphans: set[asyncio.Task[None]] = set()
"""Held here: a task that nobody refers to can be collected before it has released what it holds."""
logger = logging.getLogger("bridle.rollouts")


def stage_budgets(task: Task, provision_s: float) -> dict[str, float]:
    """Seconds. Grading provisions and prepares a sandbox of its own."""
    budgets = task.budgets
    return {
        "provision": provision_s,
        "prepare": budgets.prepare_s,
        "open": OPEN_S,
        "run": budgets.agent_s + SLACK_S,
        "collect": budgets.collect_s,
        "grade": provision_s + budgets.prepare_s + budgets.grade_s + SLACK_S,
        "build": BUILD_S,
        "deliver": DELIVER_S,
    }


def deadline(task: Task, budgets: Mapping[str, float]) -> float:
    """Seconds for the whole rollout, all between its stages included."""
    return task.budgets.deadline_s or sum(budgets.values()) + MARGIN_S


class Stages:
    """One clock for a rollout: what each stage may take, and `deadline_s` from `begin` on for all of it.

    `current` stays after a stage has ended, for what comes before the next. `seconds`: by stage, in order."""

    def __init__(self, budgets: Mapping[str, float], deadline_s: float, changed: Callable[[], None]) -> None:
        self.budgets = budgets
        self.deadline_s = deadline_s
        self.current = "provision"
        self.seconds: dict[str, float] = {}
        self._due = math.inf
        self._deadline = math.inf
        self._changed = changed

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current = name
        self._changed()
        started = time.monotonic()
        self._due = started + self.budgets[name]
        try:
            yield
        finally:
            self._due = math.inf
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def apart(self) -> Stages:
        """A copy that whoever goes on with this one does not reach."""
        other = Stages(self.budgets, self.deadline_s, self._changed)
        other.current, other.seconds, other._deadline = self.current, dict(self.seconds), self._deadline
        return other

    def begin(self) -> None:
        self._deadline = time.monotonic() + self.deadline_s

    def conclude(self) -> None:
        """What is left of the deadline, or the reserve."""
        self._deadline = max(self._deadline, time.monotonic() + RESERVE_S)

    @property
    def left_s(self) -> float:
        return min(self._due, self._deadline) - time.monotonic()

    @property
    def expired(self) -> str:
        if self._deadline < self._due:
            return f"the rollout's deadline of {self.deadline_s:g} s has passed"
        return f"not done within {self.budgets[self.current]:g} s"


async def settle(work: Coroutine[Any, Any, None], name: str, stages: Stages) -> BaseException | None:
    """Runs `work` to its end or to the end of its time -> the error that ended it, None when it just ended.

    Looks at the clock from outside: a timeout within could be swallowed, and would not know what was waited for.
    A cancellation of the caller is passed on once the work has ended.
    """
    task = asyncio.create_task(work, name=name)
    try:
        while not task.done() and (left_s := stages.left_s) > 0:
            await asyncio.wait((task,), timeout=min(LOOK_S, left_s))
        late = None if task.done() else WallClock(f"{stages.expired}; pending: {pending(work)}")
    finally:
        if not task.done():
            await shielded(_end(task), CANCELS * UNWIND_S + 1, f"ending {name}")
    if late is None and not task.cancelled():
        return task.exception()
    return late or asyncio.CancelledError(f"{name} was cancelled from within")


async def _end(task: asyncio.Task[None]) -> None:
    """Cancels, several times where that is swallowed. What survives it goes on as an orphan nobody listens to."""
    for _ in range(CANCELS):
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=UNWIND_S)
        if done:
            return
    logger.error("%s goes on after it was cancelled %d times", task.get_name(), CANCELS)
    orphans.add(task)
    task.add_done_callback(orphans.discard)


def pending(work: Coroutine[Any, Any, None]) -> str:
    """What `work` waits for, from the outside in: "Attempt.run:80 > CommandHarness.launch:110 > Event.wait:213"."""
    steps = []
    awaited: Any = work
    while inspect.iscoroutine(awaited) and awaited.cr_frame is not None:
        steps.append(f"{awaited.__qualname__}:{awaited.cr_frame.f_lineno}")
        awaited = awaited.cr_await
    return " > ".join(steps)
