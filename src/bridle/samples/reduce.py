"""A user's reducer: what of a rollout's samples is handed on, and what that leaves of the accounts.

What it takes out is counted as `dropped_branch`, as if no row had ever been made of it. It can take out, reorder and
change samples, but not make a token train that did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from bridle.errors import ReducerFailed
from bridle.samples.fidelity import Fidelity, TurnRecord, totals
from bridle.samples.sample import Reason, Sample

Reducer = Callable[[Sequence[Sample]], Any]
"""The samples of one rollout -> those to hand on."""


def reduced(samples: Sequence[Sample], fidelity: Fidelity, reduce: Reducer) -> tuple[list[Sample], Fidelity]:
    """The reducer's samples, numbered and weighed anew, and the record as it is with them. Raises ReducerFailed."""
    kept = _kept(samples, reduce)
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
        missing = sum(place[1] for place in before) - sum(place[1] for place in places)
        untrained["forced"] = untrained.get("forced", 0) - missing
        gone += missing
    if gone < 0 or untrained.get("forced", 0) < 0:
        raise ReducerFailed(
            f"with the reducer's samples {trained} tokens of turn {turn.turn_id} train, of {turn.trained} that may; "
            "it can take samples out, not have a token train again"
        )
    dropped: Mapping[Reason, int] = {"dropped_branch": untrained.get("dropped_branch", 0) + gone}
    counts = {reason: count for reason, count in {**untrained, **dropped}.items() if count}
    found = tuple(dict.fromkeys(place[0] for place in places))
    return msgspec.structs.replace(turn, trained=trained, untrained=counts, samples=found)
