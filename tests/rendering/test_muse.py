from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bridle.messages import Message, Part, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.base import CallSpan, Event, TextDelta
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.families import make_model, templates
from bridle.tokens import Ids, concatenate, ids_of

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
TOOLS = (Tool("look", parameters=SCHEMA), Tool("files.find"))
START = "<|start|>assistant"
INVOKE = '<atem:invoke name="look">\n<atem:parameter name="path">a b</atem:parameter>\n</atem:invoke>'
CALLING = f" to=look<|message|><atem:function_calls>\n{INVOKE}\n</atem:function_calls>"
CALL = ToolCall("", "look", '{"path": "a b"}')


@pytest.fixture(scope="module")
def muse(tmp_path_factory: pytest.TempPathFactory) -> TemplateRenderer:
    directory: Path = tmp_path_factory.mktemp("muse")
    return load_renderer(make_model(directory, "muse", templates()["muse_glimmer"].read_text()))


def encode(renderer: TemplateRenderer, pieces: Sequence[str | int]) -> Ids:
    return concatenate([ids_of([p]) if isinstance(p, int) else renderer.vocabulary.encode(p) for p in pieces])


def read(renderer: TemplateRenderer, sampled: str) -> tuple[list[Part], list[CallSpan]]:
    parser = renderer.parser(False, TOOLS)
    parser.feed(renderer.vocabulary.encode_split(sampled).tolist())
    return list(parser.finish()[0].parts), list(parser.calls)


def test_a_model_is_known_by_its_tokens_and_its_template(muse: TemplateRenderer) -> None:
    assert muse.facts.extendable, muse.facts.why_not
    assert muse.facts.rewrites == ("text_beside_calls",)
    assert muse.stop_ids == (muse.vocabulary.controls["<|eot|>"],)
    assert muse.thinking_end == muse.vocabulary.controls["<|eom|>"]
    assert muse.vocabulary.decode(muse.generation(Switches()).ids.tolist()) == START
    assert "no_tool_calls" not in [note.what for note in muse.facts.role_rules]


@pytest.mark.parametrize(
    ("sampled", "parts"),
    [
        (" to=user<|message|>Hello.<|eot|>", [Text("Hello.")]),
        ("<|message|>Hello.<|eot|>", [Text("Hello.")]),
        (f" to=self<|message|>why<|eom|>{START} to=user<|message|>so<|eot|>", [Thinking("why"), Text("so")]),
        (f" to=self<|message|>why<|eom|>{START}{CALLING}<|eot|>", [Thinking("why"), CALL]),
        (f"{CALLING}<|eom|>{START}{CALLING}<|eot|>", [CALL, CALL]),
        (
            f" to=look<|message|><atem:function_calls>\n{INVOKE}\n{INVOKE}\n</atem:function_calls><|eot|>",
            [CALL, CALL],
        ),
        ("Hello.<|eot|>", [Text("Hello.")]),
        (" to=self<|message|>cut", [Thinking("cut")]),
        ("<|eot|>", []),
    ],
)
def test_a_draw_is_read_as_its_messages_in_their_order(muse: TemplateRenderer, sampled: str, parts: list[Part]) -> None:
    found, calls = read(muse, sampled)
    assert (found, {call.status for call in calls} - {"ok"}) == (parts, set())


