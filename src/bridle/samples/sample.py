"""One training row: what a trainer may rely on, checked where it is made.

Knows nothing of trees or engines. Arrays are aligned over the full length; positions count from the row's first token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from bridle.extras import PerId
from bridle.messages import FinishReason, Kind
from bridle.tokens import Ids

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]

Reason = Literal[
    "undelivered",
    "kind",
    "constrained",
    "forced",
    "no_logprob",
    "bad_logprob",
    "over_length",
    "unused_draw",
    "duplicate_draw",
    "dropped_branch",
    "lost_in_crash",
    "unproved",
]
"""Why a sampled token does not train. Adding one is a change of the schema."""

REASONS: tuple[Reason, ...] = get_args(Reason)
Status = Literal["completed", "truncated", "aborted", "failed"]

POSITIVE_NOISE = 1e-4
"""Nats a logprob may lie above zero: float error of a softmax, as recorded sessions tolerate it."""


class TurnSpan(NamedTuple):
    """A draw this sample accounts for: it trains here, or is counted here under a reason. `end` is exclusive."""

    start: int
    end: int
    turn_id: str
    kind: Kind
    finish_reason: FinishReason


class Sample(msgspec.Struct, frozen=True, eq=False, kw_only=True, forbid_unknown_fields=True):
    """`tokens` int32[n], `loss_mask` uint8[n], `logprobs` float32[n] in nats (0.0 where the mask is 0).

    `version_spans`: (start, policy version), each holding up to the next. `weight`: trained tokens here / trained
    tokens of the rollout. `branch`: the tree node of its last draw. `prompt_len`: how many tokens are the prompt;
    no draw accounted for here begins in it. `untrained`: tokens of those draws that do not train, cut ones included.
    `ill_formed`: those of them with a call that is not as it should be. `routed_experts`, `kept_tokens` (a count for
    each token, 0 for context) and `reference_logprobs` float32[n]: what the engine said of these draws, None unless it
    said so of each that trains here. Raises ValueError.
    """

    tokens: Ids
    loss_mask: Mask
    logprobs: Floats
    version_spans: tuple[tuple[int, int], ...] = ()
    weight: float = 0.0
    reward: float | None = None
    reward_valid: bool = False
    cause: str | None = None
    advantage: float | None = None
    task_id: str = ""
    group_id: str = ""
    rollout_id: str = ""
    sample_index: int = 0
    branch: int = 0
    kinds: tuple[Kind, ...] = ()
    history: Literal["keep", "template"] = "keep"
    sampling: Mapping[str, Any] = {}
    status: Status = "completed"
    untrained: Mapping[Reason, int] = {}
    prompt_len: int = 0
    turns: tuple[TurnSpan, ...] = ()
    ill_formed: tuple[str, ...] = ()
    token_rewards: Floats | None = None
    routed_experts: PerId | None = None
    kept_tokens: PerId | None = None
    reference_logprobs: Floats | None = None
    metadata: Mapping[str, Any] = {}
    schema_version: Literal[1] = 1

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_turns(self)
        _check_versions(self)
        _check_numbers(self)

    @property
    def trained(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    def arrays(self) -> dict[str, Any]:
        """Every field by name: plain values, and arrays as they are."""
        fields = msgspec.structs.asdict(self) | {"turns": [tuple(turn) for turn in self.turns]}
        for name in ("routed_experts", "kept_tokens"):
            if fields[name] is not None:
                fields[name] = msgspec.structs.asdict(fields[name])
        return fields

    def to_dict(self) -> dict[str, Any]:
        """For JSON: arrays as lists of numbers that give the same float32 back."""
        fields = self.arrays()
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                fields[name] = value.tolist()
        for name in ("routed_experts", "kept_tokens"):
            if fields[name] is not None:
                fields[name] = {key: values.tolist() for key, values in fields[name].items()}
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Sample:
        """Raises msgspec.ValidationError that names the field."""
        return msgspec.convert(fields, cls, dec_hook=_to_array)


def _to_array(kind: Any, values: Any) -> Any:
    dtype = get_args(get_args(kind)[1])[0]
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and dtype is not np.float32):
        raise ValueError(f"expected a list of numbers for a {dtype.__name__} array")
    converted = array.astype(dtype)
    if dtype is not np.float32 and not np.array_equal(array, converted):
        raise ValueError(f"a number does not fit a {dtype.__name__} array")
    return converted


def _check_arrays(sample: Sample) -> None:
    n = len(sample.tokens)
    _expect(sample.tokens.dtype == np.int32 and sample.tokens.ndim == 1, "tokens must be int32[n]")
    _expect(sample.loss_mask.dtype == np.uint8, "loss_mask must be uint8[n]")
    _expect(sample.logprobs.dtype == np.float32, "logprobs must be float32[n]")
    _expect(
        sample.loss_mask.shape == sample.logprobs.shape == (n,),
        f"{n} tokens, {len(sample.loss_mask)} mask values and {len(sample.logprobs)} logprobs are not aligned",
    )
    _expect(n == 0 or sample.loss_mask.max() <= 1, "loss_mask holds values other than 0 and 1")
    trained = sample.loss_mask.astype(bool)
    _expect(not sample.logprobs[~trained].any(), "a token that does not train must have logprob 0.0")
    logprobs = sample.logprobs[trained]
    _expect(bool(np.isfinite(logprobs).all()), "a trained token has a logprob that is not finite")
    _expect(not (logprobs > POSITIVE_NOISE).any(), "a trained token has a positive logprob")
    for name, numbers in (
        ("token_rewards", sample.token_rewards),
        ("reference_logprobs", sample.reference_logprobs),
    ):
        if numbers is not None:
            _expect(numbers.dtype == np.float32, f"{name} must be float32[n]")
            _expect(numbers.shape == (n,), f"{name} are not aligned with {n} tokens")
    for name, lists in (("routed_experts", sample.routed_experts), ("kept_tokens", sample.kept_tokens)):
        _expect(lists is None or len(lists.counts) == n, f"{name} are not aligned with {n} tokens")


def _check_turns(sample: Sample) -> None:
    accounted = np.zeros(len(sample.tokens), bool)
    end = 0
    for turn in sample.turns:
        _expect(
            end <= turn.start < turn.end <= len(sample.tokens), f"turn {turn.turn_id}: spans must ascend inside the row"
        )
        accounted[turn.start : turn.end] = True
        end = turn.end
    _expect(not sample.loss_mask[~accounted].any(), "a token outside every listed turn has mask 1")
    _expect(
        {turn.turn_id for turn in sample.turns}.issuperset(sample.ill_formed),
        f"ill_formed names turns that are not listed: {', '.join(sample.ill_formed)}",
    )
    first = sample.turns[0].start if sample.turns else len(sample.tokens)
    _expect(
        0 <= sample.prompt_len <= first, f"prompt_len is {sample.prompt_len}; the first listed draw begins at {first}"
    )


def _check_versions(sample: Sample) -> None:
    starts = [start for start, _ in sample.version_spans]
    _expect(starts == sorted(set(starts)), "version_spans must ascend")
    _expect(not starts or 0 <= starts[0] <= starts[-1] < len(sample.tokens), "a version span begins outside the row")


def _check_numbers(sample: Sample) -> None:
    _expect(0.0 <= sample.weight <= 1.0, f"weight {sample.weight} is not in 0..1")
    _expect(sample.reward is not None or not sample.reward_valid, "a reward of None cannot be valid")
    for name, value in (("reward", sample.reward), ("advantage", sample.advantage)):
        _expect(value is None or math.isfinite(value), f"{name} {value} is not finite")
    for reason, count in sample.untrained.items():
        _expect(
            reason in REASONS and count > 0,
            f"untrained: {count} tokens under {reason!r}; known are {', '.join(REASONS)}",
        )


def _expect(holds: bool | np.bool_, message: str) -> None:
    if not holds:
        raise ValueError(message)
