from __future__ import annotations

import msgspec
import pytest

from bridle.errors import ConfigError, GraderError
from bridle.graders.base import Grade
from bridle.graders.command import CommandConfig, CommandGrader


async def graded(sandbox, make_task, command, grade_s: float = 30.0, **options) -> Grade:
    task = make_task()
    task = msgspec.structs.replace(task, budgets=msgspec.structs.replace(task.budgets, grade_s=grade_s))
    return await CommandGrader(CommandConfig(command=command, **options)).grade(sandbox, task)


async def test_the_exit_code_is_the_reward(new_sandbox, make_task) -> None:
    sandbox = await new_sandbox()
    passed = await graded(sandbox, make_task, ("true",))
    failed = await graded(sandbox, make_task, "echo why >&2; exit 3")
    assert (passed.reward, passed.cause, passed.reward_valid) == (1.0, "passed", True)
    assert (failed.reward, failed.cause, failed.reward_valid) == (0.0, "failed", True)
    assert failed.detail == "exit code 3\nwhy\n"


async def test_the_last_line_is_the_reward_when_a_number_is_asked_for(new_sandbox, make_task) -> None:
    sandbox = await new_sandbox()
    grade = await graded(sandbox, make_task, "echo 1; echo; echo ' 0.25 '; echo", reward="number")
    assert (grade.reward, grade.cause) == (0.25, "scored")
    assert (await graded(sandbox, make_task, "echo 1; false", reward="number")).reward == 0.0
    for printed in ("nan", "inf", "two", ""):
        with pytest.raises(GraderError, match="finite number"):
            await graded(sandbox, make_task, f"echo {printed}", reward="number")


async def test_an_early_exit_with_0_is_no_pass_where_output_is_expected(new_sandbox, make_task) -> None:
    sandbox = await new_sandbox()
    assert (await graded(sandbox, make_task, "echo Ran 3 tests >&2", expect="Ran 3 tests")).reward == 1.0
    early = await graded(sandbox, make_task, "true", expect="Ran 3 tests")
    assert (early.reward, early.cause) == (0.0, "not_as_expected")


async def test_a_timeout_and_a_kill_are_grades_of_the_agents_code(new_sandbox, make_task) -> None:
    sandbox = await new_sandbox()
    late = await graded(sandbox, make_task, ("sleep", "30"), grade_s=0.3)
    assert (late.reward, late.cause, late.reward_valid) == (0.0, "grade_timeout", True)
    killed = await graded(sandbox, make_task, "kill -9 $$")
    assert (killed.reward, killed.cause) == (0.0, "killed")
    assert killed.detail.startswith("signal 9")


async def test_a_command_that_is_not_there_is_no_grade(new_sandbox, make_task) -> None:
    sandbox = await new_sandbox()
    with pytest.raises(GraderError, match='"no-such-program" is not in the sandbox'):
        await graded(sandbox, make_task, ("no-such-program",))
    with pytest.raises(GraderError, match="sh found no command"):
        await graded(sandbox, make_task, "no-such-program")


async def test_exit_code_127_of_the_agents_code_is_a_zero(new_sandbox, make_task) -> None:
    grade = await graded(await new_sandbox(), make_task, ("python3", "-c", "raise SystemExit(127)"))
    assert (grade.reward, grade.cause) == (0.0, "failed")


def test_an_empty_command_is_refused() -> None:
    for command in ("", ()):
        with pytest.raises(ConfigError, match="no command"):
            CommandGrader(CommandConfig(command=command))


def test_a_reward_is_finite() -> None:
    with pytest.raises(GraderError):
        Grade(reward=float("nan"), cause="passed")
    assert not Grade(reward=None, cause="grader").reward_valid
