from __future__ import annotations

import json

import pytest

from bridle.errors import TemplateError
from bridle.messages import Text, Tool, ToolCall
from bridle.rendering.calls import Block
from bridle.rendering.tools_minimax import MinimaxCalls

WRITE = Tool("write", "", {"properties": {"text": {"type": "string"}, "n": {"type": "integer"}}})


def read(source: str, closed: bool = True) -> list[ToolCall | Text]:
    return [one.part for one in MinimaxCalls().read(Block((source,), closed), {"write": WRITE})]


def invoke(*parameters: tuple[str, str], name: str = "write") -> str:
    lines = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters)
    return f'<invoke name="{name}">\n{lines}</invoke>\n'


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        (invoke(), {}),
        (invoke(("text", "a"), ("n", "5")), {"text": "a", "n": 5}),
        (invoke(("text", "\na\n ")), {"text": "\na\n "}),
        (invoke(("text", ""), ("more", "[1]")), {"text": "", "more": [1]}),
        (invoke(("text", "a </parameter> b")), {"text": "a </parameter> b"}),
        (
            invoke(("text", f"\n{invoke(('a', '1'), ('b', '2'))}"), ("n", "5")),
            {"text": f"\n{invoke(('a', '1'), ('b', '2'))}", "n": 5},
        ),
    ],
)
def test_a_call_is_read_with_the_values_of_its_parameters(source: str, arguments: dict[str, object]) -> None:
    (call,) = read(f"\n{source}")
    assert isinstance(call, ToolCall)
    assert (call.name, json.loads(call.arguments), call.status) == ("write", arguments, "ok")


def test_each_call_of_a_block_is_read_for_itself() -> None:
    block = f"\n{invoke(('n', '1'))}{invoke(('n', 'x'))}{invoke(name='other')}"
    calls = [
        ToolCall("", "write", '{"n": 1}'),
        ToolCall("", "write", '{"n": "x"}', "invalid_json"),
        ToolCall("", "other", "{}", "unknown_tool"),
    ]
    assert read(block) == calls
    assert read(f"{block}<invoke name=") == [*calls, Text("\n<invoke name=")]
    assert [call.status for call in read(block, closed=False) if isinstance(call, ToolCall)] == [
        "ok",
        "invalid_json",
        "unclosed",
    ]


def test_a_call_that_breaks_off_keeps_the_rest_of_its_block() -> None:
    broken = '<invoke name="write">\n<parameter name="n">5\n</invoke>\n'
    assert read(f"\n{invoke(('n', '1'))}{broken}{invoke(('n', '2'))}") == [
        ToolCall("", "write", '{"n": 1}'),
        ToolCall("", "write", f"{broken.partition('>')[2]}{invoke(('n', '2'))}", "malformed"),
    ]


@pytest.mark.parametrize(
    "source", ["", "\n", "text", '<invoke name="">', '<invoke name="wri', "<invoke>", "<invoke name=write>"]
)
def test_what_names_no_tool_is_no_call(source: str) -> None:
    assert read(source) == []


def test_calls_are_written_into_one_block() -> None:
    calls = [ToolCall("", "write", '{"text": "a\\nb", "n": 5}'), ToolCall("", "other", "{}")]
    written = "".join(["\n", invoke(("text", "a\nb"), ("n", "5")), invoke(name="other")])
    assert MinimaxCalls().write(calls) == [["<minimax:tool_call>", written, "</minimax:tool_call>"]]


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("", 'a"b', "{}"),
        ToolCall("", "f", '{"a\\"": 1}'),
        ToolCall("", "f", json.dumps({"a": '1</parameter>\n<parameter name="b">2'})),
        ToolCall("", "f", "7"),
    ],
)
def test_a_call_that_would_be_read_otherwise_is_refused(call: ToolCall) -> None:
    with pytest.raises(TemplateError):
        MinimaxCalls().write([call])
