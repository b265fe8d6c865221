"""Whose reward, whose advantage: from one reward a rollout to its samples, from a group's rewards to advantages.

Advantages belong to rollouts and are computed over a group before any rollout is cut into samples, so that cutting one
into more samples changes nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from bridle.errors import CreditFailed, GraderError
from bridle.registry import resolve
from bridle.samples.fidelity import Fidelity
from bridle.samples.sample import Floats, Sample

Shares = Callable[[float, Sequence[Sample]], Sequence[float]]
Rule = Literal["broadcast", "split", "final"] | Shares
"""broadcast: every sample has the rollout's reward. split: equal shares that add up to it. final: the sample with the
last draw has all of it, the others 0. A function: (reward, samples) -> one reward for each sample."""

ROUNDING = 16 * sys.float_info.epsilon
"""Of the largest reward: rewards no further than this from their mean are equal. A sum of a few parts may be off by
some units in the last place (0.1 + 0.2 is not 0.3), and so may the mean."""

RULES: Mapping[str, Rule] = {"broadcast": "broadcast", "split": "split", "final": "final"}


class Graded(msgspec.Struct, frozen=True):
    """A rollout as its group sees it. `cause`: why it ended, None for a normal end. `turns`: rewards of single turns,
    by turn id, where a grader gives such."""

    reward: float | None
    reward_valid: bool
    cause: str | None = None
    turns: Mapping[str, float] = {}


Baseline = Literal["standard", "leave_one_out", "mean"]
"""What a reward is compared with, r its rollout's and m the mean of the group's usable ones. standard: (r - m) /
standard deviation over n - 1, as GRPO has it. leave_one_out: r - the mean of the others (RLOO). mean: r - m, as
Dr. GRPO has it."""


class Credit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rule`: broadcast, split, final, or "my.module:function", (reward, samples) -> one reward a sample.
    `exclude_from_group`: causes whose rollouts neither count in the baseline nor get an advantage."""

    rule: str = "broadcast"
    baseline: Baseline = "standard"
    exclude_from_group: tuple[str, ...] = ()

    def found(self) -> Rule:
        """Raises ConfigError for a rule that there is not."""
        if self.rule in RULES:
            return RULES[self.rule]
        shares: Shares = resolve("credit rule", dict.fromkeys(RULES, ""), self.rule)
        return shares


def credited(
    samples: Sequence[Sample],
    fidelity: Fidelity,
    grade: Graded,
    rule: Rule = "broadcast",
    advantage: float | None = None,
) -> list[Sample]:
    """The samples of one rollout with its grade. Without a reward all of them have None, and the cause says why.

    Raises CreditFailed for a rule that does not give each sample a reward, GraderError for a reward of a turn there is
    not."""
    shares = [None] * len(samples) if grade.reward is None else _shares(samples, fidelity, grade.reward, rule)
    rewards = _turn_rewards(samples, fidelity, grade.turns)
    return [
        msgspec.structs.replace(
            sample,
            reward=share,
            reward_valid=grade.reward_valid,
            cause=grade.cause,
            advantage=advantage,
            token_rewards=rewards.get(index, sample.token_rewards),
        )
        for index, (sample, share) in enumerate(zip(samples, shares, strict=True))
    ]


def advantages(
    rollouts: Sequence[Graded], exclude_from_group: Collection[str] = (), baseline: Baseline = "standard"
) -> list[float | None]:
    """Within the group's usable rollouts; None for the others.

    Usable: validly graded and not ended by an excluded cause. Fewer than two of them give no update: None for all.
    Rewards equal but for rounding give 0.0."""
    rewards = [_usable_reward(rollout, exclude_from_group) for rollout in rollouts]
    usable = [reward for reward in rewards if reward is not None]
    if len(usable) < 2:
        return [None] * len(rollouts)
    mean = math.fsum(reward / len(usable) for reward in usable)
    spread = max(abs(reward - mean) for reward in usable)
    if spread <= ROUNDING * max(map(abs, usable)):
        return [None if reward is None else 0.0 for reward in rewards]
    unit = _unit(usable, mean, spread, baseline)
    return [None if reward is None else (reward - mean) / unit for reward in rewards]


def _unit(usable: Sequence[float], mean: float, spread: float, baseline: Baseline) -> float:
    if baseline == "mean":
        return 1.0
    if baseline == "leave_one_out":
        # r - (sum - r) / (n - 1) = (r - mean) / ((n - 1) / n).
        return (len(usable) - 1) / len(usable)
    # Of deviations no larger than 1: the square of a small one is 0, that of a large one no number.
    return spread * math.sqrt(math.fsum(((reward - mean) / spread) ** 2 for reward in usable) / (len(usable) - 1))


def _usable_reward(rollout: Graded, exclude_from_group: Collection[str]) -> float | None:
    return rollout.reward if rollout.reward_valid and rollout.cause not in exclude_from_group else None


def _shares(samples: Sequence[Sample], fidelity: Fidelity, reward: float, rule: Rule) -> list[float]:
    if rule == "broadcast":
        return [reward] * len(samples)
    if rule == "split":
        return [reward / len(samples)] * len(samples)
    if rule == "final":
        last = _last(fidelity)
        return [reward if index == last else 0.0 for index in range(len(samples))]
    try:
        shares = [float(share) for share in rule(reward, samples)]
    except Exception as error:
        raise CreditFailed(f"the credit function raised {type(error).__name__}: {error}") from error
    if len(shares) != len(samples) or not all(map(math.isfinite, shares)):
        raise CreditFailed(
            f"the credit function gave {len(shares)} rewards for {len(samples)} samples; it must give each a finite one"
        )
    return shares


def _turn_rewards(samples: Sequence[Sample], fidelity: Fidelity, given: Mapping[str, float]) -> dict[int, Floats]:
    """By sample: each turn's reward at the last token of it that a sample holds. A turn in no sample has none."""
    homes = {turn.turn_id: turn.samples for turn in fidelity.turns}
    rewards: dict[int, Floats] = {}
    for turn_id, reward in given.items():
        if turn_id not in homes:
            raise GraderError(f"a reward for turn {turn_id!r}, which there is not; turns are {', '.join(homes)}")
        for index in homes[turn_id][-1:]:
            sample = samples[index]
            dense = rewards.setdefault(index, np.zeros(len(sample.tokens), np.float32))
            dense[max(span.end for span in sample.turns if span.turn_id == turn_id) - 1] = reward
    return rewards


def _last(fidelity: Fidelity) -> int | None:
    """Index of the sample that accounts for the last draw any sample accounts for."""
    return next((turn.samples[-1] for turn in reversed(fidelity.turns) if turn.samples), None)
