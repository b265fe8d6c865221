"""Whose reward, whose advantage: from one reward a rollout to its samples, from a group's rewards to advantages.

Advantages belong to rollouts and are computed over a group before any rollout is cut into samples, so that cutting one
into more samples changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec

from bridle.errors import ConfigError
from bridle.samples.fidelity import Fidelity
from bridle.samples.sample import Sample

Rule = Literal["broadcast", "split", "final"] | Callable[[float, Sequence[Sample]], Sequence[float]]
"""broadcast: every sample has the rollout's reward. split: equal shares that add up to it. final: the sample with the
last draw has all of it, the others 0. A function: (reward, samples) -> one reward for each sample."""


class Graded(msgspec.Struct, frozen=True):
    """A rollout as its group sees it. `cause`: why it ended, None for a normal end."""

    reward: float | None
    reward_valid: bool
    cause: str | None = None


def credited(
    samples: Sequence[Sample],
    fidelity: Fidelity,
    grade: Graded,
    rule: Rule = "broadcast",
    advantage: float | None = None,
) -> list[Sample]:
    """The samples of one rollout with its grade. Without a reward all of them have None, and the cause says why."""
    shares = [None] * len(samples) if grade.reward is None else _shares(samples, fidelity, grade.reward, rule)
    return [
        msgspec.structs.replace(
            sample, reward=share, reward_valid=grade.reward_valid, cause=grade.cause, advantage=advantage
        )
        for sample, share in zip(samples, shares, strict=True)
    ]


def advantages(rollouts: Sequence[Graded], exclude_from_group: Collection[str] = ()) -> list[float | None]:
    """(reward - mean) / standard deviation (over n - 1) within the group's usable rollouts; None for the others.

    Usable: validly graded and not ended by an excluded cause. Fewer than two of them give no update: None for all.
    Equal rewards give 0.0."""
    rewards = [_usable_reward(rollout, exclude_from_group) for rollout in rollouts]
    usable = [reward for reward in rewards if reward is not None]
    if len(usable) < 2:
        return [None] * len(rollouts)
    # Not by the deviation: the mean of equal rewards can be a rounding error away from them.
    if min(usable) == max(usable):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(usable) / len(usable)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in usable) / (len(usable) - 1))
    return [None if reward is None else (reward - mean) / deviation for reward in rewards]


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
    shares = list(rule(reward, samples))
    if len(shares) != len(samples):
        raise ConfigError(
            f"the credit function gave {len(shares)} rewards for {len(samples)} samples; it must give one each"
        )
    return shares


def _last(fidelity: Fidelity) -> int | None:
    """Index of the sample that accounts for the last draw any sample accounts for."""
    return next((turn.samples[-1] for turn in reversed(fidelity.turns) if turn.samples), None)
