"""How any agent is launched, shown with programs that are no agents."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path

import pytest

from bridle.compose import make_harness
from bridle.errors import ConfigError, HarnessError
from bridle.harnesses import NAMES
from bridle.harnesses.base import Installation, Outcome
from bridle.harnesses.command import CommandConfig, CommandHarness
from bridle.tasks.base import Spec

NOTHING = Installation("1")


async def run(sandbox, launch, *argv: str, **options) -> Outcome:
    return await CommandHarness(CommandConfig(argv=argv, **options)).launch(sandbox, NOTHING, launch)


async def test_the_instruction_is_at_stdin_and_the_output_in_the_logs(new_sandbox, make_launch) -> None:
    launch = make_launch()
    outcome = await run(await new_sandbox(), launch, "sh", "-c", "cat; pwd >&2")
    assert (outcome.finish, outcome.exit_code, outcome.signal) == ("finished", 0, None)
    assert (launch.logs / "stdout").read_text() == launch.instruction
    assert (launch.logs / "stderr").read_text().endswith("/workspace\n")


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


async def test_the_key_is_in_the_environment_and_in_no_process_list(new_sandbox, make_launch) -> None:
    launch = make_launch(time_budget_s=1.0)
    sandbox = await new_sandbox()
    running = asyncio.create_task(run(sandbox, launch, "sh", "-c", 'echo "$OPENAI_API_KEY"; sleep 30'))
    shown = b""
    while b"sleep\x0030" not in shown:
        await asyncio.sleep(0.02)
        shown = b"".join(map(command_line, Path("/proc").glob("[0-9]*")))
    assert launch.key.encode() not in shown
    assert b"quoted" not in shown
    assert (await running).finish == "time_budget"
    assert (launch.logs / "stdout").read_text() == f"{launch.key}\n"


async def test_the_instruction_file_is_the_agents_alone(new_sandbox, make_launch) -> None:
    launch = make_launch()
    await run(await new_sandbox(), launch, "sh", "-c", 'stat -c %a "$1"; cat "$1"', "sh", "{instruction_file}")
    assert (launch.logs / "stdout").read_text() == f"600\n{launch.instruction}"
    assert stat.S_IMODE(os.stat(launch.logs).st_mode) & 0o200


@pytest.mark.parametrize(
    ("script", "finish", "exit_code", "signal"),
    [
        ("exit 0", "finished", 0, None),
        ("exit 3", "agent_error", 3, None),
        ("exit 137", "agent_error", 137, None),
        ("exit 127", "agent_error", 127, None),
        ("kill -9 $$", "killed", None, 9),
        ("kill -TERM $$", "killed", None, 15),
    ],
)
async def test_exit_codes_and_signals_are_kept_apart(
    script, finish, exit_code, signal, new_sandbox, make_launch
) -> None:
    outcome = await run(await new_sandbox(), make_launch(), "sh", "-c", script)
    assert (outcome.finish, outcome.exit_code, outcome.signal) == (finish, exit_code, signal)


async def test_an_agent_out_of_time_is_dead_with_all_it_started(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    script = "setsid sh -c 'while :; do date +%N >>alive; sleep 0.01; done' & sleep 60"
    outcome = await run(sandbox, make_launch(time_budget_s=0.5), "sh", "-c", script)
    assert (outcome.finish, outcome.exit_code, outcome.signal) == ("time_budget", None, None)
    assert 0.4 < outcome.seconds < 10
    before = await sandbox.read(f"{sandbox.workspace}/alive")
    await asyncio.sleep(0.1)
    assert before == await sandbox.read(f"{sandbox.workspace}/alive")


async def test_a_cancelled_launch_leaves_no_agent(new_sandbox, make_launch) -> None:
    sandbox = await new_sandbox()
    script = "while :; do date +%N >>alive; sleep 0.01; done"
    running = asyncio.create_task(run(sandbox, make_launch(), "sh", "-c", script))
    while not (await sandbox.exec(["test", "-s", "alive"])).ok:
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = await sandbox.read(f"{sandbox.workspace}/alive")
    await asyncio.sleep(0.1)
    assert before == await sandbox.read(f"{sandbox.workspace}/alive")


async def test_a_program_that_is_not_there_never_started(new_sandbox, make_launch) -> None:
    outcome = await run(await new_sandbox(), make_launch(), "no-such-agent")
    assert outcome.finish == "never_started"
    assert outcome.detail == 'there is no program "no-such-agent" in the sandbox'


def test_a_missing_base_url_says_which_there_are(make_launch) -> None:
    launch = make_launch(base_urls={"anthropic": "x"})
    with pytest.raises(HarnessError, match='"openai"; the session has: anthropic'):
        launch.base_url("openai")


SLOW_SERVER = """
import json, os, sys, time
time.sleep(3)
tool = {"name": "rate", "description": os.environ["SAID"], "inputSchema": {"type": "object"}}
served = {"name": "tariff", "version": "1"}
results = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": served},
    "tools/list": {"tools": [tool]},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked["method"], {})}
        print(json.dumps(answer), flush=True)
