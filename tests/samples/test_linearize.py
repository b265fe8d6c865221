"""Each sampled token trains once, behind the ids it was sampled behind, or is counted under a reason."""

from __future__ import annotations

import inspect
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bridle.errors import LogCorrupt
from bridle.extras import Extras, PerId
from bridle.samples.check import check
from bridle.samples.drop import Kinds
from bridle.samples.linearize import Options, linearize
from bridle.sessions.tree import ROOT, Tree, Turn
from bridle.tokens import ids_of

# Single trees


def test_a_linear_session_is_one_sample(growth: Any) -> None:
    node = growth.draw(growth.say(ROOT, 1, 2), 10, 11, lead=(3,))
    growth.draw(growth.say(node, 4), 12, lead=(3,))
    (sample,) = growth.build().samples
    assert sample.tokens.tolist() == [1, 2, 3, 10, 11, 4, 3, 12]
    assert sample.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
    assert [tuple(turn) for turn in sample.turns] == [(3, 5, "t0", "main", "stop"), (7, 8, "t1", "main", "stop")]
    assert (sample.prompt_len, sample.weight, sample.kinds, sample.branch) == (3, 1.0, ("main",), 3)


def test_context_behind_the_last_draw_is_left_out(growth: Any) -> None:
    growth.say(growth.draw(growth.say(ROOT, 1), 10), 2, 3)
    assert growth.rows() == [([1, 10], [0, 1])]


def test_the_first_branch_to_have_grown_trains_a_shared_draw(growth: Any) -> None:
    trunk = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(trunk, 2), 11)
    growth.draw(growth.say(trunk, 3), 12)
    result = growth.build()
    assert growth.rows() == [([1, 10, 2, 11], [0, 1, 0, 1]), ([1, 10, 3, 12], [0, 0, 0, 1])]
    assert [[turn.turn_id for turn in sample.turns] for sample in result.samples] == [["t0", "t1"], ["t2"]]
    assert [sample.weight for sample in result.samples] == pytest.approx([2 / 3, 1 / 3])
    assert [turn.samples for turn in result.fidelity.turns] == [(0,), (0,), (1,)]


def test_a_kind_that_does_not_train_makes_no_branch_and_is_counted(growth: Any) -> None:
    trunk = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(trunk, 2), 11, 12, kind="auxiliary")
    result = growth.build()
    assert growth.rows() == [([1, 10], [0, 1])]
    assert result.fidelity.totals.untrained == {"kind": 2}
    assert len(growth.build(kinds=Kinds(auxiliary="train")).samples[0].turns) == 2


def test_an_untrained_kind_under_a_trained_draw_stays_as_context(growth: Any) -> None:
    aside = growth.draw(growth.say(ROOT, 1), 10, kind="auxiliary")
    growth.draw(growth.say(aside, 2), 11)
    assert growth.rows() == [([1, 10, 2, 11], [0, 0, 0, 1])]


def test_an_undelivered_draw_makes_no_branch_and_is_counted(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10, 11, delivered=False)
    growth.draw(prompt, 12)
    assert growth.rows() == [([1, 12], [0, 1])]
    assert growth.build().fidelity.totals.untrained == {"undelivered": 2}


def test_a_turn_that_never_ended_is_lost_in_a_crash(growth: Any) -> None:
    growth.start(growth.say(growth.draw(growth.say(ROOT, 1), 10), 2))
    result = growth.build()
    assert result.fidelity.turns[1].reason == "lost_in_crash"
    assert growth.rows() == [([1, 10], [0, 1])]


@pytest.mark.parametrize("reason", ["no_logprob", "bad_logprob", "constrained"])
def test_a_draw_that_may_not_train_is_context_and_makes_no_sample_alone(growth: Any, reason: Any) -> None:
    growth.draw(growth.say(ROOT, 5), 13, reason=reason)
    growth.draw(growth.say(growth.draw(growth.say(ROOT, 1), 10, 11, reason=reason), 2), 12)
    (sample,) = growth.build().samples
    assert (sample.loss_mask.tolist(), dict(sample.untrained)) == ([0, 0, 0, 0, 1], {reason: 2})
    assert sample.logprobs[:4].tolist() == [0.0] * 4
    fidelity = growth.build().fidelity
    assert fidelity.totals.untrained == {reason: 3}
    assert [turn.samples for turn in fidelity.turns] == [(), (0,), (0,)]


