from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from bridle.errors import TemplateError
from bridle.messages import Image, Message, Role, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.chat_template import message_form, tool_form
from bridle.rendering.roles import RoleRules
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.units import Units, cut_units
from bridle.tokens import Ids, Vocabulary, concatenate

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
FRAGMENTS = ("<", "<|", "<|im_", "im_end", "end|>", "|>", ">", "</", "think>", "tool_call", "</think", "<|im_start|")
PLAIN_TEXT = (
    "",
    " ",
    "\n",
    "\n\n",
    "\t ",
    "word",
    "two words",
    "日本語",
    "👩‍👩‍👧 👍🏽",
    "x = 1\r\n",
    '{"a": "b"}',
    "\\n",
)
ODD = ("\ufdd0", "\ufdd1\ufdef", "\x00", "\u2028", "\ufeff")

HARMLESS = st.lists(st.sampled_from(PLAIN_TEXT) | st.text("ab \n日", max_size=5), max_size=4).map("".join)
HOSTILE = st.lists(st.sampled_from((*CONTROLS, *FRAGMENTS, *PLAIN_TEXT, *ODD)) | st.text(max_size=4), max_size=5).map(
    "".join
)


def json_values(bodies: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-9, 9) | bodies
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(bodies, inner, max_size=2))


@st.composite
def conversations(
    draw: Callable[..., Any], bodies: st.SearchStrategy[str], late_system: bool = True
) -> tuple[list[Message], tuple[Tool, ...]]:
    """A system message or none, a user message, then answers, tool loops and notes in any order."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append(Message("system", (Text(draw(bodies)),)))
    messages.append(Message("user", (Text(draw(bodies)),)))
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            messages += draw(answers(bodies))
        role: Role = "system" if late_system and draw(st.integers(0, 4)) == 0 else "user"
        messages.append(Message(role, (Text(draw(bodies)),)))
    parameters = st.dictionaries(bodies, json_values(bodies), max_size=3)
    tools = st.builds(Tool, name=bodies, description=bodies, parameters=parameters)
    return messages, tuple(draw(st.lists(tools, max_size=2)))


@st.composite
def answers(draw: Callable[..., Any], bodies: st.SearchStrategy[str]) -> list[Message]:
    arguments = st.dictionaries(bodies, json_values(bodies), max_size=2).map(json.dumps) | st.just("not json")
    calls = [ToolCall(f"call{n}x", draw(bodies), draw(arguments)) for n in range(draw(st.integers(0, 2)))]
    thinking = draw(bodies)
    reasoning = (Thinking(thinking),) if thinking else ()
    said = Message("assistant", (*reasoning, Text(draw(bodies)), *calls))
    return [said, *(Message("tool", (Text(draw(bodies)),), call_id=call.id) for call in calls)]


def in_units(renderer: TemplateRenderer, messages: list[Message], tools: tuple[Tool, ...]) -> Ids:
    root, *rest = cut_units(messages)
    parts = [renderer.root(root, tools, Switches())]
    before: Message | None = None
    for unit in rest:
        parts.append(renderer.unit(unit, before, tools))
        before = unit[0] if unit[0].role == "assistant" else before
    return concatenate(parts)


def stock_text(renderer: TemplateRenderer, messages: list[Message], tools: tuple[Tool, ...]) -> str:
    """What the template writes when nothing is marked."""
    template = renderer._units.template
    return template.render([message_form(m, str, {}) for m in messages], [tool_form(t, str) for t in tools])


def control_ids(vocabulary: Vocabulary, ids: Ids) -> list[int]:
    return [id for id in ids.tolist() if id in vocabulary.control_ids]


@given(conversation=conversations(HOSTILE))
def test_units_are_the_conversation_rendered_whole(
    tiny: TemplateRenderer, conversation: tuple[list[Message], tuple[Tool, ...]]
) -> None:
    messages, tools = conversation
    assert np.array_equal(in_units(tiny, messages, tools), tiny.whole(messages, tools, Switches()))


@settings(max_examples=60)
@given(conversation=conversations(HOSTILE))
def test_units_are_the_conversation_rendered_whole_over_a_large_vocabulary(
    tekken: TemplateRenderer, conversation: tuple[list[Message], tuple[Tool, ...]]
) -> None:
    messages, tools = conversation
    whole = tekken.whole(messages, tools, Switches())
    assert np.array_equal(in_units(tekken, messages, tools), whole)
    said = tekken.vocabulary.decode(whole.tolist())
    assert said == unicodedata.normalize("NFC", said)


@given(conversation=conversations(HOSTILE))
def test_the_ids_spell_the_stock_rendering_whatever_the_bodies_hold(
    tiny: TemplateRenderer, conversation: tuple[list[Message], tuple[Tool, ...]]
) -> None:
    messages, tools = conversation
    ids = tiny.whole(messages, tools, Switches())
    assert tiny.vocabulary.decode(ids.tolist()) == stock_text(tiny, messages, tools)


def tamed(value: Any) -> Any:
    """The same structure with bodies that spell nothing."""
    if isinstance(value, str):
        return "a" if value else ""
    if isinstance(value, dict):
        return {str(number): tamed(item) for number, item in enumerate(value.values())}
    return [tamed(item) for item in value] if isinstance(value, list) else value


def tame(message: Message) -> Message:
    def part(given: Any) -> Any:
        if isinstance(given, ToolCall):
            return ToolCall(given.id, tamed(given.name), "{}")
        return msgspec.structs.replace(given, text=tamed(given.text))

    return msgspec.structs.replace(message, parts=tuple(part(given) for given in message.parts))


@given(conversation=conversations(HOSTILE))
def test_no_body_adds_moves_or_removes_a_control_id(
    tiny: TemplateRenderer, conversation: tuple[list[Message], tuple[Tool, ...]]
) -> None:
    messages, tools = conversation
    tame_tools = tuple(Tool(tamed(tool.name), tamed(tool.description), tamed(tool.parameters)) for tool in tools)
    harmless = tiny.whole([tame(message) for message in messages], tame_tools, Switches())
    for ids in (tiny.whole(messages, tools, Switches()), in_units(tiny, messages, tools)):
        assert control_ids(tiny.vocabulary, ids) == control_ids(tiny.vocabulary, harmless)


@pytest.fixture(scope="module")
def stock_tokenizers(tiny_directory: Path, tekken_directory: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    load = transformers.PreTrainedTokenizerFast.from_pretrained
    return {"tiny": load(tiny_directory), "tekken": load(tekken_directory)}


@pytest.mark.parametrize("name", ["tiny", "tekken"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=conversations(HARMLESS))
def test_without_control_strings_the_ids_are_those_of_transformers(
    request: pytest.FixtureRequest,
    stock_tokenizers: dict[str, Any],
    name: str,
    conversation: tuple[list[Message], tuple[Tool, ...]],
) -> None:
    messages, tools = conversation
    renderer = request.getfixturevalue(name)
    forms = [message_form(message, str, {}) for message in messages]
    shown = [tool_form(tool, str) for tool in tools] or None
    for thinking, switch in ((None, {}), (False, {"enable_thinking": False})):
        stock = stock_tokenizers[name].apply_chat_template(
            forms, tools=shown, add_generation_prompt=True, tokenize=True, return_dict=False, **switch
        )
        ours = concatenate([in_units(renderer, messages, tools), renderer.generation(Switches(thinking)).ids])
        assert ours.tolist() == stock


def test_cutting_at_the_edges_of_bodies_would_give_other_ids(tiny: TemplateRenderer) -> None:
    """The seam: the template's newline and the body's merge into one token."""
    vocabulary = tiny.vocabulary
    body = "\nfoo"
    whole = tiny.unit([Message("user", (Text(body),))], None, ())
    opener, closer = vocabulary.controls["<|im_start|>"], vocabulary.controls["<|im_end|>"]
    assert whole.tolist() == [opener, *vocabulary.encode("user\n" + body).tolist(), closer, *vocabulary.encode("\n")]
    at_edges = concatenate([vocabulary.encode("user\n"), vocabulary.encode(body)])
    assert vocabulary.decode(at_edges.tolist()) == "user\n" + body
    assert at_edges.tolist() != vocabulary.encode("user\n" + body).tolist()


def test_a_units_cost_does_not_depend_on_the_tools_or_the_history(
    tiny: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = Vocabulary.encode
    monkeypatch.setattr(Vocabulary, "encode", lambda self, text: encoded.append(text) or encode(self, text))
    tools = tuple(Tool(f"tool{n}", "d" * 1000) for n in range(50))
    before = Message("assistant", (Thinking("t" * 9999), Text("y" * 9999), ToolCall("c1", "tool1", '{"a": 1}')))
    tiny.unit([Message("tool", (Text("seen"),), call_id="c1")], before, tools)
    assert sum(map(len, encoded)) < 60


def test_a_lone_surrogate_is_refused_wherever_it_stands(tiny: TemplateRenderer) -> None:
    call = ToolCall("c", "t", '{"a": "\\ud800"}')
    for part in (Text("\ud800"), Thinking("a\udfff"), call):
        with pytest.raises(TemplateError, match="lone surrogate"):
            tiny.unit([Message("assistant", (part,))], None, ())


def test_an_image_is_refused_as_what_it_is(tiny: TemplateRenderer) -> None:
    with pytest.raises(TemplateError, match="image or a document and this model reads text only"):
        tiny.unit([Message("user", (Image("image/png", "AAAA"),))], None, ())


def test_the_root_ends_with_the_first_message_after_the_system_messages() -> None:
    system, developer = Message("system", (Text("s"),)), Message("developer", (Text("d"),))
    user, said = Message("user", (Text("u"),)), Message("assistant", (Text("a"),))
    one, two = Message("tool", (Text("1"),), call_id="1"), Message("tool", (Text("2"),), call_id="2")
    messages = [system, developer, user, said, one, two, system, user]
    assert cut_units(messages) == [[system, developer, user], [said], [one, two], [system], [user]]
    assert cut_units([system]) == [[system]]


def test_a_role_the_template_does_not_take_is_rendered_in_place_as_another(tiny: TemplateRenderer) -> None:
    said = (Text("rule"),)
    late = tiny.unit([Message("developer", said)], None, ())
    assert np.array_equal(late, tiny.unit([Message("system", said)], None, ()))
    rules = RoleRules("system", "user")
    assert [m.role for m in rules.apply([Message("developer"), Message("system"), Message("tool")], first=True)] == [
        "system",
        "user",
        "tool",
    ]


# --- templates that are not the tiny one ------------------------------------------------------------------------------

QWEN3_LIKE = """
{%- set ns = namespace(last=messages | length - 1, seek=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.seek and message.role == 'user' %}
        {%- set ns.seek = false %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or message.reasoning_content) %}
            {{- '<think>\\n' ~ message.reasoning_content | default('') | trim ~ '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content ~ '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""


def test_a_message_without_reasoning_is_rendered_as_one_that_is_not_the_last(
    tiny: TemplateRenderer, units_of_template: Callable[[Vocabulary, str], Units]
) -> None:
    """Such templates write an empty block into the last answer alone."""
    units = units_of_template(tiny.vocabulary, QWEN3_LIKE)
    said = units.vocabulary.decode(units.unit([Message("assistant", (Text("hi"),))], None).tolist())
    assert said == "<|im_start|>assistant\nhi<|im_end|>\n"


def test_reasoning_stays_in_a_message_that_is_rendered_apart(
    tiny: TemplateRenderer, units_of_template: Callable[[Vocabulary, str], Units]
) -> None:
    units = units_of_template(tiny.vocabulary, QWEN3_LIKE)
    message = Message("assistant", (Thinking("why"), Text("hi")))
    said = units.vocabulary.decode(units.unit([message], None).tolist())
    assert said == "<|im_start|>assistant\n<think>\nwhy\n</think>\n\nhi<|im_end|>\n"


def test_a_template_that_rewrites_a_message_by_what_follows_is_refused(
    tiny: TemplateRenderer, units_of_template: Callable[[Vocabulary, str], Units]
) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.content }}{{ '<|im_end|>' if loop.last else '<think>' }}{% endfor %}"
    )
    units = units_of_template(tiny.vocabulary, source)
    with pytest.raises(TemplateError, match="changes the end of a message when another one follows"):
        units.unit([Message("user", (Text("a"),))], None)


