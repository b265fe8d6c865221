"""The checker finds each kind of damage, calls it by its name, and calls nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridle.engines.journal import read_journal as engines_own_reader
from bridle.engines.script import Expect
from bridle.errors import LogCorrupt
from bridle.samples.check import Report, check, read_journal, render
from bridle.samples.linearize import Options
from bridle.sessions.tree import ROOT

Lines = list[dict[str, Any]]
DAMAGES = ("lost", "altered", "displaced", "doubled", "misplaced", "logprob_mismatches", "kinds_wrong")


def forked(growth: Any, **fields: Any) -> Any:
    """Two samples over a shared draw, 2 + 3 + 2 sampled tokens."""
    trunk = growth.draw(growth.say(ROOT, 1, 2), 10, 11, **fields)
    growth.draw(growth.say(trunk, 3), 12, 13, 14, lead=(4,), **fields)
    growth.draw(growth.say(trunk, 5), 15, 16, **fields)
    return growth


def damaged(directory: Path, change: Callable[[Lines], Any], session: str = "r0") -> Report:
    """The report after the written samples were changed."""
    path = directory / "rollouts" / session / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return check(directory)


def found(report: Report) -> dict[str, int]:
    """What is wrong; the equation holds whatever that is."""
    ends = report.kept + sum(report.untrained.values()) + report.lost + report.altered + report.displaced
    assert report.sampled == ends
    return {name: count for name in DAMAGES if (count := vars(report)[name])}


def test_an_undamaged_run_is_kept_whole(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path, expect=Expect(samples=2))
    report = check(tmp_path)
    assert (report.generations, report.sampled, report.trained, report.kept_percent) == (3, 7, 7, 100.0)
    assert (found(report), report.findings, report.ok) == ({}, [], True)
    assert render(report)[-1] == "check: ok"
    assert "kept 7 of 7 (100.0 %): 7 trained, 0 forced" in render(report)


def test_forced_tokens_in_their_place_are_kept(growth: Any, tmp_path: Path) -> None:
    forked(growth, reason="forced").write(tmp_path, expect=Expect(samples=2, reasons=("forced",)))
    report = check(tmp_path)
    assert (report.trained, report.forced, report.kept_percent, report.ok) == (0, 7, 100.0, True)


def change_token(lines: Lines) -> None:
    lines[1]["tokens"][-1] += 1


def change_prompt(lines: Lines) -> None:
    lines[1]["tokens"][0] += 1


def drop_prompt_token(lines: Lines) -> None:
    for name in ("tokens", "loss_mask", "logprobs"):
        del lines[1][name][0]
    for turn in lines[1]["turns"]:
        turn[0] -= 1
        turn[1] -= 1


def shift_mask(lines: Lines) -> None:
    """The first draw's mask one to the right, over the token said next."""
    lines[0]["loss_mask"][2:5] = [0, 1, 1]
    lines[0]["logprobs"][2] = 0.0


def unmask(lines: Lines) -> None:
    lines[1]["loss_mask"][-1] = 0
    lines[1]["logprobs"][-1] = 0.0


def train_context(lines: Lines) -> None:
    lines[0]["loss_mask"][0] = 1


def train_shared_draw_again(lines: Lines) -> None:
    lines[1]["loss_mask"][2:4] = [1, 1]


def change_logprob(lines: Lines) -> None:
    lines[0]["logprobs"][2] = float(np.nextafter(np.float32(lines[0]["logprobs"][2]), np.float32(0)))


def give_context_a_logprob(lines: Lines) -> None:
    lines[0]["logprobs"][0] = -0.5


def change_kind(lines: Lines) -> None:
    lines[0]["turns"][0][3] = "subagent"


def name_another_turn(lines: Lines) -> None:
    lines[1]["turns"][0][2] = "nobody"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (change_token, {"altered": 1}),
        (change_prompt, {"displaced": 2}),
        (drop_prompt_token, {"displaced": 2}),
        (shift_mask, {"lost": 1, "misplaced": 1}),
        (unmask, {"lost": 1}),
        (train_context, {"misplaced": 1}),
        (train_shared_draw_again, {"doubled": 2}),
        (lambda lines: lines.append(lines[1]), {"doubled": 2}),
        (lambda lines: lines.pop(), {"lost": 2}),
        (change_logprob, {"logprob_mismatches": 1}),
        (give_context_a_logprob, {"logprob_mismatches": 1}),
        (change_kind, {"kinds_wrong": 1}),
        (name_another_turn, {"lost": 2, "doubled": 2}),
    ],
)
def test_each_damage_is_found_and_nothing_else(
    growth: Any, tmp_path: Path, change: Callable[[Lines], Any], wrong: dict[str, int]
) -> None:
    forked(growth).write(tmp_path)
    report = damaged(tmp_path, change)
    assert (found(report), report.ok) == (wrong, False)
    assert report.findings
    assert render(report)[-1] == "check: FAILED"


