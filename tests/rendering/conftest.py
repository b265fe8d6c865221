"""The vocabularies and templates the rendering tests run over: a tiny one and a real one of 130,000 tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mistral_common
import pytest

from bridle.rendering.chat_template import ChatTemplate
from bridle.rendering.roles import find_roles
from bridle.rendering.template import TemplateRenderer, load_renderer
from bridle.rendering.tiny import PLAIN, SPECIAL, make_tokenizer
from bridle.rendering.units import Units
from bridle.tokens import BYTE_ALPHABET, Vocabulary

MakeUnits = Callable[[Vocabulary, str], Units]


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
def units_of_template() -> MakeUnits:
    """The units of a template of the test's own over a vocabulary."""

    def make(vocabulary: Vocabulary, source: str) -> Units:
        template = ChatTemplate(source, {})
        return Units(vocabulary, template, find_roles(template))

    return make


def tekken_document() -> dict[str, Any]:
    source = json.loads((Path(mistral_common.__file__).parent / "data/tekken_240911.json").read_text())
    config = source["config"]
    spelling = {byte: character for character, byte in BYTE_ALPHABET.items()}
    kept = source["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    ranks = {
        "".join(spelling[byte] for byte in base64.b64decode(entry["token_bytes"])): entry["rank"] for entry in kept
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(ranks) + number, "content": content, "special": content in SPECIAL, **flags}
        for number, content in enumerate((*SPECIAL, *PLAIN))
    ]
    split = {"type": "Split", "pattern": {"Regex": config["pattern"]}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": ranks, "merges": merges_of(ranks)},
    }


def merges_of(ranks: dict[str, int]) -> list[list[str]]:
    """A ranked vocabulary merges whatever pair makes the token of lowest rank."""
    merges = []
    for token in ranks:
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [(ranks[a], ranks[b], a, b) for a, b in cuts if a in ranks and b in ranks]
        merges += [[a, b] for _, _, a, b in sorted(pairs)]
    return merges
