"""Real agents in situations of their own: an engine that fails, an end in mid-answer, arguments sent back otherwise.

What every agent plays, and faults on the wire: test_doctor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.agents, pytest.mark.slow]

BRIDLE = Path(sys.executable).parent / "bridle"
REPOSITORY = Path(__file__).parents[2] / "examples/calculator/repo"
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FIX = "sed -i '/def subtract/,/return/ s/left + right/left - right/' calculator/operations.py"
DONE = {
    "alternatives": [{"when": {"prompt_contains": SUBMIT}, "calls": [{"shell": f"echo {SUBMIT}"}]}, {"text": "Done."}]
}

TURNS: dict[str, list[dict[str, Any]]] = {
    "retried": [
        {"calls": [{"shell": "ls"}]},
        {"calls": [{"shell": FIX}], "error": "the engine restarts", "error_times": 4},
        DONE,
    ],
    "killed": [
        {"calls": [{"shell": FIX}]},
        {"text": "word " * 2000, "delay_s": 0.5},
    ],
}
CLAUDE_TURNS: dict[str, list[dict[str, Any]]] = {
    "rewritten": [
        {"calls": [{"tool": "Read", "arguments_text": '{ "file_path":  "/workspace/calculator/operations.py" }'}]},
        {
            "text": "Keys in an order no serializer would choose, and one that is no boolean.",
            "calls": [
                {
                    "tool": "Edit",
                    "arguments_text": '{"new_string": "return left - right",  "old_string": "return left + right", '
                    '"replace_all": "true", "file_path": "/workspace/calculator/operations.py"}',
                }
            ],
        },
        {
            "calls": [
                {"tool": "Bash", "arguments_text": '{"timeout": "5000", "command": "ls", "description": "\\u0069"}'}
            ]
        },
        {"calls": [{"tool": "Bash", "arguments": {"command": "cd /workspace && ls", "description": "list"}}]},
        {"calls": [{"tool": "Write", "arguments": {"file_path": "/workspace/notes.txt", "content": "a  \nb\t\n"}}]},
        {"calls": [{"shell": f"git checkout calculator && {FIX}"}]},
        {"calls": [{"tool": "NoSuchTool", "arguments": {"a": "b"}}]},
        DONE,
    ],
}
REWRITTEN = {"keys": 1, "number": 2, "cd": 3, "trailing spaces": 4}
"""Turns of that scenario whose arguments Claude Code sends back otherwise, by what it rewrites."""


class Ran:
    """One `bridle run` over all scenarios of an agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.document = json.loads((directory / "run.json").read_text())
        self.rollouts = {rollout["task"]: rollout for rollout in self.document["rollouts"]}

    def fidelity(self, scenario: str) -> dict[str, Any]:
        return json.loads((self.directory / "rollouts" / f"{scenario}-0" / "fidelity.json").read_text())

    def echoes(self, scenario: str) -> Counter[str]:
        return Counter(self.fidelity(scenario)["totals"]["echoes"])

    def samples(self, scenario: str) -> list[dict[str, Any]]:
        path = self.directory / "rollouts" / f"{scenario}-0" / "samples.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def run_scenarios(agent: str, turns: dict[str, list[dict[str, Any]]], folder: Path, options: list[str]) -> Ran:
    shutil.copytree(REPOSITORY, folder / "repo")
    rows = []
    for name, said in turns.items():
        script = {
            "expect": {"samples": 1, "reasons": ["undelivered"]},
            "resegment": 0.4,
            "seed": len(rows),
            "threads": [{"kind": "main", "turns": said}],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(script, allow_unicode=True))
        rows.append(
            {
                "id": name,
                "instruction": f"Scenario {name}: `subtract(7, 3)` gives 10 instead of 4. Fix it.",
                "workspace": {"path": "repo"},
                "grader": {
                    "name": "command",
                    "options": {"command": ["python3", "-m", "unittest", "tests.test_operations"]},
                },
                "budgets": {"agent_s": 15 if name == "killed" else 120},
                "script": f"{name}.yaml",
            }
        )
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [str(BRIDLE), "run", str(folder / "tasks.jsonl"), "--harness", agent, "--out", str(folder / "run")]
    command += ["--set", "engine.options.score=fake", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert (folder / "run/run.json").exists(), ended.stderr
    return Ran(folder / "run")


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_scenarios("mini_swe_agent", TURNS, tmp_path_factory.mktemp("mini"), [])


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: Claude Code cannot be installed")
    options = ["--set", "harness.options.thinking_tokens=4000"]
    return run_scenarios("claude_code", TURNS | CLAUDE_TURNS, tmp_path_factory.mktemp("claude"), options)


@pytest.fixture(params=["mini", "claude"])
def ran(request: pytest.FixtureRequest) -> Ran:
    found: Ran = request.getfixturevalue(request.param)
    return found


def test_every_sampled_token_is_kept_once_and_none_is_lost(ran: Ran) -> None:
    check = ran.document["check"]
    assert check["ok"], check["findings"]
    assert check["kept_percent"] == 100.0
    assert (check["doubled"], check["lost"], check["altered"], check["displaced"]) == (0, 0, 0, 0)
    assert set(check["untrained"]) <= {"undelivered"}


@pytest.mark.parametrize("scenario", ["retried", "killed"])
def test_a_linear_session_is_one_sample(ran: Ran, scenario: str) -> None:
    assert len(ran.samples(scenario)) == 1


def test_the_work_is_done_and_graded(ran: Ran) -> None:
    rollout = ran.rollouts["retried"]
    assert (rollout["status"], rollout["cause"], rollout["reward"]) == ("completed", "finished", 1.0)


def test_no_echo_of_these_agents_forks(ran: Ran) -> None:
    forked = {name: ran.echoes(name) for name in ran.rollouts if ran.fidelity(name)["totals"]["forks"]}
    assert forked == {}


def test_a_request_the_engine_failed_is_retried_and_sampled_anew(ran: Ran) -> None:
    """The engine fails four times: thrice within one call, which the gateway gives up then, and once in the next."""
    turns = ran.fidelity("retried")["turns"]
    failed = [turn for turn in turns if turn["reason"] == "undelivered"]
    assert len(failed) == 1
    assert len(turns) == 4


def test_an_agent_killed_in_mid_answer_leaves_an_undelivered_draw(ran: Ran) -> None:
    rollout = ran.rollouts["killed"]
    assert (rollout["status"], rollout["cause"], rollout["reward"]) == ("truncated", "time_budget", 1.0)
    assert rollout["untrained"]["undelivered"] > 0
    journal = [json.loads(line) for line in (ran.directory / "journal.jsonl").read_text().splitlines()[1:]]
    assert [entry["aborted"] for entry in journal if entry["rid"].startswith("killed-0")] == [False, True]


@pytest.mark.parametrize("habit", REWRITTEN)
def test_claude_rewrites_arguments_and_the_sampled_ids_stay(claude: Ran, habit: str) -> None:
    echoes = {echo["turn"]: echo["echo"] for turn in claude.fidelity("rewritten")["turns"] for echo in turn["echoes"]}
    assert echoes[REWRITTEN[habit]] == "args_rewritten", echoes
    assert echoes[0] == "exact"
    assert len(claude.samples("rewritten")) == 1
