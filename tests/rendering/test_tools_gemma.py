from __future__ import annotations

import json
import re

import pytest

from bridle.errors import TemplateError
from bridle.messages import Tool, ToolCall
from bridle.rendering.calls import Block, Tag
from bridle.rendering.tools_gemma import QUOTE, GemmaCalls

WRITE = Tool("write")


def pieces(source: str) -> tuple[str, ...]:
    """`source` with `"` for the quoting token; `~"` spells it as text."""
    cut = re.split('(?<!~)(")', source)
    return tuple(Tag(QUOTE) if piece == '"' else piece.replace('~"', QUOTE) for piece in cut)


def read(source: str, closed: bool = True) -> ToolCall | None:
    found = GemmaCalls().read(Block(pieces(source), closed), {"write": WRITE})
    return found[0].part if found else None


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("call:write{}", "{}"),
        ('call:write{path:"a b",n:5}', '{"path": "a b", "n": 5}'),
        ('call:write{n:2.50,path:""}', '{"n": 2.50, "path": ""}'),
        ('call:write{text:"\n{a:[1,}\n"}', '{"text": "\\n{a:[1,}\\n"}'),
        ('call:write{text:"~""}', '{"text": "<|\\"|>"}'),
        ("call:write{a:true,b:false,c:null,d:-1e3}", '{"a": true, "b": false, "c": null, "d": -1e3}'),
        ("call:write{a:None,b:True}", '{"a": null, "b": true}'),
        ('call:write{l:[1,"x",[],{k:"v",m:{}}]}', '{"l": [1, "x", [], {"k": "v", "m": {}}]}'),
        (' call:write { a : 1 , "b c": [ ] } ', '{"a": 1, "b c": []}'),
        ("call:write{a b:1}", '{"a b": 1}'),
        ("call:write{a:{k:1},b:{k:2}}", '{"a": {"k": 1}, "b": {"k": 2}}'),
    ],
)
def test_a_call_is_read_as_json(source: str, arguments: str) -> None:
    assert read(source) == ToolCall("", "write", arguments)


@pytest.mark.parametrize(
    ("source", "closed", "arguments", "status"),
    [
        ("call:other{n:5}", True, '{"n": 5}', "unknown_tool"),
        ("call:write{path:a.py}", True, '{"path": "a.py"}', "invalid_json"),
        ("call:write{n:1,n:2}", True, '{"n": 1, "n": 2}', "malformed"),
        ("call:write{n:5}", False, '{"n": 5}', "unclosed"),
        ("call:write{n:5", False, "{n:5", "unclosed"),
        ('call:write{text:"abc', True, '{text:<|"|>abc', "malformed"),
        ("call:write{n:5", True, "{n:5", "malformed"),
        ("call:write{n:5}}", True, "{n:5}}", "malformed"),
        ("call:write{n:5} more", True, "{n:5} more", "malformed"),
        ("call:write{n:5,}", True, "{n:5,}", "malformed"),
        ("call:write{5}", True, "{5}", "malformed"),
        ('call:write{n:"a""b"}', True, '{n:<|"|>a<|"|><|"|>b<|"|>}', "malformed"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(source: str, closed: bool, arguments: str, status: str) -> None:
    assert read(source, closed) == ToolCall("", "other" if "other" in source else "write", arguments, status)  # type: ignore[arg-type]


def test_endless_nesting_is_malformed_and_no_crash() -> None:
    call = read("call:write" + "{a:" * 99_999)
    assert call is not None
    assert call.status == "malformed"


@pytest.mark.parametrize("source", ["", "call:", "call:write", "write{}", "call:{n:1}", '"call:write{}"', "call:a b{}"])
def test_what_names_no_tool_is_no_call(source: str) -> None:
    assert read(source) is None


def test_a_call_is_written_with_tokens_for_quotes_and_bare_keys() -> None:
    call = ToolCall("", "write", json.dumps({"text": '<|"|>', "n": 5, "l": [True, {"a b": None, "k": "v"}]}))
    (written,) = GemmaCalls().write([call])
    assert "".join(written) == (
        '<|tool_call>call:write{text:<|"|><|"|><|"|>,n:5,l:[true,{<|"|>a b<|"|>:null,k:<|"|>v<|"|>}]}<tool_call|>'
    )
    assert [piece for piece in written if isinstance(piece, Tag)] == ["<|tool_call>", *[QUOTE] * 6, "<tool_call|>"]


@pytest.mark.parametrize(
    "call", [ToolCall("", "a b", "{}"), ToolCall("", "", "{}"), ToolCall("", "a{", "{}"), ToolCall("", "f", "[1]")]
)
def test_a_call_that_would_be_read_otherwise_is_refused(call: ToolCall) -> None:
    with pytest.raises(TemplateError):
        GemmaCalls().write([call])
