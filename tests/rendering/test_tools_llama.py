from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from renderers.base import ToolCallParseStatus
from renderers.parsing import parse_llama_3

from bridle.messages import Message, Text, Tool, ToolCall
from bridle.rendering.base import CallSpan, TextDelta
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import concatenate, ids_of

TOOLS = (Tool("bash"), Tool("brave_search"))


@pytest.fixture(scope="module")
def llama(model: Callable[[str], TemplateRenderer]) -> TemplateRenderer:
    return model("llama3_1")


def read(
    renderer: TemplateRenderer, draw: str, tools: tuple[Tool, ...] = TOOLS
) -> tuple[Message, tuple[CallSpan, ...]]:
    parser = renderer.parser(False, tools)
    parser.feed(renderer.vocabulary.encode_split(draw).tolist())
    return parser.finish()[0], parser.calls


def shown(message: Message) -> list[Any]:
    return [
        (part.name, part.arguments, part.status) if isinstance(part, ToolCall) else part.text  # type: ignore[union-attr]
        for part in message.parts
    ]


def item(arguments: str = "{}", name: str = "bash", key: str = "parameters") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (item('{"b":  1}'), [("bash", '{"b":  1}', "ok")]),
        (item('{"b":  1}', key="arguments"), [("bash", '{"b":  1}', "ok")]),
        (f"\n {item()}\n", [("bash", "{}", "ok")]),
        ('{"type": "function", "name": "bash", "parameters": {}}', [("bash", "{}", "ok")]),
        (item(name="f"), [("f", "{}", "unknown_tool")]),
        (f"<|python_tag|>{item()}", [("bash", "{}", "ok")]),
        (f"Look.\n<|python_tag|>{item()}", ["Look.\n", ("bash", "{}", "ok")]),
        (f"{item()}; {item(name='f')}", [("bash", "{}", "ok"), ("f", "{}", "unknown_tool")]),
        (f"{item()}\n{item()}{item()}", [("bash", "{}", "ok")] * 3),
        (f"{item()} Done.", [("bash", "{}", "ok"), " Done."]),
        (f"{item()} {{1}}", [("bash", "{}", "ok"), " {1}"]),
        (item("[1]"), [("bash", "[1]", "malformed")]),
        (item('{"a": nope}'), [("bash", '{"a": nope}}', "invalid_json")]),
        ('{"name": "bash"}', [("bash", "", "malformed")]),
        ('{"name": "bash", "parameters": {"a": 1}', [("bash", '{"a": 1}', "invalid_json")]),
        # Objects for another reason, and what begins as one.
        ('{"name": "Ada", "age": 36}', ['{"name": "Ada", "age": 36}']),
        ('{"a": 1}', ['{"a": 1}']),
        ("{not at all", ["{not at all"]),
        ("{", ["{"]),
        (f"It is {item()}", [f"It is {item()}"]),
        # What Llama has built in.
        ('<|python_tag|>brave_search.call(query="a b")', [("brave_search", '{"query": "a b"}', "ok")]),
        (
            '<|python_tag|>brave_search.call(query="say "hi"\n", n="1")',
            [("brave_search", '{"query": "say \\"hi\\"\\n", "n": "1"}', "ok")],
        ),
        ("<|python_tag|>bash.call()", [("bash", "{}", "ok")]),
        ("<|python_tag|>bash.call(n=1)", [("bash", "n=1", "invalid_json")]),
        ('<|python_tag|>bash.call(n="1"', [("bash", '{"n": "1"}', "invalid_json")]),
        ('<|python_tag|>bash.call(n="1", n="2")', [("bash", '{"n": "1", "n": "2"}', "malformed")]),
        ('<|python_tag|>f.call(n="1", n="2")', [("f", '{"n": "1", "n": "2"}', "malformed")]),
        ('<|python_tag|>bash.call(n="1", n="2"', [("bash", '{"n": "1", "n": "2"}', "malformed")]),
        ('<|python_tag|> bash.call(n=")", m="a, b=c")  ', [("bash", '{"n": ")", "m": "a, b=c"}', "ok")]),
        ('<|python_tag|>bash.call(n="1"; m="2")', [("bash", '{"n": "1\\"; m=\\"2"}', "ok")]),
        ('<|python_tag|>bash.call(n="1", )', [("bash", 'n="1", ', "invalid_json")]),
        ("<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
    ],
)
def test_an_answer_that_begins_as_a_call_is_one(llama: TemplateRenderer, draw: str, parts: list[Any]) -> None:
    assert shown(read(llama, f"{draw}<|eot_id|>")[0]) == parts


