"""What is shown is what a trainer got: counts against the fidelity record, tokens against the samples."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bridle.dashboard.dumps import find
from bridle.dashboard.read import View, read
from bridle.dashboard.view import RolloutView
from bridle.errors import ConfigError, LogCorrupt
from bridle.rendering.tiny import make_tokenizer
from bridle.samples.fidelity import Fidelity
from bridle.samples.linearize import Result
from bridle.samples.sample import Sample
from bridle.sessions.records import Record


def viewed(*places: Path, model: Path | None = None) -> View:
    return read(find(map(str, places)), model)


def fidelity_of(run: Path) -> Fidelity:
    return msgspec.json.decode((run / "rollouts/r/fidelity.json").read_bytes(), type=Fidelity)


def samples_of(run: Path) -> list[Sample]:
    lines = (run / "rollouts/r/samples.jsonl").read_text().splitlines()
    return [Sample.from_dict(msgspec.json.decode(line)) for line in lines]


def row(rollout: RolloutView, node: int) -> list[int]:
    ends = np.cumsum([node.tokens for node in rollout.nodes])
    found: list[int] = []
    while node >= 0:
        end = int(ends[node])
        found = rollout.tokens.ids[end - rollout.nodes[node].tokens : end].tolist() + found
        node = rollout.nodes[node].parent
    return found


def test_the_counts_are_those_of_the_fidelity_record(run: Path) -> None:
    rollout = viewed(run).rollouts[0]
    totals = fidelity_of(run).totals
    assert (rollout.sampled, rollout.trained, rollout.untrained) == (totals.sampled, totals.trained, totals.untrained)
    assert len(rollout.turns) == totals.turns
    assert Counter(turn.kind for turn in rollout.turns) == totals.kinds
    assert sum(len(turn.forks) for turn in rollout.turns) == totals.forks == 1
    codes = Counter(rollout.tokens.states.tolist())
    assert codes.pop(0) == totals.trained
    assert {rollout.tokens.reasons[code - 1]: tokens for code, tokens in codes.items()} == totals.untrained


def test_every_row_of_the_samples_is_a_path_of_the_view(run: Path) -> None:
    rollout = viewed(run).rollouts[0]
    for sample in samples_of(run):
        assert row(rollout, sample.branch) == sample.tokens.tolist()


def test_what_trains_is_what_the_masks_of_the_samples_say(run: Path) -> None:
    rollout = viewed(run).rollouts[0]
    starts = {turn.id: at for turn, at in zip(rollout.turns, _starts(rollout), strict=True)}
    for sample in samples_of(run):
        for span in sample.turns:
            states = rollout.tokens.states[starts[span.turn_id] :][: span.end - span.start]
            assert (states == 0).tolist() == sample.loss_mask[span.start : span.end].astype(bool).tolist()


def test_of_a_draw_that_was_cut_the_rest_is_shown_as_over_length(
    tmp_path: Path, model: Path, grown: list[Record], lay_down: Callable[..., Result]
) -> None:
    whole = lay_down(tmp_path / "whole", grown, model)
    first = whole.samples[0].turns[0]
    result = lay_down(tmp_path / "cut", grown, model, most=first.start + 3)
    rollout = viewed(tmp_path / "cut").rollouts[0]
    assert result.fidelity.turns[0].trained == 3
    assert rollout.trained == result.fidelity.totals.trained
    words = ["", *rollout.tokens.reasons]
    assert [words[state] for state in rollout.tokens.states[: first.end - first.start]] == [
        *[""] * 3,
        *["over_length"] * (first.end - first.start - 3),
    ]


def _starts(rollout: RolloutView) -> list[int]:
    return [0, *np.cumsum([turn.sampled for turn in rollout.turns])[:-1].tolist()]


def test_what_is_out_of_the_ordinary_is_marked(run: Path) -> None:
    marks = [turn.marks for turn in viewed(run).rollouts[0].turns]
    assert marks == [(), ("undelivered",), ("retry",), ("fork", "ill_formed"), (), ("length",)]


def test_conversations_have_lanes_of_their_own_and_retries_go_on_in_theirs(run: Path) -> None:
    rollout = viewed(run).rollouts[0]
    assert rollout.lanes == ("main", "subagent 1", "auxiliary")
    assert [turn.lane for turn in rollout.turns] == [0, 0, 0, 0, 1, 2]
    assert [turn.behind for turn in rollout.turns] == [-1, 0, 0, -1, -1, -1]


def test_a_bare_log_shows_the_same_turns_without_a_grade(run: Path) -> None:
    whole = viewed(run).rollouts[0]
    bare = shutil.copy(run / "rollouts/r/session.log", run / "bare.log")
    rollout = viewed(bare).rollouts[0]
    assert rollout.turns == whole.turns
    assert (rollout.known.reward, rollout.vocabulary) == (None, -1)
    assert rollout.notice == "ids only: no settings.json says which model this was; give it with --model"


def test_samples_alone_show_their_draws_and_nothing_they_do_not_hold(run: Path) -> None:
    rollouts = viewed(run / "rollouts/r/samples.jsonl").rollouts
    assert [rollout.known.id for rollout in rollouts] == ["r"]
    (rollout,) = rollouts
    assert not rollout.timed
    assert rollout.trained == fidelity_of(run).totals.trained
    for sample, lane in zip(samples_of(run), rollout.lanes, strict=True):
        last = [turn for turn in rollout.turns if rollout.lanes[turn.lane] == lane][-1]
        assert row(rollout, last.node) == sample.tokens.tolist()[: sample.turns[-1].end]


def test_another_models_vocabulary_is_not_used_to_spell(run: Path, tmp_path: Path) -> None:
    other = make_tokenizer(tmp_path / "other", 600)
    rollout = viewed(run, model=other).rollouts[0]
    assert rollout.vocabulary == -1
    assert "is not the one this was captured with" in rollout.notice


def test_a_model_that_is_gone_leaves_ids_and_says_so(run: Path) -> None:
    (run / "settings.json").write_text('{"model": "/gone"}')
    assert "/gone holds no tokenizer.json" in viewed(run).rollouts[0].notice


def test_a_damaged_file_is_an_error_that_names_it(run: Path) -> None:
    (run / "rollouts/s/fidelity.json").write_text("{}")
    with pytest.raises(LogCorrupt, match=r"s/fidelity.json is not what a rollout leaves"):
        viewed(run)
    shutil.copy(run / "rollouts/r/fidelity.json", run / "rollouts/s/fidelity.json")
    (run / "rollouts/s/session.log").write_bytes((run / "rollouts/s/session.log").read_bytes()[:1500])
    with pytest.raises(LogCorrupt, match=r"fidelity.json tells of 6 turns, session.log of [1-5];"):
        viewed(run)
    (run / "rollouts/s/samples.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"samples.jsonl:1 is not a sample"):
        viewed(run / "rollouts/s/samples.jsonl")