def test_forced_draws_make_samples_in_which_nothing_trains(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11, reason="forced")
    (sample,) = growth.build().samples
    assert (sample.trained, sample.weight, dict(sample.untrained)) == (0, 0.0, {"forced": 2})
    assert sample.turns[0].end == 3
    assert growth.build().fidelity.totals.forced == 2


def test_a_cut_counts_what_it_leaves_out_and_drops_branches_it_empties(growth: Any) -> None:
    trunk = growth.draw(growth.say(ROOT, 1), 10, 11)
    growth.draw(growth.say(trunk, 2), 12, 13, 14)
    growth.draw(growth.say(trunk, 3, 4, 5), 15)
    result = growth.build(max_sample_tokens=5)
    assert growth.rows(max_sample_tokens=5) == [([1, 10, 11, 2, 12], [0, 1, 1, 0, 1])]
    assert result.fidelity.totals.untrained == {"over_length": 3}
    assert (dict(result.samples[0].untrained), result.samples[0].status) == ({"over_length": 2}, "truncated")


def test_a_draw_that_ended_by_length_makes_its_sample_truncated(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, finish="length")
    assert growth.build().samples[0].status == "truncated"
    assert growth.build(status="failed").samples[0].status == "failed"


def test_a_branch_that_leaves_before_the_stop_id_shares_the_rest_of_the_draw(growth: Any) -> None:
    node = growth.draw(growth.say(ROOT, 1), 10, 11, 9, versions=((0, 5), (1, 6)))
    growth.draw(growth.say(node, 2), 12, versions=((0, 6),))
    before = growth.tree.split_stop(growth.tree.turns[0])
    growth.draw(growth.say(before, 3), 13)
    result = growth.build()
    assert growth.rows() == [([1, 10, 11, 9, 2, 12], [0, 1, 1, 1, 0, 1]), ([1, 10, 11, 3, 13], [0, 0, 0, 0, 1])]
    assert [tuple(turn)[:3] for turn in result.samples[0].turns] == [(1, 4, "t0"), (5, 6, "t1")]
    assert result.samples[0].version_spans == ((1, 5), (2, 6))


def test_what_is_said_of_each_id_stands_at_its_place_also_where_a_draw_is_split_or_cut(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11, 9)
    kept, numbers = PerId(np.array([1, 2, 1], np.int32), ids_of([7, 8, 9, 6])), np.array([-1, -2, -3], np.float32)
    growth.tree.turns[0].extras = Extras(kept_tokens=kept, reference_logprobs=numbers)
    growth.draw(growth.say(growth.tree.split_stop(growth.tree.turns[0]), 3), 13)
    first, second = growth.build().samples
    assert first.reference_logprobs is not None
    assert first.kept_tokens is not None
    assert first.reference_logprobs.tolist() == [0, -1, -2, -3]
    assert (first.kept_tokens.counts.tolist(), first.kept_tokens.values.tolist()) == ([0, 1, 2, 1], [7, 8, 9, 6])
    assert (second.kept_tokens, second.reference_logprobs, first.routed_experts) == (None, None, None)
    cut = growth.build(max_sample_tokens=3).samples[0].to_dict()
    assert (cut["kept_tokens"], cut["reference_logprobs"]) == ({"counts": [0, 1, 2], "values": [7, 8, 9]}, [0, -1, -2])


def test_what_is_said_of_one_draw_that_trains_but_not_of_another_is_not_said(growth: Any) -> None:
    node = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(node, 2), 11)
    each = PerId(np.array([2], np.int32), ids_of([7, 8]))
    growth.tree.turns[1].extras = Extras(each, each, np.array([-1], np.float32))
    (mixed,) = growth.build().samples
    assert (mixed.reference_logprobs, mixed.kept_tokens, mixed.routed_experts) == (None, None, None)
    growth.tree.turns[0].reason = "forced"
    said = growth.build().samples[0].to_dict()
    assert said["reference_logprobs"] == [0, 0, 0, -1]
    assert said["kept_tokens"] == said["routed_experts"] == {"counts": [0, 0, 0, 2], "values": [7, 8]}


def test_unused_draws_train_unless_they_are_to_be_dropped(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10)
    growth.draw(growth.say(growth.draw(prompt, 11), 2), 12)
    assert len(growth.rows()) == 2
    assert growth.rows(unused_draws="drop") == [([1, 11, 2, 12], [0, 1, 0, 1])]
    assert growth.build(unused_draws="drop").fidelity.totals.untrained == {"unused_draw": 1}