@pytest.mark.parametrize(
    ("sampled", "call"),
    [
        (
            ' to=look<|message|><atem:function_calls>\n<atem:invoke name="look">\n'
            '<atem:parameter name="path">\n"x"\n</atem:parameter>\n<atem:parameter name="lines">3</atem:parameter>\n'
            "</atem:invoke>\n</atem:function_calls><|eot|>",
            ("look", json.dumps({"path": '\n"x"\n', "lines": 3}), "ok"),
        ),
        (
            ' to=files.find<|message|><atem:function_calls>\n<atem:invoke name="files.find">\n</atem:invoke>\n'
            "</atem:function_calls><|eot|>",
            ("files.find", "{}", "ok"),
        ),
        (CALLING.replace("look", "other") + "<|eot|>", ("other", '{"path": "a b"}', "unknown_tool")),
        (f" to=look<|message|>{INVOKE}<|eot|>", ("look", '{"path": "a b"}', "unclosed")),
        (CALLING, ("look", '{"path": "a b"}', "unclosed")),
        (CALLING.removesuffix("atem:function_calls>"), ("look", '{"path": "a b"}', "unclosed")),
        (" to=look<|message|>path=a<|eot|>", ("look", "path=a", "malformed")),
        (" to=look<|message|>path=a", ("look", "path=a", "unclosed")),
        (" to=look<|eot|>", ("look", "", "malformed")),
    ],
)
def test_a_call_is_read_with_its_parameters(muse: TemplateRenderer, sampled: str, call: tuple[str, str, str]) -> None:
    parts, spans = read(muse, sampled)
    assert [(p.name, p.arguments, p.status) for p in parts if isinstance(p, ToolCall)] == [call]
    assert len(parts) == 1
    assert [(span.name, span.status) for span in spans] == [(call[0], call[2])]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("I look first. to=look", "I look first."),
        (f"{START} to=look now", " now"),
    ],
)
def test_what_a_header_says_beside_a_recipient_is_text_before_the_call(
    muse: TemplateRenderer, header: str, said: str
) -> None:
    parts, spans = read(muse, f" to=self<|message|>why<|eom|>{CALLING.replace(' to=look', header)}<|eot|>")
    assert parts == [Thinking("why"), Text(said), CALL]
    assert [(span.name, span.status) for span in spans] == [("look", "ok")]


def test_no_call_is_made_of_what_another_role_says(muse: TemplateRenderer) -> None:
    sampled = f"<|start|>user{CALLING}"
    assert read(muse, f" to=user<|message|>a<|eom|>{sampled}<|eot|>") == ([Text(f"a{sampled}")], [])


def test_calls_of_one_message_are_spans_of_their_own(muse: TemplateRenderer) -> None:
    pieces = [f" to=look<|message|><atem:function_calls>\n{INVOKE}", f"\n{INVOKE}\n</atem:function_calls><|eot|>"]
    first, second = (len(muse.vocabulary.encode_split(piece)) for piece in pieces)
    _, spans = read(muse, "".join(pieces))
    assert [(span.name, span.status) for span in spans] == [("look", "ok"), ("look", "ok")]
    assert (spans[0].start, spans[1].end) == (0, first + second)
    assert spans[0].end <= spans[1].start


TEXTS = st.lists(st.sampled_from(["\n", " ", "a", "日本", "<|eot|>", "<|start|>", "to=x"]), min_size=1).map("".join)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    path = TEXTS.map(lambda text: ToolCall("", "look", json.dumps({"path": text}, ensure_ascii=False)))
    parts: list[Part] = []
    for part in draw(st.lists(TEXTS.map(Text) | TEXTS.map(Thinking) | path, max_size=5)):
        if isinstance(part, ToolCall) or not (parts and isinstance(parts[-1], type(part))):
            parts.append(part)
    return Message("assistant", tuple(parts))


@given(message=messages(), seed=st.integers(0, 9), data=st.data())
def test_what_is_written_is_read_back_however_it_is_segmented_and_chunked(
    muse: TemplateRenderer, message: Message, seed: int, data: st.DataObject
) -> None:
    ids = muse.vocabulary.resegment(encode(muse, muse.write(message, False)).tolist(), random.Random(seed), 0.5)
    parser = muse.parser(False, TOOLS)
    told: list[Event] = []
    for start, end in pairwise([0, *sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))), len(ids)]):
        told += parser.feed(ids[start:end].tolist())
    found, rest = parser.finish()
    assert found == message
    first_call = next((n for n, part in enumerate(message.parts) if isinstance(part, ToolCall)), len(message.parts))
    texts = [part.text for part in message.parts[:first_call] if isinstance(part, Text)]
    assert "".join(event.text for event in [*told, *rest] if isinstance(event, TextDelta)) == "".join(texts)


@pytest.mark.parametrize("said", [(Text("two"),), (CALL, CALL), (Thinking("why"), CALL), (Thinking("why"), Text("so"))])
def test_the_written_reply_is_what_the_template_writes(muse: TemplateRenderer, said: tuple[Part, ...]) -> None:
    lead, closing = muse.generation(Switches()).ids, muse.closing
    written = encode(muse, muse.write(Message("assistant", said), False))
    shown = Message(
        "assistant", tuple(ToolCall("x", p.name, p.arguments) if isinstance(p, ToolCall) else p for p in said)
    )
    unit = muse.unit([shown], None, ())
    assert concatenate([lead, written, closing[1:]]).tolist() == unit.tolist()
