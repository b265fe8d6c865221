"""Runs groups of rollouts with a bound on how many are under way, and tells each group its advantages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from bridle.rollouts.records import RolloutRecord
from bridle.rollouts.run import Rollout, Services
from bridle.tasks.base import Task


class Watcher:
    """What a batch tells whoever shows it. The base class shows nothing."""

    def stage(self, rollout: Rollout) -> None: ...

    def ended(self, record: RolloutRecord) -> None: ...


async def run_batch(
    tasks: Sequence[Task], n: int, concurrency: int, directory: Path, services: Services, watcher: Watcher
) -> list[RolloutRecord]:
    """n rollouts of each task -> their records, in order. One that fails is a record; the others go on."""
    places = asyncio.Semaphore(concurrency)
    async with asyncio.TaskGroup() as running:
        groups = [
            running.create_task(_group(task, n, places, directory, services, watcher), name=f"group {task.id}")
            for task in tasks
        ]
    return [record for group in groups for record in group.result()]


async def _group(
    task: Task, n: int, places: asyncio.Semaphore, directory: Path, services: Services, watcher: Watcher
) -> list[RolloutRecord]:
    ids = rollout_ids(task, n)
    rollouts = [Rollout(task, name, directory / "rollouts" / name, services, watcher.stage) for name in ids]
    async with asyncio.TaskGroup() as running:
        for rollout in rollouts:
            running.create_task(_place(rollout, places, watcher.ended), name=f"rollout {rollout.id}")
    for rollout, advantage in zip(rollouts, services.advantages([rollout.graded for rollout in rollouts]), strict=True):
        rollout.advance(advantage)
    return [rollout.record() for rollout in rollouts]


async def _place(rollout: Rollout, places: asyncio.Semaphore, ended: Callable[[RolloutRecord], None]) -> None:
    async with places:
        ended(await rollout.run())


def rollout_ids(task: Task, n: int) -> list[str]:
    return [f"{task.id}-{index}" for index in range(n)]
