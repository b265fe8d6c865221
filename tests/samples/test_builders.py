"""Every builder makes rows of the same tree, under one accounting: nothing trains twice, out of place, or uncounted."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bridle.errors import ConfigError
from bridle.samples import BUILDERS, prefix_merging as merging
from bridle.samples.base import Dropped, Route
from bridle.samples.cases import read_case
from bridle.samples.check import check
from bridle.samples.drop import Kinds, Policy
from bridle.samples.linearize import Options, Result, linearize
from bridle.sessions.tree import ROOT, Tree

CASES = sorted((Path(__file__).parent.parent / "cases" / "trajectory").glob("*.json"))
WHOLE = ["tree", "per_request", "prefix_merging", "prefix_merging_first_user"]
"""Builders that leave no draw out."""


def forked(growth: Any) -> Any:
    """A trunk, two branches; the second one goes on last, the first one has a subagent aside."""
    trunk = growth.draw(growth.say(ROOT, 1, 2), 10, 11, lead=(3,))
    first = growth.draw(growth.say(trunk, 4), 12)
    growth.draw(growth.say(ROOT, 9), 20, kind="subagent")
    growth.draw(growth.say(trunk, 5), 13, 14)
    growth.draw(growth.say(first, 6), 15)
    return growth


def turns(result: Result) -> list[list[str]]:
    return [[turn.turn_id for turn in sample.turns] for sample in result.samples]


# Each builder on one tree


def test_tree_makes_a_row_for_every_branch(growth: Any) -> None:
    assert turns(forked(growth).build()) == [["t0", "t1", "t4"], ["t3"], ["t2"]]


def test_per_request_makes_a_row_for_every_draw_its_prompt_as_context(growth: Any) -> None:
    assert turns(forked(growth).build(builder="per_request")) == [["t0"], ["t1"], ["t2"], ["t3"], ["t4"]]
    assert growth.rows(builder="per_request")[1] == ([1, 2, 3, 10, 11, 4, 12], [0, 0, 0, 0, 0, 0, 1])


def test_prefix_merging_makes_a_row_for_every_chain_in_the_order_they_began(growth: Any) -> None:
    assert turns(forked(growth).build(builder="prefix_merging")) == [["t0", "t1", "t4"], ["t2"], ["t3"]]


def test_prefix_merging_goes_by_ids_where_the_tree_forked(growth: Any) -> None:
    """The draw came back as something else that is written with the same ids."""
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10, 11)
    growth.draw(growth.say(growth.say(prompt, 10, 11, origin="context"), 2), 12)
    assert turns(growth.build()) == [["t0"], ["t1"]]
    assert turns(growth.build(builder="prefix_merging")) == [["t0", "t1"]]
    assert growth.rows(builder="prefix_merging") == [([1, 10, 11, 2, 12], [0, 1, 1, 0, 1])]


def test_equal_draws_of_one_prompt_stay_two_chains_each_with_what_hangs_on_it(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10)
    second = growth.draw(prompt, 10)
    growth.draw(growth.say(second, 2), 11)
    assert turns(growth.build(builder="prefix_merging")) == [["t0"], ["t1", "t2"]]


def test_a_prompt_that_leaves_before_the_stop_id_begins_a_chain(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 9)
    before = growth.tree.split_stop(growth.tree.turns[0])
    growth.draw(growth.say(before, 3), 13)
    assert turns(growth.build(builder="prefix_merging")) == [["t0"], ["t1"]]


def test_the_split_at_the_first_user_turn_leaves_the_generation_prompt_to_the_response(growth: Any) -> None:
    result = forked(growth).build(builder="prefix_merging_first_user")
    assert [sample.prompt_len for sample in result.samples] == [2, 1, 6]
    assert [sample.prompt_len for sample in growth.build(builder="prefix_merging").samples] == [3, 1, 6]


def test_without_an_opening_message_the_prompt_ends_at_the_first_draw(growth: Any) -> None:
    growth.draw(ROOT, 10, lead=(3,))
    growth.draw(growth.say(ROOT, 1, origin="context"), 11, lead=(3,))
    result = growth.build(builder="prefix_merging_first_user")
    assert [sample.prompt_len for sample in result.samples] == [1, 2]


def test_final_only_keeps_the_branch_to_the_last_main_draw_and_counts_the_others(growth: Any) -> None:
    forked(growth).draw(growth.say(ROOT, 8), 21, 22, kind="subagent")
    result = growth.build(builder="final_only")
    assert turns(result) == [["t0", "t1", "t4"]]
    assert result.fidelity.totals.untrained == {"dropped_branch": 5}


def test_final_only_takes_the_last_draw_of_any_kind_where_none_is_main(growth: Any) -> None:
    assert growth.build(builder="final_only").samples == ()
    growth.draw(growth.say(ROOT, 1), 10, kind="subagent")
    growth.draw(growth.say(ROOT, 2), 11, kind="compaction")
    assert turns(growth.build(builder="final_only")) == [["t1"]]


# A user's own


def first_draw(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end)]


def mixed_up(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end, tree.turns[2].nodes)]


def test_a_users_own_builder_has_the_same_accounts(growth: Any) -> None:
    result = forked(growth).build(builder=f"{__name__}:first_draw")
    assert turns(result) == [["t0"]]
    assert result.fidelity.totals.untrained == {"dropped_branch": 5}


def test_a_draw_in_a_row_it_was_not_drawn_behind_is_refused(growth: Any) -> None:
    with pytest.raises(ConfigError, match="puts turn t2 into a row"):
        forked(growth).build(builder=f"{__name__}:mixed_up")


def twice(tree: Tree, dropped: Dropped) -> list[Route]:
    nodes = [index for turn in tree.turns[:2] for index in turn.nodes]
    return [Route(tree.turns[1].end, [*reversed(nodes), *nodes])]


def test_a_builder_may_list_draws_in_any_order_and_more_than_once(growth: Any) -> None:
    result = forked(growth).build(builder=f"{__name__}:twice")
    assert turns(result) == [["t0", "t1"]]
    assert result.samples[0].loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert result.fidelity.totals.untrained == {"dropped_branch": 4}


def far(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end, [99])]


def before(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(-2)]


def a_prompt(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end, [0])]


def negative(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end, prompt=-1)]


def plain(tree: Tree, dropped: Dropped) -> list[int]:
    return [turn.end for turn in tree.turns]


def fails(tree: Tree, dropped: Dropped) -> list[Route]:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("far", "node 99, which is no draw; draws are 1, 3, 5, 7, 9"),
        ("before", "node -2, which is no draw"),
        ("a_prompt", "node 0, which is no draw"),
        ("negative", "a prompt of -1 tokens"),
        ("plain", "gave a int; it must give routes"),
        ("fails", "raised KeyError: 'no such thing'"),
    ],
)
def test_a_builder_that_is_none_is_refused(growth: Any, builder: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        forked(growth).build(builder=f"{__name__}:{builder}")


def test_a_row_that_ends_at_a_draw_that_makes_none_is_refused(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, delivered=False)
    with pytest.raises(ConfigError, match="ends a row at turn t0, which makes none: undelivered"):
        growth.build(builder=f"{__name__}:first_draw")


def one_upon_the_other(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[0].end, [*tree.turns[0].nodes, *tree.turns[1].nodes])]


def test_two_equal_draws_cannot_train_at_one_place(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10)
    growth.draw(prompt, 10)
    with pytest.raises(ConfigError, match="puts turn t1 where another draw of the same row stands"):
        growth.build(builder=f"{__name__}:one_upon_the_other")


def test_an_unknown_builder_is_refused_with_those_there_are(growth: Any) -> None:
    with pytest.raises(ConfigError, match='unknown builder "per_turn".* There are: final_only, per_request'):
        growth.build(builder="per_turn")


# Kinds


def test_a_kind_may_train_stand_as_context_or_take_all_behind_it_along(growth: Any) -> None:
    aside = growth.draw(growth.say(ROOT, 1), 10, kind="compaction")
    growth.draw(growth.say(aside, 2), 11, 12)
    growth.draw(growth.say(ROOT, 3), 13)
    assert growth.rows()[0] == ([1, 10, 2, 11, 12], [0, 1, 0, 1, 1])
    assert growth.rows(kinds=Kinds(compaction="context"))[0] == ([1, 10, 2, 11, 12], [0, 0, 0, 1, 1])
    assert growth.rows(kinds=Kinds(compaction="drop")) == [([3, 13], [0, 1])]
    totals = growth.build(kinds=Kinds(compaction="drop")).fidelity.totals
    assert totals.untrained == {"kind": 1, "dropped_branch": 2}
    assert totals.sampled_by_kind == {"compaction": 1, "main": 3}


def test_a_draw_to_be_dropped_is_so_under_other_ancestors_too(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, kind="subagent")
    growth.draw(growth.say(growth.say(ROOT, 7), 10, origin="transplanted", turn=0), 11)
    assert growth.rows(kinds=Kinds(subagent="drop")) == []


# Bounds


def long(growth: Any) -> Any:
    """5 tokens up to the second draw's first, which has 3."""
    trunk = growth.draw(growth.say(ROOT, 1), 10, 11)
    growth.draw(growth.say(trunk, 2), 12, 13, 14)
    growth.draw(growth.say(trunk, 3), 15)
    return growth


