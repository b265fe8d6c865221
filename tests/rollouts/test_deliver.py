"""What a user's own code makes of a rollout's samples, and that it can spoil no other rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.errors import GraderError
from bridle.exporters.jsonl import JsonlExporter
from bridle.graders.base import Grade
from bridle.rollouts.records import STAGES, RolloutRecord
from bridle.rollouts.scheduler import Watcher, run_batch
from bridle.samples.check import check
from bridle.samples.credit import advantages
from bridle.samples.sample import Sample
from bridle.tasks.base import Task
from bridle.testing.world import World


async def batch(world: World, n: int, **changes: Any) -> list[RolloutRecord]:
    async with world.services() as services:
        return await run_batch([world.task()], n, 2, world.directory, replace(services, **changes), Watcher())


def samples_of(record: RolloutRecord) -> list[Sample]:
    return list(JsonlExporter().read(Path(record.directory) / "samples.jsonl"))


class Rewards:
    """A grader that gives one grade after the other."""

    def __init__(self, grades: list[Grade]) -> None:
        self.grades = grades

    async def grade(self, sandbox: Any, task: Task) -> Grade:
        return self.grades.pop(0)


def all_but_the_first_rollout(samples: Sequence[Sample]) -> list[Sample]:
    if samples[0].rollout_id.endswith("-0"):
        raise KeyError("not this one")
    return [msgspec.structs.replace(sample, metadata={"seen": "yes"}) for sample in samples]


def a_half_but_for_the_first_rollout(reward: float, samples: Sequence[Sample]) -> list[float]:
    return [] if samples[0].rollout_id.endswith("-0") else [reward / 2 for _ in samples]


async def test_a_reducer_that_raises_ends_its_rollout_alone(world: World) -> None:
    failed, fine = await batch(world, n=2, reduce=all_but_the_first_rollout)
    assert (failed.status, failed.cause, failed.retryable) == ("failed", "reducer_failed", False)
    assert "build: the reducer raised KeyError: 'not this one'" in failed.detail
    assert (samples_of(failed), failed.untrained) == ([], {"dropped_branch": failed.sampled_tokens})
    assert (failed.reward, failed.reward_valid) == (1.0, True)
    assert tuple(failed.stages) == STAGES
    (sample,) = samples_of(fine)
    assert (fine.cause, sample.metadata, sample.reward) == ("finished", {"seen": "yes"}, 1.0)
    report = check(world.directory)
    assert (report.untrained, report.trained, report.lost) == (failed.untrained, fine.trained_tokens, 0)


async def test_a_credit_function_that_fails_ends_its_rollout_alone(world: World) -> None:
    failed, fine = await batch(world, n=2, credit=a_half_but_for_the_first_rollout)
    assert (failed.status, failed.cause, failed.retryable) == ("failed", "credit_failed", False)
    assert samples_of(failed) == []
    assert ([sample.reward for sample in samples_of(fine)], fine.reward) == ([0.5], 1.0)


async def test_a_grader_rewards_turns_and_a_group_is_compared_as_was_chosen(world: World) -> None:
    grades = [Grade(reward=reward, cause="scored", turn_rewards={"subtract-0-0": 0.5}) for reward in (1.0, 0.0)]
    world.grader = lambda task: Rewards(grades)
    first, second = await batch(world, n=2, advantages=partial(advantages, baseline="leave_one_out"))
    (sample,) = samples_of(first)
    assert sample.token_rewards is not None
    assert {at: value for at, value in enumerate(sample.token_rewards) if value} == {sample.turns[0].end - 1: 0.5}
    assert sample.advantage == (1.0 if first.reward else -1.0)
    assert (second.cause, samples_of(second)) == ("grader", [])


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_rewards_of_turns_are_numbers(reward: float) -> None:
    with pytest.raises(GraderError, match="a finite number"):
        Grade(reward=1.0, cause="scored", turn_rewards={"t": reward})
