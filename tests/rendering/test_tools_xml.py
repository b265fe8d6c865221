from __future__ import annotations

import json
import time

import pytest

from bridle.errors import TemplateError
from bridle.messages import Text, Tool, ToolCall
from bridle.rendering.calls import Block
from bridle.rendering.tools_xml import XmlCalls

WRITE = Tool(
    "write",
    "",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "n": {"type": "integer"}},
    },
)
INNER = "<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
QUOTED = f"<tool_call>\n<function=g>\n{INNER}</function>\n</tool_call>"


def read(source: str, closed: bool = True) -> list[ToolCall | Text]:
    return [one.part for one in XmlCalls().read(Block((source,), closed), {"write": WRITE})]


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def function(*parameters: str, name: str = "write") -> str:
    return f"\n<function={name}>\n{''.join(parameters)}</function>\n"


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        (function(), {}),
        (function(parameter("path", "a"), parameter("n", "5")), {"path": "a", "n": 5}),
        (function(parameter("n", "5"), parameter("path", "5")), {"n": 5, "path": "5"}),
        (function(parameter("text", "\n a\n\n")), {"text": "\n a\n\n"}),
        (function(parameter("text", "")), {"text": ""}),
        ("\n<function=write>\n<parameter=text>\n</parameter>\n</function>\n", {"text": ""}),
        ("<function=write><parameter=text>a</parameter><parameter=n> 5 </parameter></function>", {"text": "a", "n": 5}),
        # Tags in a value.
        (function(parameter("text", "a </parameter> b")), {"text": "a </parameter> b"}),
        (function(parameter("text", "a\n</parameter>\nb")), {"text": "a\n</parameter>\nb"}),
        (function(parameter("text", "say <parameter=x> here")), {"text": "say <parameter=x> here"}),
        (function(parameter("text", "</function>"), parameter("n", "5")), {"text": "</function>", "n": 5}),
        (function(parameter("text", "</parameter>\n</function>\n")), {"text": "</parameter>\n</function>\n"}),
        (
            function(parameter("text", f"like\n{QUOTED}\nthis"), parameter("n", "5")),
            {"text": f"like\n{QUOTED}\nthis", "n": 5},
        ),
    ],
)
def test_a_call_is_read_with_the_values_of_its_parameters(source: str, arguments: dict[str, object]) -> None:
    (call,) = read(source)
    assert isinstance(call, ToolCall)
    assert (call.name, json.loads(call.arguments), call.status) == ("write", arguments, "ok")
    assert list(json.loads(call.arguments)) == list(arguments)


@pytest.mark.parametrize(
    ("source", "closed", "arguments", "status"),
    [
        (function(parameter("a", "1"), name="other"), True, '{"a": 1}', "unknown_tool"),
        (function(parameter("n", "five")), True, '{"n": "five"}', "invalid_json"),
        (function(parameter("n", "1"), parameter("n", "2")), True, '{"n": 1, "n": 2}', "malformed"),
        (function(parameter("n", "5")), False, '{"n": 5}', "unclosed"),
        # What cannot be read is passed on as it was sampled, so that nothing is run by half.
        ("<function=write>\n<parameter=n>\n5", False, "\n<parameter=n>\n5", "unclosed"),
        ("<function=write>\n<parameter=n>\n5\n</para", False, "\n<parameter=n>\n5\n</para", "unclosed"),
        ("<function=write>\n<parameter=n>\n5\n</parameter>\n", False, "\n<parameter=n>\n5\n</parameter>\n", "unclosed"),
        ("<function=write>\n<parameter=n>\n5\n</parameter>\n", True, "\n<parameter=n>\n5\n</parameter>\n", "malformed"),
        ("<function=write>\n<parameter=n>\n5\n</function>\n", True, "\n<parameter=n>\n5\n</function>\n", "malformed"),
        (
            "<function=write>\n<parameter=n>\n5\n<parameter=text>\na\n</parameter>\n</function>",
            True,
            "\n<parameter=n>\n5\n<parameter=text>\na\n</parameter>\n</function>",
            "malformed",
        ),
        (f"{function(parameter('n', '5'))}more", True, f"\n{parameter('n', '5')}</function>\nmore", "malformed"),
        ('<function=write>{"n": 5}</function>', True, '{"n": 5}</function>', "malformed"),
        ("<function=write>\n<parameter>\n5\n</parameter>\n</function>", True, None, "malformed"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(source: str, closed: bool, arguments: str | None, status: str) -> None:
    (call,) = read(source, closed)
    assert isinstance(call, ToolCall)
    assert call.status == status
    assert call.arguments == (source.partition(">")[2] if arguments is None else arguments)


@pytest.mark.parametrize(
    "source", ["", "\n", "just text", "<function=>", "<function=wri", '{"name": "write"}', "<function>"]
)
def test_what_names_no_tool_is_no_call(source: str) -> None:
    assert read(source) == read(source, closed=False) == []


def test_several_calls_in_one_block_and_text_before_them_are_all_kept() -> None:
    source = f"first{function(parameter('n', '1'))}{function(name='other')}"
    assert read(source) == [
        Text("first\n"),
        ToolCall("", "write", '{"n": 1}'),
        ToolCall("", "other", "{}", "unknown_tool"),
    ]
    assert [source[one.start : one.end] for one in XmlCalls().read(Block((source,), True), {})] == [
        "first\n",
        function(parameter("n", "1")).strip(),
        function(name="other").strip(),
    ]
    assert [part.status for part in read(source, closed=False) if isinstance(part, ToolCall)] == ["ok", "unclosed"]


def test_a_call_is_written_as_it_is_read() -> None:
    call = ToolCall("", "write", '{"text": "\\n<a>\\n", "n":  5, "more": {"b":  [1.50]}}')
    ((opening, written, closing),) = XmlCalls().write([call])
    assert (opening, closing) == ("<tool_call>", "</tool_call>")
    assert written == function(parameter("text", "\n<a>\n"), parameter("n", "5"), parameter("more", '{"b":  [1.50]}'))


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("", "a>b", "{}"),
        ToolCall("", "", "{}"),
        ToolCall("", "f", '{"a>": 1}'),
        ToolCall("", "f", json.dumps({"a": "1\n</parameter>\n<parameter=b>\n2"})),
        ToolCall("", "f", json.dumps({"a": "\n<parameter=b>\n"})),
        ToolCall("", "f", "[]"),
    ],
)
def test_a_call_that_would_be_read_otherwise_is_refused(call: ToolCall) -> None:
    with pytest.raises(TemplateError):
        XmlCalls().write([call])


@pytest.mark.parametrize(
    "source",
    [
        "<function=" * 50_000,
        "<function=f>" * 50_000,
        "<function=f>" + "<parameter=a>" * 50_000,
        "<function=f>" + "<parameter=a>\n</parameter>\n" * 20_000,
        "<function=f>\n<parameter=a>" + "\n</parameter>" * 50_000,
        "<function=f>\n<parameter=a>" + ("</parameter>" + " " * 1000) * 500,
        "<function=f>" + " " * 500_000,
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(source: str) -> None:
    started = time.process_time()
    read(source)
    assert time.process_time() - started < 2
