"""Causes, and how an agent is judged by its turns and by how its process ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from bridle.errors import EngineError, HarnessError, SandboxError, WallClock
from bridle.graders.base import Grade
from bridle.harnesses.base import Outcome
from bridle.rollouts.endings import CAUSES, REFUSALS, Ending, ending, failure, final, judged, verdict
from bridle.samples.fidelity import Fidelity, Totals, TurnRecord
from bridle.sessions.records import Limit, Limits

PAGE = Path(__file__).parents[2] / "docs/rollouts.md"
FINISHED = Outcome("finished", exit_code=0)
CRASHED = Outcome("agent_error", exit_code=1)
LATE = Outcome("time_budget")
LIMITS = Limits(turns=4, sampled_tokens=10, total_tokens=90, wall_s=2.5, context_tokens=60)
REFUSED = "refused a model call at its limit of"


def fidelity(*finishes: str, kinds: tuple[str, ...] = ()) -> Fidelity:
    turns = [turn(finish, kind) for finish, kind in zip(finishes, kinds or ("main",) * len(finishes), strict=True)]
    sampled = sum(each.sampled for each in turns)
    counts: dict[str, Any] = {"untrained": {}, "echoes": {}, "kinds": {}, "samples": 1, "forced": 0, "forks": 0}
    return Fidelity(tuple(turns), Totals(turns=len(turns), sampled=sampled, trained=sampled, **counts))


def turn(finish: Any, kind: Any) -> TurnRecord:
    """`finish` "left": the client did, in the middle. "broke": the engine did."""
    sampled, failed = 0 if finish == "abort" else 5, "gone" if finish == "broke" else ""
    finish = "abort" if finish in ("left", "broke") else finish
    fields: dict[str, Any] = dict.fromkeys(("echoes", "forks", "notes", "samples"), ())
    fields |= {
        "prompt_tokens": 1,
        "held_tokens": 0,
        "new_tokens": 1,
        "reason": None,
        "untrained": {},
        "rule": "default",
    }
    fields |= {"kind": kind, "finish_reason": finish, "sampled": sampled, "trained": sampled, "failed": failed}
    return TurnRecord(turn_id="t", **fields)


@pytest.mark.parametrize(
    ("outcome", "turns", "cause"),
    [
        (FINISHED, ["stop"], "finished"),
        (CRASHED, ["stop"], "agent_error"),
        (LATE, ["stop", "stop"], "time_budget"),
        (Outcome("killed", signal=9), ["stop"], "killed"),
        (FINISHED, [], "never_called_model"),
        (CRASHED, [], "never_called_model"),
        (LATE, [], "never_called_model"),
        (Outcome("never_started", detail="no program"), [], "never_started"),
        (CRASHED, ["abort", "abort"], "engine"),
        (LATE, ["abort"], "engine"),
        (CRASHED, ["stop", "abort"], "engine"),
        (FINISHED, ["stop", "abort"], "engine"),
        (FINISHED, ["stop", "broke"], "engine"),
        (FINISHED, ["stop", "left"], "finished"),
        (CRASHED, ["left"], "agent_error"),
        (CRASHED, ["abort", "stop"], "agent_error"),
        (LATE, ["stop", "abort"], "time_budget"),
        (Outcome("killed", signal=9), ["stop", "abort"], "killed"),
        (FINISHED, ["stop"] * 4, "finished"),
    ],
)
def test_an_agent_is_judged_by_its_turns_and_its_process(outcome: Outcome, turns: list[str], cause: str) -> None:
    assert judged(outcome, fidelity(*turns), LIMITS, None).cause == cause


@pytest.mark.parametrize("outcome", [FINISHED, CRASHED, LATE])
@pytest.mark.parametrize(
    ("limit", "cause", "what"),
    [
        ("turns", "turn_limit", "4 turns"),
        ("sampled_tokens", "token_limit", "10 sampled tokens"),
        ("total_tokens", "token_limit", "90 tokens of prompts and answers"),
        ("wall_s", "time_budget", "2.5 s for the session"),
        ("context_tokens", "context_limit", "60 tokens for one turn"),
    ],
)
def test_a_limit_that_refused_a_call_is_the_end_the_agent_caused(
    outcome: Outcome, limit: Limit, cause: str, what: str
) -> None:
    judgement = judged(outcome, fidelity("stop"), LIMITS, limit)
    assert judgement == ending(cause, f"{REFUSED} {what}")
    assert judgement.status == "truncated"


def test_every_limit_has_an_end() -> None:
    assert set(REFUSALS) == set(get_args(Limit)) == set(Limits.__struct_fields__)


def test_a_limit_says_nothing_of_an_engine_that_answered_nothing() -> None:
    assert judged(CRASHED, fidelity("abort"), LIMITS, "turns").cause == "engine"


def test_a_cut_side_call_is_no_failure_of_the_engine() -> None:
    cut = fidelity("stop", "abort", kinds=("main", "auxiliary"))
    assert judged(FINISHED, cut, Limits(), None).cause == "finished"


def test_errors_keep_their_kind_and_say_whether_to_try_again() -> None:
    assert failure(SandboxError("x"), "prepare") == Ending("failed", "sandbox", "prepare: x", retryable=True)
    assert failure(HarnessError("x"), "run").cause == "harness"
    assert failure(EngineError("x"), "open") == Ending("failed", "engine", "open: x", retryable=True)
    assert failure(WallClock("x"), "run") == Ending("aborted", "wall_clock", "run: x", retryable=True)


def test_a_defect_is_laid_at_the_door_of_whose_code_ran() -> None:
    assert failure(KeyError("x"), "grade").cause == "grader"
    assert failure(KeyError("x"), "build") == Ending("failed", "internal", "build: KeyError: 'x'")


def test_no_grade_ends_a_rollout_and_a_zero_does_not() -> None:
    assert verdict(ending("finished"), Grade(reward=0.0, cause="failed")) == ending("finished")
    assert verdict(ending("finished"), Grade(reward=None, cause="grader", detail="x")).cause == "grader"


def test_the_first_failure_stays() -> None:
    first, second = failure(SandboxError("x"), "prepare"), failure(OSError("full"), "deliver")
    assert final(first, second) == first
    assert final(ending("finished"), second) == second
    assert final(None, second) == second


def test_the_page_has_the_table_of_causes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (yes|no) \| (yes|no) \|", PAGE.read_text(), re.MULTILINE)
    assert {cause: (status, retry == "yes") for cause, status, _, retry in rows} == CAUSES
    behind_the_grade = {"reducer_failed", "credit_failed"}
    assert all(
        (graded == "yes") == (status in ("completed", "truncated") or cause in behind_the_grade)
        for cause, status, graded, _ in rows
    )
