from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from bridle.errors import SandboxError
from bridle.graders.workspace import prepare
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import Workspace


async def output(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(["/bin/sh", "-c", command])
    return (result.stdout + result.stderr).decode().strip()


async def git(source: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    process = await asyncio.create_subprocess_exec("git", "-C", str(source), *identity, *arguments)
    assert await process.wait() == 0


async def test_the_agent_finds_one_commit_that_is_the_same_in_every_sandbox(new_sandbox, make_task) -> None:
    one, two = await new_sandbox(), await new_sandbox()
    for sandbox in (one, two):
        await prepare(sandbox, make_task(setup=("echo made >made.txt",)))
    assert await output(one, "git rev-parse HEAD") == await output(two, "git rev-parse HEAD")
    assert await output(one, "git log --oneline | wc -l") == "1"
    assert await output(one, "git status --short") == ""
    assert await output(one, "cat made.txt") == "made"
    assert await output(one, "echo x >>code.py && git commit -qam mine && git log -1 --format=%an") == "agent"
    assert await output(one, "ls -A ~") == ""


async def test_later_commits_of_the_source_are_not_there_to_be_read(new_sandbox, make_task, source) -> None:
    sandbox = await new_sandbox()
    await git(source, "init", "-q")
    await git(source, "add", "-A")
    await git(source, "commit", "-qm", "the answer")
    await prepare(sandbox, make_task())
    assert await output(sandbox, "git log --all --format=%s") == "Initial state"


@pytest.mark.parametrize(("history", "log"), [("kept", "theirs"), ("none", "")])
async def test_history_is_kept_or_left_away_when_asked(history, log, new_sandbox, make_task, source) -> None:
    sandbox = await new_sandbox()
    await git(source, "init", "-q")
    await git(source, "add", "-A")
    await git(source, "commit", "-qm", "theirs")
    await prepare(sandbox, make_task(workspace=Workspace(str(source), history)))
    assert await output(sandbox, "test ! -d .git || git log --format=%s") == log


async def test_a_setup_command_that_fails_is_named(new_sandbox, make_task) -> None:
    with pytest.raises(SandboxError, match=r"task t: setup command 'echo no; exit 3' ended with 3 .*: no"):
        await prepare(await new_sandbox(), make_task(setup=("true", "echo no; exit 3")))


async def test_a_setup_command_has_the_stage_s_time(new_sandbox, make_task) -> None:
    task = make_task(setup=("sleep 30",))
    task = msgspec.structs.replace(task, budgets=msgspec.structs.replace(task.budgets, prepare_s=0.3))
    with pytest.raises(SandboxError, match="ran out of time"):
        await prepare(await new_sandbox(), task)
