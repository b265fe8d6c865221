"""The runner over a small agent of our own: what `bridle doctor --agents` does with real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridle.testing import agent
from bridle.testing.world import FIX, make_repository

pytestmark = pytest.mark.slow

AGENT = str(Path(agent.__file__))
BRIDLE = str(Path(sys.executable).with_name("bridle"))
GONE = "/nowhere/agent.py"
TURNS = [
    {"text": "Next. " * 40, "delay_s": 0.05, "calls": [{"shell": FIX}]},
    {"text": "Done. " * 40, "delay_s": 0.05},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenarios of its own: two agents that are one program, one that is not there, one that asks no model."""
    place = tmp_path_factory.mktemp("live")
    make_repository(place / "repository")
    (place / "fix.json").write_text(json.dumps({"threads": [{"turns": TURNS}], "resegment": 0.3}))
    grader = {"command": ["python3", "tests/check.py"], "env": {"PYTHONPATH": "."}, "expect": "passed"}
    task = {
        "id": "linear",
        "instruction": "subtract(7, 3) should be 4.",
        "workspace": {"path": "repository"},
        "grader": {"name": "command", "options": grader},
        "budgets": {"agent_s": 30, "grade_s": 20},
        "script": "fix.json",
    }
    (place / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    table: dict[str, Any] = {
        "agents": {
            "small": _player(["python3", AGENT], AGENT),
            "absent": _player(["python3", GONE], GONE),
            "silent": _player(["true"], AGENT),
        },
        "scenarios": {"linear": {"what": "a fix", "agents": {"small": {}, "absent": {}, "silent": {}}}},
        "faults": {
            "500": {"what": "an error", "fault": {"kind": "status", "call": 9}},
            "stall": {"what": "silence", "fault": {"kind": "stall", "call": 1, "seconds": 0.5}},
        },
    }
    (place / "scenarios.yaml").write_text(json.dumps(table))
    return place


def _player(argv: list[str], mount: str) -> dict[str, Any]:
    return {"harness": "command", "options": {"argv": argv, "mounts": [mount]}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def doctor(folder: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        out = tmp_path_factory.mktemp("out") / "agents"
        command = [BRIDLE, "doctor", "--agents", *words, "--live", str(folder), "--out", str(out), "--json"]
        done = subprocess.run([*command, "--set", f"cache={cache}"], capture_output=True, text=True, timeout=100)
        assert done.stdout, done.stderr
        assert json.loads(out.with_suffix(".json").read_text()) == json.loads(done.stdout)
        return done.returncode, json.loads(done.stdout), done.stderr

    return run


def test_a_play_is_a_rollout_through_the_proxy_with_the_checkers_word_on_it(doctor: Any) -> None:
    code, document, lines = doctor("small", "--fault", "stall")
    plain, under = document["results"]
    assert (code, plain["wrong"], under["wrong"]) == (0, [], [])
    assert (plain["fault_came"], under["fault_came"]) == (None, True)
    assert (plain["model_calls"], plain["turns"], plain["kept"], plain["reward"]) == (2, 2, plain["sampled"], 1.0)
    assert document["verdict"] == "agents: 1 live, 2 scenarios, kept 100.0 % of main tokens, 0 doubled, 0 lost"
    assert "small linear under stall: ok" in lines
    left = Path(under["directory"]).parents[1]
    assert json.loads((left / "script.json").read_text())["expect"]["reasons"] == ["kind", "undelivered"]
    assert subprocess.run([BRIDLE, "check", str(left)], capture_output=True, check=False).returncode == 0


def test_an_agent_that_cannot_be_installed_is_named_and_the_others_play(doctor: Any) -> None:
    code, document, lines = doctor("absent", "small")
    assert code == 0
    assert [missing["agent"] for missing in document["missing"]] == ["absent"]
    assert GONE in document["missing"][0]["why"]
    assert [result["agent"] for result in document["results"]] == ["small"]
    assert "absent: cannot be installed here" in lines


def test_what_falls_short_is_said_with_the_reason_and_an_exit_code(doctor: Any) -> None:
    code, document, _ = doctor("silent")
    (result,) = document["results"]
    assert code == 1
    assert document["verdict"].endswith("; fell short: silent linear")
    assert "the checker found nothing sampled" in result["wrong"]


def test_a_fault_that_never_comes_is_no_success(doctor: Any) -> None:
    code, document, _ = doctor("small", "--fault", "500")
    plain, under = document["results"]
    assert (code, plain["wrong"]) == (1, [])
    assert under["wrong"] == ["the fault did not come: the agent made 2 model calls"]
