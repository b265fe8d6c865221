from __future__ import annotations

from pathlib import Path

import pytest

from bridle.rendering.base import Renderer
from bridle.rendering.template import load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.testing.world import World, make_repository


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return load_renderer(folder)


@pytest.fixture
def world(tmp_path: Path, renderer: Renderer) -> World:
    return World(tmp_path / "run", make_repository(tmp_path / "repository"), renderer)
