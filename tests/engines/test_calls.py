"""The schemas are those of real agents, shortened to what tells their tools apart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridle.engines.calls import Call, Edit, McpCall, Write, tool_call
from bridle.errors import EngineError
from bridle.messages import Tool

STRING = {"type": "string"}
FLAG = {"type": "boolean"}
WORDS = {"type": "array", "items": STRING}
VIEW = {"type": "string", "enum": ["view", "create"]}
REPLACEMENTS = {"type": "array", "items": {"properties": {"oldText": STRING, "newText": STRING}}}


def tool(name: str, *required: str, **properties: Any) -> Tool:
    named = {**dict.fromkeys(required, STRING), **properties}
    return Tool(name, parameters={"type": "object", "properties": named, "required": required})


EDITOR = tool("file_editor", "command", "path", command=VIEW, old_str=STRING, new_str=STRING, file_text=STRING)
CLAUDE = (
    tool("Agent", "description", "prompt", run_in_background=FLAG),
    tool("Monitor", "command", "persistent", persistent=FLAG),
    tool("Bash", "command", description=STRING, run_in_background=FLAG),
    tool("Edit", "file_path", "old_string", "new_string", replace_all=FLAG),
    tool("Read", "file_path"),
    tool("Write", "file_path", "content"),
)
CODEX = (
    tool("exec_command", "cmd", shell=STRING),
    tool("write_stdin", "session_id", session_id={"type": "number"}, chars=STRING),
    tool("view_image", "path"),
    Tool("spawn_agent", parameters={"properties": {"message": STRING, "items": {"type": "array"}}}, namespace="agents"),
)
OLD_CODEX = (tool("shell", "command", command=WORDS, workdir=STRING),)
GEMINI = (
    tool("read_file", "file_path"),
    tool("replace", "file_path", "instruction", "old_string", "new_string"),
    tool("write_file", "file_path", "content"),
    tool("web_fetch", "prompt"),
    tool("run_shell_command", "command", description=STRING),
    tool("invoke_agent", "agent_name", "prompt"),
)
QWEN = (
    tool("agent", "description", "prompt", subagent_type=STRING, run_in_background=FLAG),
    tool("notebook_edit", "notebook_path", new_source=STRING),
    tool("edit", "file_path", "old_string", "new_string"),
    tool("read_file", "file_path"),
    tool("run_shell_command", "command"),
    tool("write_file", "file_path", "content"),
)
OPENCODE = (
    tool("task", "description", "prompt", "subagent_type", command=STRING),
    tool("bash", "command"),
    tool("edit", "filePath", "oldString", "newString"),
    tool("read", "filePath"),
    tool("write", "content", "filePath"),
)
PI = (tool("read", "path"), tool("bash", "command"), tool("edit", "path", "edits", edits=REPLACEMENTS))
OPENHANDS = (
    EDITOR,
    tool("terminal", "command", "security_risk", security_risk={"type": "string", "enum": ["LOW", "HIGH"]}),
    tool("task", "prompt", subagent_type=STRING),
)
HERMES = (
    tool("terminal", "command"),
    tool("patch", "mode", mode={"type": "string", "enum": ["replace", "patch"]}, path=STRING),
    Tool("delegate_task", parameters={"properties": {"goal": STRING, "tasks": {"type": "array"}}, "required": []}),
)


def called(call: Call, tools: tuple[Tool, ...]) -> tuple[str, dict[str, Any]]:
    made = tool_call(call, tools)
    return made.name, json.loads(made.arguments)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (CLAUDE, ("Bash", {"command": "ls"})),
        (CODEX, ("exec_command", {"cmd": "ls"})),
        (OLD_CODEX, ("shell", {"command": ["bash", "-lc", "ls"]})),
        (GEMINI, ("run_shell_command", {"command": "ls"})),
        (QWEN, ("run_shell_command", {"command": "ls"})),
        (OPENCODE, ("bash", {"command": "ls"})),
        (OPENHANDS, ("terminal", {"command": "ls", "security_risk": "LOW"})),
        ((tool("Bash", "command", "description"),), ("Bash", {"command": "ls", "description": "as asked"})),
    ],
)
def test_a_shell_call_goes_to_the_tool_that_takes_a_command(tools: tuple[Tool, ...], expected: object) -> None:
    assert called(Call(shell="ls"), tools) == expected


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (CLAUDE, ("Read", {"file_path": "a b"})),
        (CODEX, ("exec_command", {"cmd": "cat 'a b'"})),
        (OPENCODE, ("read", {"filePath": "a b"})),
        (PI, ("read", {"path": "a b"})),
        (OPENHANDS, ("terminal", {"command": "cat 'a b'", "security_risk": "LOW"})),
    ],
)
def test_a_file_is_read_with_the_tool_for_it_or_in_the_shell(tools: tuple[Tool, ...], expected: object) -> None:
    assert called(Call(read="a b"), tools) == expected


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (CLAUDE, ("Edit", {"file_path": "f", "old_string": "-", "new_string": "+"})),
        (GEMINI, ("replace", {"file_path": "f", "instruction": "as asked", "old_string": "-", "new_string": "+"})),
        (QWEN, ("edit", {"file_path": "f", "old_string": "-", "new_string": "+"})),
        (OPENCODE, ("edit", {"filePath": "f", "oldString": "-", "newString": "+"})),
        (PI, ("edit", {"path": "f", "edits": [{"oldText": "-", "newText": "+"}]})),
    ],
)
def test_a_file_is_edited_with_the_tool_for_it(tools: tuple[Tool, ...], expected: object) -> None:
    assert called(Call(edit=Edit("f", "-", "+")), tools) == expected


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (CLAUDE, ("Write", {"file_path": "f", "content": "x"})),
        (OPENCODE, ("write", {"filePath": "f", "content": "x"})),
        (GEMINI, ("write_file", {"file_path": "f", "content": "x"})),
    ],
)
def test_a_file_is_written_with_the_tool_for_it(tools: tuple[Tool, ...], expected: object) -> None:
    assert called(Call(write=Write("f", "x")), tools) == expected


def test_where_there_is_only_a_shell_it_writes_edits_and_reads_files_exactly(tmp_path: Path) -> None:
    path, text = str(tmp_path / "it's a file"), "a 'quoted' $HOME\n\tline\\n\n"
    steps = [Call(write=Write(path, text)), Call(edit=Edit(path, "'quoted' $HOME", 'new\n"text"')), Call(read=path)]
    for step in steps:
        _, arguments = called(step, OPENHANDS)
        said = subprocess.run(["bash", "-c", arguments["command"]], capture_output=True, check=True, text=True).stdout
    assert said == text.replace("'quoted' $HOME", 'new\n"text"')


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (CLAUDE, ("Agent", {"description": "as asked", "prompt": "look"})),
        (CODEX, ("spawn_agent", {"message": "look"})),
        (GEMINI, ("invoke_agent", {"agent_name": "generalist", "prompt": "look"})),
        (QWEN, ("agent", {"description": "as asked", "prompt": "look"})),
        (OPENCODE, ("task", {"description": "as asked", "prompt": "look", "subagent_type": "general"})),
        (OPENHANDS, ("task", {"prompt": "look"})),
        (HERMES, ("delegate_task", {"goal": "look"})),
    ],
)
def test_a_dispatch_goes_to_the_tool_that_starts_a_sub_agent(tools: tuple[Tool, ...], expected: object) -> None:
    assert called(Call(dispatch="look"), tools) == expected


def test_a_dispatch_waits_or_not_where_the_tool_lets_one_choose() -> None:
    assert called(Call(dispatch="look", background=False), CLAUDE)[1]["run_in_background"] is False
    assert "run_in_background" not in called(Call(dispatch="look", background=True), GEMINI)[1]


@pytest.mark.parametrize(
    ("offered", "name"),
    [
        (Tool("mcp__tariff__rate"), "mcp__tariff__rate"),
        (Tool("mcp_tariff_rate"), "mcp_tariff_rate"),
        (Tool("tariff_rate"), "tariff_rate"),
        (Tool("rate", namespace="mcp__tariff"), "rate"),
    ],
)
def test_a_tool_of_an_mcp_server_is_called_under_the_name_the_agent_gave_it(offered: Tool, name: str) -> None:
    tools = (tool("rate", "stars"), Tool("mcp__weather__rate"), *CLAUDE, offered)
    call = Call(mcp=McpCall("tariff", "rate", {"country": "NO"}))
    assert called(call, tools) == (name, {"country": "NO"})


def test_a_tool_of_a_sole_mcp_server_may_have_its_name_alone() -> None:
    call = Call(mcp=McpCall("tariff", "rate", {"country": "NO"}))
    assert called(call, (*CLAUDE, Tool("rates"), Tool("rate"))) == ("rate", {"country": "NO"})


def test_an_agents_own_argument_of_an_mcp_tool_is_filled_in() -> None:
    risk = {"type": "string", "enum": ["UNKNOWN", "LOW"]}
    schema = {"properties": {"country": {"type": "string"}, "security_risk": risk}, "required": ["security_risk"]}
    call = Call(mcp=McpCall("tariff", "rate", {"country": "NO"}))
    found = called(call, (Tool("rate", parameters=schema),))
    assert found == ("rate", {"country": "NO", "security_risk": "UNKNOWN"})


ASKED = Call(mcp=McpCall("tariff", "rate"))


@pytest.mark.parametrize("call", [Call(shell="ls"), Call(read="f"), Call(dispatch="look"), ASKED])
def test_a_call_without_a_fitting_tool_says_what_is_offered(call: Call) -> None:
    with pytest.raises(EngineError, match=r"offered: Read_later, file_editor"):
        tool_call(call, (tool("Read_later", "url"), EDITOR))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "one of `shell`"),
        ({"shell": "ls", "read": "f"}, "one of `shell`"),
        ({"read": "f", "arguments": {}}, "takes no arguments"),
        ({"tool": "T", "arguments": {}, "arguments_text": "{}"}, "either `arguments` or"),
        ({"shell": "ls", "background": True}, "belongs to a `dispatch`"),
    ],
)
def test_a_call_that_says_two_things_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Call(**fields)
