"""Rewards belong to rollouts, advantages to groups of them, however many samples a rollout became."""

from __future__ import annotations

from typing import Any

import pytest

from bridle.errors import ConfigError
from bridle.samples.credit import Graded, Rule, advantages, credited
from bridle.samples.linearize import Options, linearize
from bridle.sessions.tree import ROOT


def graded(*rewards: float | None) -> list[Graded]:
    return [Graded(reward, reward is not None) for reward in rewards]


def rewards(growth: Any, rule: Rule) -> list[float | None]:
    """Of three samples, the second of which holds the last draw."""
    first = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(first, 2), 11)
    growth.draw(growth.say(ROOT, 4), 13)
    growth.draw(growth.say(first, 3), 12)
    result = linearize(growth.tree, Options(grade=Graded(0.9, True), credit=rule))
    assert [sample.reward_valid for sample in result.samples] == [True] * 3
    return [sample.reward for sample in result.samples]


def test_broadcast_gives_every_sample_the_rollouts_reward(growth: Any) -> None:
    assert rewards(growth, "broadcast") == [0.9, 0.9, 0.9]


def test_split_gives_equal_shares_that_add_up(growth: Any) -> None:
    assert rewards(growth, "split") == pytest.approx([0.3, 0.3, 0.3])


def test_final_gives_all_to_the_sample_with_the_last_draw(growth: Any) -> None:
    assert rewards(growth, "final") == [0.0, 0.9, 0.0]


def test_a_function_may_credit_by_what_is_in_the_samples(growth: Any) -> None:
    assert rewards(growth, lambda reward, samples: [reward * sample.trained for sample in samples]) == [
        0.9 * 2,
        0.9,
        0.9,
    ]


def test_a_function_that_forgets_a_sample_is_refused(growth: Any) -> None:
    with pytest.raises(ConfigError, match="1 rewards for 3 samples"):
        rewards(growth, lambda reward, samples: [reward])


def test_a_rollout_without_a_grade_has_no_reward_and_the_cause(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10)
    (sample,) = growth.build(grade=Graded(None, False, "grader"), credit="final").samples
    assert (sample.reward, sample.reward_valid, sample.cause) == (None, False, "grader")


def test_a_grade_can_come_after_the_samples(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10)
    result = growth.build()
    assert result.samples[0].reward is None
    (sample,) = credited(result.samples, result.fidelity, Graded(1.0, True), advantage=0.5)
    assert (sample.reward, sample.reward_valid, sample.advantage) == (1.0, True, 0.5)


def test_advantages_are_rewards_in_standard_deviations_from_the_groups_mean() -> None:
    assert advantages(graded(0.0, 1.0, 1.0, 0.0)) == pytest.approx([-0.866025, 0.866025, 0.866025, -0.866025], abs=1e-6)


def test_an_ungraded_rollout_neither_gets_an_advantage_nor_moves_the_baseline() -> None:
    assert advantages(graded(0.0, None, 1.0)) == pytest.approx([-0.707107, None, 0.707107], abs=1e-6)
    invalid = [*graded(0.0, 1.0), Graded(100.0, False)]
    assert advantages(invalid) == pytest.approx([-0.707107, 0.707107, None], abs=1e-6)


def test_fewer_than_two_usable_rollouts_give_no_update() -> None:
    assert advantages(graded(1.0, None, None)) == [None, None, None]
    assert advantages([]) == []


def test_equal_rewards_give_zero_though_their_mean_is_rounded() -> None:
    assert advantages(graded(*[0.1] * 3, None)) == [0.0, 0.0, 0.0, None]


def test_excluded_causes_leave_the_baseline_and_the_training() -> None:
    group = [*graded(0.0, 1.0), Graded(0.0, True, "wall_clock")]
    assert advantages(group)[2] == pytest.approx(-0.577350, abs=1e-6)
    assert advantages(group, {"wall_clock"}) == pytest.approx([-0.707107, 0.707107, None], abs=1e-6)
