"""How a task's starting tree comes into a sandbox: the same steps in the agent's and in the grading one."""

from __future__ import annotations

from pathlib import Path

from bridle.errors import SandboxError
from bridle.graders.patch import Base
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import Task

# Name, mail and date are constant, so that the commit's id, which an agent may print, is the same for a whole group.
# What the source's own repository tracked stays tracked, ignored or not.
_DROP_HISTORY = r"""
if [ -d .git ]; then git -c safe.directory='*' ls-files -z >"$HOME/.tracked"; fi
rm -rf .git
"""
_FRESH_HISTORY = r"""
set -e
git init -q -b main
git config user.name agent
git config user.email agent@localhost
git add -A
if [ -s "$HOME/.tracked" ]; then
    git --literal-pathspecs add -f --pathspec-from-file="$HOME/.tracked" --pathspec-file-nul
fi
rm -f "$HOME/.tracked"
git commit -q --allow-empty -m "Initial state"
"""
_GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}


async def prepare(sandbox: Sandbox, task: Task) -> Base:
    """Copies the tree, runs the task's setup commands, makes the history the agent finds, and records the base.

    Raises SandboxError, naming the command, when one of them fails.
    """
    source = Path(task.workspace.path)
    await sandbox.upload(source, sandbox.workspace)
    if task.workspace.history != "kept" and (source / ".git").exists():
        await _run(sandbox, task, "removing the source's history", _DROP_HISTORY)
    for command in task.setup:
        await _run(sandbox, task, f"setup command {command!r}", command)
    if task.workspace.history == "fresh":
        await _run(sandbox, task, "making the first commit", _FRESH_HISTORY)
    return await Base.record(sandbox)


async def _run(sandbox: Sandbox, task: Task, what: str, script: str) -> None:
    result = await sandbox.exec(
        ["/bin/sh", "-c", script], cwd=sandbox.workspace, env=_GIT_ENV, timeout_s=task.budgets.prepare_s
    )
    if result.ok:
        return
    ended = "ran out of time" if result.timed_out else f"ended with {result.exit_code} (signal {result.signal})"
    output = (result.stdout + result.stderr)[-2000:].decode("utf-8", "replace").strip()
    raise SandboxError(f"task {task.id}: {what} {ended}: {output or 'no output'}")
