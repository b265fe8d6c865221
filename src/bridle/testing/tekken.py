"""A real vocabulary of 130,000 tokens without a download: Mistral's Tekken, which the `mistral-common` wheel ships."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridle.errors import ConfigError
from bridle.rendering.tiny import PLAIN, SPECIAL
from bridle.testing.families import Tokens
from bridle.tokens import BYTE_ALPHABET


def make_tekken(directory: Path, tokens: Tokens, template: str) -> Path:
    """A model directory without weights: `template` over Tekken, dressed with the added tokens of a family."""
    directory.mkdir(parents=True, exist_ok=True)
    document = tekken_document(tokens.special, tokens.plain)
    ids = {entry["content"]: entry["id"] for entry in document["added_tokens"]}
    config = {"chat_template": template, "eos_token": tokens.eos} | ({"bos_token": tokens.bos} if tokens.bos else {})
    (directory / "tokenizer.json").write_text(json.dumps(document))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    ends = [ids[content] for content in (tokens.eos, *tokens.ends)]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return directory


def tekken_document(special: Sequence[str] = SPECIAL, plain: Sequence[str] = PLAIN) -> dict[str, Any]:
    """As a tokenizer.json, with these added tokens and Qwen's normalizer."""
    source = json.loads(_file().read_text())
    config = source["config"]
    spelling = {byte: character for character, byte in BYTE_ALPHABET.items()}
    kept = source["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    ranks = {
        "".join(spelling[byte] for byte in base64.b64decode(entry["token_bytes"])): entry["rank"] for entry in kept
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(ranks) + number, "content": content, "special": content in special, **flags}
        for number, content in enumerate((*special, *plain))
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


def _file() -> Path:
    found = importlib.util.find_spec("mistral_common")
    if found is None or found.origin is None:
        raise ConfigError("mistral-common is not installed: its wheel holds Tekken; pip install 'bridle[test]'")
    return Path(found.origin).parent / "data/tekken_240911.json"
