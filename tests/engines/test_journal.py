from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from bridle.engines.base import Chunk, GenerateRequest, Sampling
from bridle.engines.journal import BASES, Entry, Journal, read_journal
from bridle.engines.script import Expect
from bridle.errors import LogCorrupt
from bridle.tokens import Ids, concatenate, ids_of


def asked(rid: str, prompt: Ids) -> GenerateRequest:
    return GenerateRequest(rid, prompt, Sampling(16, (2,)))


def run(journal: Journal, rid: str, prompt: Ids, output: Ids) -> None:
    logprobs = -np.abs(np.sin(output.astype(np.float32)))
    with journal.recording(asked(rid, prompt), how="drawn", kind="main", thread=0) as recording:
        recording.give(Chunk(output, None, finish="stop"), logprobs)


def lines(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_generations_are_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path, Expect(samples=2, reasons=("forced",))) as journal:
        run(journal, "a", ids_of([1, 2, 3]), ids_of([7, 2]))
    assert lines(path)[0] == {"journal": 1, "script": {"expect": {"samples": 2, "reasons": ["forced"]}}}
    (entry,) = read_journal(path)
    assert (entry.rid, entry.finish, entry.kind, entry.thread) == ("a", "stop", "main", 0)
    assert (entry.aborted, entry.forced, entry.how) == (False, False, "drawn")
    assert entry.prompt.tolist() == [1, 2, 3]
    assert entry.output.tolist() == [7, 2]
    assert entry.logprobs is not None
    assert np.array_equal(entry.logprobs, -np.abs(np.sin(np.array([7, 2], np.float32))))


def test_prompts_of_interleaved_conversations_are_read_back_exactly(tmp_path: Path) -> None:
    """Extensions, forks, repeats and more conversations than are held at once."""
    rng = np.random.default_rng(3)
    held = {name: ids_of([name, 1, 2, 3]) for name in range(BASES + 20)}
    expected: list[tuple[str, list[int], list[int]]] = []
    with Journal(tmp_path / "j", None) as journal:
        for number in range(400):
            name = int(rng.integers(len(held)))
            kept = held[name] if rng.random() < 0.7 else held[name][: rng.integers(len(held[name]))]
            prompt = concatenate([kept, ids_of(rng.integers(100, size=3))])
            output = ids_of(rng.integers(100, size=4))
            run(journal, f"r{number}", prompt, output)
            expected.append((f"r{number}", prompt.tolist(), output.tolist()))
            held[name] = concatenate([prompt, output])
    read = [(entry.rid, entry.prompt.tolist(), entry.output.tolist()) for entry in read_journal(tmp_path / "j")]
    assert read == expected


def test_the_file_grows_with_the_new_text_not_with_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "j"
    prompt = ids_of(range(1000, 3000))
    with Journal(path, None) as journal:
        for number in range(50):
            run(journal, f"r{number}", prompt, ids_of([5, 6]))
            prompt = concatenate([prompt, ids_of([5, 6, 7, 8])])
    _, first, *others = lines(path)
    assert first["prompt"] == list(range(1000, 3000))
    assert [other["prompt"] for other in others] == [
        {"base": f"r{number}", "keep": 2002 + 4 * number, "add": [7, 8]} for number in range(49)
    ]


def test_a_conversation_that_others_branched_from_is_still_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, None) as journal:
        run(journal, "main", ids_of(range(20)), ids_of([5, 6]))
        run(journal, "aside", ids_of([*range(10), 77]), ids_of([8]))
        run(journal, "on", ids_of([*range(20), 5, 6, 9]), ids_of([8]))
    assert [line["prompt"] for line in lines(path)[2:]] == [
        {"base": "main", "keep": 10, "add": [77]},
        {"base": "main", "keep": 22, "add": [9]},
    ]


def test_a_restarted_engine_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for rid in ("a", "b"):
        with Journal(tmp_path / "j", None) as journal:
            run(journal, rid, ids_of([1, 2, 3]), ids_of([4]))
    assert [entry.rid for entry in read_journal(tmp_path / "j")] == ["a", "b"]
    assert [entry.prompt.tolist() for entry in read_journal(tmp_path / "j")] == [[1, 2, 3], [1, 2, 3]]


def test_what_was_given_out_is_written_when_the_generation_fails(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", None) as journal:
        with (
            pytest.raises(RuntimeError, match="gone"),
            journal.recording(asked("a", ids_of([1])), how="forced", kind="main", thread=1) as recording,
        ):
            recording.give(Chunk(ids_of([7, 8]), None, forced=True), None)
            raise RuntimeError("gone")
        # It is there at once, not when the file is closed.
        (entry,) = read_journal(tmp_path / "j")
    assert (entry.aborted, entry.finish, entry.output.tolist(), entry.logprobs) == (True, "abort", [7, 8], None)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, None) as journal:
        run(journal, "a", ids_of([1, 2, 3]), ids_of([4]))
        run(journal, "b", ids_of([1, 2, 3, 4, 5]), ids_of([4]))
    whole = path.read_bytes()
    for damaged, number in ((whole[:-9], 3), (whole.replace(b'"base":"a"', b'"base":"x"'), 3), (whole[12:], 1)):
        path.write_bytes(damaged)
        with pytest.raises(LogCorrupt, match=f":{number} is not"):
            list(read_journal(path))


def test_without_a_path_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(None, None) as journal:
        run(journal, "a", ids_of([1]), ids_of([2]))
    assert list(tmp_path.iterdir()) == []


def test_entries_have_the_documented_fields() -> None:
    assert Entry.__struct_fields__ == (
        *("rid", "prompt", "output", "logprobs", "finish", "kind", "thread", "aborted", "forced", "how"),
    )
