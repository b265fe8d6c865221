"""What may come next in an answer that is held to calls, id by id; no model draws here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridle.engines.base import CallRule, GenerateRequest, Sampling
from bridle.engines.grammar import Grammars, Held
from bridle.errors import BadRequest
from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.rendering.constrain import spell_calls
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.families import family_of, make_model, templates
from bridle.tokens import EMPTY, CallSpelling, ToolSpelling

LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
READ = '<tool_call>\n{"name": "read", "arguments": {"path": "a/ü.py", "lines": [1, 2]}}\n</tool_call>'
END = "<|im_end|>"
READS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    "required": ["path"],
    "additionalProperties": False,
}
BASH = Tool("bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}})
TOOLS = (BASH, Tool("read", parameters=READS))

Begin = Callable[..., Held]


@pytest.fixture(scope="session")
def grammars(renderer: TemplateRenderer) -> Grammars:
    return Grammars(renderer.vocabulary, renderer.stop_ids)


@pytest.fixture
def begin(grammars: Grammars, renderer: TemplateRenderer) -> Begin:
    """-> an answer that is held to a rule about `tools`. `spelling`: of another family."""

    def make(
        least: int = 0,
        most: int | None = None,
        tools: Sequence[Tool] = TOOLS,
        spelling: CallSpelling | None = None,
        thinking_open: bool = False,
        may_think: bool = False,
    ) -> Held:
        spelled = spelling or spell_calls(renderer.write, tools)
        assert spelled is not None
        rule = CallRule(spelled, least, most, may_think)
        sampling = Sampling(99, renderer.stop_ids, calls=rule)
        request = GenerateRequest("r", EMPTY, sampling, None, thinking_open, renderer.thinking_end)
        return grammars.calls(rule, request)

    return make


@pytest.fixture
def refused(renderer: TemplateRenderer) -> Callable[[Held, str], str | None]:
    """-> what of a text is not allowed: all from the first such id on; None where all is."""
    vocabulary = renderer.vocabulary

    def find(held: Held, text: str) -> str | None:
        ids = vocabulary.encode_split(text).tolist()
        for at, id in enumerate(ids):
            allowed = held.allowed(vocabulary.size)
            if allowed is not None and not allowed[id]:
                return vocabulary.decode(ids[at:])
            held.take(id)
        return None

    return find


Refused = Callable[..., str | None]


@pytest.mark.parametrize("text", [LS + END, READ + END, f"{LS}\n{READ}{END}", f"{READ}\n{READ}\n{LS}<|endoftext|>"])
def test_an_answer_that_needs_a_call_is_one_or_more(begin: Begin, refused: Refused, text: str) -> None:
    assert refused(begin(1), text) is None


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (END, END),
        ("I look.", "I look."),
        ("<think>", "<think>"),
        (f"{LS}, and more", ", and more"),
        (f"{LS}\n{END}", END),
        (LS.replace("bash", "bosh"), "osh"),
        (READ.replace("path", "port"), "ort"),
        (READ.replace("[1, 2]", '["a"]'), '"a"]'),
        (READ.replace('"a/ü.py"', "7"), "7,"),
        (READ.replace("}}", ', "x": 1}}'), ', "x'),
    ],
)
def test_nothing_else_is(begin: Begin, refused: Refused, text: str, rest: str) -> None:
    """The rest of the text begins where it is refused, or inside of the id there."""
    found = refused(begin(1), text)
    assert found is not None
    assert rest in found
    assert text.endswith(found)


def test_arguments_have_other_members_unless_their_schema_forbids_them(begin: Begin, refused: Refused) -> None:
    assert refused(begin(1), LS.replace("command", "path") + END) is None


def test_one_call_at_most_is_followed_by_the_end_alone(begin: Begin, refused: Refused) -> None:
    for least in (0, 1):
        assert refused(begin(least, 1), LS + END) is None
        assert refused(begin(least, 1), f"{LS}\n{READ}") == f"\n{READ}"
        assert refused(begin(least, 1), f"{LS} done") == " done"


def test_calls_of_other_tools_are_refused(begin: Begin, refused: Refused) -> None:
    for least in (0, 1):
        assert refused(begin(least, tools=TOOLS[1:]), READ + END) is None
        found = refused(begin(least, tools=TOOLS[1:]), LS)
        assert found is not None
        assert LS.endswith(found)


def test_an_answer_that_may_call_says_what_it_likes_around_well_formed_calls(begin: Begin, refused: Refused) -> None:
    free = f"<think>a <tool_call> of two</think>I look.\n{LS} and\n\n{READ}\nDone. </tool_call>{END}"
    assert refused(begin(), free) is None
    assert refused(begin(), f"I look.{LS.replace('bash', 'bosh')}") is not None
    assert refused(begin(0, 1), f"I look.\n{LS}{END}") is None
    assert refused(begin(0, 1), f"I look.{END}") is None


def test_nothing_is_narrowed_outside_of_calls(begin: Begin, renderer: TemplateRenderer) -> None:
    controls = renderer.vocabulary.controls
    held = begin(0, 1)
    for id in (*renderer.vocabulary.encode("I look."), controls["<think>"], controls["<tool_call>"]):
        assert held.allowed(9) is None
        held.take(int(id))
    held.take(controls["</think>"])
    assert held.allowed(9) is None, "what stands in reasoning is no call"
    held.take(controls["<tool_call>"])
    assert held.allowed(renderer.vocabulary.size) is not None


def test_an_answer_without_calls_has_every_id_but_the_one_that_begins_them(
    begin: Begin, refused: Refused, renderer: TemplateRenderer
) -> None:
    held = begin(0, 0)
    allowed = held.allowed(renderer.vocabulary.size + 7)
    assert allowed is not None
    assert np.flatnonzero(~allowed).tolist() == [renderer.vocabulary.controls["<tool_call>"]]
    assert refused(held, f"<think>x</think>Some </tool_call> text.{END}") is None
    assert refused(held, LS) == LS


def test_a_needed_call_comes_behind_the_reasoning_that_the_prompt_opens(
    begin: Begin, refused: Refused, renderer: TemplateRenderer
) -> None:
    for seam in ("\n\n", ""):
        held = begin(1, thinking_open=True)
        assert refused(held, f"I call <tool_call> something\n</think>{seam}{LS}{END}") is None
    for stop in (END, "<|endoftext|>"):
        assert refused(begin(1, thinking_open=True), f"hm{stop}") == stop
    assert refused(begin(1, thinking_open=True), "hm</think>I look.") == "I look."


def test_a_model_that_reasons_of_itself_may_do_so_before_a_needed_call(begin: Begin, refused: Refused) -> None:
    assert refused(begin(1, may_think=True), f"<think>\nhm\n</think>\n\n{LS}{END}") is None
    assert refused(begin(1, may_think=True), f"{LS}{END}") is None
    assert refused(begin(1, may_think=True), "<think>hm</think>\n\n<think>") == "<think>"
    assert refused(begin(1, may_think=True), f"{LS}<think>") == "<think>"
    assert refused(begin(1, may_think=True), f"<think>hm{END}") == END
    assert refused(begin(1), f"<think>hm</think>\n\n{LS}") is not None


def other(open: str, begin: str, end: str, between: str | None, close: str, inner: str = "", **schema: Any) -> Any:
    """A family that spells calls of `bash` otherwise, in the tokens of this one."""

    def make(renderer: TemplateRenderer) -> CallSpelling:
        def pieces(text: str) -> Any:
            return tuple(renderer.vocabulary.split(text))

        ids = tuple(renderer.vocabulary.controls[tag] for tag in inner.split())
        tool = ToolSpelling("bash", pieces(begin), pieces(end), schema or None, ids)
        around = pieces(open), None if between is None else pieces(between), pieces(close)
        first = (*around[0], *tool.begin)[0]
        return CallSpelling((tool,), *around, mark=first if isinstance(first, int) else None)

    return make


LISTED = other("<tool_call>[", '{"name": "bash", "arguments": ', "}", ", ", "]", type="object")
CHAINED = other("", "<tool_call>bash<tool_response>", "", "", "", type="object")
MEMBERS = other("", "<tool_call>\n<function=bash>\n<", "/function>\n</tool_call>", "\n", "")
KEYED = other("", "<tool_call>bash", "</tool_call>", "", "", "<tool_response> </tool_response>")
BARE = other("", '{"name": "bash", "arguments": ', "}", "; ", "", type="object")
ALONE = other("", "<tool_call>bash:0<tool_response>", "</tool_call>", None, "", type="object")
PAIR = '{"name": "bash", "arguments": {"x": 1}}'
MEMBER = "<tool_call>\n<function=bash>\n<parameter=command>\nls </function> x\n</parameter>\n</function>\n</tool_call>"
EMPTY_MEMBER = "<tool_call>\n<function=bash>\n</function>\n</tool_call>"
BASH_0 = "<tool_call>bash:0<tool_response>{}</tool_call>"
CHAIN = "<tool_call>bash<tool_response>{}"
PAIRS = "<tool_call>bash<tool_response>command</tool_response>ls\n-la<tool_response>n</tool_response></tool_call>"


@pytest.mark.parametrize(
    ("family", "takes", "refuses"),
    [
        (LISTED, [f"<tool_call>[{PAIR}]", f"<tool_call>[{PAIR}, {PAIR}]"], f"<tool_call>[{PAIR}{END}"),
        (CHAINED, [CHAIN, CHAIN * 3], "<tool_call>bash<tool_response>x"),
        (MEMBERS, [MEMBER, EMPTY_MEMBER, f"{MEMBER}\n{EMPTY_MEMBER}"], f"{MEMBER[:-20]}</tool_call>"),
        (KEYED, [PAIRS, "<tool_call>bash</tool_call>", PAIRS * 2], "<tool_call>bash<think>"),
        (BARE, [PAIR, f"{PAIR}; {PAIR}"], f"I call {PAIR}"),
        (ALONE, [BASH_0], BASH_0 * 2),
    ],
)
def test_calls_of_other_families_are_held_as_they_spell_them(
    begin: Begin, refused: Refused, renderer: TemplateRenderer, family: Any, takes: list[str], refuses: str
) -> None:
    spelling = family(renderer)
    for text in takes:
        assert refused(begin(1, spelling=spelling), text + END) is None
        if spelling.mark is not None:
            assert refused(begin(spelling=spelling), f"I look. {text}{END}") is None
        if text.count("bash") == 1:
            assert refused(begin(1, 1, spelling=spelling), text + END) is None
    assert refused(begin(1, spelling=spelling), refuses) is not None


def test_keywords_no_grammar_can_express_do_not_stand_in_the_way_of_a_call(begin: Begin, refused: Refused) -> None:
    odd = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string", "format": "shell"}, "x": {"type": "array", "uniqueItems": True}},
        "x-guidance": {"whitespace_flexible": True},
    }
    assert refused(begin(1, tools=[Tool("bash", parameters=odd)]), LS + END) is None
    assert refused(begin(1, tools=[Tool("bash", parameters=odd)]), LS.replace(": {", ":  {")) is not None


def test_a_schema_that_is_none_is_refused_with_the_reason(begin: Begin) -> None:
    with pytest.raises(BadRequest, match=r"tools: the engine cannot hold an answer to calls of these: .*nowhere"):
        begin(1, tools=[Tool("bash", parameters={"$ref": "#/nowhere"})])


UNSPOKEN: dict[str, Any] = {
    "look-ahead": {"type": "string", "pattern": "^(?!foo)"},
    "no such definition": {"$ref": "#/components/Foo"},
    "a definition elsewhere": {"$ref": "https://example.org/z.json"},
    "no value fits": {"type": "integer", "minimum": 5, "maximum": 3},
    "no such type": {"type": "STRING"},
}


def unspoken(name: str) -> Tool:
    members = {"command": UNSPOKEN[name]}
    return Tool("bash", parameters={"type": "object", "properties": members, "required": ["command"]})


@pytest.mark.parametrize("name", UNSPOKEN)
@pytest.mark.parametrize("thinking_open", [True, False])
def test_a_needed_call_that_no_grammar_can_express_is_refused_before_the_first_id(
    begin: Begin, name: str, thinking_open: bool
) -> None:
    with pytest.raises(BadRequest, match="tools: the engine cannot hold an answer to calls of these"):
        begin(1, tools=[unspoken(name), TOOLS[1]], thinking_open=thinking_open)


@pytest.mark.parametrize("name", UNSPOKEN)
def test_arguments_that_no_grammar_can_express_are_any_object_where_no_call_is_needed(
    begin: Begin, refused: Refused, name: str
) -> None:
    tools = [unspoken(name), TOOLS[1]]
    assert refused(begin(tools=tools), f"I look. {LS} and {READ}{END}") is None
    assert refused(begin(0, 1, tools=tools), f"{LS}\n{READ}") == f"\n{READ}"
    assert refused(begin(tools=tools), LS.replace('{"command": "ls -la"}', '"ls"')) is not None
    assert refused(begin(tools=tools), READ.replace("path", "port")) is not None


def test_a_tool_that_may_not_be_called_may_have_any_schema(begin: Begin, refused: Refused) -> None:
    assert refused(begin(0, 0, tools=[unspoken("look-ahead")]), f"Some text.{END}") is None


@pytest.mark.parametrize("name", ["qwen3_6", "glm4moe", "gptoss", "lfm2"])
def test_what_a_family_writes_is_what_it_is_held_to(name: str, tmp_path: Path) -> None:
    model = load_renderer(make_model(tmp_path / "model", family_of(name), templates()[name].read_text()))
    spelling = spell_calls(model.write, TOOLS)
    assert spelling is not None
    grammars, vocabulary = Grammars(model.vocabulary, model.stop_ids), model.vocabulary
    call, other = ToolCall("", "bash", '{"command": "ls -la"}'), ToolCall("", "read", '{"path": "a/ü.py"}')
    kept: list[tuple[CallRule, tuple[Part, ...]]] = [
        (CallRule(spelling, 1, 1), (call,)),
        (CallRule(spelling, 1, 1, may_think=True), (Thinking("I look."), other)),
        *([(CallRule(spelling, 1), (call, other, call))] if spelling.between is not None else []),
        *([(CallRule(spelling, 0, 1), (Text("I look."), other))] if spelling.mark is not None else []),
    ]
    for rule, parts in kept:
        sampling = Sampling(99, model.stop_ids, calls=rule)
        held = grammars.calls(rule, GenerateRequest("r", EMPTY, sampling, None, False, model.thinking_end))
        for piece in model.write(Message("assistant", parts), False):
            for id in [piece] if isinstance(piece, int) else vocabulary.encode(piece).tolist():
                allowed = held.allowed(vocabulary.size)
                assert allowed is None or allowed[id]
                held.take(id)
