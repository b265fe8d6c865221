from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from renderers.base import ParsedResponse, ToolCallParseStatus
from renderers.parsing import parse_deepseek_v3, parse_deepseek_v4

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.calls import Block, Found, Tag
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_deepseek import BareCalls, DsmlCalls, FencedCalls, FunctionDsmlCalls
from bridle.tokens import Ids, concatenate, ids_of

BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FIRST, LAST = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
TOOLS = {"bash": Tool("bash")}


def block(source: str, tags: Sequence[str], closed: bool = True) -> Block:
    """`source` with every one of `tags` a token."""
    pieces: list[str] = [source]
    for tag in tags:
        cut = [part for piece in pieces for part in ([piece] if isinstance(piece, Tag) else _split(piece, tag))]
        pieces = [piece for piece in cut if piece]
    return Block(tuple(pieces), closed)


def _split(piece: str, tag: str) -> list[str]:
    first, *rest = piece.split(tag)
    return [first, *(part for after in rest for part in (Tag(tag), after))]


def shown(found: Sequence[Found]) -> list[Any]:
    return [
        (one.part.name, one.part.arguments, one.part.status) if isinstance(one.part, ToolCall) else one.part.text
        for one in found
    ]


def fenced(arguments: str, name: str = "bash", end: str = END) -> str:
    return f"{BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{end}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (fenced('{"b":  1}'), [("bash", '{"b":  1}', "ok")]),
        (f"{fenced('{}')}\n{fenced('{}', 'look')}", [("bash", "{}", "ok"), ("look", "{}", "unknown_tool")]),
        (fenced('{"a": "```"}'), [("bash", '{"a": "```"}', "ok")]),
        (fenced('{"a": "\\n```"}\n'), [("bash", '{"a": "\\n```"}', "ok")]),
        (fenced('{"a": nope}'), [("bash", '{"a": nope}', "invalid_json")]),
        (fenced(""), [("bash", "", "malformed")]),
        (fenced("[1]"), [("bash", "[1]", "malformed")]),
        (fenced("null"), [("bash", "null", "malformed")]),
        (f"{BEGIN}function{SEP}bash\n{{}}{END}", [("bash", "{}", "invalid_json")]),
        (f"{BEGIN}function{SEP}bash\n```json\n{{}}{END}", [("bash", "{}", "invalid_json")]),
        (fenced('{"a": 1}', end=""), [("bash", '{"a": 1}', "unclosed")]),
        (f"{fenced('{}', end='')}{fenced('{}')}", [("bash", "{}", "unclosed"), ("bash", "{}", "ok")]),
        (f"First {fenced('{}')} then\n", ["First ", ("bash", "{}", "ok"), " then\n"]),
        # Beside a call that can be read, one that cannot is text.
        (
            f"{fenced('{}')}{BEGIN}function{SEP}{END}",
            [("bash", "{}", "ok"), f"{BEGIN}function{SEP}{END}"],
        ),
        (f"{fenced('{}')}{BEGIN}bash{END}", [("bash", "{}", "ok"), f"{BEGIN}bash{END}"]),
        (f"{BEGIN}bash{END}", []),
        (f"{BEGIN}function{SEP}bash{END}", []),
        ("", []),
        ("no call", []),
    ],
)
def test_calls_of_v3_are_read(source: str, found: list[Any]) -> None:
    assert shown(FencedCalls().read(block(source, (BEGIN, SEP, END)), TOOLS)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f'{BEGIN}bash{SEP}{{"b":  1}}{END}', [("bash", '{"b":  1}', "ok")]),
        (f"{BEGIN}bash{SEP}{{}}{END}{BEGIN}f{SEP}{{}}{END}", [("bash", "{}", "ok"), ("f", "{}", "unknown_tool")]),
        (f"{BEGIN}bash{SEP}\n{{}}\n{END}\n", [("bash", "{}", "ok")]),
        (f'{BEGIN}bash{SEP}{{"a"{END}', [("bash", '{"a"', "invalid_json")]),
        (f"{BEGIN}bash{SEP}{{}} or so{END}", [("bash", "{} or so", "invalid_json")]),
        (f"{BEGIN}bash{SEP}{END}", [("bash", "", "malformed")]),
        (f'{BEGIN}bash{SEP}{{"a": 1}}', [("bash", '{"a": 1}', "unclosed")]),
        (f"{BEGIN}bash{SEP}{{}}{SEP}x{END}", [("bash", f"{{}}{SEP}x", "invalid_json")]),
        (f"{BEGIN}{SEP}{{}}{END}", []),
        (f"{BEGIN}bash{END}", []),
    ],
)
def test_calls_of_v31_are_read(source: str, found: list[Any]) -> None:
    assert shown(BareCalls().read(block(source, (BEGIN, SEP, END)), TOOLS)) == found


