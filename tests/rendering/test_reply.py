from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import Event, TextDelta, ThinkingDelta
from bridle.rendering.reply import ReplyFormat, TagParser, write_reply
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tools_json import JsonCalls
from bridle.tokens import Ids, concatenate, ids_of

BASH = (Tool("bash"),)
CALL = ToolCall("", "bash", '{"command": "ls"}')


@pytest.fixture(scope="module", params=[True, False], ids=["prompt opens a line", "prompt opens no line"])
def form(request: pytest.FixtureRequest, tiny: TemplateRenderer) -> ReplyFormat:
    return ReplyFormat(tiny.vocabulary, tiny.stop_ids, JsonCalls(), opened_line=request.param)


def encode(form: ReplyFormat, pieces: Sequence[str | int]) -> Ids:
    return concatenate([ids_of([p]) if isinstance(p, int) else form.vocabulary.encode(p) for p in pieces])


def parse(form: ReplyFormat, text: str, thinking_open: bool = False) -> Message:
    """`text` as sampled, control tokens spelled out."""
    parser = TagParser(form, thinking_open, BASH)
    parser.feed(form.vocabulary.encode_split(text).tolist())
    return parser.finish()[0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\na\n</think>\n\n<think>\nb\n</think>\n\nc", (Thinking("ab"), Text("c"))),
        ("a <think></think>b", (Text("a b"),)),
        ("a<tool_call>no call</tool_call>b", (Text("a"), Text("<tool_call>no call</tool_call>"), Text("b"))),
    ],
)
def test_what_is_told_as_one_stretch_is_one_part(form: ReplyFormat, text: str, parts: tuple[Part, ...]) -> None:
    assert parse(form, text).parts == parts


def chunked(
    form: ReplyFormat, ids: Ids, thinking_open: bool, cuts: Sequence[int]
) -> tuple[Message, list[Event], list[Event]]:
    parser = TagParser(form, thinking_open, BASH)
    streamed: list[Event] = []
    for start, end in pairwise([0, *sorted(cuts), len(ids)]):
        streamed += parser.feed(ids[start:end].tolist())
    message, rest = parser.finish()
    return message, streamed, rest


