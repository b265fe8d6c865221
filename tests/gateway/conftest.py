"""A real gateway on loopback, the official SDKs as clients, and the independent checker after every scenario."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.testing.agents import AGENTS, Agent
from bridle.testing.ground import Ground, ground

MakeGround = Callable[..., AbstractAsyncContextManager[Ground]]
MakeAgent = Callable[..., Agent]


@pytest.fixture(scope="session")
def renderer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def renderer(renderer_directory: Path) -> TemplateRenderer:
    return load_renderer(renderer_directory)


@pytest.fixture
def renderer_of(renderer_directory: Path, tmp_path: Path) -> Callable[[str], TemplateRenderer]:
    """-> the renderer of the tiny model with a chat template of the test's own."""

    def make(template: str) -> TemplateRenderer:
        directory = tmp_path / "model"
        shutil.copytree(renderer_directory, directory)
        (directory / "chat_template.jinja").write_text(template)
        return load_renderer(directory)

    return make


@pytest.fixture
def grounds(renderer: TemplateRenderer, tmp_path: Path) -> MakeGround:
    """-> enters a gateway that answers with these turns (or a whole script). `samples`: what each session must give."""

    def make(
        *turns: ScriptTurn,
        script: Script | None = None,
        samples: int | None = None,
        reasons: tuple[str, ...] = (),
        resegment: float = 0.4,
        model: TemplateRenderer = renderer,
        **config: Any,
    ) -> AbstractAsyncContextManager[Ground]:
        expect = Expect(samples=samples, reasons=reasons)
        played = script or Script((Thread(turns),), expect, resegment=resegment, seed=7)
        return ground(tmp_path / "run", model, played, **config)

    return make


@pytest_asyncio.fixture
async def agents() -> AsyncIterator[MakeAgent]:
    """-> makes an agent of a protocol for a session. Clients keep their default retries."""
    async with AsyncExitStack() as stack:

        def make(protocol: str, session: OpenedSession, headers: dict[str, str] | None = None, **habits: Any) -> Agent:
            kind: Any = {"anthropic": AsyncAnthropic, "openai": AsyncOpenAI}[protocol]
            client = kind(api_key=session.key, base_url=session.base_urls[protocol], default_headers=headers)
            stack.push_async_callback(client.close)
            return AGENTS[protocol](client, session, **habits)

        yield make


@pytest.fixture(params=["anthropic", "openai"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
