"""From a turn tree to samples: each sampled token trains once, behind the ids it was sampled behind, or is counted.

Drop, route, cut, and only then assign: a draw trains in the first row that holds it and is context in the others.
Nothing recurses; every step is linear in the nodes it passes or the tokens it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from bridle.errors import ConfigError
from bridle.extras import PerId
from bridle.registry import resolve
from bridle.samples import BUILDERS
from bridle.samples.assign import Bounds, Branch, Claim, OverLength, accounts, assign
from bridle.samples.base import Builder, Dropped, Route
from bridle.samples.credit import Graded, Rule, credited
from bridle.samples.drop import Kinds, dropped_turns
from bridle.samples.fidelity import Account, Fidelity, record
from bridle.samples.sample import Floats, Reason, Sample, Status, TurnSpan
from bridle.sessions.session import Session, TurnFacts
from bridle.sessions.tree import Tree, Turn
from bridle.tokens import EMPTY, concatenate


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """`kinds`: what becomes of the turns of each kind. `builder`: a name of `BUILDERS` or "my.module:function".
    `max_sample_tokens`: what is longer is treated by the rule `over_length`, None never. `max_samples`: of the rollout,
    those in which most trains. `unused_draws`: what to do with draws of one prompt the agent went on without. `grade`:
    None while the rollout is not graded; `credited` adds it later. The rest is carried into every sample."""

    kinds: Kinds = Kinds()
    builder: str = "tree"
    max_sample_tokens: int | None = None
    over_length: OverLength = "cut"
    max_samples: int | None = None
    unused_draws: Literal["train", "drop"] = "train"
    credit: Rule = "broadcast"
    grade: Graded | None = None
    task_id: str = ""
    group_id: str = ""
    rollout_id: str = ""
    history: Literal["keep", "template"] = "keep"
    sampling: Mapping[str, Any] = {}
    status: Status = "completed"
    metadata: Mapping[str, Any] = {}

    @classmethod
    def of(cls, session: Session) -> Options:
        """What a session itself says about its samples."""
        opened = session.options
        return cls(
            rollout_id=session.id,
            history=opened.history,
            sampling=msgspec.to_builtins(opened.sampling),
            metadata=opened.metadata,
        )

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.max_sample_tokens, self.over_length, self.max_samples)


DEFAULT = Options()


class Result(msgspec.Struct, frozen=True, eq=False):
    samples: tuple[Sample, ...]
    fidelity: Fidelity


def linearize(tree: Tree, options: Options = DEFAULT, facts: Mapping[int, TurnFacts] = MappingProxyType({})) -> Result:
    """-> the samples and the record of what became of every sampled token. `facts` are the session's, by turn number.

    Raises LogCorrupt for a turn that may train but lacks a logprob for each id, ConfigError for a builder that there is
    not, that fails, or whose routes are none of the tree's."""
    build: Builder = resolve("builder", BUILDERS, options.builder)
    dropped = dropped_turns(tree, options.kinds, options.unused_draws)
    branches = assign(tree, _routes(build, tree, dropped), dropped, options.bounds)
    emitted = [branch for branch in branches if branch.emitted]
    trained = sum(branch.trained for branch in emitted)
    samples = [_sample(tree, branch, index, trained, options) for index, branch in enumerate(emitted)]
    prompts = [_prompt_length(tree, turn) for turn in tree.turns]
    fidelity = record(tree.turns, prompts, accounts(tree, dropped, branches), facts, len(samples))
    if options.grade is not None:
        samples = credited(samples, fidelity, options.grade, options.credit)
    return Result(tuple(samples), fidelity)


def _routes(build: Builder, tree: Tree, dropped: Dropped) -> list[Route]:
    try:
        routes = list(build(tree, dropped))
    except Exception as error:
        raise ConfigError(f"the builder raised {type(error).__name__}: {error}") from error
    for route in routes:
        if not isinstance(route, Route):
            raise ConfigError(f"the builder gave a {type(route).__name__}; it must give routes")
    return routes


def document(result: Result) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "samples": [sample.to_dict() for sample in result.samples],
        "fidelity": msgspec.to_builtins(result.fidelity),
    }


def _prompt_length(tree: Tree, turn: Turn) -> int:
    if not turn.nodes:
        return tree.length(turn.parent) + len(turn.lead)
    # Not by `turn.parent`: a stop id split off later makes it a node short.
    first = tree.nodes[turn.nodes[0]]
    return first.length - first.sampled


