from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bridle.engines.tiny_model import TinyModel, make_model
from bridle.engines.transformers import LocalModel


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_model(tmp_path / name, 300, TinyModel(seed=seed))
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_wrong_token_shows(tmp_path: Path) -> None:
    make_model(tmp_path, 2048)
    tokens = np.random.default_rng(0).integers(0, 2048, 300).astype(np.int32)
    assert LocalModel(tmp_path).score(tokens, np.arange(1, 300)).std() > 1.0


@pytest.mark.parametrize("distance", [100, 5000])
def test_a_token_far_back_shows_in_the_output(tmp_path: Path, distance: int) -> None:
    make_model(tmp_path, 2048)
    model = LocalModel(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 2048, distance + 100).astype(np.int32)
    watched = np.arange(distance + 20, distance + 100)
    before = model.score(tokens, watched)
    tokens[20] += 1
    assert np.abs(model.score(tokens, watched) - before).max() > 3e-3
