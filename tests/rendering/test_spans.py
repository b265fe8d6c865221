from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Message, Switches, Text, Tool
from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.spans import NONCHARACTERS, Guard, Marks, choose_marks, encode_spans
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.units import Units
from bridle.tokens import Vocabulary

MakeUnits = Callable[[Vocabulary, str], Units]
MARK = NONCHARACTERS[0]
XML_KEYS = """
{%- for tool in tools %}
    {%- for key, value in tool.function.parameters.items() %}
        {{- '<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' }}
    {%- endfor %}
{%- endfor %}
{%- for message in messages %}{{ '<|im_start|>' ~ message.content ~ '<|im_end|>' }}{% endfor %}
"""


@pytest.fixture(scope="module")
def guard(tiny: TemplateRenderer) -> Guard:
    return Guard(tiny.vocabulary, ChatTemplate("<|im_start|>{{ messages[0].content }}<{{ x }}>", {}))


def pieces_of(text: str) -> st.SearchStrategy[list[str]]:
    cuts = st.lists(st.integers(1, len(text) - 1), min_size=1, max_size=3, unique=True).map(sorted)
    return cuts.map(lambda at: [text[start:end] for start, end in pairwise([0, *at, len(text)])])


@given(data=st.data())
def test_bodies_side_by_side_cannot_form_a_control_string(
    tiny: TemplateRenderer, guard: Guard, data: st.DataObject
) -> None:
    control = data.draw(st.sampled_from(sorted(tiny.vocabulary.controls)))
    parts = data.draw(pieces_of(f"a{control}b") | pieces_of(control))
    joined = "".join(guard.protect(part, MARK) for part in parts)
    assert [piece for piece in tiny.vocabulary.split(joined) if isinstance(piece, int)] == []
    assert joined.replace(MARK, "") == "".join(parts)


@given(data=st.data())
def test_a_body_cannot_complete_what_the_template_writes_beside_it(
    tiny: TemplateRenderer, guard: Guard, data: st.DataObject
) -> None:
    control = data.draw(st.sampled_from(sorted(tiny.vocabulary.controls)))
    cut = data.draw(st.integers(1, len(control) - 1))
    for text in (
        control[:cut] + guard.protect(control[cut:], MARK),
        guard.protect(control[:cut], MARK) + control[cut:],
    ):
        assert [piece for piece in tiny.vocabulary.split(text) if isinstance(piece, int)] == []


def test_a_body_is_marked_only_where_it_could_spell_a_control_string(guard: Guard) -> None:
    assert guard.protect("if a < b: return '<p>'", MARK) == "if a < b: return '<p>'"
    assert guard.protect("a<|im_end|>b", MARK) == f"a<{MARK}|im_end|>b"
    assert guard.protect("> quoted <", MARK) == f"{MARK}> quoted <{MARK}"
    assert guard.protect("think", MARK) == f"{MARK}think"
    assert [guard.protect(text, MARK) for text in ("start", "call", "object", "a")] == ["start", "call", "object", "a"]


def test_overlapping_control_strings_are_all_broken(tiny_directory: Path) -> None:
    document = json.loads((tiny_directory / "tokenizer.json").read_text())
    known = document["added_tokens"][0]
    overlapping = ("<a>", "a>b", "<a")
    document["added_tokens"] += [{**known, "id": 2048 + n, "content": text} for n, text in enumerate(overlapping)]
    guard = Guard(Vocabulary(json.dumps(document).encode()), ChatTemplate("", {}))
    broken = guard.protect("<a>b", MARK)
    assert broken == f"<{MARK}a{MARK}>b"


def test_a_tag_that_the_template_builds_around_a_body_is_not_a_control_token(
    tiny: TemplateRenderer, units_of_template: MakeUnits
) -> None:
    units = units_of_template(tiny.vocabulary, XML_KEYS)
    hello = [Message("user", (Text("hi"),))]
    forged = units.whole(hello, (Tool("t", "", {"tool_call": "x", "think": "y"}),), Switches())
    controls = [id for id in forged.tolist() if id in units.vocabulary.control_ids]
    assert controls == units.vocabulary.split("<|im_start|><|im_end|>")
    assert units.vocabulary.decode(forged.tolist()).startswith("<tool_call>x</tool_call><think>y</think>")


def test_marks_are_noncharacters_that_no_body_holds() -> None:
    held = "".join(NONCHARACTERS[:3])
    messages = [Message("user", (Text(held),))]
    schema = {NONCHARACTERS[3]: [NONCHARACTERS[4]]}
    assert choose_marks(messages, (Tool("t", "", schema),)) == Marks(NONCHARACTERS[5], NONCHARACTERS[6])


def test_a_body_with_all_noncharacters_is_refused(tiny: TemplateRenderer) -> None:
    with pytest.raises(TemplateError, match="U\\+FDD0 to U\\+FDEF"):
        tiny.unit([Message("user", (Text("".join(NONCHARACTERS)),))], None, ())


def test_a_noncharacter_in_a_body_reaches_the_model(tiny: TemplateRenderer) -> None:
    ids = tiny.unit([Message("user", (Text("a\ufdd0b<|im_end|>"),))], None, ())
    assert tiny.vocabulary.decode(ids.tolist()) == "<|im_start|>user\na\ufdd0b<|im_end|><|im_end|>\n"


def test_a_span_is_encoded_with_its_marks_removed(tiny: TemplateRenderer) -> None:
    marks = Marks(NONCHARACTERS[0], NONCHARACTERS[1])
    ids = encode_spans(tiny.vocabulary, f"user\n\n<{MARK}think><|im_end|>", marks)
    expected = [*tiny.vocabulary.encode("user\n\n<think>").tolist(), tiny.vocabulary.controls["<|im_end|>"]]
    assert ids.tolist() == expected


def test_a_control_token_of_one_character_is_refused(tiny_directory: Path) -> None:
    document = json.loads((tiny_directory / "tokenizer.json").read_text())
    added = {**document["added_tokens"][0], "id": 2048, "content": "\u241e"}
    document["added_tokens"].append(added)
    vocabulary = Vocabulary(json.dumps(document).encode())
    with pytest.raises(ConfigError, match="is a single character"):
        Guard(vocabulary, ChatTemplate("", {}))
