"""Conversations of gpt-oss through the gateway: what was sampled stays, what is rendered follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridle.engines.script import ScriptTurn
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.families import make_model, templates
from bridle.testing.ground import Ground, shell

MakeGround = Callable[..., Any]
MakeAgent = Callable[..., Any]

CALL = '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "%s"}'
START = "<|start|>assistant"
RESULT = '<|start|>functions.bash to=assistant<|channel|>commentary<|message|>"result of %s"<|end|>'


@pytest.fixture(scope="module")
def gptoss(tmp_path_factory: pytest.TempPathFactory) -> TemplateRenderer:
    directory: Path = tmp_path_factory.mktemp("gptoss")
    return load_renderer(make_model(directory, "gptoss", templates()["gptoss"].read_text()))


def last_prompt(g: Ground, renderer: TemplateRenderer) -> str:
    text: str = renderer.vocabulary.decode(g.journal()[-1].prompt.tolist())
    return text[text.index("<|start|>user") :]


async def test_a_tool_loop_is_one_sample_and_ends_no_message_twice(
    grounds: MakeGround, agents: MakeAgent, gptoss: TemplateRenderer, protocol: str, stream: bool
) -> None:
    turns = [
        shell("ls", thinking="why"),
        shell("a", "b", text="I look."),
        ScriptTurn(thinking="so", text="Done."),
        ScriptTurn(text="Bye."),
    ]
    async with grounds(*turns, model=gptoss, samples=1) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        await agent.work("Go.")
        assert (await agent.work("Thanks.")).text == "Bye."
        ids = [call["id"] for call in calls_of(agent.history)]
        prompt = last_prompt(g, gptoss)
        await g.checked()
        assert g.notes == ["calls_split"]
        (sample,) = g.samples
        assert sample.untrained == {}
    first, second, third = (RESULT % name for name in ids)
    assert prompt == (
        f"<|start|>user<|message|>Go.<|end|>{START}<|channel|>analysis<|message|>why<|end|>{START}{CALL % 'ls'}<|call|>"
        f"{first}{START}<|channel|>commentary<|message|>I look.<|end|>{START}{CALL % 'a'}<|end|>{START}{CALL % 'b'}"
        f"<|call|>{second}{third}{START}<|channel|>analysis<|message|>so<|end|>{START}<|channel|>final<|message|>Done.<|return|>"
        f"<|start|>user<|message|>Thanks.<|end|>{START}"
    )


def calls_of(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = [message for message in history if message["role"] == "assistant"]
    blocks = [block for message in messages for block in message.get("tool_calls") or message.get("content") or ()]
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in ("tool_use", "function")]


async def test_a_turn_that_was_cut_is_closed_as_the_template_closes_one(
    grounds: MakeGround, agents: MakeAgent, gptoss: TemplateRenderer
) -> None:
    turns = [ScriptTurn(text="I was say", finish="length"), ScriptTurn(text="Bye.")]
    async with grounds(*turns, model=gptoss, samples=1) as g:
        agent = agents("openai", await g.open())
        await agent.work("Go.")
        await agent.work("Go on.")
        prompt = last_prompt(g, gptoss)
        await g.checked()
    assert prompt == (
        f"<|start|>user<|message|>Go.<|end|>{START}<|channel|>final<|message|>I was say<|end|>"
        f"<|start|>user<|message|>Go on.<|end|>{START}"
    )


async def test_an_answer_the_agent_changed_is_rendered_as_the_template_takes_it(
    grounds: MakeGround, agents: MakeAgent, gptoss: TemplateRenderer
) -> None:
    """The template takes no text and reasoning beside calls, and one call of a message."""

    def edited(message: dict[str, Any]) -> list[dict[str, Any]]:
        blocks = [{**block, "text": "I see."} if block["type"] == "text" else block for block in message["content"]]
        return [{**message, "content": blocks}]

    turns = [shell("a", "b", thinking="why", text="I look."), ScriptTurn(text="Done.")]
    async with grounds(*turns, model=gptoss, samples=2) as g:
        agent = agents("anthropic", await g.open(), habit=edited)
        await agent.work("Go.")
        first, second = (RESULT % call["id"] for call in calls_of(agent.history))
        prompt = last_prompt(g, gptoss)
        await g.checked()
        assert g.notes == ["calls_split", "calls_split", "calls_split"]
    called = f'{START} to=functions.bash<|channel|>commentary json<|message|>{{"command": "%s"}}<|call|>'
    assert prompt == (
        f"<|start|>user<|message|>Go.<|end|>{START}<|channel|>final<|message|>I see.<|end|>"
        f"{called % 'a'}{called % 'b'}{first}{second}{START}"
    )
