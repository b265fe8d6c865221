"""Are the captured logprobs those of the weights? Every trained token is scored again in finished samples and compared.

Pure: the scoring is a function handed in. An audit that would not notice a wrong context proves nothing, so it also
changes single context tokens and demands that each change shows far above the error it observed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from bridle.samples.sample import Sample
from bridle.tokens import Ids

Floats = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

Scorer = Callable[[Ids, Positions, float], Floats]
"""(tokens, positions, temperature) -> float32: the logprob of tokens[p] behind tokens[:p], for each position."""

Verdict = Literal["ok", "mismatch", "insensitive", "nothing"]

TOLERANCE = 1e-3
"""Nats. float32 passes of different shape differ by some 1e-5; a wrong mask, token or temperature by 0.1 and more."""

SENSITIVITY = 100.0


class Delta(msgspec.Struct, frozen=True):
    """recomputed - captured over some tokens: |Δ| in nats, and the range of exp(Δ)."""

    max: float
    mean: float
    ratio_min: float
    ratio_max: float


class TurnAudit(msgspec.Struct, frozen=True):
    """One draw in one sample."""

    sample: int
    turn_id: str
    tokens: int
    delta: Delta


class Mutation(msgspec.Struct, frozen=True):
    """A context token changed on purpose. `effect`: the largest change of a trained token's logprob behind it."""

    sample: int
    change: Literal["swap", "drop", "transpose"]
    position: int
    effect: float


