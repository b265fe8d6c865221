from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridle.dashboard.dumps import find
from bridle.errors import ConfigError


def names(*named: object) -> list[str]:
    return [dump.place.name for dump in find(map(str, named))]


def test_a_run_a_rollout_a_log_and_a_file_of_samples_are_found(run: Path) -> None:
    place = run / "rollouts/r"
    assert names(run) == ["r", "s"]
    assert names(place) == ["r"]
    assert names(place / "session.log") == ["r"]
    assert names(place / "samples.jsonl") == ["samples.jsonl"]
    shutil.copy(place / "session.log", run / "other.log")
    assert names(run / "other.log") == ["other.log"]


def test_a_glob_finds_runs_and_leaves_out_what_is_no_dump(run: Path) -> None:
    (run.parent / "notes.txt").write_text("x")
    (run.parent / "empty").mkdir()
    assert names(run.parent / "*") == ["r", "s"]
    assert names(run.parent / "**" / "session.log") == ["r", "s"]


def test_what_is_named_twice_is_read_once(run: Path) -> None:
    assert names(run, run / "rollouts" / "r", run.parent / "*") == ["r", "s"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "gone does not exist; expected a run"),
        ("run/settings.json", "nothing to show in .*run/settings.json: expected a run"),
        (".", "nothing to show in"),
        ("run/settings*", "matches 1 paths, none of which is a dump"),
        ("*.gone", "matches 0 paths"),
    ],
)
def test_what_leads_to_nothing_is_an_error_that_says_what_is_expected(run: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find([str(run.parent / name)])
