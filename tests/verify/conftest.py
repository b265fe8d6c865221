"""Models to verify: the tiny one, and the same with a fault planted in its template."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import orjson
import pytest

from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.verify.report import Report
from bridle.verify.verify import verify

TEMPLATE = (resources.files("bridle.rendering") / "tiny_template.jinja").read_text()

Planted = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> TemplateRenderer:
    return load_renderer(tiny_directory)


@pytest.fixture(scope="session")
def good(tiny: TemplateRenderer, tiny_directory: Path) -> Report:
    return verify(tiny, tiny_directory)


@pytest.fixture
def planted(tmp_path: Path, tiny_directory: Path) -> Planted:
    """-> a model whose template has `new` in the place of `old`."""

    def make(old: str, new: str) -> Path:
        if old not in TEMPLATE:
            raise AssertionError(f"the template holds no {old!r}")
        for name in ("tokenizer.json", "generation_config.json"):
            (tmp_path / name).write_bytes((tiny_directory / name).read_bytes())
        config = orjson.loads((tiny_directory / "tokenizer_config.json").read_bytes())
        config["chat_template"] = TEMPLATE.replace(old, new)
        (tmp_path / "tokenizer_config.json").write_bytes(orjson.dumps(config))
        return tmp_path

    return make
