from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridle.errors import HarnessError
from bridle.harnesses.base import Installation, McpServer
from bridle.harnesses.opencode import OpenCode, OpenCodeConfig
from bridle.messages import Message, ModelRequest, Text, ThreadFacts, Tool, kind_of, thread_of

BASELINE = "node_modules/opencode-linux-x64-baseline/bin/opencode"
TOOLS = (Tool("bash"), Tool("task"))


async def settings(new_sandbox, launch, config: OpenCodeConfig) -> dict:
    sandbox = await new_sandbox()
    recipe = OpenCode(config).recipe(Installation("1", "/opt/opencode"), launch, sandbox)
    found: dict = json.loads(recipe.files[f"{sandbox.home}/.config/opencode/opencode.json"])
    return found


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch = make_launch()
    harness = OpenCode(OpenCodeConfig(env={"MORE": "1"}))
    recipe = harness.recipe(Installation("1", "/opt/opencode"), launch, await new_sandbox())
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    assert recipe.env["BRIDLE_KEY"] == launch.key
    assert recipe.env["MORE"] == "1"


@pytest.mark.parametrize(
    ("protocol", "package", "path"),
    [
        ("openai_chat", "@ai-sdk/openai-compatible", "/v1"),
        ("openai_responses", "@ai-sdk/openai", "/v1"),
        ("anthropic", "@ai-sdk/anthropic", "/v1"),
        ("gemini", "@ai-sdk/google", "/v1beta"),
    ],
)
async def test_it_speaks_the_protocol_it_is_told_to(protocol, package, path, new_sandbox, make_launch) -> None:
    config = OpenCodeConfig(protocol=protocol)
    provider = (await settings(new_sandbox, make_launch(), config))["provider"]["bridle"]
    assert OpenCode(config).protocol == protocol
    assert provider["npm"] == package
    assert provider["options"]["baseURL"] == f"http://127.0.0.1:4180/s/1{path}"


async def test_it_knows_the_window_and_asks_one_model_only(new_sandbox, make_launch) -> None:
    found = await settings(new_sandbox, make_launch(), OpenCodeConfig(context_tokens=5000, max_output_tokens=1000))
    assert found["provider"]["bridle"]["models"]["policy"]["limit"] == {"context": 5000, "output": 1000}
    assert found["small_model"] == "bridle/policy"


async def test_it_starts_the_servers_it_is_told_to(new_sandbox, make_launch) -> None:
    server = McpServer(("python3", "-I", "server.py"), {"MORE": "1"})
    found = await settings(new_sandbox, make_launch(), OpenCodeConfig(mcp={"tariff": server}))
    command, variables = ["python3", "-I", "server.py"], {"MORE": "1"}
    started = {"type": "local", "command": command, "environment": variables, "enabled": True}
    assert found["mcp"] == {"tariff": started}


def request(system: str, headers: dict[str, str] | None = None, tools: tuple[Tool, ...] = TOOLS) -> ModelRequest:
    messages = (Message("system", (Text(system),)), Message("user", (Text("fix it"),)))
    return ModelRequest("openai_chat", "policy", messages, tools, headers=headers or {})


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = OpenCode.kind_rules
    subagent = {"x-session-id": "s2", "x-parent-session-id": "s1"}
    summarizer = "You are a context summarization agent. You are given a conversation between a user and an agent."
    assert kind_of(request("You are opencode"), rules) == ("main", "default")
    assert kind_of(request("You are opencode", subagent), rules)[0] == "subagent"
    assert kind_of(request(summarizer, tools=()), rules)[0] == "compaction"
    assert kind_of(request(summarizer, subagent, tools=()), rules)[0] == "compaction"
    assert kind_of(request("You are a title generator.", tools=()), rules)[0] == "auxiliary"


def test_a_subagent_is_a_conversation_below_the_one_that_dispatched_it() -> None:
    rules = OpenCode.thread_rules
    main = thread_of(request("", {"x-session-id": "s1"}), rules, {})
    below = thread_of(request("", {"x-session-id": "s2", "x-parent-session-id": "s1"}), rules, {"s1": 0})
    assert main == ThreadFacts("s1", depth=0)
    assert below == ThreadFacts("s2", "s1", 1)


async def test_of_two_programs_the_one_for_every_processor_is_taken(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm("node_modules/opencode-linux-x64/bin/opencode", BASELINE)
    installation = await OpenCode(OpenCodeConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "opencode-ai@9.9.9" in asked.read_text()
    assert installation.path == str(tmp_path / "cache/opencode/9.9.9" / BASELINE)


async def test_a_platform_without_a_program_is_named(tmp_path: Path, fake_npm) -> None:
    fake_npm("node_modules/opencode-ai/bin/opencode.exe")
    with pytest.raises(HarnessError, match="opencode for this platform"):
        await OpenCode(OpenCodeConfig()).install(tmp_path / "cache", print)


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
    ran = await refused(OpenCode(OpenCodeConfig(protocol=protocol)))
    assert (ran.outcome.finish, ran.outcome.exit_code) == ("agent_error", 1)
    assert [call.path for call, _ in ran.calls] == [path]
    assert make_launch().instruction.strip() in json.dumps(json.loads(ran.calls[0][1]), ensure_ascii=False).replace(
        "\\n", "\n"
    )
    assert b"opencode" in ran.shown