def test_a_token_changed_early_displaces_what_was_sampled_behind_it(growth: Any, tmp_path: Path) -> None:
    def change(lines: Lines) -> None:
        lines[0]["tokens"][2] += 1

    forked(growth).write(tmp_path)
    assert found(damaged(tmp_path, change)) == {"altered": 1, "displaced": 3}


@pytest.mark.parametrize("change", [change_token, change_prompt, lambda lines: lines.pop()])
def test_forced_tokens_are_held_to_their_place_like_any_others(growth: Any, tmp_path: Path, change: Any) -> None:
    forked(growth, reason="forced").write(tmp_path)
    report = damaged(tmp_path, change)
    assert sum(found(report).values()) in (1, 2)
    assert not report.ok


def test_a_forced_token_that_trains_has_a_logprob_no_engine_gave(growth: Any, tmp_path: Path) -> None:
    def train(lines: Lines) -> None:
        lines[1]["loss_mask"][-2:] = [1, 1]

    forked(growth, reason="forced").write(tmp_path)
    assert found(damaged(tmp_path, train)) == {"logprob_mismatches": 2}


def test_calling_a_sampled_turn_forced_does_not_excuse_it(growth: Any, tmp_path: Path) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11, reason="forced")
    growth.drawn[0].turn.reason = None
    growth.drawn[0].logprobs = np.full(2, -0.5, np.float32)
    growth.drawn[0].turn.logprobs = growth.drawn[0].logprobs
    growth.write(tmp_path)
    path = tmp_path / "rollouts" / "r0" / "fidelity.json"
    record = json.loads(path.read_text())
    record["turns"][0] |= {"reason": "forced", "untrained": {"forced": 2}}
    path.write_text(json.dumps(record))

    def unmask_all(lines: Lines) -> None:
        lines[0] |= {"loss_mask": [0, 0, 0], "logprobs": [0.0, 0.0, 0.0]}

    assert found(damaged(tmp_path, unmask_all)) == {"lost": 2}


def test_a_kind_other_than_the_scripts_is_found(growth: Any, tmp_path: Path) -> None:
    growth.draw(growth.say(ROOT, 1), 10, kind="main", true_kind="auxiliary")
    growth.draw(growth.say(ROOT, 2), 11, kind="auxiliary", true_kind="subagent")
    growth.write(tmp_path)
    report = check(tmp_path)
    assert found(report) == {"kinds_wrong": 2}
    assert "t1: kind auxiliary, truly subagent" in report.findings


def test_a_number_of_samples_other_than_the_scripts_is_found(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path, expect=Expect(samples=1))
    report = check(tmp_path)
    assert (found(report), report.wrong_sample_counts, report.ok) == ({}, {"r0": 2}, False)
    assert "r0: 2 samples, 1 expected" in report.findings


def test_only_reasons_the_script_permits_excuse_tokens(growth: Any, tmp_path: Path) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11, 12)
    growth.draw(growth.say(ROOT, 2), 13, kind="auxiliary")
    growth.write(tmp_path / "permitted", expect=Expect(reasons=("kind",)))
    growth.write(tmp_path / "not", expect=Expect())
    permitted, refused = check(tmp_path / "permitted"), check(tmp_path / "not")
    assert (permitted.untrained, permitted.kept_percent, permitted.ok) == ({"kind": 1}, 100.0, True)
    assert (refused.not_permitted, refused.kept_percent, refused.ok) == ({"kind": 1}, 75.0, False)


def test_an_aborted_generation_is_undelivered_also_beyond_what_was_recorded(growth: Any, tmp_path: Path) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10, 11, 12, delivered=False)
    growth.draw(prompt, 13)
    turn = growth.drawn[0].turn
    directory = tmp_path
    growth.write(directory, expect=Expect())
    record = directory / "rollouts" / "r0" / "fidelity.json"
    fields = json.loads(record.read_text())
    fields["turns"][0] |= {"sampled": 1, "untrained": {"undelivered": 1}}
    record.write_text(json.dumps(fields))
    report = check(directory)
    assert turn.id == "t0"
    assert (report.untrained, report.kept_percent, report.ok) == ({"undelivered": 3}, 100.0, True)


