from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bridle.engines.base import GenerateRequest, Sampling
from bridle.engines.script import Script
from bridle.engines.scripted import Actor
from bridle.engines.tiny_model import make_model
from bridle.messages import Message, ModelRequest, Switches, Text, Tool
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.tokens import concatenate

BASH = Tool(
    "bash",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)

Ask = Callable[..., GenerateRequest]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_tokenizer(tmp_path_factory.mktemp("tiny") / "model")
    make_model(directory, load_renderer(directory).vocabulary.size)
    return directory


@pytest.fixture(scope="session")
def renderer(model_directory: Path) -> TemplateRenderer:
    return load_renderer(model_directory)


@pytest.fixture
def act(renderer: TemplateRenderer) -> Callable[[Script], Actor]:
    return lambda script: Actor(script, renderer.vocabulary, renderer.write)


@pytest.fixture
def ask(renderer: TemplateRenderer) -> Ask:
    """-> makes the request for a conversation given as (role, text) pairs."""

    def make(
        rid: str = "r1",
        *said: tuple[str, str],
        tools: tuple[Tool, ...] = (BASH,),
        headers: dict[str, str] | None = None,
        max_tokens: int = 4096,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> GenerateRequest:
        pairs = said or (("user", "fix the bug"),)
        messages = tuple(Message(role, (Text(text),)) for role, text in pairs)  # type: ignore[arg-type]
        generation = renderer.generation(Switches())
        return GenerateRequest(
            rid,
            concatenate([renderer.whole(messages, tools, Switches()), generation.ids]),
            Sampling(max_tokens, renderer.stop_ids, temperature, seed=seed),
            ModelRequest("anthropic", "m", messages, tools, headers=headers or {}),
            generation.thinking_open,
        )

    return make