def parameter(key: str, value: str, text: bool = True) -> str:
    return f'<｜DSML｜parameter name="{key}" string="{str(text).lower()}">{value}</｜DSML｜parameter>\n'


def invoke(*parameters: str, name: str = "bash", end: str = "</｜DSML｜invoke>\n") -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}{end}'


def dsml(*invokes: str, word: str = "tool_calls") -> str:
    return f"<｜DSML｜{word}>\n{''.join(invokes)}</｜DSML｜{word}>"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (dsml(invoke(parameter("a", "x"))), [("bash", '{"a": "x"}', "ok")]),
        (dsml(invoke(parameter("a", "x")), word="function_calls"), [("bash", '{"a": "x"}', "ok")]),
        (
            dsml(invoke(parameter("b", '\n "q"\\\n'), parameter("a", "1"))),
            [("bash", r'{"b": "\n \"q\"\\\n", "a": "1"}', "ok")],
        ),
        (dsml(invoke(parameter("n", ' [1,  2.50, "x"]\n', False))), [("bash", '{"n": [1,  2.50, "x"]}', "ok")]),
        (dsml(invoke(parameter("n", "null", False))), [("bash", '{"n": null}', "ok")]),
        (dsml(invoke()), [("bash", "{}", "ok")]),
        (dsml(invoke(), invoke(name="f")), [("bash", "{}", "ok"), ("f", "{}", "unknown_tool")]),
        (invoke(parameter("a", "x")), [("bash", '{"a": "x"}', "ok")]),
        (f"{dsml(invoke())}\n\nDone.", [("bash", "{}", "ok"), "\n\nDone."]),
        (
            f"{dsml(invoke())}Once more.\n\n\n{dsml(invoke())}",
            [("bash", "{}", "ok"), "Once more.\n", ("bash", "{}", "ok")],
        ),
        (f"<｜DSML｜tool_calls>\nSo: {invoke()}", ["\nSo: ", ("bash", "{}", "ok")]),
        # A value that is no JSON is passed on as text, one of two equal keys is too many.
        (dsml(invoke(parameter("n", "five", False))), [("bash", '{"n": "five"}', "invalid_json")]),
        (dsml(invoke(parameter("n", "1"), parameter("n", "2"))), [("bash", '{"n": "1", "n": "2"}', "malformed")]),
        # Where not all can be read, everything is passed on as it was sampled, so that nothing is run by half.
        (dsml(invoke(parameter("a", "x"), "and more\n")), [("bash", f"{parameter('a', 'x')}and more", "malformed")]),
        (
            dsml(invoke('<｜DSML｜parameter name="a">x</｜DSML｜parameter>')),
            [("bash", '<｜DSML｜parameter name="a">x</｜DSML｜parameter>', "malformed")],
        ),
        (dsml(invoke(parameter("a", "x"), end="")), [("bash", parameter("a", "x").strip(), "unclosed")]),
        (
            f"<｜DSML｜tool_calls>\n{invoke(parameter('a', 'x'), end='')}",
            [("bash", parameter("a", "x").strip(), "unclosed")],
        ),
        (dsml(invoke(end=""), invoke()), [("bash", "", "unclosed"), ("bash", "{}", "ok")]),
        (
            dsml('<｜DSML｜invoke nam="f">\n</｜DSML｜invoke>', invoke()),
            ['<｜DSML｜invoke nam="f">\n</｜DSML｜invoke>', ("bash", "{}", "ok")],
        ),
        (dsml('<｜DSML｜invoke nam="f">\n</｜DSML｜invoke>'), []),
        (dsml(), []),
        ("<｜DSML｜ and nothing", []),
    ],
)
def test_calls_in_dsml_are_read(source: str, found: list[Any]) -> None:
    assert shown(DsmlCalls().read(block(source, ("｜DSML｜",)), TOOLS)) == found


