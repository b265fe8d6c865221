"""Real agents in scenarios that are about one part of them: background sub-agents, MCP tools, a second prompt, another
transport."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.agents, pytest.mark.slow]

BRIDLE = Path(sys.executable).parent / "bridle"
LIVE = Path(__file__).parents[2] / "examples/live"


def played(out: Path, scenario: str, *agents: str) -> dict[str, dict[str, Any]]:
    """-> results by agent."""
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: none of the agents can be installed")
    command = [str(BRIDLE), "doctor", "--agents", *agents, "--scenario", scenario, "--live", str(LIVE)]
    ended = subprocess.run([*command, "--out", str(out), "--json"], capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr
    results = {result["agent"]: result for result in json.loads(ended.stdout)["results"]}
    assert {agent: result["wrong"] for agent, result in results.items()} == {agent: [] for agent in agents}
    return results


def test_two_sub_agents_in_the_background_are_samples_of_their_own(tmp_path: Path) -> None:
    results = played(tmp_path / "run", "background", "claude_code", "codex", "qwen_code")
    for result in results.values():
        assert set(result["kinds"]) == {"main", "subagent"}
        assert (result["samples"], result["kept"]) == (3, result["due"])
    assert [results[agent]["depth"] for agent in ("claude_code", "codex")] == [1, 1]


def test_tools_of_an_mcp_server_are_called_under_the_names_that_agents_give_them(tmp_path: Path) -> None:
    for result in played(tmp_path / "run", "mcp", "claude_code", "codex").values():
        assert (result["kinds"], result["samples"], result["reward"]) == ({"main": 4}, 1, 1.0)


def test_agents_started_again_go_on_in_their_conversation_and_extend_its_sample(tmp_path: Path) -> None:
    for result in played(tmp_path / "run", "resume", "claude_code", "codex", "pi").values():
        assert (result["kinds"], result["samples"], result["reward"]) == ({"main": 5}, 1, 1.0)
        assert result["kept"] == result["due"] > 0
        assert {"agent", "agent-2"} <= {path.name for path in Path(result["directory"]).iterdir()}


def test_codex_over_a_websocket_makes_no_call_over_http(tmp_path: Path) -> None:
    result = played(tmp_path / "run", "linear", "codex_websocket")["codex_websocket"]
    assert result["model_calls"] == 0
    assert (result["kinds"], result["kept"]) == ({"main": 5}, result["due"])


def test_a_message_of_a_websocket_that_fails_costs_no_token(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: Codex cannot be installed")
    command = [
        str(BRIDLE),
        "doctor",
        "--agents",
        "codex_websocket",
        "--live",
        str(LIVE),
        "--out",
        str(tmp_path / "run"),
    ]
    faults = ("500", "reset", "cut")
    command += [word for fault in faults for word in ("--fault", fault)]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=800)
    results = {result["fault"]: result for result in json.loads(ended.stdout)["results"]}
    assert {fault: result["wrong"] for fault, result in results.items()} == {fault: [] for fault in ("", *faults)}
    assert {(result["kept"] - result["due"], result["reward"]) for result in results.values()} == {(0, 1.0)}


def test_codex_that_takes_the_gateway_for_openai_has_it_summarize_and_goes_on_from_the_very_ids(tmp_path: Path) -> None:
    result = played(tmp_path / "run", "compaction", "codex_openai")["codex_openai"]
    assert result["kinds"]["compaction"] > 0
    assert result["kept"] == result["due"]
    (file,) = Path(result["directory"]).glob("**/fidelity.json")
    turns = json.loads(file.read_text())["turns"]
    assert {turn["rule"] for turn in turns if turn["kind"] == "compaction"} == {"call"}
    summaries = {number for number, turn in enumerate(turns) if turn["kind"] == "compaction"}
    put = [echo for turn in turns for echo in turn["echoes"] if echo["turn"] in summaries]
    assert all(echo["transplanted"] for echo in put)
    assert put