@pytest.mark.parametrize(
    ("rule", "rows", "untrained"),
    [
        ("cut", [([1, 10, 11, 2, 12], [0, 1, 1, 0, 1]), ([1, 10, 11, 3, 15], [0, 0, 0, 0, 1])], 2),
        ("cut_turn", [([1, 10, 11], [0, 1, 1]), ([1, 10, 11, 3, 15], [0, 0, 0, 0, 1])], 3),
        ("drop", [([1, 10, 11, 3, 15], [0, 1, 1, 0, 1])], 3),
        (
            "context",
            [([1, 10, 11, 2, 12, 13, 14], [0, 1, 1, 0, 1, 0, 0]), ([1, 10, 11, 3, 15], [0, 0, 0, 0, 1])],
            2,
        ),
    ],
)
def test_what_is_over_length_is_cut_dropped_or_context(growth: Any, rule: Any, rows: Any, untrained: int) -> None:
    result = long(growth).build(max_sample_tokens=5, over_length=rule)
    assert growth.rows(max_sample_tokens=5, over_length=rule) == rows
    assert result.fidelity.totals.untrained == {"over_length": untrained}


def test_a_cut_at_a_turn_keeps_a_draw_with_its_stop_id_or_not_at_all(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 9)
    growth.draw(growth.say(growth.tree.split_stop(growth.tree.turns[0]), 3), 13)
    assert growth.rows(max_sample_tokens=2, over_length="cut_turn") == []
    assert growth.rows(max_sample_tokens=3, over_length="cut_turn")[0] == ([1, 10, 9], [0, 1, 1])


