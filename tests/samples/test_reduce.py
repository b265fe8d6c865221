"""A user's reducer takes samples out, and the accounts say so; what it does wrong has a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bridle.errors import ReducerFailed
from bridle.exporters.jsonl import JsonlExporter
from bridle.samples.base import Dropped, Route
from bridle.samples.check import check
from bridle.samples.reduce import nothing, reduced
from bridle.samples.sample import Sample
from bridle.sessions.tree import ROOT, Tree


def forked(growth: Any, **fields: Any) -> Any:
    """Two samples, of 5 and of 2 sampled tokens."""
    trunk = growth.draw(growth.say(ROOT, 1, 2), 10, 11, **fields)
    growth.draw(growth.say(trunk, 3), 12, 13, 14, **fields)
    growth.draw(growth.say(trunk, 5), 15, 16, **fields)
    return growth


def last(samples: Sequence[Sample]) -> list[Sample]:
    return list(samples[1:])


def test_what_a_reducer_takes_out_is_counted(growth: Any) -> None:
    result = forked(growth).build()
    (sample,), fidelity = reduced(result.samples, result.fidelity, last)
    assert (sample.tokens[-2:].tolist(), sample.sample_index, sample.weight) == ([15, 16], 0, 1.0)
    assert (fidelity.totals.trained, fidelity.totals.untrained) == (2, {"dropped_branch": 5})
    assert (fidelity.totals.samples, [turn.samples for turn in fidelity.turns]) == (1, [(), (), (0,)])


def test_a_reducer_may_hand_on_all_or_nothing(growth: Any) -> None:
    result = forked(growth).build()
    same, fidelity = reduced(result.samples, result.fidelity, lambda samples: samples)
    assert (len(same), fidelity) == (2, result.fidelity)
    none, fidelity = reduced(result.samples, result.fidelity, nothing)
    assert (none, fidelity.totals.untrained) == ([], {"dropped_branch": 7})


def test_forced_tokens_that_go_are_forced_no_longer(growth: Any) -> None:
    result = forked(growth, reason="forced").build()
    _, fidelity = reduced(result.samples, result.fidelity, last)
    assert fidelity.totals.untrained == {"forced": 2, "dropped_branch": 5}


@pytest.mark.parametrize("reason", [None, "forced"])
def test_the_independent_checker_agrees_with_what_is_left(growth: Any, tmp_path: Path, reason: Any) -> None:
    result = forked(growth, reason=reason).write(tmp_path)
    samples, fidelity = reduced(result.samples, result.fidelity, last)
    JsonlExporter().write(samples, tmp_path / "rollouts/r0/samples.jsonl")
    (tmp_path / "rollouts/r0/fidelity.json").write_bytes(msgspec.json.encode(fidelity))
    report = check(tmp_path)
    assert (report.kept, report.untrained, report.findings) == (2, {"dropped_branch": 5}, [])


def raises(samples: Sequence[Sample]) -> list[Sample]:
    raise KeyError("no such thing")


def unmasks(samples: Sequence[Sample]) -> list[Sample]:
    """The shared draw trains in the second sample too."""
    mask, spans = samples[1].loss_mask.copy(), (samples[0].turns[0], *samples[1].turns)
    mask[2:4] = 1
    logprobs = np.where(mask, np.float32(-1), np.float32(0))
    again = msgspec.structs.replace(samples[1], loss_mask=mask, logprobs=logprobs, turns=spans, prompt_len=2)
    return [samples[0], again]


def renames(samples: Sequence[Sample]) -> list[Sample]:
    first, *others = samples[0].turns
    return [msgspec.structs.replace(samples[0], turns=(first._replace(turn_id="t9"), *others)), *samples[1:]]


def swaps(samples: Sequence[Sample]) -> list[Sample]:
    """The second draw of the first sample under the name of the second sample's."""
    first, other = samples[0].turns
    return [msgspec.structs.replace(samples[0], turns=(first, other._replace(turn_id="t2")))]


def masked(sample: Sample, *trained: int) -> Sample:
    mask = np.zeros_like(sample.loss_mask)
    mask[list(trained)] = 1
    return msgspec.structs.replace(sample, loss_mask=mask, logprobs=np.where(mask, sample.logprobs, np.float32(0)))