def test_text_in_dsml_that_spells_its_token_is_text() -> None:
    body = 'a </｜DSML｜parameter> b <｜DSML｜invoke name="f">'
    marked = dsml(invoke(parameter("a", "\0"))).split("\0")
    pieces = [*block(marked[0], ("｜DSML｜",)).pieces, body, *block(marked[1], ("｜DSML｜",)).pieces]
    assert shown(DsmlCalls().read(Block(tuple(pieces), True), TOOLS)) == [
        ("bash", json.dumps({"a": body}, ensure_ascii=False), "ok")
    ]


def test_what_dsml_cannot_spell_is_refused() -> None:
    with pytest.raises(TemplateError, match="no JSON object"):
        DsmlCalls().write([ToolCall("", "bash", "[1]")])
    with pytest.raises(TemplateError, match="cannot write"):
        DsmlCalls().write([ToolCall("", "bash", '{"a\\"b": 1}')])
    with pytest.raises(TemplateError, match="cannot call"):
        FencedCalls().write([ToolCall("", "two\nlines", "{}")])


def test_the_block_is_called_as_the_version_calls_it() -> None:
    assert [
        DsmlCalls().write([ToolCall("", "f", "{}")])[0][2],
        FunctionDsmlCalls().write([ToolCall("", "f", "{}")])[0][2],
    ] == [
        "tool_calls>",
        "function_calls>",
    ]


# --- the oracle -------------------------------------------------------------------------------------------------------

STATUSES = {
    "ok": ToolCallParseStatus.OK,
    "unknown_tool": ToolCallParseStatus.OK,
    "invalid_json": ToolCallParseStatus.INVALID_JSON,
    "unclosed": ToolCallParseStatus.UNCLOSED_BLOCK,
    "malformed": ToolCallParseStatus.MALFORMED_STRUCTURE,
}


def sampled(renderer: TemplateRenderer, rng: random.Random) -> tuple[Message, Ids]:
    """Reasoning, text, calls, segmented as no encoder would."""
    words = ["look", " \n", "日本", "```", '"', "so\n\n", "</", "<｜DSML｜", "}"]
    text = "x" + "".join(rng.choices(words, k=4)) + "."
    calls = [
        ToolCall(
            "",
            rng.choice(["bash", "look_up"]),
            json.dumps({rng.choice("abc"): rng.choice([text, 1, [None], {}])}, ensure_ascii=False),
        )
        for _ in range(rng.randrange(4))
    ]
    parts: list[Part] = [
        *([Thinking(text)] if rng.random() < 0.5 else []),
        *([Text(text)] if rng.random() < 0.7 else []),
        *calls,
    ]
    message = Message("assistant", tuple(parts))
    pieces = renderer.write(message, False)
    ids = concatenate([ids_of([p]) if isinstance(p, int) else renderer.vocabulary.encode(p) for p in pieces])
    return message, renderer.vocabulary.resegment(ids, rng, 0.3)


def oracle(renderer: TemplateRenderer, tokenizer: Any, ids: list[int]) -> ParsedResponse:
    controls, stops = renderer.vocabulary.controls, set(renderer.stop_ids)
    if FIRST not in controls:
        tags = {"think_end_id": controls["</think>"], "think_start_id": controls["<think>"]}
        return parse_deepseek_v4(tokenizer, ids, stop_ids=stops, thinking_enabled=False, **tags)
    return parse_deepseek_v3(
        tokenizer,
        ids,
        stop_ids=stops,
        tool_calls_begin_id=controls[FIRST],
        tool_calls_end_id=controls[LAST],
        tool_call_begin_id=controls[BEGIN],
        tool_call_end_id=controls[END],
        tool_sep_id=controls[SEP],
    )


