from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bridle.errors import HarnessError
from bridle.harnesses import claude_code
from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.claude_code import ClaudeCode, ClaudeCodeConfig
from bridle.harnesses.install import default_cache
from bridle.messages import Message, ModelRequest, Text, ThreadFacts, Tool, kind_of, thread_of


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    sandbox = await new_sandbox()
    recipe = ClaudeCode(ClaudeCodeConfig(thinking_tokens=1024)).recipe(
        Installation("1", "/opt/claude"), launch, sandbox
    )
    assert launch.key not in " ".join(recipe.argv)
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["ANTHROPIC_API_KEY"] == launch.key
    assert recipe.env["ANTHROPIC_BASE_URL"] == launch.base_urls["anthropic"]
    assert recipe.env["MAX_THINKING_TOKENS"] == "1024"
    assert [name for name, value in recipe.env.items() if value == launch.model] == list(claude_code._MODEL_NAMES)


@pytest.mark.parametrize("mcp", [{}, {"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})}])
async def test_it_starts_the_servers_it_is_told_to_and_no_others(mcp, new_sandbox, make_launch) -> None:
    config = ClaudeCodeConfig(mcp=mcp)
    recipe = ClaudeCode(config).recipe(Installation("1", "/opt/claude"), make_launch(), await new_sandbox())
    flags = recipe.argv[recipe.argv.index("--strict-mcp-config") :]
    entry = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}}
    assert flags[1] == "--mcp-config"
    assert msgspec.json.decode(recipe.files[flags[2]]) == {"mcpServers": dict.fromkeys(mcp, entry)}


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


def test_a_sub_agent_of_a_sub_agent_is_one_deeper() -> None:
    """The first sub-agent names no parent: that is the main conversation, which has no id."""
    first = {"x-claude-code-agent-id": "a1"}
    second = {"x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"}
    rules = ClaudeCode.thread_rules
    assert thread_of(request("fix it"), rules, {}) is None
    assert thread_of(request("look", headers=first), rules, {}) == ThreadFacts("a1", "", 1)
    assert thread_of(request("look", headers=second), rules, {"a1": 1}) == ThreadFacts("a2", "a1", 2)


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
