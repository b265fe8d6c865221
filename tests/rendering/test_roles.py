from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bridle.messages import Message, Role, Switches, Text
from bridle.rendering.chat_template import CallStyle, ChatTemplate
from bridle.rendering.roles import RoleRules, find_roles
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import concatenate

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{%- endfor %}"
    "{{- '<|im_start|>assistant\\n' if add_generation_prompt }}"
)
ASKED_FIRST = "{{- raise_exception('no user') if messages[0].role == 'assistant' or messages[-1].role == 'system' }}"


NO_CALLS = CallStyle(shown=False)


def rules_of(source: str) -> RoleRules:
    return find_roles(ChatTemplate(source, {}))


def refusing(when: str) -> str:
    return CHATML.replace(
        "{{- '<|im_start|>' ~ m.role", f"{{{{- raise_exception('no') if {when} }}}}{{{{- '<|im_start|>' ~ m.role"
    )


def test_a_role_that_is_left_out_silently_gets_a_rule_too() -> None:
    def rules(roles: str) -> RoleRules:
        return rules_of(CHATML.replace("in messages", f"in messages if m.role in {roles}"))

    only = RoleRules("system", "user", system="user", results="user", calls=NO_CALLS)
    assert rules("('user', 'assistant') or m.role == 'no developer'") == only
    every = RoleRules("developer", "system", results="user", calls=NO_CALLS)
    assert rules("('user', 'assistant', 'system', 'developer')") == every


def test_a_developer_message_that_is_not_first_is_a_late_system_message_where_it_would_be_left_out() -> None:
    shown = "m.role in ('user', 'assistant') or m.role == 'developer' and loop.first"
    rules = rules_of(CHATML.replace("{{-", f"{{{{- '' if not ({shown}) else", 1))
    assert not rules.late_developer
    assert [rules.role("developer", at == 0) for at in range(2)] == ["developer", "user"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, RoleRules("system")),
        (refusing("m.role == 'system' and not loop.first"), RoleRules("system", "user")),
        (
            refusing("m.role == 'user' and loop.previtem and loop.previtem.role == 'user'"),
            RoleRules("system", two_users=False),
        ),
        (
            refusing("m.role == 'user' and loop.previtem and loop.previtem.role == 'tool'"),
            RoleRules("system", users_behind_results=False),
        ),
        (refusing("m.role == 'tool'"), RoleRules("system", results="user")),
        (refusing("m.role == 'assistant' and loop.first"), RoleRules("system", unasked=False)),
        (refusing("m.role == 'system' and loop.length == 1"), RoleRules("system", unasked=False)),
    ],
)
def test_what_a_template_refuses_gets_a_rule_and_nothing_else_does(source: str, expected: RoleRules) -> None:
    assert rules_of(source) == msgspec.structs.replace(expected, calls=NO_CALLS)


ALL = RoleRules("system", "user", two_users=False, users_behind_results=False, unasked=False)


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        (["system", "user", "assistant", "tool", "assistant", "user"], []),
        (["developer"], ["developer"]),
        (["developer", "user"], []),
        (["system", "system"], ["not first"]),
        (["system", "developer"], ["developer", "not first"]),
        (["user", "system"], ["not first", "in a row"]),
        (["system", "system", "user"], ["in a row"]),
        (["user", "assistant", "tool", "system"], ["not first", "behind tool results"]),
        (["system", "assistant"], ["begins a conversation"]),
        (["user", "assistant", "assistant"], []),
    ],
)
def test_the_rules_a_message_takes_depend_on_what_stands_before_it(roles: list[Role], told: list[str]) -> None:
    notes = ALL.notes(roles, len(roles) - 1)
    assert len(notes) == len(told)
    assert all(words in note.detail for note, words in zip(notes, told, strict=True))
    assert set(notes) <= set(ALL.all_notes)
    assert RoleRules().notes(roles, len(roles) - 1) == ()


def test_what_stands_before_a_question_is_rendered_as_if_one_followed(
    tiny: TemplateRenderer, units_of_template: object
) -> None:
    assert callable(units_of_template)
    strict = units_of_template(tiny.vocabulary, ASKED_FIRST + CHATML)
    free = units_of_template(tiny.vocabulary, CHATML)
    for messages in ([Message("system", (Text("a"),))], [Message("assistant", (Text("b"),))]):
        assert np.array_equal(strict.root(messages, (), Switches()), free.root(messages, (), Switches()))
    two = [Message("system", (Text("a"),)), Message("user", (Text("b"),))]
    assert np.array_equal(strict.root(two, (), Switches()), concatenate([free.whole(two, (), Switches())]))