def test_results_are_rendered_behind_the_calls_they_answer(
    tiny: TemplateRenderer, units_of_template: Callable[[Vocabulary, str], Units]
) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.name }} {{ m.tool_call_id }}: {{ m.content }}<|im_end|>{% endfor %}"
    )
    units = units_of_template(tiny.vocabulary, source)
    before = Message("assistant", (ToolCall("c1", "bash", "{}"), ToolCall("c2", "edit", '{"a": 1}')))
    results = [Message("tool", (Text("seen"),), call_id=id) for id in ("c1", "c2")]
    said = units.vocabulary.decode(units.unit(results, before).tolist())
    assert said == "<|im_start|>bash c1: seen<|im_end|><|im_start|>edit c2: seen<|im_end|>"


DEEP = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"


def test_a_call_nested_deeper_than_any_decoder_goes_is_rendered_as_it_was_written(tiny: TemplateRenderer) -> None:
    calling = Message("assistant", (ToolCall("c1", "bash", DEEP),))
    assert f'"arguments": {DEEP}}}' in tiny.vocabulary.decode(tiny.unit([calling], None, ()).tolist())
    result = Message("tool", (Text("ok"),), call_id="c1")
    assert "ok" in tiny.vocabulary.decode(tiny.unit([result], calling, ()).tolist())


@pytest.mark.parametrize("depth", [600, 950])
def test_a_tool_nested_deeper_than_is_walked_is_refused(tiny: TemplateRenderer, depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"a": schema}
    with pytest.raises(TemplateError, match="nested too deeply"):
        tiny.root([Message("user", (Text("hi"),))], (Tool("t", "", schema),), Switches())
