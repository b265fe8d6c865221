"""A sample refuses to be made when what a trainer relies on does not hold."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import orjson
import pytest

from bridle.samples.sample import Sample, TurnSpan
from bridle.tokens import ids_of

GOOD: dict[str, Any] = {
    "tokens": ids_of([5, 6, 7, 8]),
    "loss_mask": np.array([0, 1, 1, 0], np.uint8),
    "logprobs": np.array([0, -0.1, -2.3, 0], np.float32),
    "version_spans": ((1, 3), (2, 4)),
    "weight": 0.5,
    "reward": 1.0,
    "reward_valid": True,
    "untrained": {"over_length": 3},
    "prompt_len": 1,
    "turns": (TurnSpan(1, 3, "t0", "main", "stop"),),
    "kinds": ("main",),
    "sampling": {"temperature": 1.0},
    "token_rewards": np.array([0, 0, 0.1, 0], np.float32),
    "metadata": {"seed": 7},
}


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_good_sample_is_made() -> None:
    assert Sample(**GOOD).trained == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": np.array([5, 6, 7, 8])}, "int32"),
        ({"loss_mask": np.array([False, True, True, False])}, "uint8"),
        ({"logprobs": np.array([0, -0.1, -2.3, 0])}, "float32"),
        ({"loss_mask": np.array([0, 1, 1], np.uint8)}, "not aligned"),
        ({"logprobs": floats(0, -1, -1)}, "not aligned"),
        ({"loss_mask": np.array([0, 2, 1, 0], np.uint8)}, "other than 0 and 1"),
        ({"logprobs": floats(0, -1, -1, -0.5)}, "must have logprob 0.0"),
        ({"logprobs": floats(0, np.nan, -1, 0)}, "not finite"),
        ({"logprobs": floats(0, -np.inf, -1, 0)}, "not finite"),
        ({"logprobs": floats(0, 0.01, -1, 0)}, "positive"),
        (
            {"loss_mask": np.array([1, 1, 1, 0], np.uint8), "logprobs": floats(-1, -1, -1, 0)},
            "outside every listed turn",
        ),
        ({"turns": (TurnSpan(1, 5, "t0", "main", "stop"),)}, "t0"),
        (
            {"turns": (TurnSpan(1, 3, "t0", "main", "stop"), TurnSpan(2, 4, "t1", "main", "stop"))},
            "t1: spans must ascend",
        ),
        ({"prompt_len": 2}, "first listed draw begins at 1"),
        ({"version_spans": ((2, 3), (1, 4))}, "ascend"),
        ({"version_spans": ((4, 3),)}, "outside the row"),
        ({"weight": 1.5}, "weight"),
        ({"reward": None}, "None cannot be valid"),
        ({"reward": float("nan")}, "reward nan"),
        ({"advantage": float("inf")}, "advantage inf"),
        ({"untrained": {"because": 3}}, "because"),
        ({"untrained": {"forced": 0}}, "0 tokens"),
        ({"token_rewards": floats(0, 0)}, "token_rewards"),
    ],
)
def test_a_sample_that_breaks_a_promise_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sample(**{**GOOD, **changed})


def test_float_noise_above_zero_is_no_positive_logprob() -> None:
    assert Sample(**{**GOOD, "logprobs": floats(0, 1e-6, -1, 0)}).trained == 2


def test_a_sample_survives_json_bit_by_bit() -> None:
    sample = Sample(**GOOD)
    again = Sample.from_dict(orjson.loads(orjson.dumps(sample.to_dict())))
    assert again.to_dict() == sample.to_dict()
    for name in ("tokens", "loss_mask", "logprobs", "token_rewards"):
        assert again.arrays()[name].dtype == sample.arrays()[name].dtype
        assert again.arrays()[name].tobytes() == sample.arrays()[name].tobytes()
    assert again.turns[0].turn_id == "t0"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": [5, 6, 7, 2**31]}, "tokens"),
        ({"tokens": [5, 6, 7, 1.5]}, "tokens"),
        ({"loss_mask": [0, 1, 1, 256]}, "loss_mask"),
        ({"tokens": "5678"}, "tokens"),
        ({"schema_version": 2}, "schema_version"),
        ({"extra": 1}, "extra"),
        ({"prompt_len": 2}, "first listed draw"),
    ],
)
def test_json_that_is_no_sample_is_refused_by_field(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        Sample.from_dict({**Sample(**GOOD).to_dict(), **changed})