def test_of_too_many_samples_those_stay_in_which_most_trains_with_all_they_hold(growth: Any) -> None:
    trunk = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(trunk, 2), 11)
    growth.draw(growth.say(trunk, 3), 12, 13, 14)
    growth.draw(growth.say(ROOT, 5), 16, 17, 18, 19)
    result = growth.build(max_samples=2)
    assert turns(result) == [["t0", "t2"], ["t3"]]
    assert result.fidelity.totals.untrained == {"dropped_branch": 1}
    assert [sample.sample_index for sample in result.samples] == [0, 1]


def test_what_would_not_train_anyway_keeps_its_reason_when_its_row_goes(growth: Any) -> None:
    growth.draw(growth.say(growth.draw(growth.say(ROOT, 1), 10, reason="constrained"), 2), 11)
    growth.draw(growth.say(ROOT, 3), 12, 13)
    assert growth.build(max_samples=1).fidelity.totals.untrained == {"constrained": 1, "dropped_branch": 1}


# Any tree

POLICIES: list[Policy] = ["train", "context", "drop"]
CHOICES = st.fixed_dictionaries(
    {
        "builder": st.sampled_from(list(BUILDERS)),
        "kinds": st.builds(Kinds, subagent=st.sampled_from(POLICIES), auxiliary=st.sampled_from(POLICIES)),
        "max_sample_tokens": st.none() | st.integers(1, 25),
        "over_length": st.sampled_from(["cut", "cut_turn", "drop", "context"]),
        "max_samples": st.none() | st.integers(1, 3),
        "unused_draws": st.sampled_from(["train", "drop"]),
    }
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), choices=CHOICES)
def test_every_builder_trains_a_token_once_behind_its_prompt_or_counts_it(
    grown: Any, data: st.DataObject, choices: dict[str, Any]
) -> None:
    growth = grown(data.draw)
    result = growth.build(**choices)
    totals = result.fidelity.totals
    assert (
        totals.trained + sum(totals.untrained.values())
        == totals.sampled
        == sum(len(d.turn.sampled) for d in growth.drawn)
    )
    assert totals.trained == sum(sample.trained for sample in result.samples)
    logprobs = [float(lp) for s in result.samples for lp in s.logprobs[s.loss_mask.astype(bool)]]
    assert len(set(logprobs)) == len(logprobs), "every token of a growth has its own"
    for sample in result.samples:
        for turn in sample.turns:
            drawn = growth.drawn[int(turn.turn_id[1:])]
            assert sample.tokens[: turn.start].tolist() == drawn.prompt.tolist()
            assert sample.tokens[turn.start : turn.end].tolist() == drawn.turn.sampled[: turn.end - turn.start].tolist()
    if choices["max_samples"]:
        assert len(result.samples) <= choices["max_samples"]
    if choices["max_sample_tokens"] and choices["over_length"] != "context":
        assert all(len(sample.tokens) <= choices["max_sample_tokens"] for sample in result.samples)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), choices=CHOICES)
