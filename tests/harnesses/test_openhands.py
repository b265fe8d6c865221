from __future__ import annotations

import json

import pytest

from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.openhands import OpenHands, OpenHandsConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

INSTALLATION = Installation("1", "/opt/lib", (), "/opt/python")
SUBAGENT_TOOLS = (Tool("terminal"), Tool("file_editor"))
MAIN_TOOLS = (*SUBAGENT_TOOLS, Tool("task"))


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = OpenHands(OpenHandsConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, await new_sandbox())
    assert recipe.argv[:2] == ("/opt/python", "-I")
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["LLM_API_KEY"] == launch.key
    assert recipe.env["LLM_BASE_URL"] == launch.base_urls["openai"]
    assert recipe.env["MORE"] == "1"


async def test_it_knows_when_to_summarize(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = OpenHandsConfig(condense_tokens=5000, condense_events=50)
    recipe = OpenHands(config).recipe(INSTALLATION, make_launch(), sandbox)
    settings = json.loads(recipe.files[f"{sandbox.home}/.openhands/agent_settings.json"])
    assert (settings["condenser"]["max_tokens"], settings["condenser"]["max_size"]) == (5000, 50)


async def test_it_starts_the_servers_it_is_told_to(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = OpenHandsConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    recipe = OpenHands(config).recipe(INSTALLATION, make_launch(), sandbox)
    entry = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}}
    assert json.loads(recipe.files[f"{sandbox.home}/.openhands/mcp.json"]) == {"mcpServers": {"tariff": entry}}


def request(last: str, tools: tuple[Tool, ...]) -> ModelRequest:
    return ModelRequest("openai_chat", "policy", (Message("user", (Text(last),)),), tools)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = OpenHands.kind_rules
    summary = "You are maintaining a context-aware state summary for an interactive agent."
    assert kind_of(request("fix it", MAIN_TOOLS), rules) == ("main", "default")
    assert kind_of(request("look", SUBAGENT_TOOLS), rules)[0] == "subagent"
    assert kind_of(request(summary, ()), rules)[0] == "compaction"
    assert kind_of(request("a title", ()), rules)[0] == "auxiliary"


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_and_leaves_no_trace_of_key_or_instruction(refused, make_launch) -> None:
    ran = await refused(OpenHands(OpenHandsConfig()))
    assert ran.outcome.finish == "finished"  # whatever happened
    call, body = ran.calls[0]
    assert call.path == "/s/1/v1/chat/completions"
    assert json.loads(body)["messages"][-1]["content"][-1]["text"].strip() == make_launch().instruction.strip()
