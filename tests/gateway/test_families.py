"""Tool loops of every family whose calls a gateway reads: nothing is lost, and results name what the model named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridle.engines.script import ScriptTurn
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.testing.families import family_of, make_model, templates
from bridle.testing.ground import Ground, shell

pytestmark = pytest.mark.slow

MakeGround = Callable[..., Any]
MakeAgent = Callable[..., Any]
TEMPLATES = Path(__file__).parent.parent / "rendering/templates"
NAMING = {
    "kimi_k2": r"## Return of (\S+)\n",
    "mistral_v7": r"\[TOOL_RESULTS\](.*?)\[TOOL_CONTENT\]",
    "mistral_v11": r"\[TOOL_RESULTS\](.*?)\[TOOL_CONTENT\]",
}
"""How results say the id of their call."""
OTHERS = (
    *("deepseek_v31", "deepseek_dsml_v4", "kimi_k2_thinking", "llama3_1", "llama4", "mistral_v13"),
    *("nemotron_v1", "nemotron_v2"),
)
LOOP = (shell("ls"), shell("cat a"), ScriptTurn(text="Done."), ScriptTurn(text="Bye."))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TemplateRenderer]:
    held: dict[str, TemplateRenderer] = {}

    def load(name: str) -> TemplateRenderer:
        if name not in held:
            own = TEMPLATES / f"{name}.jinja"
            source = (own if own.is_file() else templates()[name]).read_text()
            held[name] = load_renderer(make_model(tmp_path_factory.mktemp(name), family_of(name), source))
        return held[name]

    return load


def last_prompt(g: Ground, renderer: TemplateRenderer) -> str:
    text: str = renderer.vocabulary.decode(g.journal()[-1].prompt.tolist())
    return text


def said(g: Ground) -> list[str]:
    """The ids that the model gave its calls."""
    turns = g.live().session.tree.turns
    return [call.said for turn in turns if turn.message for call in turn.message.calls]


@pytest.mark.parametrize("name", [*NAMING, *OTHERS])
async def test_a_tool_loop_is_one_sample(
    name: str, grounds: MakeGround, agents: MakeAgent, models: Callable[[str], TemplateRenderer]
) -> None:
    async with grounds(*LOOP, model=models(name), samples=1) as g:
        agent = agents("anthropic", await g.open())
        await agent.work("Go.")
        assert (await agent.work("Thanks.")).text == "Bye."
        report = await g.checked()
    assert report.kept_percent == 100.0
    (sample,) = g.samples
    assert sample.untrained == {}


@pytest.mark.parametrize("name", NAMING)
async def test_results_name_the_ids_that_the_model_gave(
    name: str, grounds: MakeGround, agents: MakeAgent, models: Callable[[str], TemplateRenderer]
) -> None:
    turns = (shell("ls", "pwd", text="I look."), shell("cat a"), ScriptTurn(text="Done."))
    async with grounds(*turns, model=models(name), samples=1) as g:
        agent = agents("openai", await g.open())
        await agent.work("Go.")
        prompt, ids = last_prompt(g, models(name)), said(g)
        await g.checked()
    assert re.findall(NAMING[name], prompt) == ids
    assert len(ids) == 3
    assert all(prompt.count(one) == 2 * ids.count(one) for one in ids)


@pytest.mark.parametrize("name", NAMING)
async def test_an_answer_that_came_back_changed_keeps_the_ids_of_its_calls(
    name: str, grounds: MakeGround, agents: MakeAgent, models: Callable[[str], TemplateRenderer]
) -> None:
    """It is rendered anew, and no client sends back the id that the model gave."""

    def edited(message: dict[str, Any]) -> list[dict[str, Any]]:
        blocks = [{**block, "text": "I see."} if block["type"] == "text" else block for block in message["content"]]
        return [{**message, "content": blocks}]

    turns = (shell("ls", text="I look."), ScriptTurn(text="Done."))
    async with grounds(*turns, model=models(name), samples=2) as g:
        agent = agents("anthropic", await g.open(), habit=edited)
        await agent.work("Go.")
        prompt, ids = last_prompt(g, models(name)), said(g)
        await g.checked()
    assert "I see." in prompt
    assert re.findall(NAMING[name], prompt) == ids
    assert prompt.count(ids[0]) == 2
