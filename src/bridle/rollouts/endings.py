"""How a rollout ends: the closed table of causes, and how agent and captured turns are judged. Nothing here runs.

What the agent caused (its time, its turns, its own crash) is graded as it stands; what was done to it has no grade.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bridle.errors import BridleError
from bridle.graders.base import Grade
from bridle.harnesses.base import Outcome
from bridle.samples.fidelity import Fidelity, TurnRecord
from bridle.sessions.records import Limit, Limits

Status = Literal["completed", "truncated", "aborted", "failed"]
"""completed: the agent ended by itself. truncated: a budget or a signal ended it. aborted: the rollout was stopped.
failed: something around the agent failed. Graded or not is another question: see `reward_valid`."""

CAUSES: dict[str, tuple[Status, bool]] = {
    "finished": ("completed", False),
    "agent_error": ("completed", False),
    "time_budget": ("truncated", False),
    "turn_limit": ("truncated", False),
    "token_limit": ("truncated", False),
    "context_limit": ("truncated", False),
    "killed": ("truncated", False),
    "never_started": ("failed", False),
    "never_called_model": ("failed", True),
    "engine": ("failed", True),
    "reducer_failed": ("failed", False),
    "credit_failed": ("failed", False),
    "wall_clock": ("aborted", True),
    "cancelled": ("aborted", True),
}
"""Cause → status, and whether another attempt may go better. Any other cause is the kind of the error that ended it:
failed, and the error says whether to try again."""

REFUSALS: dict[Limit, tuple[str, str]] = {
    "turns": ("turn_limit", "turns"),
    "sampled_tokens": ("token_limit", "sampled tokens"),
    "total_tokens": ("token_limit", "tokens of prompts and answers"),
    "wall_s": ("time_budget", "s for the session"),
    "context_tokens": ("context_limit", "tokens for one turn"),
}
"""Limit of a session → the cause of an end by it, and what is limited."""

OWNERS = {"provision": "sandbox", "run": "harness", "grade": "grader"}
"""Whose code runs in a stage: the cause of an error there that nobody raised on purpose. Elsewhere it is `internal`."""


class Ending(msgspec.Struct, frozen=True):
    status: Status
    cause: str
    detail: str = ""
    retryable: bool = False


def ending(cause: str, detail: str = "") -> Ending:
    status, retryable = CAUSES[cause]
    return Ending(status, cause, detail, retryable)


def failure(error: BaseException, stage: str) -> Ending:
    """What an error that escaped from `stage` makes of a rollout."""
    if not isinstance(error, BridleError):
        return Ending("failed", OWNERS.get(stage, BridleError.kind), f"{stage}: {type(error).__name__}: {error}")
    if error.kind in CAUSES:
        return ending(error.kind, f"{stage}: {error.message}")
    return Ending("failed", error.kind, f"{stage}: {error.message}", error.retryable)


def judged(outcome: Outcome, fidelity: Fidelity, limits: Limits, refused: Limit | None) -> Ending:
    """An agent is judged by its captured turns as well as by how its process ended: several exit with 0 on failure.

    `refused`: the limit that refused a call. One that ends by itself with its last allowed turn met none, nor does one
    that made its prompt shorter and went on."""
    how = f"exit code {outcome.exit_code}, signal {outcome.signal}"
    if outcome.finish == "never_started":
        return ending("never_started", outcome.detail)
    if not fidelity.turns:
        return ending("never_called_model", f"the agent ended ({outcome.finish}, {how}) without one model call")
    if unanswered := _unanswered(outcome, fidelity):
        return ending("engine", unanswered)
    if refused is not None:
        cause, what = REFUSALS[refused]
        limit = msgspec.structs.asdict(limits)[refused]
        return ending(cause, f"refused a model call at its limit of {limit} {what}")
    return ending(outcome.finish, "" if outcome.finish in ("finished", "time_budget") else how)


def verdict(judgement: Ending, grade: Grade | None) -> Ending:
    """A grader that could not grade ends the rollout; that says nothing of the agent."""
    if grade is None or grade.reward_valid:
        return judgement
    return Ending("failed", grade.cause, f"grade: {grade.detail}", retryable=True)


def final(now: Ending | None, new: Ending) -> Ending:
    """The transitions: after its verdict a rollout can still fail (to be built, to be written); a failure stays."""
    return new if now is None or now.status in ("completed", "truncated") else now


def _unanswered(outcome: Outcome, fidelity: Fidelity) -> str:
    """An agent that gave up on an engine without an answer was not the policy's doing. One that was stopped while it
    waited for its last answer did as it did."""
    calls = [turn for turn in fidelity.turns if turn.kind == "main"] or fidelity.turns
    if all(_failed(turn) for turn in calls):
        return f"none of {len(calls)} model calls was answered in full"
    if outcome.finish in ("finished", "agent_error") and _failed(calls[-1]):
        return f"the last of {len(calls)} model calls was not answered, then the agent ended ({outcome.finish})"
    return ""


def _failed(turn: TurnRecord) -> bool:
    """An agent that hangs up on an answer it is being given (Gemini CLI does on one that goes in circles) has judged
    it; one that hangs up on silence has waited in vain."""
    return turn.finish_reason == "abort" and (bool(turn.failed) or not turn.sampled)