class Audit(msgspec.Struct, frozen=True):
    """`audited`, `not_audited`: trained tokens; the latter were sampled by weights that are not at hand.

    `sensitivity`: smallest effect of a mutation / largest error (at least the last bit of a logprob); 0 without any.
    `unproven`: samples in which no context token could be changed before some tokens audited."""

    verdict: Verdict
    audited: int
    not_audited: int
    tolerance: float
    delta: Delta
    sensitivity: float = 0.0
    turns: tuple[TurnAudit, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    unproven: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    def render(self) -> list[str]:
        """Lines for people, the verdict last."""
        return [*map(_turn_line, self.turns), *map(_mutation_line, self.mutations), _conclusion(self)]


class Pass(msgspec.Struct, frozen=True, eq=False):
    """The trained tokens of one sample that one version sampled, scored again."""

    number: int
    sample: Sample
    score: Callable[[Ids, Positions], Floats]
    positions: Positions
    recomputed: Floats

    @property
    def errors(self) -> Errors:
        return self.recomputed.astype(np.float64) - self.sample.logprobs[self.positions]


def audit(
    samples: Sequence[Sample], scorers: Mapping[int, Scorer], tolerance: float = TOLERANCE, seed: int = 0
) -> Audit:
    """`scorers`: by policy version, those whose weights are at hand. `seed` picks the context tokens to change."""
    passes = [found for number, sample in enumerate(samples) for found in _passes(number, sample, scorers)]
    trained = sum(sample.trained for sample in samples)
    if not passes:
        return Audit("nothing", 0, trained, tolerance, Delta(0.0, 0.0, 1.0, 1.0))
    rng = random.Random(seed)
    tried = [(scored.number, tuple(_mutations(scored, rng))) for scored in passes]
    mutations = tuple(mutation for _, found in tried for mutation in found)
    unproven = tuple(sorted({number for number, found in tried if not found}))
    errors = np.concatenate([scored.errors for scored in passes])
    delta = _delta(errors)
    sensitivity = _sensitivity(delta, mutations, passes)
    return Audit(
        verdict=_verdict(delta, tolerance, sensitivity, unproven),
        audited=len(errors),
        not_audited=trained - len(errors),
        tolerance=tolerance,
        delta=delta,
        sensitivity=sensitivity,
        turns=tuple(turn for scored in passes for turn in _turns(scored)),
        mutations=mutations,
        unproven=unproven,
    )


def _passes(number: int, sample: Sample, scorers: Mapping[int, Scorer]) -> Iterator[Pass]:
    trained = np.flatnonzero(sample.loss_mask)
    versions = _versions(sample, trained)
    temperature = float(sample.sampling.get("temperature", 1.0))
    for version, scorer in scorers.items():
        positions = trained[versions == version]
        if len(positions):
            score = _at(scorer, temperature)
            yield Pass(number, sample, score, positions, score(sample.tokens, positions))


def _at(scorer: Scorer, temperature: float) -> Callable[[Ids, Positions], Floats]:
    return lambda tokens, positions: scorer(tokens, positions, temperature)


def _versions(sample: Sample, positions: Positions) -> Positions:
    """-> the policy version of each position, -1 before the first span."""
    starts = np.array([start for start, _ in sample.version_spans], np.int64)
    versions = np.array([-1, *(version for _, version in sample.version_spans)], np.int64)
    return versions[np.searchsorted(starts, positions, side="right")]


def _mutations(scored: Pass, rng: random.Random) -> Iterator[Mutation]:
    """One context token of the sample, changed in three ways; nothing where no context token has one like it beside."""
    position = _changeable(scored, rng)
    if position is None:
        return
    tokens, behind = scored.sample.tokens, scored.positions > position + 1
    before, watched = scored.recomputed[behind], scored.positions[behind]

    def effect(changed: Ids, positions: Positions) -> float:
        return float(np.abs(scored.score(changed, positions) - before).max())

    swapped = tokens.copy()
    # An id known to be in the vocabulary, and surely another one.
    swapped[position] = tokens[position + 1]
    yield Mutation(scored.number, "swap", position, effect(swapped, watched))
    yield Mutation(scored.number, "drop", position, effect(np.delete(tokens, position), watched - 1))
    transposed = tokens.copy()
    transposed[[position, position + 1]] = tokens[[position + 1, position]]
    yield Mutation(scored.number, "transpose", position, effect(transposed, watched))


def _changeable(scored: Pass, rng: random.Random) -> int | None:
    """A context token before a scored one, whose right neighbour is context too and another token."""
    tokens, context = scored.sample.tokens, scored.sample.loss_mask == 0
    fits = context[:-1] & context[1:] & (tokens[:-1] != tokens[1:])
    found = np.flatnonzero(fits[: scored.positions[-1] - 1])
    return int(rng.choice(found)) if len(found) else None


def _turns(scored: Pass) -> Iterator[TurnAudit]:
    errors = scored.errors
    for turn in scored.sample.turns:
        inside = errors[(scored.positions >= turn.start) & (scored.positions < turn.end)]
        if len(inside):
            yield TurnAudit(scored.number, turn.turn_id, len(inside), _delta(inside))


def _delta(errors: Errors) -> Delta:
    magnitudes, ratios = np.abs(errors), np.exp(errors)
    return Delta(float(magnitudes.max()), float(magnitudes.mean()), float(ratios.min()), float(ratios.max()))


def _sensitivity(delta: Delta, mutations: Sequence[Mutation], passes: Sequence[Pass]) -> float:
    """An observed error of 0 is luck: the last bit of the largest logprob stands in for it."""
    largest = np.float32(max(float(np.abs(scored.recomputed).max()) for scored in passes))
    smallest = min((mutation.effect for mutation in mutations), default=0.0)
    return smallest / max(delta.max, float(np.spacing(largest)))


def _verdict(delta: Delta, tolerance: float, sensitivity: float, unproven: Sequence[int]) -> Verdict:
    if not delta.max <= tolerance:  # nan is a mismatch too
        return "mismatch"
    return "ok" if sensitivity >= SENSITIVITY and not unproven else "insensitive"


def _turn_line(turn: TurnAudit) -> str:
    delta = turn.delta
    return (
        f"sample {turn.sample}  {turn.turn_id}  {turn.tokens} tokens  max |Δ| {delta.max:.1e}  mean {delta.mean:.1e}  "
        f"ratio {delta.ratio_min:.6f}..{delta.ratio_max:.6f}"
    )


def _mutation_line(mutation: Mutation) -> str:
    return f"sample {mutation.sample}  {mutation.change} at {mutation.position} moves a logprob {mutation.effect:.1e}"


def _conclusion(audit: Audit) -> str:
    others = f", {audit.not_audited} not audited (sampled by other weights)" if audit.not_audited else ""
    if audit.verdict == "nothing":
        return f"audit: nothing to audit: no trained token of weights at hand{others}"
    found = (
        f"audit: {audit.verdict}: {audit.audited} trained tokens{others}, max |Δlogprob| {audit.delta.max:.1e} "
        f"(allowed {audit.tolerance:.0e}), mean {audit.delta.mean:.1e}, sensitivity {audit.sensitivity:.0f} x"
    )
    if audit.verdict == "insensitive" and audit.sensitivity < SENSITIVITY:
        found += f" of {SENSITIVITY:.0f} x needed: a wrong context would hardly show, this audit proves nothing"
    if audit.unproven:
        samples = len({turn.sample for turn in audit.turns})
        found += f"; {len(audit.unproven)} of {samples} samples not proven sensitive (the first is {audit.unproven[0]})"
    return found
