from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from bridle.rendering.base import TemplateFacts
from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.history import same_but_reasoning
from bridle.rendering.probe import probe
from bridle.rendering.roles import find_roles
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.units import Units

TURN = "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ (m.tool_calls | tojson if m.tool_calls) ~ '<|im_end|>\\n' }}"
CHATML = (
    f"{{%- for m in messages %}}{TURN}{{%- endfor %}}{{{{- '<|im_start|>assistant\\n' if add_generation_prompt }}}}"
)
Facts = Callable[[str], TemplateFacts]


@pytest.fixture
def facts_of(tiny: TemplateRenderer) -> Facts:
    def facts(source: str) -> TemplateFacts:
        template = ChatTemplate(source, {})
        tags = (tiny.vocabulary.controls["<think>"], tiny.vocabulary.controls["</think>"])
        same = partial(same_but_reasoning, tiny.vocabulary, tags)
        return probe(Units(tiny.vocabulary, template, find_roles(template)), (), same)

    return facts


def test_the_tiny_template_is_extended_and_known(tiny: TemplateRenderer) -> None:
    facts = tiny.facts
    assert (facts.extendable, facts.why_not) == (True, "")
    assert facts.has_tools
    assert not facts.strips_reasoning
    assert (facts.switches, facts.root_switches) == (("thinking",), ())
    assert [note.detail for note in facts.role_rules] == ["developer messages are rendered as system messages"]


def test_a_plain_chatml_template_is_extended(facts_of: Facts) -> None:
    facts = facts_of(CHATML)
    assert facts.extendable
    assert facts.strips_reasoning
    assert not facts.has_tools


STRIPPING = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- set block = m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {{- '<think>\\n' ~ (m.reasoning_content or '') ~ '\\n</think>\\n\\n' if block }}
    {{- m.content ~ (m.tool_calls | tojson if m.tool_calls) ~ '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n<think>\\n' if add_generation_prompt }}
"""


def test_a_template_that_strips_earlier_reasoning_and_opens_the_next_is_extended(facts_of: Facts) -> None:
    facts = facts_of(STRIPPING)
    assert facts.extendable, facts.why_not
    assert facts.strips_reasoning


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (CHATML.replace("<|im_start|>", "### "), "does not begin with a control token"),
        ("{{- '<|im_start|>' ~ (messages | length) }}" + CHATML, "not the conversation rendered whole"),
        (
            CHATML.replace("~ '<|im_end|>\\n'", "~ ('<|im_end|>\\n' if not loop.last else '<|im_end|>')"),
            "does not begin as the generation prompt does",
        ),
        (CHATML.replace("m.role ~", "(m.role if loop.index < 4 else 'old') ~"), "not the conversation rendered whole"),
        (CHATML.replace("assistant\\n' if", "assistant\\n' if messages | length < 4 and"), "rendered whole"),
        (
            "{% if messages | length > 6 %}{{ raise_exception('too long for me') }}{% endif %}" + CHATML,
            "too long for me",
        ),
        (CHATML.replace("<|im_end|>", "\\n<|im_end|>"), "before the token that closes it"),
        (CHATML.replace("m.content ~", "(m.content if not tools else m.content[::-1]) ~"), "with tools"),
        (
            CHATML.replace(
                "m.content ~", "(m.content ~ ('' if enable_thinking is not false or loop.last else '/no')) ~"
            ),
            "thinking=False",
        ),
    ],
    ids=[
        "no control tokens",
        "counts messages",
        "last message open",
        "renames old turns",
        "prompts only at first",
        "raises",
        "text before the closing token",
        "depends on tools",
        "depends on thinking and place",
    ],
)
def test_a_template_that_cannot_be_extended_says_why(facts_of: Facts, source: str, why: str) -> None:
    facts = facts_of(source)
    assert not facts.extendable
    assert why in facts.why_not


STRICT = """
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{{- raise_exception('system first') }}{%- endif %}
    {%- if m.role == 'user' and loop.previtem is defined and loop.previtem.role == 'user' %}
        {{- raise_exception('alternate') }}
    {%- endif %}
    TURN
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}
""".replace("    TURN", TURN)


def test_roles_a_template_refuses_get_rules_that_apply_in_place(facts_of: Facts) -> None:
    facts = facts_of(STRICT)
    assert facts.extendable, facts.why_not
    assert [note.detail for note in facts.role_rules] == [
        "developer messages are rendered as system messages",
        "system messages that are not first are rendered as user messages",
        "a second user message in a row is rendered as if an answer stood before it",
    ]


def test_a_root_that_shows_the_thinking_switch_is_told_apart(facts_of: Facts) -> None:
    facts = facts_of(
        "{{- '<|im_start|>think: ' ~ enable_thinking ~ '<|im_end|>' if enable_thinking is defined }}" + CHATML
    )
    assert facts.extendable, facts.why_not
    assert facts.root_switches == ("thinking",)


@pytest.mark.parametrize(
    ("shown", "switches"),
    [
        ("thinking", ("thinking",)),
        ("reasoning_effort", ("effort",)),
        ("enable_thinking ~ reasoning_effort", ("thinking", "effort")),
    ],
)
def test_the_switches_a_template_reads_are_known_and_those_its_root_shows(
    facts_of: Facts, shown: str, switches: tuple[str, ...]
) -> None:
    facts = facts_of(f"{{{{- '<|im_start|>' ~ {shown} ~ '<|im_end|>' }}}}" + CHATML)
    assert facts.extendable, facts.why_not
    assert facts.switches == facts.root_switches == switches
    facts = facts_of(CHATML.replace("assistant\\n'", f"assistant\\n' ~ {shown}"))
    assert facts.extendable, facts.why_not
    assert (facts.switches, facts.root_switches) == (switches, ())
    assert facts_of(CHATML).switches == ()


def test_a_message_that_shows_the_thinking_switch_makes_histories_under_others_others(facts_of: Facts) -> None:
    """As GLM writes /nothink behind every user message."""
    facts = facts_of(CHATML.replace("m.content ~", "(m.content ~ ('' if enable_thinking is not false else '/no')) ~"))
    assert facts.extendable, facts.why_not
    assert facts.root_switches == ("thinking",)


def test_a_generation_prompt_may_depend_on_the_role_of_the_last_message(facts_of: Facts) -> None:
    facts = facts_of(CHATML.replace("assistant\\n' if", "assistant\\n' if messages[-1].role != 'tool' and"))
    assert facts.extendable, facts.why_not


def test_an_effort_that_a_template_refuses_is_not_tried_on_it(facts_of: Facts) -> None:
    refusing = "{{- raise_exception('no') if reasoning_effort is defined and reasoning_effort != 'high' }}"
    facts = facts_of(refusing + CHATML)
    assert facts.extendable, facts.why_not
    assert facts.switches == ("effort",)


def test_facts_are_fingerprinted_by_template_and_vocabulary(
    tiny: TemplateRenderer, tekken: TemplateRenderer, facts_of: Facts
) -> None:
    prints = {tiny.facts.fingerprint, tekken.facts.fingerprint, facts_of(CHATML).fingerprint}
    assert len(prints) == 3
