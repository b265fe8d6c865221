from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from bridle.messages import Text, Tool, ToolCall
from bridle.rendering.calls import Block
from bridle.rendering.tools_json import JsonCalls


def read_one(source: str, closed: bool = True, name: str = "bash") -> ToolCall | Text | None:
    found = JsonCalls().read(Block((source,), closed), {name: Tool(name)})
    return found[0].part if found else None


@pytest.mark.parametrize(
    ("source", "closed", "call"),
    [
        ('\n{"name": "bash", "arguments": {"b":  1, "a":2.50}}\n', True, ("bash", '{"b":  1, "a":2.50}', "ok")),
        ('{"arguments":{"x":"}\\""} ,"name":"bash"}', True, ("bash", '{"x":"}\\""}', "ok")),
        ('{"id": 7, "name": "bash", "arguments": {}}', True, ("bash", "{}", "ok")),
        ('{"name": "other", "arguments": {}}', True, ("other", "{}", "unknown_tool")),
        ('{"name": "bash", "arguments": {"a": 1', False, ("bash", '{"a": 1', "unclosed")),
        ('{"name": "bash", "arguments": {"a": 1}}', False, ("bash", '{"a": 1}', "unclosed")),
        ('{"name": "bash", ', False, ("bash", "", "unclosed")),
        ('{"name": "bash", "arguments": {"a": nope}}', True, ("bash", '{"a": nope}}', "invalid_json")),
        ('{"name": "bash", "arguments": {"a": 1}', True, ("bash", '{"a": 1}', "invalid_json")),
        ('{"name": "bash", "arguments": {"a": 1}} }', True, ("bash", '{"a": 1}', "invalid_json")),
        (
            '{"name": "bash", "arguments": {"a": "line\nbreak"}}',
            True,
            ("bash", '{"a": "line\nbreak"}}', "invalid_json"),
        ),
        ('{"name": "bash", "arguments": "{\\"a\\": 1}"}', True, ("bash", '"{\\"a\\": 1}"', "malformed")),
        ('{"name": "bash", "arguments": {"a": NaN}}', True, ("bash", '{"a": NaN}', "malformed")),
        ('{"name": "bash", "arguments": {"a": "\\ud800"}}', True, ("bash", '{"a": "\\ud800"}', "malformed")),
        ('{"name": "bash"}', True, ("bash", "", "malformed")),
    ],
)
def test_a_call_is_read_with_the_arguments_it_was_sampled_with(
    source: str, closed: bool, call: tuple[str, str, str]
) -> None:
    read = read_one(source, closed)
    assert isinstance(read, ToolCall)
    assert (read.name, read.arguments, read.status) == call


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\n",
        "{broken",
        '{"name": "ba',
        '{"name": 7, "arguments": {}}',
        '{"arguments": {}}',
        "[]",
        '"bash"',
        "[" * 99999,
    ],
)
def test_what_names_no_tool_is_no_call(source: str) -> None:
    assert read_one(source) is None


def test_endless_nesting_is_invalid_json_and_no_crash() -> None:
    call = read_one('{"name": "bash", "arguments": ' + '{"a": ' * 99999)
    assert isinstance(call, ToolCall)
    assert call.status == "invalid_json"


@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    arguments=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers(-9, 9)),
    indent=st.sampled_from([None, 1]),
)
def test_a_written_call_is_read_back_byte_for_byte(name: str, arguments: dict[str, Any], indent: int | None) -> None:
    call = ToolCall("", name, json.dumps(arguments, indent=indent, ensure_ascii=False))
    ((opening, written, closing),) = JsonCalls().write([call])
    assert (opening, closing) == ("<tool_call>", "</tool_call>")
    assert read_one(written, name=name) == call
