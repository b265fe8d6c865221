"""Real agents whose gateway is paused for longer than it holds a call: told so, they come back by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridle.compose import make_harness
from bridle.engines.script import Expect, Script, ScriptTurn, Thread, When
from bridle.harnesses.base import Launch
from bridle.harnesses.install import default_cache
from bridle.registry import resolve
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.sandboxes import NAMES, default_sandbox
from bridle.sandboxes.base import SandboxConfig
from bridle.tasks.base import Spec
from bridle.testing.ground import Ground, ground, shell

pytestmark = [pytest.mark.agents, pytest.mark.slow]

SCRIPT = Script(
    (
        Thread((ScriptTurn(text="A title"),), "auxiliary", When(tools="none")),
        Thread((shell("printf DONE >done.txt", text="I do it."), ScriptTurn(text="It is done."))),
    ),
    Expect(reasons=("undelivered",)),
    resegment=0.4,
    seed=5,
)


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> TemplateRenderer:
    return load_renderer(make_tokenizer(tmp_path_factory.mktemp("tiny")))


async def paused_until_refused(g: Ground, refusals: int) -> None:
    await g.client.pause()
    while g.refusals < refusals:
        await asyncio.sleep(0.05)
    await g.client.resume()


@pytest.mark.parametrize(
    ("agent", "hold_s"),
    [
        ("gemini_cli", 0.3),
        ("gemini_cli", 2.0),
        ("claude_code", 0.3),
        ("claude_code", 2.0),
        ("codex", 0.3),
        ("codex", 2.0),
        ("qwen_code", 0.3),  # and ends at an error in a stream
    ],
)
async def test_an_agent_that_is_told_to_come_back_does(
    renderer: TemplateRenderer, tmp_path: Path, agent: str, hold_s: float
) -> None:
    """A stream begins within a second: a shorter hold ends in a status, a longer one in the stream's own error."""
    harness = make_harness(Spec(agent, {}))
    installation = await harness.install(default_cache(), print)
    kind = resolve("sandbox", NAMES, default_sandbox()[0])
    async with (
        ground(tmp_path / "run", renderer, SCRIPT, max_hold_s=hold_s) as g,
        kind(tmp_path / "sandbox", SandboxConfig(), installation.mounts) as sandbox,
    ):
        session = await g.open(kinds=harness.kind_rules)
        launch = Launch(
            instruction="Make done.txt.",
            model=session.model,
            base_urls={family: await sandbox.expose(url) for family, url in session.base_urls.items()},
            key=session.key,
            time_budget_s=120.0,
            logs=tmp_path / "logs",
        )
        pausing = asyncio.create_task(paused_until_refused(g, 1))
        outcome = await harness.launch(sandbox, installation, launch)
        assert pausing.done(), "the agent gave up before it was told"
        assert (await sandbox.read(f"{sandbox.workspace}/done.txt")) == b"DONE"
        report = await g.checked()
    assert outcome.finish == "finished"
    main = [turn for turn in g.turns if turn.kind == "main"]
    assert [turn.reason for turn in main] == ["undelivered", None, None]
    assert main[0].sampled == 0
    assert (report.kept_percent, report.doubled, report.lost) == (100.0, 0, 0)
