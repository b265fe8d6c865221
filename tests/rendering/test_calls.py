"""What every form of tool calls has to fulfil, over a model of each family."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from bridle.messages import Message, Part, Text, Thinking, Tool, ToolCall
from bridle.registry import resolve
from bridle.rendering import NAMES
from bridle.rendering.base import CallSpan, Event, TextDelta, ThinkingDelta
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import Ids, concatenate, ids_of

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}, "more": {}}}
TOOLS = (Tool("bash", "", SCHEMA), Tool("look_up", "", SCHEMA))
CANONICAL = (
    '{"command": "ls"}',
    '{"command": "a \\"b\\"", "n": 1}',
    "{}",
    '{"more": {"a": [1, 2.5, null]}}',
    '{"n": 1, "command": "\\n a\\n\\n"}',
)
"""As every form spells them; those that write JSON keep any other spelling too."""


class Family(NamedTuple):
    """`json`: arguments are the sampled JSON. `said`: the id a model gives a call of NAME. `after`: text may follow
    calls. `quotes`: text that spells what calls are made of."""

    template: str
    form: str
    json: bool = True
    said: str = ""
    after: bool = True
    quotes: tuple[str, ...] = ()


FAMILIES = (
    Family("qwen3", "hermes", quotes=("<tool_call>",)),
    Family("qwen3_coder", "qwen_xml", json=False, quotes=("<tool_call>", "<function=")),
    Family("glm4moe", "glm", json=False, quotes=("<tool_call>", "<arg_key>")),
    Family("glm_4_7", "glm_compact", json=False, quotes=("<arg_value>",)),
    Family("minimax_m2", "minimax", json=False, quotes=("<minimax:tool_call>",)),
    Family("gemma4_v5", "gemma", json=False, quotes=("<|tool_call>", '<|"|>')),
    Family("lfm2_2_5", "lfm", json=False, quotes=("<|tool_call_start|>[",)),
    Family("deepseekv3", "deepseek_v3", quotes=("<｜tool▁calls▁begin｜>", "```json\n")),
    Family("deepseek_v31", "deepseek_v31", quotes=("<｜tool▁calls▁begin｜>",)),
    Family("deepseek_dsml_v32", "deepseek_v32", json=False, quotes=("<｜DSML｜", "<", "<｜DSML｜function_calls>\n")),
    Family("deepseek_dsml_v4", "deepseek_dsml", json=False, quotes=("<｜DSML｜", "<", '<｜DSML｜invoke name="a">')),
    Family("kimi_k2", "kimi", said="functions.NAME:7", quotes=("<|tool_calls_section_begin|>",)),
    Family("kimi_k2_thinking", "kimi", said="functions.NAME:7", quotes=("</think>",)),
    Family("llama3_1", "llama", quotes=("<|python_tag|>", "f.call(", ";")),
    Family("llama4", "llama4", quotes=("<|python_start|>",)),
    Family("mistral_v7", "mistral", said="abc123def", quotes=("[TOOL_CALLS][",)),
    Family("mistral_v11", "mistral_v11", said="abc123def", after=False, quotes=("[TOOL_CALLS]", "[CALL_ID]")),
    Family("mistral_v13", "mistral_v13", after=False, quotes=("[TOOL_CALLS]", "[ARGS]")),
    Family("nemotron_v1", "nemotron_spelled", quotes=("<", "<TOOL", "<TOOLCALL>", "</TOOLCALL>")),
    Family("nemotron_v2", "nemotron", quotes=("<TOOLCALL>[",)),
)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.template)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture(scope="module")
def renderer(family: Family, model: Callable[[str], TemplateRenderer]) -> TemplateRenderer:
    return model(family.template)


def encode(renderer: TemplateRenderer, pieces: Sequence[str | int]) -> Ids:
    return concatenate([ids_of([p]) if isinstance(p, int) else renderer.vocabulary.encode(p) for p in pieces])


def parse(
    renderer: TemplateRenderer, ids: Ids, thinking_open: bool = False, cuts: Sequence[int] = ()
) -> tuple[Message, tuple[CallSpan, ...], list[Event]]:
    parser = renderer.parser(thinking_open, TOOLS)
    events: list[Event] = []
    for start, end in pairwise([0, *sorted(cuts), len(ids)]):
        events += parser.feed(ids[start:end].tolist())
    message, rest = parser.finish()
    return message, parser.calls, [*events, *rest]


def told(events: Sequence[Event], kind: type[ThinkingDelta] | type[TextDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


@st.composite
def messages(draw: st.DrawFn, family: Family, reasons: bool) -> Message:
    """What a parse can yield: no empty parts, no two texts side by side, reasoning first; text behind calls is never
    blank, for blanks there are scaffold in some families."""
    words = ["\n", "\n\n", " ", "a", "日本", "👍🏽", "word", *family.quotes]
    texts = st.lists(st.sampled_from(words), min_size=1, max_size=4).map("".join)
    spelled = [*CANONICAL, *(['{\n "command" :"x"}', '{"command":"}] ;</"}'] if family.json else [])]
    calls = st.builds(
        lambda name, text: ToolCall("", name, text, said=family.said.replace("NAME", name)),
        st.sampled_from(["bash", "look_up"]),
        st.sampled_from(spelled),
    )
    parts: list[Part] = [Thinking(draw(texts))] if reasons and draw(st.booleans()) else []
    for part in draw(st.lists(texts.map(Text) | calls, max_size=5)):
        behind = any(isinstance(before, ToolCall) for before in parts)
        if isinstance(part, Text) and parts and isinstance(parts[-1], Text):
            continue
        if isinstance(part, Text) and behind and (not family.after or not part.text.strip(" \n;")):
            continue
        parts.append(part)
    return Message("assistant", tuple(parts))


def test_a_model_of_the_family_is_recognised(family: Family, renderer: TemplateRenderer) -> None:
    """By its vocabulary and by what its template writes."""
    assert type(renderer._replies.calls) is resolve("form", NAMES, family.form)


@settings(max_examples=20)
@given(seed=st.integers(0, 9), data=st.data())
def test_what_is_written_is_read_back_however_it_is_segmented_and_chunked(
    family: Family, renderer: TemplateRenderer, seed: int, data: st.DataObject
) -> None:
    message = data.draw(messages(family, reasons=renderer.thinking_end is not None))
    thinking_open = renderer.thinking_end is not None and data.draw(st.booleans())
    ids = encode(renderer, renderer.write(message, thinking_open))
    ids = renderer.vocabulary.resegment(ids, random.Random(seed), 0.5)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    read, spans, events = parse(renderer, ids, thinking_open, cuts)
    assert read == message
    assert [(span.name, span.status) for span in spans] == [(call.name, "ok") for call in message.calls]
    first = next((n for n, part in enumerate(message.parts) if isinstance(part, ToolCall)), len(message.parts))
    before = Message("assistant", message.parts[:first])
    assert told(events, ThinkingDelta) == before.thinking
    assert before.text.startswith(told(events, TextDelta))
    assert_spans_hold_their_calls(renderer, ids, message, spans)


def assert_spans_hold_their_calls(
    renderer: TemplateRenderer, ids: Ids, message: Message, spans: Sequence[CallSpan]
) -> None:
    assert all(one.end <= other.start for one, other in pairwise(spans))
    for span, call in zip(spans, message.calls, strict=True):
        source = renderer.vocabulary.decode(ids[span.start : span.end].tolist())
        assert call.name in source or call.name in call.said
        assert all(word in source for word in msgspec.json.decode(call.arguments))


@settings(max_examples=15)
@given(seed=st.integers(0, 9), data=st.data())
def test_a_draw_cut_anywhere_keeps_its_text_and_the_calls_that_were_whole(
    family: Family, renderer: TemplateRenderer, seed: int, data: st.DataObject
) -> None:
    message = data.draw(messages(family, reasons=renderer.thinking_end is not None))
    ids = encode(renderer, renderer.write(message, False))
    ids = renderer.vocabulary.resegment(ids, random.Random(seed), 0.5)
    read, spans, events = parse(renderer, ids[: data.draw(st.integers(0, len(ids)))], cuts=[1])
    whole = [call for call in read.calls if call.status == "ok"]
    assert tuple(whole) == message.calls[: len(whole)]
    assert {call.status for call in read.calls[len(whole) :]} <= {"unclosed", "invalid_json"}
    assert len([span for span in spans if span.status == "ok"]) == len(whole)
    # What was told is where the message begins: bytes that are sent cannot be taken back.
    assert read.thinking.startswith(told(events, ThinkingDelta))
    assert "".join(part.text for part in read.parts if isinstance(part, Text)).startswith(told(events, TextDelta))


@settings(max_examples=20)
@given(data=st.data())
def test_any_ids_are_read_the_same_in_any_chunks(renderer: TemplateRenderer, data: st.DataObject) -> None:
    controls = st.sampled_from(sorted(renderer.vocabulary.control_ids))
    ids = ids_of(data.draw(st.lists(st.integers(0, renderer.vocabulary.size - 1) | controls, max_size=30)))
    whole, spans, _ = parse(renderer, ids)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    read, others, events = parse(renderer, ids, cuts=cuts)
    assert (read, others) == (whole, spans)
    assert "".join(part.text for part in read.parts if isinstance(part, Text)).startswith(told(events, TextDelta))


def test_calls_are_written_as_the_template_writes_them(family: Family, renderer: TemplateRenderer) -> None:
    said = family.said.replace("NAME", "bash")
    calls = [ToolCall(said or "callaaaa1", "bash", text, said=said) for text in CANONICAL]
    one, two = Message("assistant", (calls[1],)), Message("assistant", (calls[0], calls[3]))
    for message in (one, two) if renderer.facts.calls.parallel else (one,):
        unit = renderer.vocabulary.decode(renderer.unit([message], None, ()).tolist())
        pieces = renderer.write(message, False)[:-1]
        assert "".join(p if isinstance(p, str) else renderer.vocabulary.decode([p]) for p in pieces) in unit


def test_text_that_spells_the_tags_of_a_form_is_text(family: Family, renderer: TemplateRenderer) -> None:
    if not family.form.endswith("spelled"):
        text = f'Call it so: {"".join(family.quotes)}{{"name": "bash"}} and so on'
        ids = renderer.vocabulary.encode(text)
        assert parse(renderer, ids) == (Message("assistant", (Text(text),)), (), [TextDelta(text)])
