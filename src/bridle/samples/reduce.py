"""A user's reducer: what of a rollout's samples is handed on, and what that leaves of the accounts.

What it takes out is counted as `dropped_branch`, as if no row had ever been made of it. It can take out, reorder and
change samples, but not what was drawn, and not make a token train that did not, or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bridle.errors import ReducerFailed
from bridle.samples.fidelity import Fidelity, TurnRecord, totals
from bridle.samples.sample import Reason, Sample, TurnSpan
from bridle.tokens import Ids

Reducer = Callable[[Sequence[Sample]], Any]
"""The samples of one rollout -> those to hand on."""


def reduced(samples: Sequence[Sample], fidelity: Fidelity, reduce: Reducer) -> tuple[list[Sample], Fidelity]:
    """The reducer's samples, numbered and weighed anew, and the record as it is with them. Raises ReducerFailed."""
    kept = _kept(samples, reduce)
    _check(samples, kept, fidelity)
    trained = sum(sample.trained for sample in kept)
    numbered = [
        msgspec.structs.replace(sample, sample_index=index, weight=sample.trained / trained if trained else 0.0)
        for index, sample in enumerate(kept)
    ]
    places = _places(numbered)
    before = _places(samples)
    turns = tuple(
        _recounted(turn, places.get(turn.turn_id, []), before.get(turn.turn_id, [])) for turn in fidelity.turns
    )
    return numbered, Fidelity(turns, totals(turns, len(numbered)))


def nothing(samples: Sequence[Sample]) -> list[Sample]:
    return []


def _kept(samples: Sequence[Sample], reduce: Reducer) -> list[Sample]:
    try:
        kept = list(reduce(samples))
    except Exception as error:
        raise ReducerFailed(f"the reducer raised {type(error).__name__}: {error}") from error
    for sample in kept:
        if not isinstance(sample, Sample):
            raise ReducerFailed(f"the reducer gave a {type(sample).__name__}; it must give samples")
    return kept


@dataclass
class _Held:
    """A draw, or the part of one that a sample accounts for. `free`: what of it may train and does not yet."""

    start: int
    ids: Ids
    free: npt.NDArray[np.bool_]


def _check(samples: Sequence[Sample], kept: Sequence[Sample], fidelity: Fidelity) -> None:
    held: dict[str, list[_Held]] = {turn.turn_id: [] for turn in fidelity.turns}
    for sample in samples:
        for turn in sample.turns:
            place = slice(turn.start, turn.end)
            held[turn.turn_id].append(_Held(turn.start, sample.tokens[place], sample.loss_mask[place] == 1))
    for sample in kept:
        for turn in sample.turns:
            if turn.turn_id not in held:
                raise ReducerFailed(
                    f"the reducer's samples name turn {turn.turn_id}, which there is not; turns are {', '.join(held)}"
                )
            _take(held[turn.turn_id], sample, turn)


def _take(held: Sequence[_Held], sample: Sample, turn: TurnSpan) -> None:
    """A sample cut short holds the beginning of a draw, and one without its head holds it at another place."""
    ids, trains = sample.tokens[turn.start : turn.end], sample.loss_mask[turn.start : turn.end] == 1
    same = [each for each in held if np.array_equal(each.ids[: len(ids)], ids)]
    if not same:
        raise ReducerFailed(
            f"the reducer's samples hold other tokens for turn {turn.turn_id} than a sample it was given; "
            "a turn that stays in one begins as it was drawn"
        )
    free = next((each for each in same if each.start == turn.start), same[0]).free[: len(ids)]
    again = int(np.count_nonzero(trains & ~free))
    if again:
        raise ReducerFailed(
            f"with the reducer's samples {again} tokens of turn {turn.turn_id} train that may not, or train already; "
            "it can take samples out, not have a token train again"
        )
    free &= ~trains


Place = tuple[int, int, int]
"""(sample, tokens of the turn in it, how many of them train)."""


def _places(samples: Sequence[Sample]) -> Mapping[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for index, sample in enumerate(samples):
        for turn in sample.turns:
            trained = int(np.count_nonzero(sample.loss_mask[turn.start : turn.end]))
            places.setdefault(turn.turn_id, []).append((index, turn.end - turn.start, trained))
    return places


def _recounted(turn: TurnRecord, places: Sequence[Place], before: Sequence[Place]) -> TurnRecord:
    trained = sum(place[2] for place in places)
    gone = turn.trained - trained
    untrained = dict(turn.untrained)
    if turn.reason == "forced":
        had, has = (sum(place[1] for place in found) for found in (before, places))
        if has > had:
            raise ReducerFailed(
                f"the reducer's samples hold {has} forced tokens of turn {turn.turn_id}, of {had} there were; "
                "it can take samples out, not hand a forced turn on twice"
            )
        missing = had - has
        untrained["forced"] = untrained.get("forced", 0) - missing
        gone += missing
    dropped: Mapping[Reason, int] = {"dropped_branch": untrained.get("dropped_branch", 0) + gone}
    counts = {reason: count for reason, count in {**untrained, **dropped}.items() if count}
    found = tuple(dict.fromkeys(place[0] for place in places))
    return msgspec.structs.replace(turn, trained=trained, untrained=counts, samples=found)
