from __future__ import annotations

from pathlib import Path

import pytest

from bridle.errors import HarnessError
from bridle.harnesses import claude_code
from bridle.harnesses.base import Installation
from bridle.harnesses.claude_code import ClaudeCode, ClaudeCodeConfig
from bridle.harnesses.install import default_cache
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    sandbox = await new_sandbox()
    recipe = ClaudeCode(ClaudeCodeConfig(thinking_tokens=1024)).recipe(
        Installation("1", "/opt/claude"), launch, sandbox
    )
    assert launch.key not in " ".join(recipe.argv)
    assert recipe.files == {recipe.stdin: launch.instruction.encode()}
    assert recipe.env["ANTHROPIC_API_KEY"] == launch.key
    assert recipe.env["ANTHROPIC_BASE_URL"] == launch.base_urls["anthropic"]
    assert recipe.env["MAX_THINKING_TOKENS"] == "1024"
    assert [name for name, value in recipe.env.items() if value == launch.model] == list(claude_code._MODEL_NAMES)


def request(
    *texts: str, headers: dict[str, str] | None = None, tools: tuple[Tool, ...] = (Tool("Bash"),)
) -> ModelRequest:
    messages = tuple(Message("user", (Text(text),)) for text in texts)
    return ModelRequest("anthropic", "policy", messages, tools, headers=headers or {})


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = ClaudeCode.kind_rules
    subagent = {"x-claude-code-agent-id": "a1"}
    summary = "CRITICAL: Respond with TEXT ONLY. Do not call tools."
    assert kind_of(request("fix it"), rules)[0] == "main"
    assert kind_of(request("look", headers=subagent), rules)[0] == "subagent"
    assert kind_of(request("fix it", f"more\n{summary}"), rules)[0] == "compaction"
    assert kind_of(request("look", summary, headers=subagent), rules)[0] == "compaction"
    assert kind_of(request("title", tools=()), rules)[0] == "auxiliary"


async def test_without_npm_the_error_says_what_is_missing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match="npm not found"):
        await ClaudeCode(ClaudeCodeConfig()).install(tmp_path, print)


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_starts_in_a_sandbox(new_sandbox) -> None:
    harness = ClaudeCode(ClaudeCodeConfig())
    try:
        installation = await harness.install(default_cache(), print)
    except HarnessError as error:
        pytest.skip(error.message)
    sandbox = await new_sandbox(installation.mounts)
    result = await sandbox.exec([installation.path, "--version"])
    assert result.stdout.decode().startswith(installation.version)
