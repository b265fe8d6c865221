"""Rewards belong to rollouts, advantages to groups of them, however many samples a rollout became."""

from __future__ import annotations

from typing import Any

import pytest

from bridle.errors import ConfigError, CreditFailed, GraderError
from bridle.samples.credit import Credit, Graded, Rule, advantages, credited
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


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda reward, samples: [reward], "1 rewards for 3 samples"),
        (lambda reward, samples: [float("nan")] * len(samples), "a finite one"),
        (lambda reward, samples: [None] * len(samples), "raised TypeError"),
        (lambda reward, samples: samples[7], "raised IndexError"),
    ],
)
def test_a_function_that_does_not_give_each_sample_a_reward_has_failed(growth: Any, rule: Any, said: str) -> None:
    with pytest.raises(CreditFailed, match=said):
        rewards(growth, rule)


def shares(reward: float, samples: Any) -> list[float]:
    return [reward for _ in samples]


def test_a_rule_is_a_name_or_a_function_of_ones_own() -> None:
    assert Credit("split").found() == "split"
    assert Credit(f"{__name__}:shares").found() is shares
    with pytest.raises(ConfigError, match='unknown credit rule "brodcast": did you mean "broadcast"'):
        Credit("brodcast").found()


def test_a_turns_reward_stands_at_its_last_token_in_the_sample_that_accounts_for_it(growth: Any) -> None:
    trunk = growth.draw(growth.say(ROOT, 1), 10, 11)
    growth.draw(growth.say(trunk, 2), 12, 13)
    growth.draw(growth.say(trunk, 3), 14, delivered=False)
    growth.draw(growth.say(trunk, 4), 15)
    grade = Graded(1.0, True, turns={"t0": 0.5, "t1": -1.0, "t2": 9.0})
    first, second = growth.build(grade=grade).samples
    assert first.token_rewards is not None
    assert first.token_rewards.tolist() == [0, 0, 0.5, 0, 0, -1.0]
    assert (first.reward, second.reward, second.token_rewards) == (1.0, 1.0, None)


def test_a_reward_for_a_turn_there_is_not_is_the_graders_fault(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10)
    with pytest.raises(GraderError, match="'t7', which there is not; turns are t0"):
        growth.build(grade=Graded(1.0, True, turns={"t7": 0.5}))


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


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    assert advantages(graded(0.0, 0.25, 1.0), baseline="leave_one_out") == pytest.approx([-0.625, -0.25, 0.875])


def test_a_mean_baseline_scales_nothing() -> None:
    assert advantages(graded(0.0, 1.0, 1.0, 0.0), baseline="mean") == pytest.approx([-0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize("baseline", ["standard", "leave_one_out", "mean"])
def test_no_baseline_hears_of_a_rollout_without_a_grade(baseline: Any) -> None:
    alone, among = advantages(graded(0.0, 1.0), (), baseline), advantages(graded(0.0, None, 1.0), (), baseline)
    assert [value for value in among if value is not None] == alone
    assert advantages(graded(1.0, None), (), baseline) == [None, None]
    assert advantages(graded(0.5, 0.5), (), baseline) == [0.0, 0.0]


@pytest.mark.parametrize("baseline", ["standard", "leave_one_out", "mean"])
@pytest.mark.parametrize("equal", [(0.3, 0.1 + 0.2), (1.0, sum([0.1] * 10)), (-1e200, -1e200), (0.0, 0.0)])
def test_rewards_that_differ_by_rounding_alone_are_equal(equal: tuple[float, ...], baseline: Any) -> None:
    assert advantages(graded(*equal), (), baseline) == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e-200, 1e-9, 1e200, 1.5e308])
def test_deviations_of_any_size_come_out_the_same(size: float) -> None:
    assert advantages(graded(0.0, size)) == pytest.approx([-0.707107, 0.707107], abs=1e-6)
    assert advantages(graded(size, size, 0.0)) == pytest.approx([0.577350, 0.577350, -1.154701], abs=1e-6)


def test_a_small_difference_of_large_rewards_is_one() -> None:
    assert advantages(graded(1e6, 1e6 + 1e-6)) == pytest.approx([-0.707107, 0.707107], abs=1e-3)
