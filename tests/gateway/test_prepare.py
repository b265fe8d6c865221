"""What a request wishes of the template, and what the template does not take, one prompt at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bridle.engines.script import ScriptTurn
from bridle.errors import BadRequest
from bridle.gateway.prompt import Prompt, prepare
from bridle.messages import Document, Image, Message, ModelRequest, Note, Part, Switches, Text, Thinking, Tool
from bridle.rendering.template import TemplateRenderer
from bridle.sessions.match import match
from bridle.sessions.records import Opened, SessionOptions
from bridle.sessions.session import Session
from bridle.testing.conversation import call, request, result, said, system, user

MakeRenderer = Callable[[str], TemplateRenderer]


def asked(*messages: Message, tools: tuple[Tool, ...] = (), **fields: Any) -> ModelRequest:
    return msgspec.structs.replace(request(*messages, tools=tools), **fields)


def prompt_of(renderer: TemplateRenderer, given: ModelRequest, **options: Any) -> Prompt:
    session = Session()
    session.open(Opened("s", "m", "r", SessionOptions(**options), 0.0))
    return prepare(renderer, session, given, 100_000)


def spelled(renderer: TemplateRenderer, prompt: Prompt) -> str:
    ids = [id for part in (*prompt.rendered, prompt.lead) for id in part.tolist()]
    return renderer.vocabulary.decode(ids)


# --- odd roles --------------------------------------------------------------------------------------------------------

STRICT = """
{%- for m in messages %}
    {%- if m.role == 'developer' or (m.role == 'system' and not loop.first) %}
        {{- raise_exception('system first') }}
    {%- endif %}
    {%- if m.role != 'system' %}
        {%- set before = loop.previtem.role if loop.previtem is defined else 'system' %}
        {%- if m.role == 'user' and before not in ('system', 'assistant') %}
            {{- raise_exception('a user behind ' ~ before) }}
        {%- endif %}
        {%- if m.role == 'assistant' and before not in ('user', 'tool') %}
            {{- raise_exception('an answer behind ' ~ before) }}
        {%- endif %}
    {%- endif %}
    {%- if m.role == 'assistant' and loop.last and add_generation_prompt %}
        {{- raise_exception('no prefill') }}
    {%- endif %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ (m.tool_calls | tojson if m.tool_calls) ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}
    {{- raise_exception('no user') }}
{%- endif %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}
"""
DEVELOPER = "developer messages are rendered as system messages"
LATE = "system messages that are not first are rendered as user messages"
TWO = "a second user message in a row is rendered as if an answer stood before it"
TALKED = "a user message behind tool results is rendered as if an answer stood before it"
UNASKED = "an answer that begins a conversation is rendered as if a question stood before it"


def developer(text: str) -> Message:
    return Message("developer", (Text(text),))


ODD: dict[str, tuple[list[Message], list[str], list[str]]] = {
    "a developer": ([developer("a"), user("b")], ["system", "user"], [DEVELOPER]),
    "a system message behind the first": (
        [system("a"), user("b"), system("c"), said("d")],
        ["system", "user", "user", "assistant"],
        [LATE, TWO],
    ),
    "two system messages": ([system("a"), system("b"), user("c")], ["system", "user", "user"], [LATE, TWO]),
    "a developer behind a system message": (
        [system("a"), developer("b"), user("c")],
        ["system", "user", "user"],
        [DEVELOPER, LATE, TWO],
    ),
    "two users": ([user("a"), user("b")], ["user", "user"], [TWO]),
    "a user behind tool results": (
        [user("a"), said("", call(id="callaaaa1")), result("callaaaa1", "b"), user("c")],
        ["user", "assistant", "tool", "user"],
        [TALKED],
    ),
    "an answer at the end": ([user("a"), said("b")], ["user", "assistant"], []),
    "two answers at the end": ([user("a"), said("b"), said("c")], ["user", "assistant", "assistant"], []),
    "an empty answer at the end": ([user("a"), Message("assistant")], ["user", "assistant"], []),
    "an answer first": ([said("a"), user("b")], ["assistant", "user"], [UNASKED]),
    "an answer behind a system message": (
        [system("a"), said("b"), user("c")],
        ["system", "assistant", "user"],
        [UNASKED],
    ),
    "an answer behind two system messages": (
        [system("a"), system("b"), said("c")],
        ["system", "user", "assistant"],
        [LATE],
    ),
    "nothing but a system message": ([system("a")], ["system"], []),
    "nothing odd": ([system("a"), user("b"), said("c"), user("d")], ["system", "user", "assistant", "user"], []),
}


@pytest.fixture
def strict(renderer_of: MakeRenderer) -> TemplateRenderer:
    found = renderer_of(STRICT)
    assert found.facts.extendable, found.facts.why_not
    return found


def test_messages_a_template_refuses_are_rendered_in_place_and_told(strict: TemplateRenderer) -> None:
    assert {note.detail for note in strict.facts.role_rules} >= {DEVELOPER, LATE, TWO, TALKED, UNASKED}
    for name, (messages, roles, rules) in ODD.items():
        prompt = prompt_of(strict, asked(*messages))
        units = spelled(strict, prompt).split("<|im_start|>")[1:]
        assert [unit.partition("\n")[0] for unit in units] == [*roles, "assistant"], name
        bodies = [unit.partition("\n")[2].removesuffix("<|im_end|>\n") for unit in units[:-1]]
        for message, body in zip(messages, bodies, strict=True):
            assert body.startswith(message.text), name
        assert [note.detail for note in prompt.notes if note.what == "role_mapped"] == rules, name


def test_a_template_that_takes_them_has_nothing_to_tell(renderer: TemplateRenderer) -> None:
    for messages, _, _ in ODD.values():
        if messages[0].role != "developer" and messages[1:2] != [developer("b")]:
            assert not prompt_of(renderer, asked(*messages)).notes


async def test_a_rule_is_told_with_the_message_that_takes_it_not_again(grounds, agents, strict) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="All done."), samples=1, model=strict) as g:
        agent = agents("openai", await g.open(), system="Be brief.", tools=())
        agent.history.append({"role": "system", "content": "Today is Monday."})
        for text in ("Fix it.", "More.", "And more."):
            agent.tell(text)
            agent.remember(await agent.ask())
        report = await g.checked()
    assert report.kept_percent == 100.0
    told = [[note.detail for note in turn.notes if note.what == "role_mapped"] for turn in g.turns]
    assert told == [[LATE, TWO], [], []]


# --- switches ---------------------------------------------------------------------------------------------------------

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
DEEPSEEK = CHATML + "{{ '<|im_start|>assistant\n' ~ ('<think>' if thinking else '') if add_generation_prompt }}"
EFFORTS = (
    "<|im_start|>system\nReasoning: {{ reasoning_effort or 'medium' }}<|im_end|>\n"
    + CHATML
    + "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"
)
PICKY = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'high'] %}"
    "{{ raise_exception('no such effort') }}{% endif %}" + EFFORTS
)


def ignored(prompt: Prompt) -> list[str]:
    return [note.detail for note in prompt.notes if note.what == "switch_ignored"]


def test_a_thinking_switch_of_another_name_is_set_too(renderer_of: MakeRenderer) -> None:
    deepseek = renderer_of(DEEPSEEK)
    assert (deepseek.facts.switches, deepseek.facts.root_switches) == (("thinking",), ())
    for thinking, opened in ((None, False), (True, True), (False, False)):
        prompt = prompt_of(deepseek, asked(user("hi"), switches=Switches(thinking)))
        assert (prompt.thinking_open, ignored(prompt)) == (opened, [])


def test_effort_reaches_a_template_that_reads_it_and_is_part_of_the_root(renderer_of: MakeRenderer) -> None:
    model = renderer_of(EFFORTS)
    assert model.facts.extendable, model.facts.why_not
    assert (model.facts.switches, model.facts.root_switches) == (("effort",), ("effort",))
    given = {effort: prompt_of(model, asked(user("hi"), switches=Switches(effort=effort))) for effort in ("", "high")}
    assert "Reasoning: high" in spelled(model, given["high"])
    assert "Reasoning: medium" in spelled(model, given[""])
    assert given["high"].found.steps[0].key != given[""].found.steps[0].key
    assert not given["high"].notes


def test_what_a_template_does_not_take_is_left_out_and_told(
    renderer: TemplateRenderer, renderer_of: MakeRenderer
) -> None:
    prompt = prompt_of(renderer, asked(user("hi"), switches=Switches(False, "high")))
    assert ignored(prompt) == ["effort=high: the chat template does not take it (has thinking)"]
    efforts = renderer_of(PICKY)
    for word in ("minimal", "none"):
        prompt = prompt_of(efforts, asked(user("hi"), switches=Switches(True, word)))
        assert ignored(prompt) == [
            "thinking=True: the chat template does not take it (has effort)",
            f"effort={word}: the chat template does not take it (has effort)",
        ]
        assert "Reasoning: medium" in spelled(efforts, prompt)


def test_an_effort_cannot_forge_what_the_template_writes(renderer_of: MakeRenderer) -> None:
    model = renderer_of(EFFORTS)
    assert "Reasoning: xhigh" in spelled(model, prompt_of(model, asked(user("hi"), switches=Switches(effort="xhigh"))))
    for word in ("<|im_end|>", "high\n", "High", "x" * 99):
        prompt = prompt_of(model, asked(user("hi"), switches=Switches(effort=word)))
        assert ignored(prompt) == [f"effort={word}: the chat template does not take it (has effort)"]
        assert "Reasoning: medium" in spelled(model, prompt)


# --- media ------------------------------------------------------------------------------------------------------------

PICTURE, OTHER = Image("image/png", "AAAA"), Image("image/png", "BBBB")
FILE = Document("application/pdf", "CCCC", "spec.pdf")


def showing(*parts: Part) -> ModelRequest:
    return asked(Message("user", parts))


@pytest.mark.parametrize(("part", "what"), [(PICTURE, "an image"), (FILE, "a document")])
def test_media_are_refused_by_place_unless_the_session_replaces_them(
    renderer: TemplateRenderer, part: Part, what: str
) -> None:
    with pytest.raises(BadRequest, match=rf"messages\[1\]: {what}, but the served model takes text only"):
        prompt_of(renderer, asked(user("look"), Message("user", (part,))))


def test_replaced_media_are_lines_of_text_in_their_place_and_told(renderer: TemplateRenderer) -> None:
    prompt = prompt_of(renderer, showing(Text("see"), PICTURE, Text("and"), FILE, OTHER), media="replace")
    lines = "\n".join(
        [
            "see",
            "[image/png left out: the model takes text only]",
            "and",
            "[application/pdf left out: the model takes text only]",
            "[image/png left out: the model takes text only]",
        ]
    )
    assert f"<|im_start|>user\n{lines}<|im_end|>" in spelled(renderer, prompt)
    assert prompt.notes == (Note("media_replaced", "text in the place of 2 image/png, 1 application/pdf"),)


def test_messages_with_different_media_are_different_messages(renderer: TemplateRenderer) -> None:
    shown = [
        (Text("see"), PICTURE),
        (Text("see"), OTHER),
        (Text("see"), FILE),
        (PICTURE, Text("see")),
        (Text("see"),),
        (Text("see"), PICTURE, PICTURE),
    ]
    keys = {match(Session().tree, showing(*parts)).steps[0].key for parts in shown}
    assert len(keys) == len(shown)


async def test_media_are_told_where_they_come_not_with_every_longer_history(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with grounds(ScriptTurn(text="Seen.", thinking="Hm."), samples=1) as g:
        agent = agents("openai", await g.open(media="replace"), tools=())
        agent.history.append({"role": "user", "content": [{"type": "text", "text": "Look."}, image]})
        for text in ("Well?", "And now?"):
            agent.remember(await agent.ask())
            agent.tell(text)
        agent.remember(await agent.ask())
        report = await g.checked()
    assert report.kept_percent == 100.0
    assert g.notes.count("media_replaced") == 1


def test_thinking_is_kept_beside_media(renderer: TemplateRenderer) -> None:
    given = asked(user("a"), Message("assistant", (Thinking("hm"), PICTURE)), user("b"))
    assert "<think>\nhm" in spelled(renderer, prompt_of(renderer, given, media="replace"))


# --- templates that cannot be extended --------------------------------------------------------------------------------

COUNTING = """
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ (PROMPT if messages | length > 3) }}
{%- endif %}
"""
CHAT = (user("one"), said("two"), user("three"), said("four"), user("five"))


@pytest.mark.parametrize(
    ("written", "thinking_open"),
    [("<think>\n\n</think>\n\n", False), ("<think>\n", True), ("Well, ", False)],
)
def test_a_prompt_of_a_template_that_cannot_be_extended_ends_as_the_template_ends_it(
    renderer_of: MakeRenderer, written: str, thinking_open: bool
) -> None:
    renderer = renderer_of(COUNTING.replace("PROMPT", repr(written)))
    assert not renderer.facts.extendable
    prompt = prompt_of(renderer, asked(*CHAT))
    head = "".join(f"<|im_start|>{m.role}\n{m.text}<|im_end|>\n" for m in CHAT)
    whole = f"{head}<|im_start|>assistant\n{written}"
    assert spelled(renderer, prompt) == whole
    ids = [id for part in (*prompt.rendered, prompt.lead) for id in part.tolist()]
    assert ids == renderer.vocabulary.encode_split(whole).tolist()
    assert prompt.length == len(ids)
    assert renderer.vocabulary.decode(prompt.lead.tolist()) == f"<|im_start|>assistant\n{written}"
    assert prompt.thinking_open == thinking_open
    assert not prompt_of(renderer, asked(*CHAT[:3])).thinking_open


def test_an_end_that_only_unanswered_conversations_have_is_not_in_the_prompt(renderer_of: MakeRenderer) -> None:
    ended = COUNTING.replace("PROMPT", "'<think>\\n'").replace(
        "{%- endif %}\n", "{%- else %}<|endoftext|>{% endif %}\n"
    )
    renderer = renderer_of(ended)
    prompt = prompt_of(renderer, asked(*CHAT))
    assert "<|endoftext|>" not in spelled(renderer, prompt)
    assert (renderer.vocabulary.decode(prompt.lead.tolist()), prompt.thinking_open) == (
        "<|im_start|>assistant\n<think>\n",
        True,
    )
