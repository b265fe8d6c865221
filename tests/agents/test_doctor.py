"""`bridle doctor --agents`, as people type it: three agents, three protocols, with and without a call that fails."""

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
AGENTS = {"mini_swe_agent": "openai_chat", "claude_code": "anthropic", "codex": "openai_responses"}
FAULT = "reset_late"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """-> results by agent and fault."""
    if shutil.which("npm") is None:
        pytest.skip("npm is missing: two of the agents cannot be installed")
    out = tmp_path_factory.mktemp("doctor") / "agents"
    command = [str(BRIDLE), "doctor", "--agents", *AGENTS, "--fault", FAULT, "--live", str(LIVE), "--out", str(out)]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr
    document = json.loads(ended.stdout)
    assert document == json.loads(out.with_suffix(".json").read_text())
    assert document["ok"] == (ended.returncode == 0)
    return {(result["agent"], result["fault"]): result for result in document["results"]}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("fault", ["", FAULT])
def test_every_sampled_token_is_kept_once_and_the_work_is_done(played: Any, agent: str, fault: str) -> None:
    result = played[agent, fault]
    assert result["wrong"] == []
    assert result["protocol"] == AGENTS[agent]
    assert result["kept"] == result["due"] > 0
    assert (result["doubled"], result["lost"], result["reward"]) == (0, 0, 1.0)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_linear_session_is_one_sample_of_main_turns(played: Any, agent: str) -> None:
    result = played[agent, ""]
    assert (result["samples"], set(result["kinds"])) == (1, {"main"})
    assert not {"text_edited", "call_dropped", "call_added", "foreign"} & set(result["echoes"])


@pytest.mark.parametrize("agent", AGENTS)
def test_the_call_that_failed_was_made_again(played: Any, agent: str) -> None:
    result = played[agent, FAULT]
    assert result["fault_came"]
    assert result["model_calls"] > played[agent, ""]["model_calls"]