@pytest.mark.parametrize(
    "draw", [item('{"a": 1}'), '{"name": "bash", "parameters": {"a', '{"name": "bash", "parameters":']
)
def test_a_call_that_is_cut_is_unclosed(llama: TemplateRenderer, draw: str) -> None:
    (span,) = read(llama, draw)[1]
    assert (span.name, span.status) == ("bash", "unclosed")


def test_an_object_is_no_call_where_no_tools_are_offered(llama: TemplateRenderer) -> None:
    assert read(llama, item(), tools=()) == (Message("assistant", (Text(item()),)), ())


def test_an_answer_that_begins_otherwise_is_told_as_it_comes(llama: TemplateRenderer) -> None:
    parser = llama.parser(False, TOOLS)
    events = parser.feed(llama.vocabulary.encode('Not {"this"}').tolist())
    assert events == [TextDelta('Not {"this"}')]
    assert parser.finish()[0].parts == (Text('Not {"this"}'),)


def test_what_llama_4_says_beside_its_calls_stands_in_tags(model: Callable[[str], TemplateRenderer]) -> None:
    renderer = model("llama4")
    message, _ = read(renderer, f"<|python_start|>Look.<|python_end|>{item()}{item()}<|eot|>")
    assert shown(message) == ["Look.", ("bash", "{}", "ok"), ("bash", "{}", "ok")]
    message, spans = read(renderer, "<|python_start|>print(1)<|python_end|><|eot|>")
    assert shown(message) == ["<|python_start|>print(1)<|python_end|>"]
    assert [span.status for span in spans] == ["missing_name"]


# --- the oracle -------------------------------------------------------------------------------------------------------


def test_renderers_reads_one_call_the_same(llama: TemplateRenderer, oracle_tokenizer: Any) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        text = "".join(rng.choices(["look ", "日本", "\n", '"', "}", "x"], k=4)) + "."
        call = ToolCall("", "bash", json.dumps({text: rng.choice([text, 1, [None]])}, ensure_ascii=False))
        message = Message("assistant", (call,) if rng.random() < 0.7 else (Text(text),))
        pieces = llama.write(message, False)
        ids = concatenate([ids_of([p]) if isinstance(p, int) else llama.vocabulary.encode(p) for p in pieces])
        ids = llama.vocabulary.resegment(ids, rng, 0.3)
        theirs = parse_llama_3(oracle_tokenizer(llama.vocabulary), ids.tolist(), stop_ids=set(llama.stop_ids))
        parser = llama.parser(False, TOOLS)
        parser.feed(ids.tolist())
        ours = parser.finish()[0]
        assert ours == message
        assert ours.text.strip() == theirs.content
        assert [(one.name, json.loads(one.arguments)) for one in ours.calls] == [
            (one.name, one.arguments) for one in theirs.tool_calls
        ]
        assert [one.status for one in theirs.tool_calls] == [ToolCallParseStatus.OK] * len(ours.calls)


@pytest.mark.parametrize(
    ("draw", "ours", "theirs"),
    [
        # They know one call that is all of an answer, and none that is broken.
        (f"{item()}; {item()}", ["ok", "ok"], []),
        (f"<|python_tag|>{item()}", ["ok"], []),
        (item('{"a": nope}'), ["invalid_json"], []),
        # Any object with a name is one for them.
        ('{"name": "Ada", "age": 36}', [], ["Ada"]),
        (item("[1]"), ["malformed"], ["bash"]),
    ],
)
def test_renderers_reads_otherwise(
    llama: TemplateRenderer, draw: str, ours: list[str], theirs: list[str], oracle_tokenizer: Any
) -> None:
    ids = llama.vocabulary.encode_split(f"{draw}<|eot_id|>").tolist()
    found = parse_llama_3(oracle_tokenizer(llama.vocabulary), ids, stop_ids=set(llama.stop_ids))
    assert [call.name for call in found.tool_calls] == theirs
    assert [span.status for span in read(llama, f"{draw}<|eot_id|>")[1]] == ours
