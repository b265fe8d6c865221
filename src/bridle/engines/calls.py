"""What the calls of a script mean in the tools of the agent at hand.

A script says what shall be done (run this, read that, hand it to a sub-agent); which tool does it, and what its
arguments are called, is found in the schemas that the agent offers. Where no tool reads, edits or writes files, the
shell does.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from bridle.errors import EngineError
from bridle.messages import Tool, ToolCall

FILLER = "as asked"
"""What a required argument gets that the script says nothing of (some agents ask for a description)."""

COMMAND = ("command", "cmd")
PATH = ("file_path", "filePath", "path")
OLD = ("old_string", "oldString", "oldText", "old_str")
NEW = ("new_string", "newString", "newText", "new_str")
CONTENT = ("content", "file_text")

DISPATCHES = {
    "Agent": "prompt",
    "Task": "prompt",
    "agent": "prompt",
    "task": "prompt",
    "invoke_agent": "prompt",
    "spawn_agent": "message",
    "delegate_task": "goal",
}
"""Tools that start a sub-agent, and the argument that is its task. Known by name: nothing in a schema says so."""

WATCHERS = {"monitor"}
"""Tools that take a command and tell of its output later, line by line."""

FILLERS = {"subagent_type": "general", "agent_name": "generalist"}
"""Required arguments that take only names the agent knows."""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`old`, which stands once in the file, becomes `new`."""

    path: str
    old: str
    new: str


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    content: str


class McpCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tool` of the MCP server `server`, under whatever name an agent offers it."""

    server: str
    tool: str
    arguments: Mapping[str, Any] = {}


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do, in the tool that the agent has for it: `shell`, `read`, `edit`, `write`, `mcp`, `dispatch` (to a
    sub-agent; `background` where the tool lets one choose). Or `tool`, by name, with its arguments."""

    shell: str | None = None
    read: str | None = None
    edit: Edit | None = None
    write: Write | None = None
    mcp: McpCall | None = None
    dispatch: str | None = None
    background: bool | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] | None = None
    arguments_text: str | None = None
    """The exact JSON text to sample."""

    def __post_init__(self) -> None:
        ways = (self.shell, self.read, self.edit, self.write, self.mcp, self.dispatch, self.tool)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("a call has one of `shell`, `read`, `edit`, `write`, `mcp`, `dispatch` and `tool`")
        if self.arguments is not None and self.arguments_text is not None:
            raise ValueError("a call has either `arguments` or `arguments_text`")
        if self.tool is None and (self.arguments is not None or self.arguments_text is not None):
            raise ValueError("a call of that kind takes no arguments; name the `tool` to give some")
        if self.dispatch is None and self.background is not None:
            raise ValueError("`background` belongs to a `dispatch`")


def tool_call(call: Call, tools: Sequence[Tool]) -> ToolCall:
    """`call` in one of `tools`, without an id. Raises EngineError where none of them can do it."""
    if call.shell is not None:
        return _shell(call.shell, tools)
    if call.read is not None:
        return _read(call.read, tools)
    if call.edit is not None:
        return _edit(call.edit, tools)
    if call.write is not None:
        return _write(call.write, tools)
    if call.mcp is not None:
        return _mcp(call.mcp, tools)
    if call.dispatch is not None:
        return _dispatch(call.dispatch, call.background, tools)
    assert call.tool is not None
    text = call.arguments_text if call.arguments_text is not None else _json(call.arguments or {})
    return ToolCall("", call.tool, text)


def _shell(command: str, tools: Sequence[Tool]) -> ToolCall:
    for tool in (tool for tool in tools if tool.name not in WATCHERS):
        name = next((name for name in COMMAND if name in _required(tool)), "")
        schema = _properties(tool).get(name, {})
        words = schema.get("type") == "array"
        if (words or _free_text(schema)) and _fillable(tool, {name}):
            return _called(tool, {name: ["bash", "-lc", command] if words else command})
    raise EngineError(f"the script calls a shell, and no tool takes a `command` string ({_offered(tools)})")


def _read(path: str, tools: Sequence[Tool]) -> ToolCall:
    for tool in tools:
        place = _first(_properties(tool), PATH)
        if place and tool.name.lower().startswith("read") and _fillable(tool, {place}):
            return _called(tool, {place: path})
    return _shell(f"cat {shlex.quote(path)}", tools)


def _edit(edit: Edit, tools: Sequence[Tool]) -> ToolCall:
    for tool in tools:
        properties = _properties(tool)
        place = _first(properties, PATH)
        item = _replacement(edit, properties.get("edits", {}).get("items", {}).get("properties", {}))
        change = {"edits": [item]} if item else _replacement(edit, properties)
        if place and change and _fillable(tool, {place, *change}):
            return _called(tool, {place: edit.path, **change})
    return _shell(f"python3 -c {shlex.quote(_edit_code(edit))}", tools)


def _replacement(edit: Edit, properties: Mapping[str, Any]) -> dict[str, Any]:
    old, new = _first(properties, OLD), _first(properties, NEW)
    return {old: edit.old, new: edit.new} if old and new else {}


def _edit_code(edit: Edit) -> str:
    return (
        f"from pathlib import Path; path = Path({edit.path!r}); "
        f"path.write_text(path.read_text().replace({edit.old!r}, {edit.new!r}))"
    )


def _write(write: Write, tools: Sequence[Tool]) -> ToolCall:
    for tool in tools:
        place, content = _first(_properties(tool), PATH), _first(_properties(tool), CONTENT)
        if place and content and {place, content} <= {*_required(tool)} and _fillable(tool, {place, content}):
            return _called(tool, {place: write.path, content: write.content})
    return _shell(f"printf %s {shlex.quote(write.content)} > {shlex.quote(write.path)}", tools)


def _mcp(call: McpCall, tools: Sequence[Tool]) -> ToolCall:
    """Agents put the server's name in front, each in a way of its own; some as the namespace, some none to a sole
    server's. What an agent adds to a tool's arguments is filled in."""
    named = (tool for tool in tools if tool.name.endswith(call.tool) and call.server in _before(tool, call.tool))
    bare = (tool for tool in tools if tool.name == call.tool)
    for tool in (*named, *bare):
        return _called(tool, call.arguments)
    raise EngineError(
        f"the script calls {call.tool} of the MCP server {call.server}, and no tool is named so ({_offered(tools)})"
    )


def _before(tool: Tool, name: str) -> str:
    return f"{tool.namespace} {tool.name.removesuffix(name)}"


def _dispatch(prompt: str, background: bool | None, tools: Sequence[Tool]) -> ToolCall:
    for tool in tools:
        task, properties = DISPATCHES.get(tool.name, ""), _properties(tool)
        if task in properties and _fillable(tool, {task}):
            choice = "run_in_background" in properties and background is not None
            return _called(tool, {task: prompt, **({"run_in_background": background} if choice else {})})
    known = ", ".join(DISPATCHES)
    raise EngineError(f"the script starts a sub-agent, and no tool is {known} ({_offered(tools)})")


def _properties(tool: Tool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool.parameters.get("properties", {})
    return found


def _required(tool: Tool) -> Sequence[str]:
    names: Sequence[str] = tool.parameters.get("required", ())
    return names


def _first(properties: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if name in properties), "")


def _free_text(schema: Mapping[str, Any]) -> bool:
    """A `command` that is an enum belongs to a tool of sub-commands, such as a file editor."""
    return schema.get("type") == "string" and "enum" not in schema


def _fillable(tool: Tool, said: Set[str]) -> bool:
    """Whether everything else that the tool requires is a text to which any will do."""
    others = {*_required(tool)} - said
    return not others & {*COMMAND} and all(_properties(tool).get(name, {}).get("type") == "string" for name in others)


def _called(tool: Tool, said: Mapping[str, Any]) -> ToolCall:
    others = {name: _filler(name, _properties(tool)[name]) for name in _required(tool) if name not in said}
    return ToolCall("", tool.name, _json({**said, **others}))


def _filler(name: str, schema: Mapping[str, Any]) -> str:
    return str(schema["enum"][0]) if "enum" in schema else FILLERS.get(name, FILLER)


def _offered(tools: Sequence[Tool]) -> str:
    return f"offered: {', '.join(tool.name for tool in tools) or 'none'}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
