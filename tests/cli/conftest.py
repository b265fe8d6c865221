"""One finished run of two tasks, made by the command as people type it, for all tests that look at what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridle.testing import agent
from bridle.testing.world import FIX, make_repository, turns

AGENT = str(Path(agent.__file__))
BRIDLE = (str(Path(sys.executable).with_name("bridle")),)
Bridle = Callable[..., "subprocess.CompletedProcess[str]"]


ENGINES = """
import asyncio, pathlib, msgspec

class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wait: float

class Plain:
    async def __aenter__(self): raise AssertionError("not to be entered")
    async def __aexit__(self, *error): ...

class Slow(Plain):
    Config = Config
    def __init__(self, config): self.config = config
    async def __aenter__(self):
        pathlib.Path("entered").write_text(str(self.config))
        await asyncio.sleep(self.config.wait)
"""


class Place:
    """A folder with a task file and engines of its own (own.py), and the flags of a run there."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}
        (folder / "own.py").write_text(ENGINES)
        make_repository(folder / "repository")
        self.write("fix", FIX)
        self.write("spoil", "echo x >> calc.py")
        self.flags = ["--harness", "command", "--set", f"harness.options.mounts=[{AGENT}]", *self.settings(cache)]
        self.flags += ["--set", f"harness.options.argv=[python3, {AGENT}]"]

    def settings(self, cache: Path) -> list[str]:
        return ["--set", f"cache={cache}", "--set", f"data={self.folder / 'data'}"]

    def write(self, name: str, *commands: str, **changes: Any) -> None:
        script = {"threads": [{"turns": turns(*commands)}], "expect": {"samples": 1, "reasons": ["forced"]}}
        (self.folder / f"{name}.yaml").write_text(json.dumps(script))
        grader = {"command": ["python3", "tests/check.py"], "env": {"PYTHONPATH": "."}, "expect": "passed"}
        task = {
            "id": name,
            "instruction": f"Task {name}: subtract(7, 3) should be 4.",
            "workspace": {"path": "repository"},
            "grader": {"name": "command", "options": grader},
            "budgets": {"agent_s": 30, "grade_s": 20},
            "script": f"{name}.yaml",
            **changes,
        }
        (self.folder / f"{name}.jsonl").write_text(json.dumps(task) + "\n")

    def run(self, *words: str) -> list[str]:
        return ["run", *words, *self.flags]


def call(words: Sequence[str], place: Place) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BRIDLE, *words],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Place:
    return Place(tmp_path_factory.mktemp("cli"), cache)


@pytest.fixture(scope="session")
def bridle(place: Place) -> Bridle:
    return lambda *words: call(words, place)


@pytest.fixture(scope="session")
def finished(place: Place, bridle: Bridle) -> subprocess.CompletedProcess[str]:
    return bridle(*place.run("fix.jsonl", "spoil.jsonl", "-n", "2", "--json", "--out", "done"))
