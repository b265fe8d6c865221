from __future__ import annotations

import pytest

from bridle.tasks.base import Budgets, Spec, Task, Workspace


def task(**changes: object) -> Task:
    fields = {"id": "a", "instruction": "do", "workspace": Workspace("/x"), "grader": Spec("command")}
    return Task(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a/b", "", ".hidden", "-x", "a b", "x" * 129, "a\n"])
def test_an_id_is_fit_for_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="id: expected letters"):
        task(id=name)
    assert task(id="django__django-1.2").id


def test_an_instruction_says_something() -> None:
    with pytest.raises(ValueError, match="instruction"):
        task(instruction=" \n")


def test_a_follow_up_says_something() -> None:
    assert task(follow_ups=("more",)).follow_ups == ("more",)
    with pytest.raises(ValueError, match="follow_ups: expected what the agent shall do next"):
        task(follow_ups=("more", " \n"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 604800])
def test_a_budget_is_a_time_that_ends(seconds: float) -> None:
    with pytest.raises(ValueError, match="grade_s: expected seconds"):
        Budgets(grade_s=seconds)
