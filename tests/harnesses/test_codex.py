from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bridle.errors import HarnessError
from bridle.harnesses.base import Installation, McpServer, Recipe
from bridle.harnesses.codex import Codex, CodexConfig
from bridle.messages import Message, ModelRequest, Text, Tool, kind_of, thread_of

PROGRAM = "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
INSTALLATION = Installation("1", "/opt/codex")


def settings(recipe: Recipe, home: str) -> dict[str, object]:
    return tomllib.loads(recipe.files[f"{home}/.codex/config.toml"].decode())


async def test_key_is_in_the_environment_and_instruction_at_stdin(new_sandbox, make_launch) -> None:
    launch, sandbox = make_launch(), await new_sandbox()
    recipe = Codex(CodexConfig(env={"MORE": "1"})).recipe(INSTALLATION, launch, sandbox)
    assert recipe.argv[-1] == "-"
    assert recipe.files[recipe.stdin] == launch.instruction.encode()
    assert launch.key not in " ".join(recipe.argv)
    assert launch.key.encode() not in b"".join(recipe.files.values())
    provider = settings(recipe, sandbox.home)["model_providers"]["bridle"]  # type: ignore[index]
    assert recipe.env[provider["env_key"]] == launch.key
    assert provider["base_url"] == launch.base_urls["openai"]
    assert recipe.env["MORE"] == "1"


async def test_what_is_configured_is_in_its_settings_and_more_of_them_wins(new_sandbox, make_launch) -> None:
    launch, sandbox = make_launch(model='qwen/"3"\u2028'), await new_sandbox()
    config = CodexConfig(
        context_tokens=9000,
        auto_compact_tokens=8000,
        subagent_depth=2,
        settings={"features.apps": True, "model_reasoning_effort": "low"},
    )
    found = settings(Codex(config).recipe(INSTALLATION, launch, sandbox), sandbox.home)
    assert found["model"] == launch.model
    assert (found["model_context_window"], found["model_auto_compact_token_limit"]) == (9000, 8000)
    assert found["agents"] == {"max_depth": 2}
    assert found["features"] == {"plugins": False, "remote_plugin": False, "apps": True}
    assert found["model_reasoning_effort"] == "low"


async def test_it_waits_for_the_servers_it_is_told_to_start(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    config = CodexConfig(mcp={"tariff": McpServer(("python3", "-I", "server.py"), {"MORE": "1"})})
    found = settings(Codex(config).recipe(INSTALLATION, make_launch(), sandbox), sandbox.home)
    started = {"command": "python3", "args": ["-I", "server.py"], "env": {"MORE": "1"}, "required": True}
    assert found["mcp_servers"] == {"tariff": started}


async def test_it_resumes_its_first_conversation_and_none_of_a_sub_agent(new_sandbox, make_launch) -> None:
    ids = ["01a1fed6-2dcc-7fe1-be1a-70cc07b0c3df", "01a1fed6-2e49-7720-9a6a-3853caf2f585"]
    sandbox, launch = await new_sandbox(), make_launch(resume=True)
    for day, name in zip(("21", "22"), ids, strict=True):
        await sandbox.write(
            f"{sandbox.home}/.codex/sessions/2026/11/{day}/rollout-2026-11-{day}T00-00-11-{name}.jsonl", b""
        )
    await sandbox.write(f"{sandbox.home}/codex", b'#!/bin/sh\nprintf "%s\\n" "$@"; cat\n', mode=0o755)
    harness = Codex(CodexConfig())
    outcome = await harness.launch(sandbox, Installation("1", f"{sandbox.home}/codex"), launch)
    assert outcome.finish == "finished"
    flags = harness.recipe(INSTALLATION, make_launch(), sandbox).argv[2:]
    said = (launch.logs / "stdout").read_text()
    assert said == "\n".join(["exec", "resume", ids[0], *flags, launch.instruction])


@pytest.mark.parametrize("websocket", [True, False])
async def test_it_talks_over_a_websocket_where_it_is_told_to(websocket: bool, new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    recipe = Codex(CodexConfig(websocket=websocket)).recipe(INSTALLATION, make_launch(), sandbox)
    provider = settings(recipe, sandbox.home)["model_providers"]["bridle"]  # type: ignore[index]
    assert provider["supports_websockets"] is websocket


def request(kind: str, **headers: str) -> ModelRequest:
    metadata = json.dumps({"session_id": "s", "request_kind": kind, "model": "policy"}, separators=(",", ":"))
    sent = {"x-codex-turn-metadata": metadata, "thread-id": "t1"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    messages = (Message("user", (Text("fix it"),)),)
    return ModelRequest("openai_responses", "policy", messages, (Tool("exec_command"),), headers=sent)


def test_kinds_are_told_apart_by_facts_of_the_request() -> None:
    rules = Codex.kind_rules
    assert kind_of(request("turn"), rules) == ("main", "default")
    assert kind_of(request("compaction"), rules)[0] == "compaction"
    assert kind_of(request("turn", x_openai_subagent="collab_spawn"), rules)[0] == "subagent"
    assert kind_of(request("compaction", x_openai_subagent="collab_spawn"), rules)[0] == "compaction"
    assert kind_of(request("turn", x_openai_subagent="memory_consolidation"), rules)[0] == "auxiliary"


def test_a_subagents_thread_names_the_one_that_dispatched_it() -> None:
    first = thread_of(request("turn"), Codex.thread_rules, {})
    assert first is not None
    second = thread_of(
        request("turn", thread_id="t2", x_codex_parent_thread_id="t1"), Codex.thread_rules, {"t1": first.depth}
    )
    assert second is not None
    assert (first.thread, first.depth) == ("t1", 0)
    assert (second.thread, second.parent, second.depth) == ("t2", "t1", 1)


async def test_another_version_can_be_installed(tmp_path: Path, fake_npm) -> None:
    asked = fake_npm(PROGRAM)
    installation = await Codex(CodexConfig(version="9.9.9")).install(tmp_path / "cache", print)
    assert "@openai/codex@9.9.9" in asked.read_text()
    assert installation.version == "9.9.9"
    assert installation.path == str(tmp_path / "cache/codex/9.9.9" / PROGRAM)
    assert installation.path.startswith(installation.mounts[0].source)


async def test_a_platform_without_a_program_is_named(tmp_path: Path, fake_npm) -> None:
    fake_npm("node_modules/@openai/codex/bin/codex.js")
    with pytest.raises(HarnessError, match="expected one program below .*, found none"):
        await Codex(CodexConfig()).install(tmp_path / "cache", print)
    assert not (tmp_path / "cache/codex" / Codex.default_version).exists(), "the next try installs anew"


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_agent_gives_up_with_a_code_and_leaves_no_trace_of_key_or_instruction(
    refused, make_launch
) -> None:
    ran = await refused(Codex(CodexConfig()))
    assert (ran.outcome.finish, ran.outcome.exit_code) == ("agent_error", 1)
    call, body = ran.calls[0]
    assert [call.path for call, _ in ran.calls] == ["/s/1/v1/responses"]
    assert call.headers["Authorization"] == f"Bearer {make_launch().key}"
    assert json.loads(body)["input"][-1]["content"][0]["text"] == make_launch().instruction
    assert b"codex" in ran.shown
