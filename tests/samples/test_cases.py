"""Every case file gives the samples it states; broken ones are refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.errors import LogCorrupt
from bridle.samples.cases import read_case
from bridle.samples.linearize import Result, document, linearize

CASES = sorted((Path(__file__).parent.parent / "cases" / "trajectory").glob("*.json"))
EXPECTED = {path: json.loads(path.read_text())["expected"] for path in CASES}


def build(path: Path) -> Result:
    case = read_case(path)
    return linearize(case.tree, case.options, case.facts)


def write(path: Path, *turns: dict[str, Any], **fields: Any) -> Path:
    path.write_text(json.dumps({"turns": turns, **fields}))
    return path


def turn(prompt: list[int], output: list[int], logprobs: Any = "all", **fields: Any) -> dict[str, Any]:
    given = [-0.5] * len(output) if logprobs == "all" else logprobs
    return {"prompt_ids": prompt, "output_ids": output, "logprobs": given, **fields}


def rows(result: Result) -> list[tuple[Any, ...]]:
    fields = ("tokens", "loss_mask", "logprobs", "reward")
    return sorted(tuple(sample[name] for name in fields) for sample in document(result)["samples"])


def test_there_are_cases() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("path", [p for p in CASES if "samples" in EXPECTED[p]], ids=lambda path: path.stem)
def test_a_case_gives_exactly_the_samples_it_states(path: Path) -> None:
    expected = EXPECTED[path]
    wanted = sorted((s["tokens"], s["loss_mask"], s["logprobs"], s["reward"]) for s in expected["samples"])
    assert rows(build(path)) == wanted
    assert len(wanted) == expected["n_samples"]


@pytest.mark.parametrize("path", [p for p in CASES if "error" in EXPECTED[p]], ids=lambda path: path.stem)
def test_a_case_that_must_be_rejected_is_rejected_by_name(path: Path) -> None:
    with pytest.raises(LogCorrupt, match=path.name):
        build(path)


@pytest.mark.parametrize("path", [p for p in CASES if "tokens_len" in EXPECTED[p]], ids=lambda path: path.stem)
def test_a_generated_case_has_the_length_it_states(path: Path) -> None:
    expected = EXPECTED[path]
    (sample,) = build(path).samples
    assert (len(sample.tokens), sample.trained) == (expected["tokens_len"], expected["trained_tokens"])


def test_every_case_is_read_by_one_of_these_tests() -> None:
    assert all(expected.keys() & {"samples", "error", "tokens_len"} for expected in EXPECTED.values())


def test_a_draw_without_logprobs_trains_with_those_of_its_equal(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", turn([1], [2], []), turn([1], [2], [-0.25]), turn([1, 2, 3], [4]))
    result = build(path)
    assert rows(result) == [([1, 2, 3, 4], [0, 1, 0, 1], [0.0, -0.25, 0.0, -0.5], None)]
    assert result.fidelity.totals.untrained == {"duplicate_draw": 1}


def test_equal_draws_with_turn_ids_both_train(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", turn([1], [2], turn_id="a"), turn([1], [2], turn_id="b"))
    assert rows(build(path)) == [([1, 2], [0, 1], [0.0, -0.5], None)] * 2


@pytest.mark.parametrize("logprobs", [[-0.5, None], [-0.5, 0.3]])
def test_one_unusable_logprob_makes_the_whole_turn_context(tmp_path: Path, logprobs: list[Any]) -> None:
    result = build(write(tmp_path / "case.json", turn([1], [2, 3], logprobs)))
    assert result.samples == ()
    assert result.fidelity.totals.untrained == {"bad_logprob": 2}


def test_null_logprobs_are_none_at_all(tmp_path: Path) -> None:
    result = build(write(tmp_path / "case.json", turn([1], [2, 3], None)))
    assert result.fidelity.totals.untrained == {"no_logprob": 2}


def test_a_turn_behind_an_empty_one_goes_on_from_it(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", turn([1], [], finish_reason="length"), turn([1], [2]), turn([1, 2], [3]))
    assert rows(build(path)) == [([1, 2, 3], [0, 1, 1], [0.0, -0.5, -0.5], None)]


def test_equal_prompts_are_held_once_so_that_siblings_are_seen_as_such(tmp_path: Path) -> None:
    case = read_case(write(tmp_path / "case.json", turn([1, 2], [3]), turn([1, 2], [4]), turn([1, 2, 4, 5], [6])))
    assert [facts.held for facts in case.facts.values()] == [0, 2, 3]
    dropping = msgspec.structs.replace(case.options, unused_draws="drop")
    assert linearize(case.tree, dropping).fidelity.totals.untrained == {"unused_draw": 1}


def test_held_and_new_tokens_of_a_prompt_are_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "case.json", turn([1, 2], [3]), turn([1, 2, 3, 4, 5], [6]))
    records = build(path).fidelity.turns
    assert [(r.prompt_tokens, r.held_tokens, r.new_tokens) for r in records] == [(2, 0, 2), (5, 3, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "truncated"),
        ('{"turns": "see generator"}', "no generator"),
        ('{"turns": [], "generator": "star: 3 turns"}', "star: 3 turns"),
        ('{"turns": [{"prompt_ids": [1], "output_ids": ["x"]}]}', r"\$.turns\[0\].output_ids\[0\]"),
        ('{"turns": [{"prompt_ids": [1], "output_ids": [], "logprobs": [-1.0]}]}', r"turns\[0\]: 1 logprobs for 0"),
        ('{"turns": [{"prompt_ids": [3000000000], "output_ids": []}]}', r"prompt_ids\[0\]"),
    ],
)
def test_a_broken_file_says_what_is_wrong_with_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(LogCorrupt, match=f"broken.json.*({said})"):
        read_case(path)
