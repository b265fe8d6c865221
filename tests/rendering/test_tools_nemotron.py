from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from bridle.messages import Message, Text, Tool, ToolCall
from bridle.rendering.base import CallSpan
from bridle.rendering.calls import Block
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_nemotron import SpelledNemotronCalls


@pytest.fixture(params=["nemotron_v2", "nemotron_v1"], ids=["tags are tokens", "tags are text"])
def nemotron(request: pytest.FixtureRequest, model: Callable[[str], TemplateRenderer]) -> TemplateRenderer:
    return model(request.param)


def read(nemotron: TemplateRenderer, draw: str, stopped: bool = True) -> tuple[Message, tuple[CallSpan, ...]]:
    parser = nemotron.parser(False, (Tool("bash"),))
    ids = nemotron.vocabulary.encode_split(draw).tolist()
    parser.feed([*ids, nemotron.stop_ids[0]] if stopped else ids)
    return parser.finish()[0], parser.calls


def shown(message: Message) -> list[Any]:
    return [
        (part.name, part.arguments, part.status) if isinstance(part, ToolCall) else part.text  # type: ignore[union-attr]
        for part in message.parts
    ]


def item(arguments: str = "{}", name: str = "bash") -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def listed(*items: str, end: str = "]</TOOLCALL>") -> str:
    return f"<TOOLCALL>[{', '.join(items)}{end}"


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (listed(item('{"b":  1}')), [("bash", '{"b":  1}', "ok")]),
        (f"Look.\n\n{listed(item(), item(name='f'))}", ["Look.", ("bash", "{}", "ok"), ("f", "{}", "unknown_tool")]),
        (f"{listed(item())}Then{listed(item())}.", [("bash", "{}", "ok"), "Then", ("bash", "{}", "ok"), "."]),
        (f"<TOOLCALL>\n[\n{item()}\n]\n</TOOLCALL>", [("bash", "{}", "ok")]),
        (listed(item("[1]")), [("bash", "[1]", "malformed")]),
        (listed(item(), item('{"a": nope}')), [("bash", "{}", "ok"), ("bash", '{"a": nope}}]', "invalid_json")]),
        (f"<TOOLCALL>{item()}</TOOLCALL>", [("bash", "{}", "invalid_json")]),
        (listed(item(), end="</TOOLCALL>"), [("bash", "{}", "invalid_json")]),
        (listed(item(), end="]"), [("bash", "{}", "unclosed")]),
        (listed(item(), '{"name": "bash", "argu', end=""), [("bash", "{}", "ok"), ("bash", "", "unclosed")]),
        (f"a {listed()}b", [f"a {listed()}b"]),
        (f"a{listed('1')}", [f"a{listed('1')}"]),
    ],
)
def test_a_list_of_calls_is_read(nemotron: TemplateRenderer, draw: str, parts: list[Any]) -> None:
    message, _ = read(nemotron, draw)
    if "<TOOLCALL>" in nemotron.vocabulary.controls and not message.calls:
        # A block that holds no call is a part of its own.
        assert "".join(shown(message)) == parts[0]
    else:
        assert shown(message) == parts


def test_text_that_only_begins_like_a_call_is_one_text_with_what_stands_around_it(
    model: Callable[[str], TemplateRenderer],
) -> None:
    renderer = model("nemotron_v1")
    for text in ("a\n\n<TOOLCALL> b", "a <TOOL", "\n\n<TOOLCALL>[]</TOOLCALL>\n\n", "<\n<TOOLCALL>{"):
        parser = renderer.parser(False, (Tool("bash"),))
        told = [event.text for id in renderer.vocabulary.encode(text).tolist() for event in parser.feed([id])]  # type: ignore[attr-defined]
        message, _ = parser.finish()
        assert message.parts == (Text(text),)
        assert text.startswith("".join(told))
        assert parser.calls == ()


def test_tags_in_arguments_are_text(nemotron: TemplateRenderer) -> None:
    message = Message("assistant", (ToolCall("", "bash", '{"a": "</TOOLCALL><TOOLCALL>[{"}'), Text("and")))
    ids: list[int] = []
    for piece in nemotron.write(message, False)[:-1]:
        ids += [piece] if isinstance(piece, int) else nemotron.vocabulary.encode(piece).tolist()
    parser = nemotron.parser(False, (Tool("bash"),))
    parser.feed(ids)
    assert parser.finish()[0] == message


def test_each_call_of_a_list_says_which_ids_it_is(nemotron: TemplateRenderer) -> None:
    pieces = ["Look.\n\n", f"<TOOLCALL>[{item()}", ", ", f"{item('{1}')}]</TOOLCALL>", " Done."]
    lengths = [len(nemotron.vocabulary.encode_split(piece)) for piece in pieces]
    _, spans = read(nemotron, "".join(pieces))
    decoded = nemotron.vocabulary.encode_split("".join(pieces)).tolist()
    assert [(span.name, span.status) for span in spans] == [("bash", "ok"), ("bash", "invalid_json")]
    assert nemotron.vocabulary.decode(decoded[spans[0].start : spans[0].end]).strip(", \n") == pieces[1]
    assert spans[1].end <= sum(lengths[:4])


def test_endless_beginnings_cost_no_more_than_their_length() -> None:
    started = time.perf_counter()
    source = '<TOOLCALL>[{"name": "bash", "arguments": {"a": "' * 4000
    SpelledNemotronCalls().read(Block((source,), True), {})
    assert time.perf_counter() - started < 5
