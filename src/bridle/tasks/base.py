"""What a task is: an instruction, the tree it starts from, how it is graded, and how long each stage may take.

Values only. Paths are absolute once a task is loaded; names in specs are resolved where config composes.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

PROTECTED = (
    "tests",
    "test_*.py",
    "*_test.py",
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "sitecustomize.py",
    "usercustomize.py",
    "__pycache__",
    "*.pyc",
    "*.pth",
)
"""Tests, test configuration, and files an interpreter runs unasked. `__pycache__` because an unchecked .pyc there runs
in place of the restored test beside it."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice by name ("command", or "my.module:Class") and its options, checked by what the name stands for."""

    name: str
    options: dict[str, Any] = {}


class Workspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path`: a folder, copied. `history` is the git history the agent finds: `fresh` is one commit of the whole tree
    (later commits of the source would hold the answer), `kept` is the folder's own .git, `none` is no repository."""

    path: str
    history: Literal["fresh", "kept", "none"] = "fresh"


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds per stage, and for the whole rollout (None: those of all its stages and a margin)."""

    prepare_s: float = 300.0
    agent_s: float = 1800.0
    collect_s: float = 120.0
    grade_s: float = 600.0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name, seconds in msgspec.structs.asdict(self).items():
            if seconds is not None and not 0 < seconds < 7 * 86400:
                raise ValueError(f"{name}: expected seconds above 0 and below a week, got {seconds}")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`setup` commands run by sh in the workspace at prepare time, before the patch's base is taken, in the agent's
    sandbox and again in the grading one. `follow_ups`: prompts given to the same conversation, each once the agent has
    ended its answer to the one before. `protected` globs name what is graded as it was at the start, whatever the
    agent did to it. `script` is a scripted engine's file for this task."""

    id: str
    instruction: str
    workspace: Workspace
    grader: Spec
    follow_ups: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    harness: Spec | None = None
    sandbox: Spec | None = None
    protected: tuple[str, ...] = PROTECTED
    budgets: Budgets = Budgets()
    script: str | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"id: expected letters, digits, '.', '_' and '-', at most 128 of them, got {self.id!r}")
        if not self.instruction.strip():
            raise ValueError("instruction: expected what the agent shall do, got an empty text")
        if not all(prompt.strip() for prompt in self.follow_ups):
            raise ValueError("follow_ups: expected what the agent shall do next, got an empty text among them")