def test_the_independent_checker_agrees_with_every_builder(
    grown: Any, data: st.DataObject, choices: dict[str, Any]
) -> None:
    growth = grown(data.draw)
    with TemporaryDirectory() as directory:
        totals = growth.write(Path(directory), Options(**choices)).fidelity.totals
        report = check(Path(directory))
    assert (report.sampled, report.trained, report.forced) == (totals.sampled, totals.trained, totals.forced)
    assert report.untrained == {reason: n for reason, n in totals.untrained.items() if reason != "forced"}
    assert report.findings == []


def trained(samples: Sequence[Any]) -> set[float]:
    return {float(logprob) for sample in samples for logprob in sample.logprobs[sample.loss_mask.astype(bool)]}


@settings(max_examples=200, deadline=None)
@given(data=st.data(), limit=st.none() | st.integers(1, 25), rule=st.sampled_from(["cut", "cut_turn", "context"]))
def test_builders_that_leave_nothing_out_train_the_same_tokens(
    grown: Any, data: st.DataObject, limit: int | None, rule: Any
) -> None:
    growth = grown(data.draw)
    results = [growth.build(builder=name, max_sample_tokens=limit, over_length=rule).samples for name in WHOLE]
    assert len({frozenset(trained(samples)) for samples in results}) == 1
    final = growth.build(builder="final_only", max_sample_tokens=limit, over_length=rule).samples
    assert trained(final) <= trained(results[0])


@pytest.mark.parametrize("name", list(BUILDERS))
@pytest.mark.parametrize("path", [path for path in CASES if "t32" not in path.stem], ids=lambda path: path.stem)
def test_every_case_closes_under_every_builder(path: Path, name: str) -> None:
    case = read_case(path)
    totals = linearize(case.tree, Options(builder=name), case.facts).fidelity.totals
    assert totals.trained + sum(totals.untrained.values()) == totals.sampled
    if name in WHOLE:
        assert totals.trained == linearize(case.tree, Options(), case.facts).fidelity.totals.trained


def test_a_deep_chain_costs_prefix_merging_no_more_than_its_tokens(growth: Any) -> None:
    node = ROOT
    for turn in range(1500):
        node = growth.draw(growth.say(node, turn), 7)
    (sample,) = growth.build(builder="prefix_merging").samples
    assert sample.trained == 1500
    assert np.array_equal(sample.tokens[1::2], np.full(1500, 7))


@pytest.mark.parametrize("trunk", [0, 3000])
def test_turns_that_fork_cost_prefix_merging_no_more_hashing_than_their_tokens(
    growth: Any, monkeypatch: pytest.MonkeyPatch, trunk: int
) -> None:
    """Every prompt has other ids, and all the ends before lie within it."""
    hashed = 0

    class Counting:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def copy(self) -> Counting:
            return Counting(self.inner.copy())

        def update(self, data: bytes) -> None:
            nonlocal hashed
            hashed += len(data)
            self.inner.update(data)

        def digest(self) -> bytes:
            return self.inner.digest()

    parent = growth.say(ROOT, *range(trunk)) if trunk else ROOT
    for turn in range(100):
        growth.draw(growth.say(parent, turn, *range(1000 + 2 * turn)), 7)
    monkeypatch.setattr(merging, "blake2b", lambda digest_size: Counting(blake2b(digest_size=digest_size)))
    assert len(growth.build(builder="prefix_merging").samples) == 100
    assert hashed <= 2 * 4 * sum(len(node.ids) for node in growth.tree.nodes)