def halves(samples: Sequence[Sample]) -> list[Sample]:
    """As many tokens train as may; one of them twice."""
    return [masked(samples[0], 2), masked(samples[0], 2, 5)]


def rewrites(samples: Sequence[Sample]) -> list[Sample]:
    tokens = samples[0].tokens.copy()
    tokens[3] += 1
    return [msgspec.structs.replace(samples[0], tokens=tokens)]


def test_a_sample_may_come_back_in_parts_that_share_no_trained_token(growth: Any) -> None:
    result = forked(growth).build()
    parts, fidelity = reduced(result.samples, result.fidelity, lambda s: [masked(s[0], 2, 5), masked(s[0], 3, 6)])
    assert [sample.weight for sample in parts] == [0.5, 0.5]
    assert (fidelity.totals.trained, fidelity.turns[0].samples) == (4, (0, 1))
    assert fidelity.totals.untrained == {"dropped_branch": 3}


def test_a_sample_may_lose_what_stands_before_and_behind(growth: Any) -> None:
    result = forked(growth).build()

    def shorten(samples: Sequence[Sample]) -> list[Sample]:
        sample, span = samples[0], samples[0].turns[1]
        return [
            msgspec.structs.replace(
                sample,
                tokens=sample.tokens[4:7],
                loss_mask=sample.loss_mask[4:7],
                logprobs=sample.logprobs[4:7],
                version_spans=(),
                prompt_len=1,
                turns=(span._replace(start=1, end=3),),
            )
        ]

    _, fidelity = reduced(result.samples, result.fidelity, shorten)
    assert (fidelity.totals.trained, fidelity.totals.untrained) == (2, {"dropped_branch": 5})


def test_a_draw_in_two_samples_with_its_stop_id_apart_may_stay_so(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 9, 9)
    growth.draw(growth.say(growth.tree.split_stop(growth.tree.turns[0]), 3), 13)
    result = growth.build(builder=f"{__name__}:stop_last")
    assert [[tuple(turn)[:3] for turn in s.turns] for s in result.samples] == [
        [(1, 2, "t0"), (3, 4, "t1")],
        [(2, 3, "t0")],
    ]
    for reduce in (lambda samples: samples, lambda samples: samples[::-1]):
        assert reduced(result.samples, result.fidelity, reduce)[1].totals.trained == 3


def stop_last(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(tree.turns[1].end), Route(tree.turns[0].end)]


def test_a_forced_draw_is_not_handed_on_twice(growth: Any) -> None:
    result = forked(growth, reason="forced").build()
    with pytest.raises(ReducerFailed, match="4 forced tokens of turn t0, of 2 there were"):
        reduced(result.samples, result.fidelity, lambda samples: [*samples, samples[0]])


@pytest.mark.parametrize(
    ("reduce", "said"),
    [
        (raises, "raised KeyError: 'no such thing'"),
        (lambda samples: None, "raised TypeError"),
        (lambda samples: [samples[0].to_dict()], "gave a dict; it must give samples"),
        (lambda samples: [*samples, samples[0]], "2 tokens of turn t0 train that may not, or train already"),
        (unmasks, "2 tokens of turn t0 train that may not, or train already"),
        (halves, "1 tokens of turn t0 train that may not, or train already"),
        (renames, "turn t9, which there is not; turns are t0, t1, t2"),
        (swaps, "other tokens for turn t2"),
        (rewrites, "other tokens for turn t0"),
    ],
)
def test_a_reducer_that_is_none_is_refused(growth: Any, reduce: Any, said: str) -> None:
    result = forked(growth).build()
    with pytest.raises(ReducerFailed, match=said):
        reduced(result.samples, result.fidelity, reduce)


def test_a_reducer_cannot_train_what_may_not(growth: Any) -> None:
    growth.draw(growth.say(growth.draw(growth.say(ROOT, 1), 10, reason="constrained"), 2), 11)
    result = growth.build()
    with pytest.raises(ReducerFailed, match="1 tokens of turn t0 train that may not"):
        reduced(result.samples, result.fidelity, lambda samples: [masked(samples[0], 1)])
