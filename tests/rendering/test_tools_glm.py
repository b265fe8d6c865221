from __future__ import annotations

import json
import re

import pytest

from bridle.errors import TemplateError
from bridle.messages import Tool, ToolCall
from bridle.rendering.calls import Block, Tag
from bridle.rendering.tools_glm import INNER, CompactGlmCalls, GlmCalls

WRITE = Tool("write", "", {"properties": {"text": {"type": "string"}, "n": {"type": "integer"}}})


def pieces(source: str) -> tuple[str, ...]:
    """`source` with its inner tags as control tokens; `~<` spells a tag as text."""
    cut = re.split(f"(?<!~)({'|'.join(INNER)}|</?think>)", source)
    return tuple(Tag(piece) if number % 2 else piece.replace("~<", "<") for number, piece in enumerate(cut))


def read(source: str, closed: bool = True) -> ToolCall | None:
    found = GlmCalls().read(Block(pieces(source), closed), {"write": WRITE})
    assert CompactGlmCalls().read(Block(pieces(source), closed), {"write": WRITE}) == found
    return found[0].part if found else None


def lines(*members: tuple[str, str], name: str = "write") -> str:
    return f"{name}\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in members)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("write", {}),
        (lines(), {}),
        (f"\n{lines(('n', '5'))}", {"n": 5}),
        (lines(("n", "5"), ("text", "5")), {"n": 5, "text": "5"}),
        (lines(("n", "5"), ("text", "5")).replace("\n", ""), {"n": 5, "text": "5"}),
        (lines(("text", "\n a \n")), {"text": "\n a \n"}),
        (lines(("text", "")), {"text": ""}),
        (lines(("text", "~</arg_value>~<arg_key>")), {"text": "</arg_value><arg_key>"}),
        (lines(("text", "a <think>")), {"text": "a <think>"}),
        (lines(("a b", "[1,  2]")), {"a b": [1, 2]}),
    ],
)
def test_a_call_is_read_with_the_values_of_its_parameters(source: str, arguments: dict[str, object]) -> None:
    call = read(source)
    assert call is not None
    assert (call.name, json.loads(call.arguments), call.status) == ("write", arguments, "ok")


@pytest.mark.parametrize(
    ("source", "closed", "arguments", "status"),
    [
        (lines(("n", "5"), name="other"), True, '{"n": 5}', "unknown_tool"),
        (lines(("n", "x")), True, '{"n": "x"}', "invalid_json"),
        (lines(("n", "1"), ("n", "2")), True, '{"n": 1, "n": 2}', "malformed"),
        (lines(("n", "5")), False, '{"n": 5}', "unclosed"),
        ("write\n<arg_key>n", False, "<arg_key>n", "unclosed"),
        ("write\n<arg_key>n</arg_key>", True, "<arg_key>n</arg_key>", "malformed"),
        ("write\n<arg_value>5</arg_value>", True, "<arg_value>5</arg_value>", "malformed"),
        ("write<arg_key>n</arg_key><arg_value>5", True, "<arg_key>n</arg_key><arg_value>5", "malformed"),
        (f"{lines(('n', '5'))}more", True, "<arg_key>n</arg_key>\n<arg_value>5</arg_value>\nmore", "malformed"),
        (
            "write<arg_key>n</arg_key>x<arg_value>5</arg_value>",
            True,
            "<arg_key>n</arg_key>x<arg_value>5</arg_value>",
            "malformed",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_told(source: str, closed: bool, arguments: str, status: str) -> None:
    assert read(source, closed) == ToolCall("", "write" if "other" not in source else "other", arguments, status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "closed"),
    [
        ("", True),
        ("\n", True),
        ("two words", True),
        ('{"name": "write", "arguments": {}}', True),
        ("<arg_key>n</arg_key>", True),
        ("~<arg_key>n~</arg_key> a", True),
        # The name may not be all there yet.
        ("wri", False),
    ],
)
def test_what_names_no_tool_is_no_call(source: str, closed: bool) -> None:
    assert read(source, closed) is None


def test_a_call_is_written_with_newlines_or_without() -> None:
    call = ToolCall("", "write", '{"text": "</arg_value>\\n", "n":  5}')
    spelled = lines(("text", "~</arg_value>\n"), ("n", "5"))
    (written,), (compact,) = GlmCalls().write([call]), CompactGlmCalls().write([call])
    assert [piece for piece in written[1:-1] if piece] == [piece for piece in pieces(spelled) if piece]
    assert (
        "".join(compact)
        == "<tool_call>write"
        + "".join(
            f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in [("text", "</arg_value>\n"), ("n", "5")]
        )
        + "</tool_call>"
    )


@pytest.mark.parametrize("call", [ToolCall("", "a b", "{}"), ToolCall("", "", "{}"), ToolCall("", "f", "")])
def test_a_call_that_would_be_read_otherwise_is_refused(call: ToolCall) -> None:
    with pytest.raises(TemplateError):
        GlmCalls().write([call])