"""
WITH_MCP = ("claude_code", "codex", "gemini_cli", "qwen_code", "opencode", "openclaw", "openhands", "hermes")


@pytest.mark.parametrize("name", WITH_MCP)
@pytest.mark.parametrize(
    ("mcp", "said"),
    [
        ({"a server": {"command": ["python3"]}}, "matching regex"),
        ({"tariff": {"command": []}}, "length >= 1"),
        ({"tariff": {"command": ["python3"], "url": "http://a"}}, "url"),
    ],
)
def test_a_server_without_a_command_or_with_a_name_no_agent_takes_is_refused(name, mcp, said) -> None:
    with pytest.raises(ConfigError, match=said):
        make_harness(Spec(name, {"mcp": mcp}))


@pytest.mark.parametrize("name", ["mini_swe_agent", "pi", "aider", "command"])
def test_an_agent_without_servers_takes_none(name: str) -> None:
    with pytest.raises(ConfigError, match="mcp"):
        make_harness(Spec(name, {"mcp": {"tariff": {"command": ["python3"]}}}))


@pytest.mark.agents
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WITH_MCP)
async def test_the_real_agents_first_call_offers_the_tools_of_a_server_that_is_slow_to_start(name, refused) -> None:
    server = {"command": ["python3", "-I", "-c", SLOW_SERVER], "env": {"SAID": "what-letters-cost"}}
    ran = await refused(make_harness(Spec(name, {"mcp": {"tariff": server}})))
    body = next(body for call, body in ran.calls if call.method == "POST")
    assert b"what-letters-cost" in body
    assert re.search(rb'"name": ?"(mcp_+tariff_+|tariff_+|)rate"', body)


RESUMED_WITH = {
    "claude_code": ("--continue",),
    "gemini_cli": ("--resume", "latest"),
    "qwen_code": ("--continue",),
    "opencode": ("--continue",),
    "pi": ("--continue",),
    "aider": ("--restore-chat-history",),
    "openhands": ("--resume", "--last"),
    "hermes": ("--continue",),
}
RESUMED_OTHERWISE = {"codex", "openclaw"}
"""Shown with their own tests."""


@pytest.mark.parametrize(("name", "words"), RESUMED_WITH.items())
async def test_an_agent_is_told_to_go_on_with_a_flag_of_its_own_and_all_else_stays(
    name, words, new_sandbox, make_launch
) -> None:
    sandbox, harness = await new_sandbox(), make_harness(Spec(name))
    installed = Installation("1", "/opt/agent", (), "/opt/runtime")
    first, again = (harness.recipe(installed, make_launch(resume=resume), sandbox) for resume in (False, True))
    place = again.argv.index(words[0])
    assert again.argv[place : place + len(words)] == words
    assert words[0] not in first.argv
    assert [word for word in again.argv if word not in first.argv] == list(words)
    assert (again.env, again.files, again.stdin) == (first.env, first.files, first.stdin)


def test_every_agent_that_resumes_is_shown_to() -> None:
    able = {name for name in NAMES if name != "command" and make_harness(Spec(name)).resumes}
    assert able == {*RESUMED_WITH, *RESUMED_OTHERWISE}


BEARS = {
    "mini_swe_agent": "'REQUEST_TIMEOUT': '7'",
    "claude_code": "'API_TIMEOUT_MS': '7000'",
    "codex": "stream_idle_timeout_ms = 7000",
    "gemini_cli": '"intValue":"7"',
    "qwen_code": '"timeout":7000,"streamIdleTimeoutMs":7000',
    "opencode": '"headerTimeout":7000,"chunkTimeout":7000',
    "pi": '"httpIdleTimeoutMs":7000',
    "openclaw": '"timeoutSeconds":7',
    "aider": "'--timeout', '7'",
    "openhands": '"timeout":7',
    "hermes": "'HERMES_STREAM_READ_TIMEOUT': '7'",
}


@pytest.mark.parametrize(("name", "said"), BEARS.items())
async def test_an_agent_is_told_how_long_to_bear_silence_and_else_has_its_own_way(
    name, said, new_sandbox, make_launch
) -> None:
    sandbox, launch = await new_sandbox(), make_launch()
    installed = Installation("1", "/opt/agent", (), "/opt/runtime")
    own, told = (make_harness(Spec(name, options)).recipe(installed, launch, sandbox) for options in ({}, SEVEN))
    assert said in repr(told)
    assert said not in repr(own)
    with pytest.raises(ConfigError, match="silence_s"):
        make_harness(Spec(name, {"silence_s": 0}))


SEVEN = {"silence_s": 7}
