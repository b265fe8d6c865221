from __future__ import annotations

import json

import pytest

from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.hermes import Hermes, HermesConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

INSTALLATION = Installation("1", "/opt/lib", (), "/opt/python")
TOOLS = (Tool("terminal"),)


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = Hermes(HermesConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, await new_sandbox())
    assert recipe.argv[:2] == ("/opt/python", "-I")
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["BRIDLE_KEY"] == launch.key
    assert recipe.env["MORE"] == "1"


async def test_it_knows_model_url_and_window(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = Hermes(HermesConfig(context_tokens=70_000)).recipe(INSTALLATION, launch, await new_sandbox())
    model = json.loads(recipe.files[f"{recipe.env['HERMES_HOME']}/config.yaml"])["model"]
    assert (model["default"], model["base_url"]) == (launch.model, launch.base_urls["openai"])
    assert (model["api_key"], model["context_length"]) == ("${BRIDLE_KEY}", 70_000)


async def test_it_starts_the_servers_it_is_told_to_and_waits_for_them(new_sandbox, make_launch) -> None:
    config = HermesConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    recipe = Hermes(config).recipe(INSTALLATION, make_launch(), await new_sandbox())
    settings = json.loads(recipe.files[f"{recipe.env['HERMES_HOME']}/config.yaml"])
    entry = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}}
    assert settings["mcp_servers"] == {"tariff": entry}
    assert settings["mcp_discovery_timeout"] > 14


def test_a_window_the_agent_refuses_is_refused() -> None:
    with pytest.raises(ValueError, match="64000"):
        HermesConfig(context_tokens=63_999)


def request(system: str, last: str = "fix it", tools: tuple[Tool, ...] = TOOLS) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text(last),)))
    return ModelRequest("openai_chat", "policy", messages, tools)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = Hermes.kind_rules
    main = "You are Hermes Agent, an intelligent AI assistant"
    subagent = f"{main}\n\nYou are a focused subagent working on a specific delegated task.\n\nYOUR TASK:\nlook"
    summary = "You are a summarization agent creating a context checkpoint. Treat the conversation turns below"
    assert kind_of(request(main), rules) == ("main", "default")
    assert kind_of(request(subagent), rules)[0] == "subagent"
    assert kind_of(request("", summary, ()), rules)[0] == "compaction"
    assert kind_of(request("", "a title", ()), rules)[0] == "auxiliary"


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_with_a_code_and_leaves_no_trace_of_key_or_instruction(
    refused, make_launch
) -> None:
    ran = await refused(Hermes(HermesConfig()))
    assert (ran.outcome.finish, ran.outcome.exit_code) == ("agent_error", 1)
    call, body = next((call, body) for call, body in ran.calls if call.method == "POST")
    assert call.path == "/s/1/v1/chat/completions"
    assert json.loads(body)["messages"][-1]["content"].strip() == make_launch().instruction.strip()