def test_a_generation_that_no_session_knows_is_lost(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path)
    record = tmp_path / "rollouts" / "r0" / "fidelity.json"
    record.unlink()
    report = check(tmp_path)
    assert found(report) == {"lost": 7}
    assert report.kept_percent == 0.0


def test_cut_samples_count_what_they_cut(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path, Options(max_sample_tokens=6))
    report = check(tmp_path)
    assert (found(report), report.untrained, report.ok) == ({}, {"over_length": 4}, True)


def test_equal_ids_of_two_draws_are_told_apart(growth: Any, tmp_path: Path) -> None:
    prompt = growth.say(ROOT, 1)
    for _ in range(2):
        growth.draw(prompt, 10, 11)
    growth.write(tmp_path)
    report = check(tmp_path)
    assert (report.trained, report.ok) == (4, True)


def test_a_split_draw_and_unused_draws_check_out(growth: Any, tmp_path: Path) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 8)
    node = growth.draw(prompt, 10, 9)
    growth.draw(growth.say(node, 2), 11)
    growth.draw(growth.say(growth.tree.split_stop(growth.tree.turns[1]), 3), 12)
    growth.write(tmp_path, Options(unused_draws="drop"))
    report = check(tmp_path)
    assert (report.untrained, report.trained, report.ok) == ({"unused_draw": 1}, 4, True)


def test_a_run_in_which_nothing_was_sampled_is_not_ok(growth: Any, tmp_path: Path) -> None:
    growth.write(tmp_path)
    report = check(tmp_path)
    assert (report.kept_percent, report.ok) == (None, False)
    assert "nothing was to be kept" in render(report)[1]


def test_the_report_is_plain_json(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path)
    fields = json.loads(json.dumps(check(tmp_path).to_dict()))
    assert (fields["kept"], fields["kept_percent"], fields["ok"], fields["samples"]) == (7, 100.0, True, {"r0": 2})


def test_its_own_reader_reads_what_the_engines_reader_reads(growth: Any, tmp_path: Path) -> None:
    node = ROOT
    for token in range(5):
        node = growth.draw(growth.say(node, *range(token + 1)), 100 + token, 200)
        growth.draw(growth.say(ROOT, 7, 8, token), 300)
    growth.write(tmp_path)
    path = tmp_path / "journal.jsonl"
    assert b'"base"' in path.read_bytes()
    mine, theirs = list(read_journal(path)), list(engines_own_reader(path))
    assert [(g.rid, g.prompt.tolist(), g.output.tolist()) for g in mine] == [
        (e.rid, e.prompt.tolist(), e.output.tolist()) for e in theirs
    ]


def test_a_line_cut_short_by_a_killed_engine_is_no_generation(growth: Any, tmp_path: Path) -> None:
    forked(growth).write(tmp_path)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"rid": "t9", "prom')
    assert check(tmp_path).generations == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("journal.jsonl", "", "is empty"),
        ("journal.jsonl", '{"journal": 2, "script": null}\n', "journal version 2"),
        ("journal.jsonl", '{"journal": 1, "script": null}\n{"rid": 1}\n', "journal.jsonl:2"),
        ("rollouts/r0/samples.jsonl", "{\n", "samples.jsonl:1"),
        ("rollouts/r0/samples.jsonl", '{"tokens": [1], "loss_mask": [], "logprobs": [], "turns": []}\n', "length"),
        ("rollouts/r0/fidelity.json", "[]", "fidelity.json"),
    ],
)
def test_a_broken_file_is_named(growth: Any, tmp_path: Path, name: str, text: str, said: str) -> None:
    forked(growth).write(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(LogCorrupt, match=said):
        check(tmp_path)


def test_a_run_without_a_journal_says_what_a_run_is(tmp_path: Path) -> None:
    with pytest.raises(LogCorrupt, match="rollouts/\\*/samples.jsonl"):
        check(tmp_path)


def test_several_sessions_share_one_journal(growth_type: Any, tmp_path: Path) -> None:
    growths = [forked(growth_type()) for _ in range(2)]
    for number, growth in enumerate(growths):
        for turn in growth.tree.turns:
            turn.id = f"s{number}-{turn.seq}"
        growth.write(tmp_path, session=f"r{number}")
    report = check(tmp_path)
    assert (report.trained, report.samples, report.ok) == (14, {"r0": 2, "r1": 2}, True)
