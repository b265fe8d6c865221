"""Graded by a command in the clean workspace: by its exit code, or by the number on its last line.

The agent's code runs inside that command, so a test process that the agent's code ends early with exit code 0 would
pass: name with `expect` what only a run to the end prints.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from bridle.errors import ConfigError, GraderError
from bridle.graders.base import Grade
from bridle.sandboxes.base import ExecResult, Sandbox
from bridle.tasks.base import Task

_DETAIL = 4000

# The same grade each time, whatever the order of a set.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}


class CommandConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`command`: a list is run as it is, a text by sh. `reward`: `exit` is 1.0 for exit code 0, else 0.0; `number` is
    the last line of stdout, for exit code 0. `expect`: text that must be in the output as well, or the reward is 0.0.
    `env` is added to the environment."""

    command: str | tuple[str, ...]
    reward: Literal["exit", "number"] = "exit"
    expect: str = ""
    env: dict[str, str] = {}


class CommandGrader:
    Config = CommandConfig

    def __init__(self, config: CommandConfig) -> None:
        self._config = config
        command = config.command
        self._argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not self._argv or not command:
            raise ConfigError("the command grader has no command; expected a list of words or a line for sh")

    async def grade(self, sandbox: Sandbox, task: Task) -> Grade:
        await self._check_there(sandbox)
        result = await sandbox.exec(
            self._argv,
            cwd=sandbox.workspace,
            env={**_ENVIRONMENT, **self._config.env},
            timeout_s=task.budgets.grade_s,
        )
        return self._judged(result)

    async def _check_there(self, sandbox: Sandbox) -> None:
        """Asked before, because exit code 127 afterwards may be the agent's code's own."""
        found = await sandbox.exec(["/bin/sh", "-c", 'command -v -- "$1"', "sh", self._argv[0]], cwd=sandbox.workspace)
        if not found.ok:
            raise GraderError(
                f'the grading command "{self._argv[0]}" is not in the sandbox; install it there by a setup command '
                "or correct the grader's options"
            )

    def _judged(self, result: ExecResult) -> Grade:
        output = result.stdout + result.stderr
        detail = output[-_DETAIL:].decode("utf-8", "replace")
        if result.timed_out:
            return Grade(reward=0.0, cause="grade_timeout", detail=detail)
        if result.signal is not None:
            return Grade(reward=0.0, cause="killed", detail=f"signal {result.signal}\n{detail}")
        if isinstance(self._config.command, str) and result.exit_code in (126, 127):
            raise GraderError(
                f"sh found no command in {self._config.command!r} (exit code {result.exit_code}): {detail}"
            )
        if result.exit_code != 0:
            return Grade(reward=0.0, cause="failed", detail=f"exit code {result.exit_code}\n{detail}")
        if self._config.expect.encode() not in output:
            return Grade(
                reward=0.0, cause="not_as_expected", detail=f"no {self._config.expect!r} in the output\n{detail}"
            )
        reward = 1.0 if self._config.reward == "exit" else _number(result.stdout)
        return Grade(reward=reward, cause="passed" if self._config.reward == "exit" else "scored", detail=detail)


def _number(stdout: bytes) -> float:
    lines = stdout.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines else ""
    try:
        number = float(last)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise GraderError(f"the grading command's last line should be a finite number, it is {last!r}")
    return number
