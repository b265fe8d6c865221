from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from renderers.base import ParsedResponse, ToolCallParseStatus
from renderers.parsing import parse_kimi_k2

from bridle.errors import TemplateError
from bridle.messages import Message, Switches, Text, Tool, ToolCall
from bridle.rendering.base import CallSpan
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_kimi import KimiCalls
from bridle.tokens import concatenate, ids_of

FIRST, LAST = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
OK, INVALID = ToolCallParseStatus.OK, ToolCallParseStatus.INVALID_JSON
UNCLOSED, MALFORMED = ToolCallParseStatus.UNCLOSED_BLOCK, ToolCallParseStatus.MALFORMED_STRUCTURE


@pytest.fixture(scope="module")
def kimi(model: Callable[[str], TemplateRenderer]) -> TemplateRenderer:
    return model("kimi_k2_thinking")


def call(said: str, arguments: str = "{}", end: str = END) -> str:
    return f"{BEGIN}{said}{ARGUMENTS}{arguments}{end}"


def section(*calls: str, end: str = LAST) -> str:
    return f"{FIRST}{''.join(calls)}{end}"


def read(kimi: TemplateRenderer, ids: Sequence[int]) -> tuple[Message, tuple[CallSpan, ...]]:
    parser = kimi.parser(False, (Tool("bash"), Tool("a.b")))
    parser.feed(list(ids))
    return parser.finish()[0], parser.calls


def shown(message: Message) -> list[Any]:
    return [
        (part.name, part.arguments, part.status, part.said) if isinstance(part, ToolCall) else part.text  # type: ignore[union-attr]
        for part in message.parts
    ]


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (section(call("functions.bash:0", '{"b":  1}')), [("bash", '{"b":  1}', "ok", "functions.bash:0")]),
        (section(call(" functions.bash:12\n", "\n{}\n")), [("bash", "{}", "ok", "functions.bash:12")]),
        (section(call("bash:0")), [("bash", "{}", "ok", "bash:0")]),
        (section(call("functions.bash")), [("bash", "{}", "ok", "functions.bash")]),
        (section(call("functions.a.b:0")), [("a.b", "{}", "ok", "functions.a.b:0")]),
        (section(call("functions.f:0")), [("f", "{}", "unknown_tool", "functions.f:0")]),
        (
            f"Look.\n{section(call('functions.bash:0'), call('functions.bash:1'))}\nDone.",
            ["Look.\n", ("bash", "{}", "ok", "functions.bash:0"), ("bash", "{}", "ok", "functions.bash:1"), "\nDone."],
        ),
        (
            section(call("functions.bash:0"), "\n", call("functions.bash:1")),
            [("bash", "{}", "ok", "functions.bash:0"), ("bash", "{}", "ok", "functions.bash:1")],
        ),
        (section(call("functions.bash:0"), " and "), [("bash", "{}", "ok", "functions.bash:0"), " and "]),
        (section(call("functions.bash:0", "{")), [("bash", "{", "invalid_json", "functions.bash:0")]),
        (section(call("functions.bash:0", "")), [("bash", "", "malformed", "functions.bash:0")]),
        (section(call("functions.bash:0", '"{}"')), [("bash", '"{}"', "malformed", "functions.bash:0")]),
        (section(call("functions.bash:0", "{}", end="")), [("bash", "{}", "unclosed", "functions.bash:0")]),
        (section(call("functions.bash:0"), end=""), [("bash", "{}", "ok", "functions.bash:0")]),
        (section(call(":0")), [section(call(":0"))]),
        (section(f"{BEGIN}functions.bash:0{END}"), [section(f"{BEGIN}functions.bash:0{END}")]),
        (section(call(":0"), call("functions.bash:1")), [call(":0"), ("bash", "{}", "ok", "functions.bash:1")]),
        (section(), [section()]),
    ],
)
def test_a_call_is_read_with_the_id_the_model_gave_it(kimi: TemplateRenderer, draw: str, parts: list[Any]) -> None:
    message, _ = read(kimi, kimi.vocabulary.encode_split(draw).tolist())
    assert shown(message) == parts


def test_a_call_without_a_name_has_a_span_beside_others(kimi: TemplateRenderer) -> None:
    pieces = [FIRST, call(":0"), call("functions.bash:1"), LAST]
    lengths = [len(kimi.vocabulary.encode_split(piece)) for piece in pieces]
    _, spans = read(kimi, kimi.vocabulary.encode_split("".join(pieces)).tolist())
    assert spans == (
        CallSpan(0, sum(lengths[:2]), "", "missing_name"),
        CallSpan(sum(lengths[:2]), sum(lengths), "bash", "ok"),
    )