@pytest.mark.parametrize("template", ["deepseekv3", "deepseek_dsml_v4"])
def test_renderers_reads_the_same(
    template: str, model: Callable[[str], TemplateRenderer], oracle_tokenizer: Any
) -> None:
    renderer = model(template)
    tokenizer = oracle_tokenizer(renderer.vocabulary)
    for seed in range(60):
        message, ids = sampled(renderer, random.Random(seed))
        theirs = oracle(renderer, tokenizer, ids.tolist())
        parser = renderer.parser(False, (Tool("bash"), Tool("look_up")))
        parser.feed(ids.tolist())
        ours = parser.finish()[0]
        assert ours == message
        assert (ours.text.strip(), ours.thinking.strip()) == (theirs.content.strip(), theirs.reasoning_content or "")
        assert [(call.name, json.loads(call.arguments), STATUSES[call.status]) for call in ours.calls] == [
            (call.name, call.arguments, call.status) for call in theirs.tool_calls
        ]


OK, INVALID = ToolCallParseStatus.OK, ToolCallParseStatus.INVALID_JSON
UNCLOSED, MALFORMED = ToolCallParseStatus.UNCLOSED_BLOCK, ToolCallParseStatus.MALFORMED_STRUCTURE


@pytest.mark.parametrize(
    ("template", "draw", "ours", "theirs"),
    [
        ("deepseekv3", f"{FIRST}{fenced('{}', end='')}", ["unclosed"], [UNCLOSED]),
        ("deepseekv3", f"{FIRST}{fenced('{')}{LAST}", ["invalid_json"], [INVALID]),
        ("deepseekv3", f"a{FIRST}{fenced('{}')}", ["ok"], [OK]),
        # They take the fence for a name, arguments out of a broken fence, none for {}, and what is no object for some.
        ("deepseekv3", f"{FIRST}{fenced('{}', '')}{LAST}", ["missing_name"], [INVALID]),
        ("deepseekv3", f"{FIRST}{BEGIN}function{SEP}bash\n{{}}{END}{LAST}", ["invalid_json"], [OK]),
        ("deepseekv3", f"{FIRST}{fenced('')}{LAST}", ["malformed"], [OK]),
        ("deepseekv3", f"{FIRST}{fenced('[1]')}{LAST}", ["malformed"], [OK]),
        ("deepseek_dsml_v4", f"a\n\n{dsml(invoke(parameter('n', 'x', False)))}", ["invalid_json"], [INVALID]),
        ("deepseek_dsml_v4", dsml(invoke("debris")), ["malformed"], [MALFORMED]),
        ("deepseek_dsml_v4", dsml(invoke(end="")), ["unclosed"], [UNCLOSED]),
        ("deepseek_dsml_v4", f"<｜DSML｜tool_calls>\n{invoke()}", ["ok"], [OK]),
        ("deepseek_dsml_v4", f"{dsml(invoke())}\n\n{dsml(invoke())}", ["ok", "ok"], [OK, OK]),
    ],
)
def test_broken_draws_have_a_status(
    template: str,
    draw: str,
    ours: list[str],
    theirs: list[ToolCallParseStatus],
    model: Callable[[str], TemplateRenderer],
    oracle_tokenizer: Any,
) -> None:
    renderer = model(template)
    ids = renderer.vocabulary.encode_split(draw).tolist()
    parser = renderer.parser(False, (Tool("bash"),))
    parser.feed(ids)
    message, _ = parser.finish()
    assert [span.status for span in parser.calls] == ours
    assert [call.status for call in message.calls] == [status for status in ours if status != "missing_name"]
    found = oracle(renderer, oracle_tokenizer(renderer.vocabulary), ids)
    assert [call.status for call in found.tool_calls] == theirs