def _sample(tree: Tree, branch: Branch, index: int, trained: int, options: Options) -> Sample:
    mask = np.zeros(branch.length, np.uint8)
    logprobs = np.zeros(branch.length, np.float32)
    for claim in branch.claims:
        if claim.trained and claim.turn.logprobs is not None:
            place = slice(claim.start, claim.start + claim.trained)
            mask[place] = 1
            logprobs[place] = claim.turn.logprobs[claim.offset : claim.offset + claim.trained]
    spans = _spans(branch.claims)
    first = spans[0].start
    return Sample(
        tokens=concatenate([tree.nodes[node].ids for node in branch.path])[: branch.length],
        loss_mask=mask,
        logprobs=logprobs,
        version_spans=_versions(branch.claims),
        weight=branch.trained / trained if trained else 0.0,
        task_id=options.task_id,
        group_id=options.group_id,
        rollout_id=options.rollout_id,
        sample_index=index,
        branch=branch.route.leaf,
        kinds=tuple(dict.fromkeys(span.kind for span in spans)),
        history=options.history,
        sampling=options.sampling,
        status=_status(tree, branch, options.status),
        untrained=_untrained(branch.claims),
        prompt_len=first if branch.route.prompt is None else min(first, branch.route.prompt),
        turns=spans,
        ill_formed=tuple(
            dict.fromkeys(claim.turn.id for claim in branch.claims if claim.kept and claim.turn.ill_formed)
        ),
        metadata=options.metadata,
        routed_experts=_per_id(branch, [claim.turn.extras.routed_experts for claim in branch.claims]),
        kept_tokens=_per_id(branch, [claim.turn.extras.kept_tokens for claim in branch.claims]),
        reference_logprobs=_references(branch),
    )


def _per_id(branch: Branch, given: Sequence[PerId | None]) -> PerId | None:
    """`given`: of the whole draw of each claim."""
    if not _said(branch, given):
        return None
    counts = np.zeros(branch.length, np.int32)
    values = [EMPTY]
    for claim, each in zip(branch.claims, given, strict=True):
        if each is not None:
            part = each.part(claim.offset, claim.offset + claim.kept)
            counts[claim.start : claim.start + claim.kept] = part.counts
            values.append(part.values)
    return PerId(counts, concatenate(values))


def _references(branch: Branch) -> Floats | None:
    references = [claim.turn.extras.reference_logprobs for claim in branch.claims]
    if not _said(branch, references):
        return None
    found = np.zeros(branch.length, np.float32)
    for claim, each in zip(branch.claims, references, strict=True):
        if each is not None:
            found[claim.start : claim.start + claim.kept] = each[claim.offset : claim.offset + claim.kept]
    return found


def _said(branch: Branch, given: Sequence[object | None]) -> bool:
    """Of every claim that trains: a trainer could not tell a gap in one from a number."""
    gaps = any(claim.trained and each is None for claim, each in zip(branch.claims, given, strict=True))
    return not gaps and any(each is not None for each in given)


def _spans(claims: Sequence[Claim]) -> tuple[TurnSpan, ...]:
    """One a draw, also where its stop id is a node of its own."""
    spans: list[TurnSpan] = []
    for claim in claims:
        turn = claim.turn
        start, end = claim.start, claim.start + claim.kept
        if spans and claim.kept and spans[-1].turn_id == turn.id and spans[-1].end == start:
            spans[-1] = spans[-1]._replace(end=end)
        elif claim.kept:
            spans.append(TurnSpan(start, end, turn.id, turn.kind, turn.finish_reason))
    return tuple(spans)


def _versions(claims: Sequence[Claim]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for claim in claims:
        # The version after the last one begins where the draw ends.
        for (first, version), (end, _) in pairwise([*claim.turn.versions, (len(claim.turn.sampled), 0)]):
            first = max(first, claim.offset)
            if first < min(end, claim.offset + claim.kept) and (not spans or spans[-1][1] != version):
                spans.append((claim.start + first - claim.offset, version))
    return tuple(spans)


def _untrained(claims: Sequence[Claim]) -> dict[Reason, int]:
    account = Account(0)
    for claim in claims:
        claim.count(account)
    return account.untrained


def _status(tree: Tree, branch: Branch, rollout: Status) -> Status:
    last = tree.turns[tree.nodes[branch.route.leaf].turn]
    if rollout == "completed" and (branch.cut or last.finish_reason == "length"):
        return "truncated"
    return rollout
