"""What is known of a rollout when it has ended: facts for people and trainers, nothing that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bridle.rollouts.endings import Status

STAGES = ("provision", "prepare", "open", "run", "collect", "grade", "build", "deliver")


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` says why it ended as it did, a word of `endings.CAUSES` or the kind of the error that ended it; `detail`
    is for people. `grade_cause` says how the reward came to be. `stages`: seconds per stage reached, in order."""

    id: str
    task: str
    group: str
    harness: str
    harness_version: str
    status: Status
    cause: str
    detail: str = ""
    retryable: bool = False
    reward: float | None = None
    reward_valid: bool = False
    grade_cause: str = ""
    turns: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    untrained: dict[str, int] = {}
    samples: int = 0
    stages: dict[str, float] = {}
    directory: str = ""

    @property
    def kept_tokens(self) -> int:
        """Trained, or put in place by a script that stands in for a model."""
        return self.trained_tokens + self.untrained.get("forced", 0)

    @property
    def graded(self) -> bool:
        return self.reward_valid

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        fields["stages"] = {name: round(seconds, 3) for name, seconds in self.stages.items()}
        return fields


def totals(rollouts: Sequence[RolloutRecord]) -> dict[str, Any]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    untrained: dict[str, int] = {}
    for rollout in rollouts:
        for reason, tokens in rollout.untrained.items():
            untrained[reason] = untrained.get(reason, 0) + tokens
    return {
        "rollouts": len(rollouts),
        "graded": len(rewards),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "turns": sum(rollout.turns for rollout in rollouts),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "trained_tokens": sum(rollout.trained_tokens for rollout in rollouts),
        "untrained": untrained,
        "samples": sum(rollout.samples for rollout in rollouts),
    }
