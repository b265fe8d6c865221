"""A real gateway on loopback, the official SDKs as clients, and the independent checker after every scenario."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from google import genai
from openai import AsyncOpenAI

from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.gateway.client import OpenedSession
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.testing.agents import AGENTS, Agent
from bridle.testing.ground import Ground, ground

MakeGround = Callable[..., AbstractAsyncContextManager[Ground]]
MakeAgent = Callable[..., Agent]
Say = Callable[[OpenedSession, str], Awaitable[str]]


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


async def _messages(session: OpenedSession, text: str) -> str:
    async with AsyncAnthropic(api_key=session.key, base_url=session.base_urls["anthropic"]) as client:
        message = await client.messages.create(
            model=session.model, max_tokens=4096, messages=[{"role": "user", "content": text}]
        )
    return message.content[0].text  # type: ignore[union-attr]


async def _chat(session: OpenedSession, text: str) -> str:
    async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as client:
        completion = await client.chat.completions.create(
            model=session.model, messages=[{"role": "user", "content": text}]
        )
    return str(completion.choices[0].message.content)


async def _responses(session: OpenedSession, text: str) -> str:
    async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as client:
        return (await client.responses.create(model=session.model, input=text)).output_text


async def _contents(session: OpenedSession, text: str) -> str:
    """In a thread: the asynchronous client warns of itself as soon as it is made."""
    options = genai.types.HttpOptions(base_url=session.base_urls["gemini"])

    def generate() -> str:
        with genai.Client(api_key=session.key, http_options=options) as client:
            return str(client.models.generate_content(model=session.model, contents=text).text)

    return await asyncio.to_thread(generate)


SDKS: dict[str, Say] = {
    "anthropic": _messages,
    "openai_chat": _chat,
    "openai_responses": _responses,
    "gemini": _contents,
}


@pytest.fixture(params=SDKS)
def say(request: pytest.FixtureRequest) -> Say:
    """-> one message to a session through the official SDK of each protocol, with its default retries -> the answer."""
    return SDKS[request.param]


@pytest.fixture(params=["anthropic", "openai"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
