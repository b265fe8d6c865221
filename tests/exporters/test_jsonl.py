"""JSON Lines keep every field and every bit of a sample, and a file is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bridle.errors import LogCorrupt
from bridle.exporters import NAMES
from bridle.exporters.jsonl import JsonlExporter
from bridle.registry import resolve
from bridle.samples.sample import Sample, TurnSpan
from bridle.tokens import ids_of


def sample(index: int) -> Sample:
    logprobs = np.zeros(6, np.float32)
    logprobs[2:5] = -np.random.default_rng(index).exponential(size=3).astype(np.float32)
    return Sample(
        tokens=ids_of(range(index, index + 6)),
        loss_mask=np.array([0, 0, 1, 1, 1, 0], np.uint8),
        logprobs=logprobs,
        reward=1 / 3,
        reward_valid=True,
        sample_index=index,
        prompt_len=2,
        turns=(TurnSpan(2, 5, f"t{index}", "main", "stop"),),
        metadata={"nested": {"list": [1, "two", None]}},
    )


def test_the_name_leads_to_the_exporter() -> None:
    assert resolve("exporter", NAMES, "jsonl") is JsonlExporter


def test_what_is_written_is_read_back_bit_by_bit(tmp_path: Path) -> None:
    written = [sample(index) for index in range(5)]
    assert JsonlExporter().write(written, tmp_path / "new" / "samples.jsonl") == 5
    again = list(JsonlExporter().read(tmp_path / "new" / "samples.jsonl"))
    assert [s.to_dict() for s in again] == [s.to_dict() for s in written]
    assert [s.logprobs.tobytes() for s in again] == [s.logprobs.tobytes() for s in written]


def test_a_write_that_fails_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    def failing() -> Iterator[Sample]:
        yield sample(9)
        raise RuntimeError("the source failed")

    path = tmp_path / "samples.jsonl"
    JsonlExporter().write([sample(1)], path)
    with pytest.raises(RuntimeError, match="the source failed"):
        JsonlExporter().write(failing(), path)
    assert [s.sample_index for s in JsonlExporter().read(path)] == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_no_samples_make_an_empty_file(tmp_path: Path) -> None:
    assert JsonlExporter().write([], tmp_path / "samples.jsonl") == 0
    assert list(JsonlExporter().read(tmp_path / "samples.jsonl")) == []


@pytest.mark.parametrize("line", ["{", '{"tokens": [1]}', "[]"])
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "samples.jsonl"
    JsonlExporter().write([sample(1)], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(LogCorrupt, match=r"samples\.jsonl:2"):
        list(JsonlExporter().read(path))
