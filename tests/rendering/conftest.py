"""The vocabularies and templates the rendering tests run over: a tiny one and a real one of 130,000 tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.roles import find_roles
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.rendering.units import Units
from bridle.testing.families import family_of, make_model, templates
from bridle.testing.tekken import tekken_document
from bridle.tokens import Vocabulary

MakeUnits = Callable[[Vocabulary, str], Units]


class OracleTokenizer:
    """As much of a Hugging Face tokenizer as the parsers of `renderers` ask for."""

    unk_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._vocabulary.decode(ids)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._vocabulary.encode_split(text).tolist()
        return ids

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._vocabulary.controls.get(token)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> TemplateRenderer:
    return load_renderer(tiny_directory)


@pytest.fixture(scope="session")
def tekken_directory(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path) -> Path:
    """Mistral's Tekken as a tokenizer.json, with Qwen's control tokens, Qwen's normalizer and the tiny template."""
    directory = tmp_path_factory.mktemp("tekken")
    (directory / "tokenizer.json").write_text(json.dumps(tekken_document()))
    (directory / "tokenizer_config.json").write_text((tiny_directory / "tokenizer_config.json").read_text())
    return directory


@pytest.fixture(scope="session")
def tekken(tekken_directory: Path) -> TemplateRenderer:
    return load_renderer(tekken_directory)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TemplateRenderer]:
    """The renderer of a template by its name: of one in `templates` beside this file, or in the `trl` wheel. Those of a
    family have one vocabulary, trained once."""
    files = {**templates(), **{file.stem: file for file in (Path(__file__).parent / "templates").glob("*.jinja")}}

    @cache
    def trained(family: str) -> Path:
        first = min(name for name in files if family_of(name) == family)
        return make_model(tmp_path_factory.mktemp(family), family, files[first].read_text())

    @cache
    def load(name: str) -> TemplateRenderer:
        directory = shutil.copytree(trained(family_of(name)), tmp_path_factory.mktemp(name), dirs_exist_ok=True)
        config = json.loads((directory / "tokenizer_config.json").read_text())
        source = files[name].read_text()
        (directory / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": source}))
        return load_renderer(directory)

    return load


@pytest.fixture(scope="session")
def oracle_tokenizer() -> type[OracleTokenizer]:
    return OracleTokenizer


@pytest.fixture(scope="session")
def units_of_template() -> MakeUnits:
    """The units of a template of the test's own over a vocabulary."""

    def make(vocabulary: Vocabulary, source: str) -> Units:
        template = ChatTemplate(source, {})
        return Units(vocabulary, template, find_roles(template))

    return make