def spelled(events: Sequence[Event], kind: type[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sampled", "parts"),
    [
        ("Hello.<|im_end|>", [Text("Hello.")]),
        ("<|im_end|>", []),
        ("  Hello.\n\n<|im_end|>", [Text("  Hello.\n\n")]),
        ("<think>\nwhy\n</think>\n\nHello.", [Thinking("why"), Text("Hello.")]),
        ("<think>\n\n</think>\n\nHello.", [Text("Hello.")]),
        ("<think>why</think>Hello.", [Thinking("why"), Text("Hello.")]),
        ("<think>\n\nwhy\n\n</think>\n\n\nHello.", [Thinking("\nwhy\n"), Text("\nHello.")]),
        ("<think>\nwhy\n", [Thinking("why\n")]),
        ("no</think>thing", [Text("no</think>thing")]),
        ("I look.\n<tool_call>\n{CALL}\n</tool_call><|im_end|>", [Text("I look."), CALL]),
        ("I look.\n\n<tool_call>\n{CALL}\n</tool_call>", [Text("I look.\n"), CALL]),
        ("<think>\nwhy\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>", [Thinking("why"), CALL]),
        ("<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>", [CALL, CALL]),
        (
            "<tool_call>{CALL}</tool_call>\nbetween\n<tool_call>{CALL}</tool_call>\nafter",
            [CALL, Text("between"), CALL, Text("after")],
        ),
        ("<think>\nwhy <tool_call> there\n</think>\n\nok", [Thinking("why <tool_call> there"), Text("ok")]),
        ("a\n<tool_call>\n{broken\n</tool_call>", [Text("a"), Text("<tool_call>\n{broken\n</tool_call>")]),
        ("a\n<tool_call>\n{brok", [Text("a"), Text("<tool_call>\n{brok")]),
        ("stray<|im_start|>tokens", [Text("stray<|im_start|>tokens")]),
        ("not the end<|im_end|> yet<|im_end|>", [Text("not the end<|im_end|> yet")]),
    ],
)
def test_a_draw_is_read_as_its_parts_in_their_order(form: ReplyFormat, sampled: str, parts: list[Part]) -> None:
    sampled = sampled.replace("{CALL}", '{"name": "bash", "arguments": {"command": "ls"}}')
    assert list(parse(form, sampled).parts) == parts


def test_a_call_cut_by_the_next_one_is_unclosed(form: ReplyFormat) -> None:
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n'
    assert [call.status for call in parse(form, f"{call}{call}</tool_call>").calls] == ["unclosed", "ok"]


def test_each_call_says_which_ids_of_the_draw_it_is_and_what_is_wrong_with_it(form: ReplyFormat) -> None:
    pieces = [
        "I look.\n",
        '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>',
        "\nand\n",
        "<tool_call>{broken</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash", "argu',
        '<tool_call>{"name": "bash", "arguments": {}}',
        "<|im_end|>",
    ]
    encoded = [form.vocabulary.encode_split(piece).tolist() for piece in pieces]
    parser = TagParser(form, False, BASH)
    parser.feed([id for ids in encoded for id in ids])
    parser.finish()
    bounds = [sum(len(ids) for ids in encoded[:count]) for count in range(len(encoded) + 1)]
    assert [(span.start, span.end, span.name, span.status) for span in parser.calls] == [
        (bounds[1], bounds[2], "bash", "ok"),
        (bounds[3], bounds[4], "", "missing_name"),
        (bounds[4], bounds[5], "other", "unknown_tool"),
        (bounds[5], bounds[6], "bash", "unclosed"),
        (bounds[6], bounds[7], "bash", "unclosed"),
    ]


def test_text_that_spells_a_tag_is_text(form: ReplyFormat) -> None:
    text = "Write <think> and <tool_call>{}</tool_call> like this: </think><|im_end|>"
    parser = TagParser(form, False, BASH)
    parser.feed(form.vocabulary.encode(text).tolist())
    assert parser.finish()[0].parts == (Text(text),)


def test_a_reply_in_a_block_the_prompt_opened_begins_as_thinking(form: ReplyFormat) -> None:
    line = "" if form.opened_line else "\n"
    assert parse(form, f"{line}why\n</think>\n\nso", thinking_open=True).parts == (Thinking("why"), Text("so"))


TEXTS = st.lists(st.sampled_from(["\n", "\n\n", " ", "a", "日本", "👍🏽", "<think>", "</tool_call>", "word"])).map(
    "".join
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """What a parse can yield: no empty parts, no two texts side by side, reasoning first."""
    text = TEXTS.filter(bool).map(Text)
    calls = st.sampled_from(['{"command": "ls"}', "{}", '{\n "a" :1.0}']).map(lambda given: ToolCall("", "bash", given))
    parts: list[Part] = [Thinking(thinking)] if (thinking := draw(TEXTS)) else []
    for part in draw(st.lists(text | calls, max_size=5)):
        if not (isinstance(part, Text) and parts and isinstance(parts[-1], Text)):
            parts.append(part)
    return Message("assistant", tuple(parts))


@given(message=messages(), thinking_open=st.booleans(), seed=st.integers(0, 9), data=st.data())
def test_what_is_written_is_read_back_however_it_is_segmented_and_chunked(
    form: ReplyFormat, message: Message, thinking_open: bool, seed: int, data: st.DataObject
) -> None:
    ids = encode(form, [*write_reply(form, message, thinking_open), form.stop_ids[0]])
    ids = form.vocabulary.resegment(ids, random.Random(seed), 0.5)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    read, streamed, rest = chunked(form, ids, thinking_open, cuts)
    assert read == message
    first_call = next((n for n, part in enumerate(message.parts) if isinstance(part, ToolCall)), len(message.parts))
    before = Message("assistant", message.parts[:first_call])
    assert spelled([*streamed, *rest], ThinkingDelta) == before.thinking
    assert spelled([*streamed, *rest], TextDelta) == before.text


@given(
    ids=st.lists(st.integers(0, 2047) | st.integers(2039, 2047), max_size=40),
    thinking_open=st.booleans(),
    data=st.data(),
)
def test_any_ids_are_read_the_same_in_any_chunks(
    form: ReplyFormat, ids: list[int], thinking_open: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    whole, streamed_whole, rest_whole = chunked(form, ids_of(ids), thinking_open, [])
    read, streamed, rest = chunked(form, ids_of(ids), thinking_open, cuts)
    assert read == whole
    for kind in (ThinkingDelta, TextDelta):
        assert spelled([*streamed, *rest], kind) == spelled([*streamed_whole, *rest_whole], kind)


def test_text_is_passed_on_at_once_and_waits_from_the_first_call_on(form: ReplyFormat) -> None:
    parser = TagParser(form, False, BASH)
    feed = [
        form.vocabulary.encode_split(text).tolist()
        for text in ("One ", "two.\n", "<tool_call>", "{}</tool_call>\nlater")
    ]
    assert [parser.feed(ids) for ids in feed] == [[TextDelta("One ")], [TextDelta("two.")], [], []]
    message, rest = parser.finish()
    assert rest == []
    assert [part.text for part in message.parts if isinstance(part, Text)][-1] == "later"


def test_pieces_hold_no_tag_as_text_and_never_stand_side_by_side(form: ReplyFormat) -> None:
    pieces = write_reply(form, Message("assistant", (Thinking("a"), Text("b"), CALL, CALL)), False)
    controls = form.vocabulary.controls
    written = '\n{"name": "bash", "arguments": {"command": "ls"}}\n'
    assert pieces == [
        controls["<think>"],
        "\na\n",
        controls["</think>"],
        "\n\nb\n",
        controls["<tool_call>"],
        written,
        controls["</tool_call>"],
        "\n",
        controls["<tool_call>"],
        written,
        controls["</tool_call>"],
    ]


def test_the_written_reply_is_what_the_template_writes(tiny: TemplateRenderer) -> None:
    call = msgspec.structs.replace(CALL, id="x")
    message = Message("assistant", (Thinking("a"), Text("b"), call, call))
    written = encode_reply(tiny, message)
    lead, unit = tiny.generation(Switches()).ids, tiny.unit([message], None, ())
    assert np.array_equal(concatenate([lead, written, tiny.closing[1:]]), unit)


def encode_reply(renderer: TemplateRenderer, message: Message) -> Ids:
    pieces = renderer.write(message, False)
    return concatenate([ids_of([p]) if isinstance(p, int) else renderer.vocabulary.encode(p) for p in pieces])


def test_a_model_without_a_form_of_calls_cannot_be_made_to_call(form: ReplyFormat) -> None:
    bare = ReplyFormat(form.vocabulary, form.stop_ids, None, True)
    with pytest.raises(TemplateError, match="no known form of tool calls"):
        write_reply(bare, Message("assistant", (CALL,)), False)
    sampled = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
    assert parse(bare, sampled).parts == (Text(sampled),)


def test_an_unfinished_character_stays_in_the_section_it_was_sampled_in(form: ReplyFormat) -> None:
    first = next(id for id in range(256) if form.vocabulary.token_bytes(id) == "日".encode()[:1])
    opening, closing = form.vocabulary.controls["<think>"], form.vocabulary.controls["</think>"]
    parser = TagParser(form, False, BASH)
    parser.feed([opening, first, closing, first])
    message, rest = parser.finish()
    assert message.parts == (Thinking("\ufffd"), Text("\ufffd"))
    assert rest == [TextDelta("\ufffd")]


@pytest.mark.parametrize(
    ("thinking_open", "sampled", "reasoning"),
    [
        (False, "<think>\nwhy\n</think>\n\nso<|im_end|>", "<think>\nwhy\n</think>"),
        (True, "why\n</think>\n\nso<|im_end|>", "why\n</think>"),
        (True, "why<|im_end|>", "why"),
        (True, "why<|im_end|>more", "why<|im_end|>more"),
        (False, "so<|im_end|>", ""),
        (False, "<think>a</think>b<think>c</think>d", "<think>a</think><think>c</think>"),
        (False, "</think>so<tool_call>x</tool_call>", ""),
    ],
)
def test_the_ids_of_reasoning_are_counted_with_their_tags(
    tiny: TemplateRenderer, thinking_open: bool, sampled: str, reasoning: str
) -> None:
    parser = tiny.parser(thinking_open, ())
    for id in tiny.vocabulary.encode_split(sampled).tolist():
        parser.feed([id])
    parser.finish()
    assert parser.reasoning_ids == len(tiny.vocabulary.encode_split(reasoning))
