from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from bridle.errors import TemplateError
from bridle.messages import Message, Text, Thinking, Tool, ToolCall
from bridle.rendering.chat_template import ChatTemplate, message_form, special_tokens, tool_form

ENVIRONMENT = """
{%- for m in messages %}
    {%- if loop.index > 2 %}{%- break %}{%- endif %}
    {%- generation %}
    {{- m.content | tojson }}
    {%- endgeneration %}
{%- endfor %}
  {# lstrip #}
{{ {'b': '<é>', 'a': [1, 2.5, none]} | tojson }}
{{ {'b': 'é😀\\n', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true, indent=2, separators=(',', ':')) }}
{{ bos_token }}{{ documents is none }}{{ tools is none }}{{ add_generation_prompt }}{{ enable_thinking is defined }}
"""


def test_text_is_what_transformers_renders() -> None:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    chat: list[dict[str, Any]] = [{"role": "user", "content": f"<{n}> 'é'"} for n in range(3)]
    ours = ChatTemplate(ENVIRONMENT, {"bos_token": "<s>"}).render(chat)
    stock, _ = utilities.render_jinja_template([chat], chat_template=ENVIRONMENT, bos_token="<s>")
    assert ours == stock[0]


def test_the_date_is_given_and_not_the_clocks() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert ChatTemplate(source, {}).render([]) == "01 Jan 2026"
    assert ChatTemplate(source, {}, datetime(1999, 12, 31)).render([]) == "31 Dec 1999"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no such role') }}", "refused the conversation: no such role"),
        ("{{ 'a' + 1 }}", "failed on the conversation"),
        ("{{ messages[0].nothing.there }}", "has no attribute"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "'append' of 'list' object is unsafe"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "nested too deeply"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_of_the_conversation(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source, {}).render([{"role": "user", "content": ""}])


def test_messages_take_the_form_templates_know() -> None:
    said = Message("assistant", (Thinking("why"), Text("a"), Text("b"), ToolCall("c1", "bash", '{"x": [1, "y"]}')))
    call = {"type": "function", "id": "<c1>", "function": {"name": "<bash>", "arguments": {"<x>": [1, "<y>"]}}}
    form = message_form(said, "<{}>".format, {})
    assert form == {
        "role": "assistant",
        "content": "<a\nb>",
        "reasoning_content": "<why>",
        "thinking": "<why>",
        "tool_calls": [call],
    }
    result = message_form(Message("tool", (Text("out"),), call_id="c1"), "<{}>".format, {"c1": "bash"})
    assert result == {"role": "tool", "content": "<out>", "tool_call_id": "<c1>", "name": "<bash>"}


ODD = {
    "no JSON": "not json",
    "no object": "[1]",
    "nothing": "",
    "nested deeper than any decoder goes": '{"a":' * 3000 + "1" + "}" * 3000,
    "nested deeper than is walked": '{"a":' * 700 + "1" + "}" * 700,
    "an endless number": '{"a": ' + "1" * 5000 + "}",
}


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD)
def test_arguments_that_cannot_be_shown_as_an_object_stay_text(arguments: str) -> None:
    form = message_form(Message("assistant", (ToolCall("c", "t", arguments),)), str, {})
    assert form["tool_calls"][0]["function"]["arguments"] == arguments


def test_tools_take_the_form_templates_know() -> None:
    schema = {"type": "object", "properties": {"b": {"enum": ["x", 1, None]}, "a": {}}, "required": ("b",)}
    assert tool_form(Tool("t", "d", schema), "<{}>".format) == {
        "type": "function",
        "function": {
            "name": "<t>",
            "description": "<d>",
            "parameters": {
                "<type>": "<object>",
                "<properties>": {"<b>": {"<enum>": ["<x>", 1, None]}, "<a>": {}},
                "<required>": ["<b>"],
            },
        },
    }


def test_marks_survive_json_in_ascii() -> None:
    source = "{{ messages[0].content | tojson(ensure_ascii=true) }}"
    assert ChatTemplate(source, {}).render([{"content": "é\ufdd0😀"}]) == '"\\u00e9\ufdd0\\ud83d\\ude00"'


def test_special_tokens_are_read_from_both_forms() -> None:
    config = {
        "eos_token": "<e>",
        "bos_token": {"content": "<b>", "lstrip": False},
        "pad_token": None,
        "add_eos_token": True,
    }
    assert special_tokens(config) == {"eos_token": "<e>", "bos_token": "<b>"}
