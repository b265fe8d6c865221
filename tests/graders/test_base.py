"""The whole of grading, on the tasks of the example."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from bridle.graders.base import Grade, grade_patch
from bridle.graders.command import CommandConfig, CommandGrader
from bridle.graders.patch import Patch
from bridle.graders.workspace import prepare
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import Task
from bridle.tasks.jsonl import load

TASKS = {task.id: task for task in load(Path(__file__).parents[2] / "examples" / "calculator")}


def grader(task: Task) -> CommandGrader:
    return CommandGrader(msgspec.convert(task.grader.options, CommandConfig))


def commands(task: Task) -> str:
    """What the task's script has an agent run."""
    assert task.script is not None
    turns = yaml.safe_load(Path(task.script).read_text())["threads"][0]["turns"]
    return "\n".join(call["shell"] for turn in turns for call in turn.get("calls", ()))


async def attempted(sandbox: Sandbox, task: Task, script: str) -> Patch:
    base = await prepare(sandbox, task)
    await sandbox.exec(["/bin/sh", "-c", script])
    return await base.collect()


async def graded(new_sandbox, task: Task, script: str) -> Grade:
    patch = await attempted(await new_sandbox(), task, script)
    return await grade_patch(grader(task), await new_sandbox(), task, patch)


@pytest.mark.parametrize("name", TASKS)
async def test_every_task_of_the_example_fails_before_and_passes_after_its_fix(name, new_sandbox) -> None:
    task = TASKS[name]
    before = await grade_patch(grader(task), await new_sandbox(), task, Patch("", b""))
    assert (before.reward, before.cause) == (0.0, "failed"), before.detail
    after = await graded(new_sandbox, task, commands(task))
    assert (after.reward, after.cause) == (1.0, "passed"), after.detail
    assert after.applied is not None
    assert after.applied.cleanly
    assert len(after.applied.changed) == 1
    assert not after.applied.left_out
    assert after.seconds > 0


async def test_the_graded_bugs_are_the_tasks_own(new_sandbox) -> None:
    task = TASKS["subtract"]
    clean = await new_sandbox()
    assert (await grade_patch(grader(task), clean, task, Patch("", b""))).reward == 0.0
    for other in TASKS.values():
        grade = await grader(other).grade(clean, other)
        assert grade.detail.count("FAIL:") + grade.detail.count("ERROR:") in (1, 2), grade.detail


CHEATS = {
    "tests that always pass": "sed -i 's/self.assert.*/pass/' tests/test_operations.py",
    "no tests": "rm -r tests",
    "a unittest of its own": """
        mkdir unittest; echo 'raise SystemExit(0)' | tee unittest.py unittest/__init__.py unittest/__main__.py
    """,
    "an exit at import": "printf 'import os\\nos._exit(0)\\n' >calculator/__init__.py",
    "a site hook": "printf 'import os\\nos._exit(0)\\n' | tee sitecustomize.py >usercustomize.py",
    "a path file": """
        site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p "$site"
        echo 'import os; os._exit(0)' | tee x.pth >"$site/x.pth"
    """,
    "a program on the path": """
        mkdir -p ~/bin ~/.local/bin; printf '#!/bin/sh\\nexit 0\\n' >python3; chmod +x python3
        cp python3 ~/bin; cp python3 ~/.local/bin
    """,
    "compiled tests": """
        cp tests/test_operations.py kept; sed -i 's/self.assert.*/pass/' tests/test_operations.py
        python3 -m compileall -q --invalidation-mode unchecked-hash tests; mv kept tests/test_operations.py
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
async def test_cheats_do_not_pass(name, new_sandbox) -> None:
    task = msgspec.structs.replace(TASKS["subtract"], setup=("rm .gitignore",))  # it would keep compiled files out
    grade = await graded(new_sandbox, task, CHEATS[name])
    assert grade.reward == 0.0, grade.detail
    assert grade.cause in ("failed", "not_as_expected")


async def test_what_the_agent_left_outside_its_workspace_is_not_in_the_graders_sandbox(new_sandbox) -> None:
    script = "touch ~/left /tmp/left build.pyc; (setsid sleep 60 &)"
    task = TASKS["subtract"]
    patch = await attempted(await new_sandbox(), task, script)
    look = CommandGrader(CommandConfig(command="! ls -d ~/left build.pyc && ! ps ax | grep '[s]leep 60'"))
    assert (await grade_patch(look, await new_sandbox(), task, patch)).reward == 1.0


async def test_a_refused_patch_is_a_zero_and_a_failure_of_ours_is_no_grade(new_sandbox) -> None:
    task = TASKS["subtract"]
    base = await prepare(await new_sandbox(), task)
    refused = await grade_patch(grader(task), await new_sandbox(), task, Patch(base.tree, b"no patch at all\n"))
    assert (refused.reward, refused.cause) == (0.0, "patch_refused")
    broken = msgspec.structs.replace(task, setup=("exit 1",))
    grade = await grade_patch(grader(task), await new_sandbox(), broken, Patch("", b""))
    assert (grade.reward, grade.reward_valid, grade.cause) == (None, False, "sandbox")
    nowhere = CommandGrader(CommandConfig(command=("no-such-program",)))
    grade = await grade_patch(nowhere, await new_sandbox(), task, Patch("", b""))
    assert (grade.reward, grade.cause) == (None, "grader")
