"""What an engine may say of each id it sampled, beside its logprob. Carried as it came; nothing here needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class PerId(msgspec.Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """Any number of ids for each of n sampled ones: `counts` int32[n] of `values` int32, in order."""

    counts: Whole
    values: Whole

    def __post_init__(self) -> None:
        if int(self.counts.sum()) != len(self.values):
            raise ValueError(f"{len(self.values)} values, but the counts add up to {int(self.counts.sum())}")

    def part(self, start: int, end: int) -> PerId:
        first, last = int(self.counts[:start].sum()), int(self.counts[:end].sum())
        return PerId(self.counts[start:end], self.values[first:last])


class Extras(msgspec.Struct, frozen=True, eq=False):
    """All of the same n sampled ids, None where the engine does not say.

    `routed_experts`: the experts an id's pass went through, layer after layer. `kept_tokens`: the ids it was
    drawn from, itself among them. `reference_logprobs`: float32[n], its logprob under a reference policy, in nats."""

    routed_experts: PerId | None = None
    kept_tokens: PerId | None = None
    reference_logprobs: Floats | None = None

    def fit(self, n: int) -> bool:
        lengths = [len(each.counts) for each in (self.routed_experts, self.kept_tokens) if each is not None]
        lengths += [] if self.reference_logprobs is None else [len(self.reference_logprobs)]
        return all(length == n for length in lengths)


NO_EXTRAS = Extras()


def joined(parts: Sequence[Extras]) -> Extras:
    """Of several stretches of ids, one behind the other. What is not said of all of them is not said."""
    if not parts:
        return NO_EXTRAS
    references = [part.reference_logprobs for part in parts if part.reference_logprobs is not None]
    return Extras(
        _joined([part.routed_experts for part in parts]),
        _joined([part.kept_tokens for part in parts]),
        np.concatenate(references) if len(references) == len(parts) else None,
    )


def _joined(parts: Sequence[PerId | None]) -> PerId | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return PerId(np.concatenate([part.counts for part in known]), np.concatenate([part.values for part in known]))


Packed = dict[str, tuple[bytes, bytes]]
"""By name: counts (empty for one number an id) and values, little-endian."""


def pack(extras: Extras) -> Packed:
    packed: Packed = {}
    for name in ("routed_experts", "kept_tokens"):
        each: PerId | None = msgspec.structs.asdict(extras)[name]
        if each is not None:
            packed[name] = each.counts.astype("<i4").tobytes(), each.values.astype("<i4").tobytes()
    if extras.reference_logprobs is not None:
        packed["reference_logprobs"] = b"", extras.reference_logprobs.astype("<f4").tobytes()
    return packed


def unpack(packed: Mapping[str, tuple[bytes, bytes]]) -> Extras:
    if not packed:
        return NO_EXTRAS
    per_id = {
        name: PerId(np.frombuffer(counts, "<i4"), np.frombuffer(values, "<i4"))
        for name, (counts, values) in packed.items()
        if name != "reference_logprobs"
    }
    reference = packed.get("reference_logprobs")
    return Extras(**per_id, reference_logprobs=None if reference is None else np.frombuffer(reference[1], "<f4"))