def test_calls_are_numbered_where_the_model_has_not_numbered_them() -> None:
    said = [piece for piece in KimiCalls().write([ToolCall("", "f", "{}"), ToolCall("", "g", "{}")])[0] if ":" in piece]
    assert said == ["functions.f:0", "functions.g:1"]
    with pytest.raises(TemplateError):
        KimiCalls().write([ToolCall("", "", "{}")])


# --- ids --------------------------------------------------------------------------------------------------------------


def test_a_result_names_the_id_that_the_model_gave_its_call(kimi: TemplateRenderer) -> None:
    said = Message("assistant", (ToolCall("call5f3e", "bash", "{}", said="functions.bash:7"),))
    result = Message("tool", (Text("out"),), call_id="call5f3e")
    alone = kimi.vocabulary.decode(kimi.unit([result], said, ()).tolist())
    assert alone == "<|im_system|>bash<|im_middle|>## Return of functions.bash:7\nout<|im_end|>"
    whole = kimi.vocabulary.decode(kimi.whole([Message("user", (Text("hi"),)), said, result], (), Switches()).tolist())
    assert whole.endswith(f"{call('functions.bash:7')}{LAST}<|im_end|>{alone}")


def test_a_call_that_was_not_sampled_gets_an_id_that_says_its_name(kimi: TemplateRenderer) -> None:
    """The template writes nothing else of it."""
    said = Message("assistant", (ToolCall("toolu_1", "bash", "{}"), ToolCall("functions.bash:3", "bash", "{}")))
    results = [Message("tool", (Text("out"),), call_id=one.id) for one in said.calls]
    unit = kimi.vocabulary.decode(kimi.unit([said], None, ()).tolist())
    assert f"{call('functions.bash:0')}{call('functions.bash:3')}" in unit
    answered = kimi.vocabulary.decode(kimi.unit(results, said, ()).tolist())
    assert "Return of functions.bash:0\n" in answered
    assert "Return of functions.bash:3\n" in answered


# --- the oracle -------------------------------------------------------------------------------------------------------


def oracle(kimi: TemplateRenderer, tokenizer: Any, ids: list[int]) -> ParsedResponse:
    controls = kimi.vocabulary.controls
    return parse_kimi_k2(
        tokenizer(kimi.vocabulary),
        ids,
        stop_ids=set(kimi.stop_ids),
        tool_calls_section_begin_id=controls[FIRST],
        tool_calls_section_end_id=controls[LAST],
        tool_call_begin_id=controls[BEGIN],
        tool_call_argument_begin_id=controls[ARGUMENTS],
        tool_call_end_id=controls[END],
    )


def test_renderers_reads_the_same(kimi: TemplateRenderer, oracle_tokenizer: Any) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        text = "".join(rng.choices(["look ", "日本", "\n", "<|tool", '"}', "x"], k=4)) + "."
        said = [f"functions.bash:{rng.randrange(20)}" for _ in range(rng.randrange(4))]
        calls = [ToolCall("", "bash", json.dumps({text: number}), said=one) for number, one in enumerate(said)]
        pieces = kimi.write(Message("assistant", (Text(text), *calls)), False)
        ids = concatenate([ids_of([p]) if isinstance(p, int) else kimi.vocabulary.encode(p) for p in pieces])
        ids = kimi.vocabulary.resegment(ids, rng, 0.3)
        theirs = oracle(kimi, oracle_tokenizer, ids.tolist())
        message, spans = read(kimi, ids.tolist())
        assert message.text.strip() == theirs.content
        assert [(one.name, json.loads(one.arguments), one.said) for one in message.calls] == [
            (one.name, one.arguments, one.id) for one in theirs.tool_calls
        ]
        assert [span.status for span in spans] == [one.status.value for one in theirs.tool_calls]


@pytest.mark.parametrize(
    ("draw", "ours", "theirs"),
    [
        (section(call("functions.bash:0", "{")), ["invalid_json"], [INVALID]),
        (section(call("functions.bash:0", "{}", end=""), end=""), ["unclosed"], [UNCLOSED]),
        (section(call(":0")), ["missing_name"], [ToolCallParseStatus.MISSING_NAME]),
        (section(f"{BEGIN}functions.bash:0{END}"), ["missing_name"], [MALFORMED]),
        # They take any value for arguments, a call into reasoning that nothing closes for one.
        (section(call("functions.bash:0", "[1]")), ["malformed"], [OK]),
        (f"<think>So {section(call('functions.bash:0'))}", [], [OK]),
    ],
)
def test_broken_draws_have_a_status(
    kimi: TemplateRenderer, draw: str, ours: list[str], theirs: list[ToolCallParseStatus], oracle_tokenizer: Any
) -> None:
    ids = kimi.vocabulary.encode_split(draw).tolist()
    _, spans = read(kimi, ids)
    assert [span.status for span in spans] == ours
    assert [one.status for one in oracle(kimi, oracle_tokenizer, ids).tool_calls] == theirs
