from __future__ import annotations

import ast
import json
import time

import pytest
from hypothesis import given, strategies as st

from bridle.errors import TemplateError
from bridle.messages import Text, Tool, ToolCall
from bridle.rendering.calls import Block
from bridle.rendering.tools_lfm import LfmCalls

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def read(source: str, closed: bool = True) -> list[ToolCall | Text]:
    return [one.part for one in LfmCalls().read(Block((source,), closed), {"f": Tool("f"), "g": Tool("g")})]


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("[f()]", "{}"),
        (" [ f ( a = 'x' , b = 2.50 , ) ] ", '{"a": "x", "b": 2.50}'),
        ('[f(a="it\'s", b=\'say "x"\')]', '{"a": "it\'s", "b": "say \\"x\\""}'),
        (r"[f(a='it\'s\n\\d\x41\u00e9')]", '{"a": "it\'s\\n\\\\dAé"}'),
        (r"[f(a='\d+')]", '{"a": "\\\\d+"}'),
        (r"[f(a='\ud83d\ude00\ud800')]", '{"a": "😀\ufffd"}'),
        ("[f(a='two\nlines')]", '{"a": "two\\nlines"}'),
        ("[f(a=True, b=False, c=None, d=true, e=-1)]", '{"a": true, "b": false, "c": null, "d": true, "e": -1}'),
        ("[f(a=[1, 'x', []], b={'k': {}, \"l\": null})]", '{"a": [1, "x", []], "b": {"k": {}, "l": null}}'),
        ("[f(a='), g(b=1)]')]", '{"a": "), g(b=1)]"}'),
    ],
)
def test_a_call_is_read_as_json(source: str, arguments: str) -> None:
    assert read(source) == [ToolCall("", "f", arguments)]


def test_each_call_of_a_list_is_read_for_itself() -> None:
    source = "[f(a=1), a.b-c(), g(a=1, a=2), f(a=x)]"
    calls = [
        ToolCall("", "f", '{"a": 1}'),
        ToolCall("", "a.b-c", "{}", "unknown_tool"),
        ToolCall("", "g", '{"a": 1, "a": 2}', "malformed"),
        ToolCall("", "f", '{"a": "x"}', "invalid_json"),
    ]
    assert read(source) == calls
    spelled = [source[one.start : one.end] for one in LfmCalls().read(Block((source,), True), {})]
    assert spelled == ["f(a=1)", "a.b-c()", "g(a=1, a=2)", "f(a=x)"]


@pytest.mark.parametrize(
    ("source", "closed", "parts"),
    [
        ("[f(a=1)]", False, [ToolCall("", "f", '{"a": 1}', "unclosed")]),
        ("[f(a='x", False, [ToolCall("", "f", "a='x", "unclosed")]),
        ("[g(), f(a=", False, [ToolCall("", "g", "{}"), ToolCall("", "f", "a=", "unclosed")]),
        ("[g(), f", False, [ToolCall("", "g", "{}", "unclosed"), Text(", f")]),
        ("[f('x')]", True, [ToolCall("", "f", "'x')]", "malformed")]),
        ("[f(a='it's')]", True, [ToolCall("", "f", "a='it's')]", "malformed")]),
        ("[f(a={b: 1})]", True, [ToolCall("", "f", "a={b: 1})]", "malformed")]),
        ("[f(a=1 b=2)]", True, [ToolCall("", "f", "a=1 b=2)]", "malformed")]),
        ("[f(a=(1, 2))]", True, [ToolCall("", "f", "a=(1, 2))]", "malformed")]),
        ("f(a=1)", True, [ToolCall("", "f", '{"a": 1}', "malformed")]),
        ("[f(a=1)", True, [ToolCall("", "f", '{"a": 1}', "malformed")]),
        ("[f(a=1)] more", True, [ToolCall("", "f", '{"a": 1}', "malformed"), Text("] more")]),
        ("[f() g()]", True, [ToolCall("", "f", "{}", "malformed"), Text(" g()]")]),
    ],
)
def test_what_is_wrong_with_a_call_is_told(source: str, closed: bool, parts: list[ToolCall | Text]) -> None:
    assert read(source, closed) == parts


@pytest.mark.parametrize("source", ["", "[]", "text", "[f", "[('x')]", "(a=1)", '[{"name": "f", "arguments": {}}]'])
def test_what_names_no_tool_is_no_call(source: str) -> None:
    assert read(source) == []


@given(text=TEXT)
def test_strings_are_read_as_python_reads_them(text: str) -> None:
    for spelled in (repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False)):
        (call,) = read(f"[f(a={spelled})]")
        assert isinstance(call, ToolCall)
        assert json.loads(call.arguments) == {"a": text}


def test_calls_are_written_as_python_that_python_reads() -> None:
    value = {"s": "it's\n\\d", "n": 2.50, "b": True, "c": None, "l": [1, None], "d": {"k": "v"}}
    calls = [ToolCall("", "f", json.dumps(value)), ToolCall("", "g", "{}")]
    ((opening, written, closing),) = LfmCalls().write(calls)
    assert (opening, closing) == ("<|tool_call_start|>", "<|tool_call_end|>")
    assert written == (r"""[f(s='it\'s\n\\d', n=2.5, b=True, c=None, l=[1, null], d={"k": "v"}), g()]""")
    assert isinstance(ast.parse(written, mode="eval").body, ast.List)


@pytest.mark.parametrize("call", [ToolCall("", "a b", "{}"), ToolCall("", "f", '{"a b": 1}'), ToolCall("", "f", "[]")])
def test_a_call_that_would_be_read_otherwise_is_refused(call: ToolCall) -> None:
    with pytest.raises(TemplateError):
        LfmCalls().write([call])


@pytest.mark.parametrize(
    "source",
    [
        "[f(a=" + "[" * 500_000,
        "[f(a='" + "\\'" * 200_000,
        "[f(), " * 50_000,
        "[f(a=" + " " * 500_000,
        "[" + "f " * 200_000,
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(source: str) -> None:
    started = time.process_time()
    read(source)
    assert time.process_time() - started < 3
