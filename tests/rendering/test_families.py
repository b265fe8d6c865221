"""Histories of every family: in units they are the stock rendering, id by id, and no body is ever structure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.errors import TemplateError
from bridle.messages import Message, Part, Role, Switches, Text, Thinking, Tool, ToolCall
from bridle.rendering.probe import differences, in_units, settings
from bridle.rendering.template import TemplateRenderer
from bridle.rendering.units import Units
from bridle.testing.families import templates
from bridle.tokens import Ids, concatenate

Model = Callable[[str], TemplateRenderer]
Conversation = tuple[list[Message], tuple[Tool, ...]]

OWN = sorted(file.stem for file in (Path(__file__).parent / "templates").glob("*.jinja"))
NAMES = sorted({*templates(), *OWN})
FAST = ("gemma4_v5", "glm4moe", "gptoss", "kimi_k2", "llama3_2", "nemotron_3_nano", "qwen3", "qwen3_6")
EVERY = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NAMES]

UNEXTENDABLE = {
    "deepseek_r1_distill": "the tool message ends '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' when it is the last",
    "deepseekv3": "the tool message ends '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' when it is the last",
}
"""Of the templates of the `trl` wheel. Both write the calls after the first ones of a conversation otherwise."""


@pytest.mark.parametrize("name", EVERY)
def test_every_template_is_extended_or_says_why_not(model: Model, name: str) -> None:
    facts = model(name).facts
    assert facts.extendable == (name not in UNEXTENDABLE), facts.why_not
    assert UNEXTENDABLE.get(name, "") in facts.why_not
    assert facts.why_not_template == facts.why_not


# --- conversations ----------------------------------------------------------------------------------------------------

BODIES = (
    *("", " ", "\n", "\n\nx", "a\n\nb ", "\\n", "word", "two words", "x = 1\r\n", '{"a": "b"}', "<b>é</b>"),
    *("日本語", "👩‍👩‍👧 👍🏽", "e\u0301", "\u2028", "\ufeff"),
)


class Writer:
    """Conversations of everything a template has a stock rendering for; what it refuses has rules, and no oracle."""

    def __init__(self, units: Units, seed: int, bodies: tuple[str, ...] = BODIES) -> None:
        self.rules = units.rules
        self.random = random.Random(seed)
        self.bodies = bodies
        self.calls = 0

    def body(self) -> str:
        return "".join(self.random.choice(self.bodies) for _ in range(self.random.randint(0, 3)))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def conversation(self) -> Conversation:
        rules = self.rules
        messages: list[Message] = []
        if self.chance(0.5) and (rules.system == "system" or rules.two_users):
            messages.append(self.says("system"))
        messages.append(self.says("user"))
        for _ in range(self.random.randint(0, 5)):
            messages += self.answer()
            if rules.late_system == "system" and self.chance(0.15):
                messages.append(self.says("system"))
        if messages[-1].role == "assistant":
            messages.append(self.says("user"))
        return messages, tuple(self.tool() for _ in range(self.random.randint(0, 2)))

    def says(self, role: Role) -> Message:
        return Message(role, (Text(self.body()),))

    def answer(self) -> Iterator[Message]:
        """A turn of a tool loop, or an answer and what the user says to it."""
        thought: tuple[Part, ...] = (Thinking(f"{self.body()}hm"),) if self.chance(0.4) else ()
        if self.chance(0.6) and self.rules.calls.shown and self.rules.results == "tool":
            calls = [self.call() for _ in range(self.random.randint(1, 3) if self.rules.calls.parallel else 1)]
            said = (Text(self.body()),) if self.rules.calls.beside and self.chance(0.5) else ()
            yield Message("assistant", (*thought, *said, *calls))
            yield from (Message("tool", (Text(self.body()),), call.id) for call in calls)
            if self.rules.users_behind_results and self.chance(0.2):
                yield self.says("user")
        else:
            yield Message("assistant", (*thought, Text(self.body())))
            yield self.says("user")
            if self.rules.two_users and self.chance(0.3):
                yield self.says("user")

    def call(self) -> ToolCall:
        self.calls += 1
        arguments = {f"k{self.body()}": self.value() for _ in range(self.random.randint(0, 2))}
        name = f"t{self.body()}".replace("\n", "")
        return ToolCall(f"call{self.calls:05d}", name, json.dumps(arguments, ensure_ascii=False))

    def tool(self) -> Tool:
        shown = {f"p{self.body()}": {"type": "string", "description": self.body()} for _ in range(2)}
        return Tool(f"t{self.body()}", self.body(), {"type": "object", "properties": shown})

    def value(self, deep: int = 0) -> Any:
        kind = self.random.randint(0, 5 if deep < 2 else 3)
        if kind < 3:
            return self.body()
        if kind == 3:
            return self.random.choice([None, True, False, -3, 2.5, 10**20])
        inner = [self.value(deep + 1) for _ in range(self.random.randint(0, 2))]
        return inner if kind == 4 else {f"k{self.body()}{number}": item for number, item in enumerate(inner)}


def hostile(renderer: TemplateRenderer) -> tuple[str, ...]:
    """Every control string of the vocabulary, and halves of them."""
    controls = sorted(renderer.vocabulary.controls)
    halves = [half for one in controls for half in (one[: len(one) // 2], one[len(one) // 2 :])]
    return (*controls, *halves, *BODIES[:6])


@pytest.mark.parametrize("name", [param for param in EVERY if param.values[0] not in UNEXTENDABLE])
def test_conversations_in_units_are_the_stock_rendering_but_for_reasoning(model: Model, name: str) -> None:
    """Where histories follow the template, but for nothing."""
    renderer = model(name)
    units, found = renderer._units, settings(renderer._units.template)
    for seed in range(60):
        writer = Writer(units, seed, BODIES if seed % 2 else hostile(renderer))
        messages, tools = writer.conversation()
        switches = writer.random.choice(found)
        same = renderer._replies.same_but_reasoning
        try:
            assert differences(units, messages, tools, switches, same) == ("", ""), (seed, messages)
        except TemplateError as error:
            pytest.fail(f"{seed}: {error.message}")


# --- injection --------------------------------------------------------------------------------------------------------


def spoken(body: str, units: Units) -> Conversation:
    """A conversation that holds `body` wherever a body stands."""
    call = ToolCall("callaaaa1", f"open{body}", json.dumps({f"path{body}": f"a/{body}/b", "deep": [{"k": body}]}))
    twice = [call, msgspec.structs.replace(call, id="callbbbb2")] if units.rules.calls.parallel else [call]
    results = [Message("tool", (Text(f"seen {body} {body}"),), one.id) for one in twice]
    said: tuple[Part, ...] = (Text(f"I say {body}"),) if units.rules.calls.beside else ()
    messages = [
        Message("system", (Text(f"Be {body}"),)),
        Message("user", (Text(body),)),
        Message("assistant", (Thinking(f"{body} hm"), *said, *twice)),
        *results,
        Message("assistant", (Thinking(body or "hm"), Text(f"{body}x{body}"))),
        Message("user", (Text(f"{body}\n{body}"),)),
        Message("developer", (Text(f"and {body}"),)),
    ]
    schema = {"type": "object", "properties": {f"path{body}": {"type": "string", "description": f"d{body}"}}}
    return messages, (Tool(f"open{body}", f"Opens {body}", schema),)


def control_ids(renderer: TemplateRenderer, ids: Ids) -> list[int]:
    return [id for id in ids.tolist() if id in renderer.vocabulary.control_ids]


@pytest.mark.parametrize("name", EVERY)
def test_no_control_string_in_any_body_is_a_control_id(model: Model, name: str) -> None:
    renderer = model(name)
    units = renderer._units

    def renderings(body: str) -> list[int]:
        messages, tools = spoken(body, units)
        if not renderer.facts.extendable:
            return control_ids(renderer, renderer.whole(messages, tools, Switches()))
        parts = in_units(units, messages, tools, Switches())
        return control_ids(renderer, concatenate([ids for pair in parts for ids in pair]))

    harmless = renderings("harmless")
    for control in sorted(renderer.vocabulary.controls):
        assert renderings(control) == harmless, control


# --- rules in place ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_whatever_an_agent_sends_is_rendered_in_place(model: Model, name: str) -> None:
    """Everything a template has no stock rendering for: by rule, each text in its place, and told."""
    renderer = model(name)
    if not renderer.facts.extendable:
        pytest.skip("rendered whole")
    call, other = (ToolCall(f"call0000{n}", "look", f'{{"path": "arg{n}"}}') for n in range(2))
    messages = [
        Message("developer", (Text("one"),)),
        Message("user", (Text("two"),)),
        Message("user", (Text("three"),)),
        Message("assistant", (Text("four"), call, other)),
        Message("tool", (Text("five"),), call.id),
        Message("tool", (Text("six"),), other.id),
        Message("user", (Text("seven"),)),
        Message("system", (Text("eight"),)),
        Message("assistant", (Text("nine"),)),
        Message("assistant", (Text("ten"),)),
        Message("user", (Text("eleven"),)),
    ]
    ids = concatenate([kept for kept, _ in in_units(renderer._units, messages, (), Switches())])
    text = renderer.vocabulary.decode(ids.tolist())
    words = ["one", "two", "three", "four", "arg0", "arg1", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    if not renderer.facts.calls.shown:
        words = [word for word in words if not word.startswith("arg")]
    at = 0
    for word in words:
        at = text.find(word, at)
        assert at >= 0, f"{word} is not where it belongs in {text}"
    told = {note.what for at, m in enumerate(messages) for note in renderer.mapped([m.role for m in messages], at, m)}
    assert told <= {"role_mapped", "calls_split", "calls_not_shown"}
    assert ("calls_not_shown" in told) == (not renderer.facts.calls.shown)