def test_of_last_draws_nobody_continued_the_last_one_is_the_used_one(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    for token in (10, 11, 12):
        growth.draw(prompt, token)
    assert growth.rows(unused_draws="drop") == [([1, 12], [0, 1])]


def test_a_draw_carried_under_other_ancestors_is_used(growth: Any) -> None:
    prompt = growth.say(ROOT, 1)
    growth.draw(prompt, 10)
    growth.draw(prompt, 11)
    growth.say(growth.say(ROOT, 7), 10, origin="transplanted", turn=0)
    assert [row[0] for row in growth.rows(unused_draws="drop")] == [[1, 10]]


def test_policy_versions_are_spans_of_the_sample(growth: Any) -> None:
    node = growth.draw(growth.say(ROOT, 1), 10, 11, 12, versions=((0, 5), (2, 6)))
    growth.draw(growth.say(node, 2), 13, 14, versions=((0, 6),))
    growth.draw(growth.say(node, 3), 15, versions=((0, 7),))
    assert [sample.version_spans for sample in growth.build().samples] == [((1, 5), (3, 6)), ((5, 7),)]
    assert growth.build(max_sample_tokens=3).samples[0].version_spans == ((1, 5),)


def test_a_turn_that_may_train_needs_a_logprob_for_each_id(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11)
    growth.tree.turns[0].logprobs = np.zeros(1, np.float32)
    with pytest.raises(LogCorrupt, match="t0 may train, but has 1 logprobs for 2"):
        growth.build()


def test_tokens_that_reached_no_branch_are_an_error_not_a_gap(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10, 11)
    growth.tree.turns[0].sampled = ids_of([10, 11, 12])
    growth.tree.turns[0].logprobs = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="turn t0: 3 tokens sampled, but 2 trained"):
        growth.build()


# Any tree

LIMITS = st.none() | st.integers(1, 25)


def oracle(growth: Any, options: Options) -> list[tuple[Any, ...]]:
    """The rules, token by token and pair by pair, without a thought for cost."""
    nodes, turns = growth.tree.nodes, growth.tree.turns
    ranks = {index: rank for siblings in growth.tree.children.values() for rank, index in enumerate(siblings)}
    paths = {node.index: growth.tree.path(node.index) for node in nodes}
    used = {n.turn for n in nodes if n.origin == "transplanted"} | {
        nodes[n.parent].turn for n in nodes if n.parent != ROOT and nodes[n.parent].turn != n.turn
    }

    def sibling(one: Any, other: Any) -> bool:
        places = [(nodes[t.nodes[0]].parent, t.lead.tolist(), t.kind) for t in (one, other)]
        return places[0] == places[1] and other.delivered

    def unused(turn: Any) -> bool:
        siblings = [other for other in turns if sibling(turn, other)]
        chosen = [t for t in siblings if t.seq in used] or siblings[-1:]
        return turn.delivered and turn not in chosen

    def kept(index: int) -> bool:
        if nodes[index].origin != "sampled":
            return False
        turn = turns[nodes[index].turn]
        gone = (
            turn.reason in ("undelivered", "duplicate_draw")
            or not turn.delivered
            or options.kinds.of(turn.kind) != "train"
        )
        return not gone and not (options.unused_draws == "drop" and unused(turn))

    alive = [index for index in paths if kept(index)]
    ends = [a for a in alive if not any(a != b and a in paths[b] for b in alive)]
    trained: set[tuple[int, int]] = set()
    found = []
    for leaf in sorted(ends, key=lambda index: [ranks[step] for step in paths[index]]):
        tokens: list[int] = []
        who: list[tuple[int, int] | None] = []
        for index in paths[leaf]:
            node = nodes[index]
            tokens += node.ids.tolist()
            draws = [(node.turn, node.offset + i - node.lead) if i >= node.lead else None for i in range(len(node.ids))]
            who += draws if kept(index) else [None] * len(node.ids)
        tokens, who = tokens[: options.max_sample_tokens], who[: options.max_sample_tokens]
        mine = [w for w in who if w is not None and w not in trained]
        trained |= set(mine)
        if any(turns[w[0]].reason in (None, "forced") for w in mine):
            mask = [int(w in mine and turns[w[0]].reason is None) if w else 0 for w in who]
            logprobs = [float(turns[w[0]].logprobs[w[1]]) if m else 0.0 for w, m in zip(who, mask, strict=True)]
            found.append((tokens, mask, logprobs))
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.data(), limit=LIMITS, unused=st.sampled_from(["train", "drop"]))
def test_any_tree_gives_what_the_rules_say_token_by_token(
    grown: Any, data: st.DataObject, limit: int | None, unused: Any
) -> None:
    growth = grown(data.draw)
    options = Options(max_sample_tokens=limit, unused_draws=unused)
    result = linearize(growth.tree, options)
    rows = [(s.tokens.tolist(), s.loss_mask.tolist(), s.logprobs.tolist()) for s in result.samples]
    assert rows == oracle(growth, options)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), limit=LIMITS, unused=st.sampled_from(["train", "drop"]))
