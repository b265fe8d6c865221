"""Histories that keep what was sampled, and histories that follow a template that drops reasoning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bridle.engines.calls import Call
from bridle.engines.script import ScriptTurn
from bridle.gateway import turn
from bridle.messages import KindRule, ModelRequest, Switches
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.families import make_model, templates
from bridle.testing.ground import Ground

LOOK = ScriptTurn(text="", thinking="Where is it?", calls=(Call(shell="ls"),))
DONE = ScriptTurn(text="Done.", thinking="That was it.")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> TemplateRenderer:
    """Its template drops the reasoning of all before the last user message."""
    source = templates()["qwen3"].read_text()
    return load_renderer(make_model(tmp_path_factory.mktemp("qwen3"), "qwen", source))


async def two_tasks(g: Ground, agents: Callable[..., object], **options: object) -> None:
    """Two user messages, a tool loop behind each."""
    agent = agents("openai", await g.open(**options))  # type: ignore[attr-defined]
    for task in ("Fix it.", "And the other."):
        await agent.work(task)  # type: ignore[attr-defined]


def spelled(g: Ground, renderer: TemplateRenderer) -> list[str]:
    return [renderer.vocabulary.decode(entry.prompt.tolist()) for entry in g.journal()]


async def test_a_kept_history_holds_all_that_was_sampled_in_one_branch(grounds, agents, qwen3) -> None:  # type: ignore[no-untyped-def]
    async with grounds(LOOK, DONE, LOOK, DONE, samples=1, model=qwen3) as g:
        await two_tasks(g, agents)
        report = await g.checked()
    assert (report.kept_percent, g.samples[0].history) == (100.0, "keep")
    prompts = spelled(g, qwen3)
    assert prompts[3].count("Where is it?") == 2
    assert "That was it." in prompts[3]


async def test_a_history_that_follows_the_template_leaves_each_draw_whose_reasoning_is_dropped(  # type: ignore[no-untyped-def]
    grounds, agents, qwen3
) -> None:
    async with grounds(LOOK, DONE, LOOK, DONE, samples=2, model=qwen3) as g:
        await two_tasks(g, agents, history="template")
        report = await g.checked()
    assert (report.kept_percent, report.doubled) == (100.0, 0)
    assert {sample.history for sample in g.samples} == {"template"}
    prompts = spelled(g, qwen3)
    # Behind the second user message nothing is left of the reasoning before it; within a tool loop all of it stays.
    assert ["Where is it?" in prompt for prompt in prompts] == [False, True, False, True]
    assert "That was it." not in prompts[2] + prompts[3]
    notes = [[note for note in one.notes if note.what == "settled"] for one in g.turns]
    assert [len(told) for told in notes] == [0, 0, 2, 0]
    assert "drops the reasoning of turn s-0 here" in notes[2][0].detail


async def test_a_history_that_follows_the_template_is_the_stock_rendering(  # type: ignore[no-untyped-def]
    grounds, agents, qwen3, monkeypatch
) -> None:
    requests: list[ModelRequest] = []
    prepare = turn.prepare

    def seen(renderer, session, request, context_length):  # type: ignore[no-untyped-def]
        requests.append(request)
        return prepare(renderer, session, request, context_length)

    monkeypatch.setattr(turn, "prepare", seen)
    async with grounds(LOOK, DONE, LOOK, DONE, samples=2, model=qwen3, resegment=0.0) as g:
        await two_tasks(g, agents, history="template")
        await g.checked()
    # Behind the second user message: the draws before it are settled, so that every id is the template's.
    entry, request = g.journal()[2], requests[2]
    assert np.array_equal(entry.prompt, qwen3._units.whole(request.messages, request.tools, Switches(), True))


async def test_only_what_is_new_is_rendered_for_a_history_that_follows_the_template(  # type: ignore[no-untyped-def]
    grounds, agents, qwen3
) -> None:
    async with grounds(*[LOOK, DONE] * 5, samples=5, model=qwen3) as g:
        agent = agents("openai", await g.open(history="template"))
        for number in range(5):
            await agent.work(f"Task {number}.")
        await g.checked()
    held = [one.held_tokens for one in g.turns]
    assert all(later > earlier for earlier, later in zip(held[2::2], held[4::2], strict=False))
    assert max(one.new_tokens for one in g.turns[1:]) < 200


@pytest.mark.parametrize("history", ["keep", "template"])
async def test_the_draw_that_the_agent_goes_on_with_is_the_used_one(grounds, agents, qwen3, history: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(DONE, DONE, reasons=("unused_draw",), model=qwen3) as g:
        agent = agents("anthropic", await g.open(history=history))
        agent.tell("Go.")
        first, _ = await agent.ask(), await agent.ask()
        agent.remember(first)
        await agent.work("And?")
        await g.checked(unused_draws="drop")
    assert [dict(one.untrained) for one in g.turns] == [{}, {"unused_draw": g.turns[1].sampled}, {}]


@pytest.mark.parametrize("history", ["keep", "template"])
async def test_what_goes_on_from_a_draw_of_a_kind_to_be_dropped_makes_no_row(  # type: ignore[no-untyped-def]
    grounds, agents, qwen3, history: str
) -> None:
    rule = KindRule("subagent", "first", last_user_contains="Fix it.")
    async with grounds(DONE, DONE, model=qwen3) as g:
        await two_tasks(g, agents, history=history, kinds=[rule])
        await g.finish(kinds={"subagent": "drop"})
    assert [set(one.untrained) for one in g.turns] == [{"kind"}, {"dropped_branch"}]
