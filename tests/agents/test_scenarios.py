"""Real agents in scenarios that are about one part of them: background sub-agents, MCP tools, another transport."""

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


def test_codex_over_a_websocket_makes_no_call_over_http(tmp_path: Path) -> None:
    result = played(tmp_path / "run", "linear", "codex_websocket")["codex_websocket"]
    assert result["model_calls"] == 0
    assert (result["kinds"], result["kept"]) == ({"main": 5}, result["due"])