def test_in_any_tree_every_token_trains_once_behind_its_prompt_or_is_counted(
    grown: Any, data: st.DataObject, limit: int | None, unused: Any
) -> None:
    growth = grown(data.draw)
    result = linearize(growth.tree, Options(max_sample_tokens=limit, unused_draws=unused))
    totals = result.fidelity.totals
    assert totals.sampled == sum(len(turn.sampled) for turn in growth.tree.turns)
    assert totals.trained + sum(totals.untrained.values()) == totals.sampled
    assert totals.trained == sum(sample.trained for sample in result.samples)
    assert sum(sample.weight for sample in result.samples) == pytest.approx(1.0 if totals.trained else 0.0)
    logprobs = [float(lp) for s in result.samples for lp in s.logprobs[s.loss_mask.astype(bool)]]
    assert len(set(logprobs)) == len(logprobs)
    for sample in result.samples:
        for turn in sample.turns:
            drawn = growth.drawn[int(turn.turn_id[1:])]
            assert sample.tokens[: turn.start].tolist() == drawn.prompt.tolist()
            whole = drawn.turn.sampled[: turn.end - turn.start].tolist()
            assert sample.tokens[turn.start : turn.end].tolist() == whole


@settings(max_examples=100, deadline=None)
@given(data=st.data(), limit=LIMITS, unused=st.sampled_from(["train", "drop"]))
def test_the_independent_checker_agrees_about_any_tree(
    grown: Any, data: st.DataObject, limit: int | None, unused: Any
) -> None:
    growth = grown(data.draw)
    with TemporaryDirectory() as directory:
        totals = growth.write(Path(directory), Options(max_sample_tokens=limit, unused_draws=unused)).fidelity.totals
        report = check(Path(directory))
    assert (report.sampled, report.trained, report.forced) == (totals.sampled, totals.trained, totals.forced)
    assert report.untrained == {reason: n for reason, n in totals.untrained.items() if reason != "forced"}
    assert report.findings == []


# Size


def chain(turns: int, tokens: int) -> Tree:
    """A session whose turns add `tokens` each, a tenth of them sampled."""
    tree = Tree()
    parent = ROOT
    said, drawn = np.full(tokens - tokens // 10, 7, np.int32), np.full(tokens // 10, 8, np.int32)
    logprobs = np.full(len(drawn), -0.5, np.float32)
    for seq in range(turns):
        node = tree.add_context(parent, b"%d" % seq, said)
        turn = tree.start(Turn(seq, f"t{seq}", node.index, ids_of(()), "main", "test", b""))
        turn.sampled, turn.logprobs, turn.versions = drawn, logprobs, ((0, 0),)
        parent = tree.finish(turn).index
    return tree


def test_depth_costs_no_recursion() -> None:
    tree = chain(3000, 10)
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    sys.setrecursionlimit(depth + 60)
    try:
        result = linearize(tree)
    finally:
        sys.setrecursionlimit(limit)
    assert result.fidelity.totals.trained == 3000


def test_a_thousand_turns_of_five_thousand_tokens_need_memory_for_their_tokens_alone() -> None:
    peaks = []
    for turns in (250, 1000):
        tree = chain(turns, 5000)
        tracemalloc.start()
        (sample,) = linearize(tree).samples
        peaks.append(tracemalloc.get_traced_memory()[1] / len(sample.tokens))
        tracemalloc.stop()
        assert (len(sample.tokens), sample.trained) == (turns * 5000, turns * 500)
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 40, "bytes a token; its three arrays are 9 of them"
