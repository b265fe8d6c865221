"""The forms whose arguments are no JSON, on models of their families: recognised, read as written, written as their
templates do, and read as others read them."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from renderers import parsing
from renderers.base import ParsedToolCall
from renderers.gemma4 import Gemma4Renderer

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Switches, Text, Thinking, Tool, ToolCall
from bridle.registry import resolve
from bridle.rendering import NAMES
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import Ids, Vocabulary, concatenate, ids_of

pytestmark = pytest.mark.slow

FORMS = {
    "qwen_xml": [
        *("qwen3_coder", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "nemotron_3_nano"),
        *("nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"),
    ],
    "glm": ["glm4moe"],
    "glm_compact": ["glm_4_7"],
    "minimax": ["minimax_m2"],
    "gemma": ["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"],
    "lfm": ["lfm2", "lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"],
}
MODELS = [name for names in FORMS.values() for name in names]
ONE_OF_EACH = ["qwen3_6", "nemotron_3_5_lightning", "glm4moe", "glm_4_7", "minimax_m2", "gemma4_v5", "lfm2_2_5_vl"]

TOOLS = (
    Tool(
        "probe",
        "Looks.",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "list": {"type": "array"},
                "deep": {"type": "object"},
            },
        },
    ),
    Tool("mcp__x-y__z", "Waits."),
)

Model = Callable[[str], TemplateRenderer]


@pytest.mark.parametrize(("form", "name"), [(form, name) for form, names in FORMS.items() for name in names])
def test_a_model_of_the_family_is_recognised(model: Model, form: str, name: str) -> None:
    renderer = model(name)
    assert type(renderer._replies.calls) is resolve("form", NAMES, form)
    assert "no_tool_calls" not in [note.what for note in renderer.facts.role_rules]


# --- read as written --------------------------------------------------------------------------------------------------

WORDS = [
    "\n",
    "\n\n",
    " ",
    "a",
    "word",
    "日本",
    "👍🏽",
    "'",
    '"',
    "\\",
    "\\n",
    "5",
    "null",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_value>", "</arg_value>", '<|"|>', "call:f{}"]
PLAIN_TAGS = ["</parameter>", "</function>", "<parameter=a>", '<parameter name="a">', "</invoke>", "\n</parameter>\n"]
TEXTS = st.lists(st.sampled_from([*WORDS, *TAGS, *PLAIN_TAGS]), max_size=8).map("".join)
NUMBERS = st.integers(-(2**53), 2**53)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "maybe": st.none() | TEXTS.filter(lambda text: text.strip() not in ("null", "None")),
        "count": NUMBERS,
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "list": st.lists(JSON, max_size=3),
        "deep": st.dictionaries(TEXTS, JSON, max_size=3),
    },
)
CALLS = st.builds(lambda given: ToolCall("", "probe", dumped(given)), ARGUMENTS) | st.just(
    ToolCall("", "mcp__x-y__z", "{}")
)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """What a parse can yield: no empty parts, no two texts side by side, reasoning first."""
    parts: list[Part] = [Thinking(thinking)] if (thinking := draw(TEXTS)) else []
    for part in draw(st.lists(TEXTS.filter(bool).map(Text) | CALLS, max_size=5)):
        if not (isinstance(part, Text) and parts and isinstance(parts[-1], Text)):
            parts.append(part)
    return Message("assistant", tuple(parts))


def encode(vocabulary: Vocabulary, pieces: Sequence[str | int]) -> Ids:
    return concatenate([ids_of([piece]) if isinstance(piece, int) else vocabulary.encode(piece) for piece in pieces])


def written(renderer: TemplateRenderer, message: Message, thinking_open: bool) -> list[str | int]:
    try:
        return renderer.write(message, thinking_open)
    except TemplateError:
        # Some values cannot be spelled without quotes.
        assume(False)
        raise


@pytest.mark.parametrize("name", ONE_OF_EACH)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
@given(message=messages(), thinking_open=st.booleans(), seed=st.integers(0, 9), data=st.data())
def test_what_is_written_is_read_back_however_it_is_segmented_and_chunked(
    model: Model, name: str, message: Message, thinking_open: bool, seed: int, data: st.DataObject
) -> None:
    renderer = model(name)
    ids = encode(renderer.vocabulary, written(renderer, message, thinking_open))
    ids = renderer.vocabulary.resegment(ids, random.Random(seed), 0.5)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    parser = renderer.parser(thinking_open, TOOLS)
    for start, end in pairwise([0, *cuts, len(ids)]):
        parser.feed(ids[start:end].tolist())
    read = parser.finish()[0]
    assert read == message
    assert [(span.name, span.status) for span in parser.calls] == [(call.name, "ok") for call in message.calls]
    parser = renderer.parser(thinking_open, TOOLS)
    parser.feed(ids.tolist())
    assert parser.finish()[0] == read


# --- written as the template does -------------------------------------------------------------------------------------

CALL = ToolCall("callaaaa1", "probe", '{"count": 5, "deep": {"a": [1, "b"]}, "text": "two\\nlines"}')
OTHER = ToolCall("callbbbb2", "mcp__x-y__z", "{}")
SHAPES: dict[str, tuple[Part, ...]] = {
    "text": (Text("so"),),
    "call": (CALL,),
    "calls": (CALL, OTHER),
    "text and call": (Text("so"), CALL),
    "thinking and text": (Thinking("why"), Text("so")),
    "thinking and calls": (Thinking("why"), CALL, OTHER),
    "thinking, text and call": (Thinking("why"), Text("so"), CALL),
}
UNSHOWN: dict[str, set[str]] = {
    # Text stands behind calls and their results; reasoning before calls alone.
    **{
        name: {"text and call", "thinking and text", "thinking, text and call"}
        for name in ("gemma4", "gemma4_v3", "gemma4_v4")
    },
    "gemma4_v2": {shape for shape in SHAPES if shape not in ("text", "call", "calls")},
    "lfm2": {shape for shape in SHAPES if shape != "text"},
    "lfm2_v2": {shape for shape in SHAPES if "thinking" in shape},
    # Line breaks in strings stay as they are.
    "lfm2_2_5": {shape for shape in SHAPES if "call" in shape},
    "lfm2_2_5_v2": {shape for shape in SHAPES if "call" in shape},
    "qwen3_coder": {shape for shape in SHAPES if "thinking" in shape},
}
"""What a template does not show as a model would say it."""


@pytest.mark.parametrize("name", MODELS)
def test_the_written_reply_is_what_the_template_writes(model: Model, name: str) -> None:
    renderer = model(name)
    otherwise = {shape for shape, parts in SHAPES.items() if not shown_alike(renderer, Message("assistant", parts))}
    assert otherwise == UNSHOWN.get(name, set())


def shown_alike(renderer: TemplateRenderer, message: Message) -> bool:
    """Whether the reply written for `message` is what the template shows of it behind some generation prompt. One that
    opens reasoning asks for none of a message without."""
    question = Message("user", (Text("one"),))
    settings = [Switches(on) for on in ((None, True, False) if "thinking" in renderer.facts.switches else (None,))]
    prompts = [(switches, renderer.generation(switches)) for switches in settings]
    asked = [(switches, prompt) for switches, prompt in prompts if message.thinking or not prompt.thinking_open]
    for switches, prompt in asked:
        stock = renderer.whole([question, message], (), switches)
        *pieces, _ = renderer.write(message, prompt.thinking_open)
        head = [renderer.whole([question], (), switches), prompt.ids]
        reply = concatenate([*head, encode(renderer.vocabulary, pieces)])
        if np.array_equal(stock[: len(reply)], reply):
            return True
    return not asked


RICH = {
    "text": "5",
    "maybe": None,
    "count": 5,
    "ratio": 1e-07,
    "flag": True,
    "list": [1, "a,b", None, [True]],
    "deep": {"k": {"l": [2.5]}},
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lfm2"])
def test_a_call_is_read_however_its_template_spells_its_values(model: Model, name: str) -> None:
    renderer = model(name)
    call = ToolCall("callaaaa1", "probe", dumped(RICH))
    stock = renderer.whole([Message("user", (Text("one"),)), Message("assistant", (call,))], (), Switches())
    parser = renderer.parser(False, TOOLS)
    parser.feed(stock.tolist())
    (read,) = parser.finish()[0].calls
    assert (read.name, json.loads(read.arguments), read.status) == ("probe", RICH, "ok")


# --- read as others read them -----------------------------------------------------------------------------------------


def oracle(tokenizer: Any, renderer: TemplateRenderer, name: str, ids: Sequence[int]) -> list[ParsedToolCall]:
    tools = [{"name": tool.name, "description": "", "parameters": dict(tool.parameters)} for tool in TOOLS]
    controls = renderer.vocabulary.controls
    common: dict[str, Any] = {"stop_ids": set(renderer.stop_ids), "tools": tools}
    if name.startswith("gemma"):
        found = Gemma4Renderer(tokenizer).parse_response(list(ids), tools=tools).tool_calls
        return list(found)
    common |= {"think_id": controls["<think>"], "think_end_id": controls["</think>"]}
    opening, closing = (
        ("<minimax:tool_call>", "</minimax:tool_call>")
        if name == "minimax_m2"
        else (
            "<tool_call>",
            "</tool_call>",
        )
    )
    common |= {"tool_call_id": controls[opening], "tool_call_end_id": controls[closing]}
    if name.startswith("glm"):
        inner = {
            f"{tag.strip('</>')}{'_end' if '/' in tag else ''}_id": controls[tag]
            for tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
        }
        return list(parsing.parse_glm(tokenizer, list(ids), **common, **inner).tool_calls)
    parse = parsing.parse_minimax if name == "minimax_m2" else parsing.parse_qwen35
    return list(parse(tokenizer, list(ids), **common).tool_calls)


def plain(text: str) -> bool:
    """Of a text that all read alike: the oracles strip strings, and end a value at the first closing tag."""
    return text == text.strip() and "</" not in text and "<parameter" not in text and "<|" not in text


PLAIN_ARGUMENTS = ARGUMENTS.filter(
    lambda given: plain(given.get("text", "")) and "maybe" not in given and "deep" not in given and plain(dumped(given))
)


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if not name.startswith("lfm")])
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
@given(calls=st.lists(PLAIN_ARGUMENTS, min_size=1, max_size=3), seed=st.integers(0, 9))
def test_calls_are_read_as_the_oracle_reads_them(
    model: Model, oracle_tokenizer: Any, name: str, calls: list[dict[str, Any]], seed: int
) -> None:
    renderer = model(name)
    message = Message("assistant", tuple(ToolCall("", "probe", dumped(given)) for given in calls))
    ids = encode(renderer.vocabulary, written(renderer, message, False))
    ids = renderer.vocabulary.resegment(ids, random.Random(seed), 0.5)
    found = oracle(oracle_tokenizer(renderer.vocabulary), renderer, name, ids.tolist())
    assert [(call.name, call.arguments, call.status.value) for call in found] == [
        ("probe", given, "ok") for given in calls
    ]
    parser = renderer.parser(False, TOOLS)
    parser.feed(ids.tolist())
    assert [json.loads(call.arguments) for call in parser.finish()[0].calls] == calls


@settings(max_examples=60, deadline=None)
@given(given=st.dictionaries(st.sampled_from(["a", "b_c"]), TEXTS | NUMBERS | st.booleans() | st.none()))
def test_calls_in_python_are_read_as_python_reads_them(model: Model, given: Mapping[str, Any]) -> None:
    renderer = model("lfm2_2_5_vl")
    source = f"[probe({', '.join(f'{key}={value!r}' for key, value in given.items())})]"
    (call,) = ast.parse(source, mode="eval").body.elts  # type: ignore[attr-defined]
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == given
    controls = renderer.vocabulary.controls
    parser = renderer.parser(False, (Tool("probe"),))
    parser.feed([controls["<|tool_call_start|>"], *renderer.vocabulary.encode(source), controls["<|tool_call_end|>"]])
    (read,) = parser.finish()[0].calls
    assert (json.loads(read.arguments), read.status) == (given, "ok")


DRAWS = {
    "nothing wrong": ("<function=probe>\n<parameter=count>\n5\n</parameter>\n</function>", "ok", "ok"),
    "no value of its type": (
        "<function=probe>\n<parameter=count>\nx\n</parameter>\n</function>",
        "invalid_json",
        "invalid_json",
    ),
    "unknown tool": ("<function=other>\n</function>", "unknown_tool", "ok"),
    "no name": ("nothing", "missing_name", "malformed_structure"),
    # What the oracle mends or drops.
    "parameter not closed": ("<function=probe>\n<parameter=count>\n5\n</function>", "malformed", "ok"),
    "function not closed": ("<function=probe>\n<parameter=count>\n5\n</parameter>\n", "malformed", "ok"),
    "a key twice": (
        "<function=probe>\n<parameter=count>\n5\n</parameter>\n<parameter=count>\n6\n</parameter>\n</function>",
        "malformed",
        "ok",
    ),
}


@pytest.mark.parametrize("what", DRAWS)
def test_broken_calls_are_told_as_the_oracle_tells_them_or_stricter(
    model: Model, oracle_tokenizer: Any, what: str
) -> None:
    source, ours, theirs = DRAWS[what]
    renderer = model("qwen3_6")
    ids = renderer.vocabulary.encode_split(f"<tool_call>\n{source}\n</tool_call><|im_end|>").tolist()
    parser = renderer.parser(False, TOOLS)
    parser.feed(ids)
    parser.finish()
    assert [span.status for span in parser.calls] == [ours]
    assert [call.status.value for call in oracle(oracle_tokenizer(renderer.vocabulary), renderer, "qwen3_6", ids)] == [
        theirs
    ]
