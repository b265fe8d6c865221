from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from bridle.errors import TemplateError
from bridle.messages import Tool, ToolCall
from bridle.rendering.parameters import ANY, Member, make_call, members_of, types_of

REFERRED = {"$defs": {"mode": {"enum": ["r", "w"]}, "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "null"}]}}}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def read(schema: Any, text: str) -> tuple[str, str]:
    """-> the value as JSON, and the status of its call."""
    tool = Tool("f", "", {"type": "object", "properties": {"k": schema}, **REFERRED})
    call = make_call("f", [Member("k", text)], {"f": tool}, closed=True)
    return call.arguments.removeprefix('{"k": ').removesuffix("}"), call.status


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        # Strings alone: the text as it is.
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, ' {"a": 1}\n', '" {\\"a\\": 1}\\n"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, '"quoted"', '"\\"quoted\\""'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": "1"}, "1", '"1"'),
        ({"$ref": "#/$defs/mode"}, "5", '"5"'),
        ({"type": "string", "enum": [1, "1"]}, "1", '"1"'),
        # No strings: JSON, byte for byte.
        ({"type": "integer"}, "5", "5"),
        ({"type": "integer"}, "\n5 ", "5"),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "number"}, "1e+20", "1e+20"),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "object"}, '{"b":  1, "a": 2.50}', '{"b":  1, "a": 2.50}'),
        ({"type": "array"}, '[\n 1,\n "x"\n]', '[\n 1,\n "x"\n]'),
        ({"enum": [1, 2]}, "1", "1"),
        # JSON of another type is the tool's to refuse, as in the forms that spell JSON.
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "array"}, "5", "5"),
        ({"type": "integer"}, '"5"', '"5"'),
        # Python's words.
        ({"type": "boolean"}, "True", "true"),
        ({"type": ["integer", "null"]}, "None", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", "null"),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({}, "True", '"True"'),
        # Strings among others: what the others take, and no string.
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", '"5"'),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, "5.5", '"5.5"'),
        ({"type": ["string", "number"]}, "5", "5"),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', '["a"]'),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, "[a]", '"[a]"'),
        # Nothing said.
        ({}, "5", "5"),
        ({}, "five", '"five"'),
        ({}, '"five"', '"\\"five\\""'),
        ({"type": "any"}, "5", "5"),
        (True, "[1]", "[1]"),
        ({"$ref": "#/nowhere"}, "5", "5"),
        ({"$ref": "#/$defs/self"}, "null", "null"),
    ],
)
def test_a_value_without_quotes_is_what_the_schema_takes(schema: Any, text: str, value: str) -> None:
    assert read(schema, text) == (value, "ok")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, ""),
        ({"type": "number"}, "NaN"),
        ({"type": "boolean"}, "yes"),
        ({"type": "array"}, "['a']"),
        ({"type": "object"}, '{"a": "\\ud800"}'),
        ({"type": "object"}, '{"a": ' * 5000),
    ],
)
def test_a_value_that_is_none_its_schema_takes_is_passed_on_as_a_string_and_told(schema: Any, text: str) -> None:
    assert read(schema, text) == (json.dumps(text, ensure_ascii=False), "invalid_json")


def test_without_a_schema_json_counts_and_everything_else_is_text() -> None:
    members = [Member("a", "1"), Member("b", "x"), Member("c", '{"d": null}')]
    call = make_call("unknown", members, {}, closed=True)
    assert (call.arguments, call.status) == ('{"a": 1, "b": "x", "c": {"d": null}}', "unknown_tool")
    assert make_call("f", members, {"f": Tool("f")}, closed=True).status == "ok"


def test_a_repeated_key_is_kept_and_told() -> None:
    call = make_call("f", [Member("a", "1"), Member("b", "2"), Member("a", "3")], {"f": Tool("f")}, closed=True)
    assert (call.arguments, call.status) == ('{"a": 1, "b": 2, "a": 3}', "malformed")


def test_the_gravest_fault_is_told() -> None:
    tools = {"f": Tool("f", "", {"properties": {"n": {"type": "integer"}}})}
    bad, twice = Member("n", "x"), [Member("n", "x"), Member("n", "y")]
    assert [
        make_call(name, members, tools, closed).status
        for name, members, closed in [("f", twice, False), ("f", twice, True), ("f", [bad], True), ("g", [bad], True)]
    ] == ["unclosed", "malformed", "invalid_json", "unknown_tool"]


def test_a_schema_of_any_depth_is_read_or_takes_anything() -> None:
    circle = {"properties": {"k": {"type": "integer", "$ref": "#/$defs/self"}}, **REFERRED}
    assert types_of(circle, "k") == {"integer"}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        deep = {"anyOf": [deep]}
    assert types_of({"properties": {"k": deep}}, "k") == ANY
    wide = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {"type": "integer"}}
    assert types_of({"properties": {"k": {"$ref": "#/$defs/d0"}}, "$defs": wide}, "k") == {"integer"}


@given(arguments=st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(st.integers())))
def test_arguments_come_apart_by_key_in_their_order(arguments: dict[str, Any]) -> None:
    call = ToolCall("", "f", json.dumps(arguments, indent=1))
    assert [(key, json.loads(source)) for key, source in members_of(call)] == list(arguments.items())


@pytest.mark.parametrize("arguments", ["[]", "", '{"a": 1', '{"a": NaN}', "null", '{"a": ' * 9999])
def test_arguments_that_are_no_object_have_no_members(arguments: str) -> None:
    with pytest.raises(TemplateError, match="no JSON object"):
        members_of(ToolCall("", "f", arguments))
