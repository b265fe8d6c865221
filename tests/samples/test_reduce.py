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
from bridle.samples.check import check
from bridle.samples.reduce import nothing, reduced
from bridle.samples.sample import Sample
from bridle.sessions.tree import ROOT


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


@pytest.mark.parametrize(
    ("reduce", "said"),
    [
        (raises, "raised KeyError: 'no such thing'"),
        (lambda samples: None, "raised TypeError"),
        (lambda samples: [samples[0].to_dict()], "gave a dict; it must give samples"),
        (lambda samples: [*samples, samples[0]], "4 tokens of turn t0 train, of 2 that may"),
        (unmasks, "4 tokens of turn t0 train, of 2 that may"),
    ],
)
def test_a_reducer_that_is_none_is_refused(growth: Any, reduce: Any, said: str) -> None:
    result = forked(growth).build()
    with pytest.raises(ReducerFailed, match=said):
        reduced(result.samples, result.fidelity, reduce)
