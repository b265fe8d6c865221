"""From a turn tree to samples: each sampled token trains once, behind the ids it was sampled behind, or is counted.

A branch ends at a draw with no kept draw behind it. Drop, cut, and only then assign: a draw trains in the first branch
that holds it, in the order the tree grew, and is context in the others. Nothing recurses; every step is linear in the
nodes it passes or the tokens it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from bridle.errors import LogCorrupt
from bridle.messages import Kind
from bridle.samples.credit import Graded, Rule, credited
from bridle.samples.fidelity import Account, Fidelity, record
from bridle.samples.sample import Reason, Sample, Status, TurnSpan
from bridle.sessions.session import Session, TurnFacts
from bridle.sessions.tree import ROOT, Tree, Turn
from bridle.tokens import concatenate


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """`train`: kinds whose turns train. `max_sample_tokens`: longer branches are cut there, None never. `unused_draws`:
    what to do with draws of one prompt the agent went on without. `grade`: None while the rollout is not
    graded; `credited` adds it later. The rest is carried into every sample."""

    train: tuple[Kind, ...] = ("main", "subagent", "compaction")
    max_sample_tokens: int | None = None
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


DEFAULT = Options()


class Result(msgspec.Struct, frozen=True, eq=False):
    samples: tuple[Sample, ...]
    fidelity: Fidelity


class Claim(msgspec.Struct, frozen=True):
    """A sampled node in the branch that accounts for it. `start`: its first sampled position there. Of its `sampled`
    ids the first `kept` lie inside the cut; the first is number `offset` of the draw. `reason`: why none trains."""

    turn: Turn
    offset: int
    start: int
    sampled: int
    kept: int
    reason: Reason | None

    @property
    def trained(self) -> int:
        return self.kept if self.reason is None else 0


class Branch(msgspec.Struct, frozen=True):
    """`length`: tokens after the cut. `claims`: the sampled nodes assigned here, in order."""

    leaf: int
    path: list[int]
    length: int
    cut: bool
    claims: list[Claim]

    @property
    def trained(self) -> int:
        return sum(claim.trained for claim in self.claims)

    @property
    def emitted(self) -> bool:
        """Forced tokens count: a scripted run must come out as it would with a model that trains."""
        return any(claim.kept and claim.reason in (None, "forced") for claim in self.claims)


def linearize(tree: Tree, options: Options = DEFAULT, facts: Mapping[int, TurnFacts] = MappingProxyType({})) -> Result:
    """-> the samples and the record of what became of every sampled token. `facts` are the session's, by turn number.

    Raises LogCorrupt for a turn that may train but lacks a logprob for each id."""
    dropped = dropped_turns(tree, options)
    branches = assign(tree, dropped, options.max_sample_tokens)
    emitted = [branch for branch in branches if branch.emitted]
    trained = sum(branch.trained for branch in emitted)
    samples = [_sample(tree, branch, index, trained, options) for index, branch in enumerate(emitted)]
    accounts = _accounts(tree, dropped, branches)
    prompts = [_prompt_length(tree, turn) for turn in tree.turns]
    fidelity = record(tree.turns, prompts, accounts, facts, len(samples))
    if options.grade is not None:
        samples = credited(samples, fidelity, options.grade, options.credit)
    return Result(tuple(samples), fidelity)


def document(result: Result) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "samples": [sample.to_dict() for sample in result.samples],
        "fidelity": msgspec.to_builtins(result.fidelity),
    }


def dropped_turns(tree: Tree, options: Options) -> dict[int, Reason]:
    """Turns that make no branch of their own, by number. Where another turn continues one, its ids stay as context."""
    unused = unused_draws(tree) if options.unused_draws == "drop" else set()
    reasons = {turn.seq: _why_dropped(turn, options.train, unused) for turn in tree.turns}
    return {seq: reason for seq, reason in reasons.items() if reason is not None}


def _why_dropped(turn: Turn, train: Sequence[Kind], unused: set[int]) -> Reason | None:
    if turn.status == "started" or turn.reason == "lost_in_crash":
        return "lost_in_crash"
    if turn.reason == "duplicate_draw":
        return "duplicate_draw"
    if turn.reason == "undelivered" or not turn.delivered:
        return "undelivered"
    if turn.kind not in train:
        return "kind"
    return "unused_draw" if turn.seq in unused else None


def unused_draws(tree: Tree) -> set[int]:
    """Of several delivered draws of one kind behind one prompt, those the agent sent no history with.

    Where it went on with none of them (the last turn, asked twice), the last one counts as used."""
    siblings: dict[tuple[int, bytes, Kind], list[int]] = {}
    for turn in tree.turns:
        if turn.nodes and turn.delivered:
            place = (tree.nodes[turn.nodes[0]].parent, turn.lead.tobytes(), turn.kind)
            siblings.setdefault(place, []).append(turn.seq)
    used = _continued(tree)
    unused: set[int] = set()
    for draws in siblings.values():
        unused.update(set(draws) - (used.intersection(draws) or {draws[-1]}))
    return unused


def _continued(tree: Tree) -> set[int]:
    continued = {node.turn for node in tree.nodes if node.origin == "transplanted"}
    for node in tree.nodes:
        if node.parent != ROOT and tree.nodes[node.parent].turn != node.turn:
            continued.add(tree.nodes[node.parent].turn)
    return continued


def assign(tree: Tree, dropped: Mapping[int, Reason], limit: int | None) -> list[Branch]:
    """Every kept draw's nodes, each claimed by the first branch that holds it. A node lies at the same place in all its
    branches, so what the cut leaves of it is the same in all of them."""
    claimed: set[int] = set()
    branches = []
    for leaf in leaves(tree, dropped):
        path = tree.path(leaf)
        total = tree.length(leaf)
        length = total if limit is None else min(total, limit)
        claims = []
        for index in path:
            if index not in claimed and _kept(tree, index, dropped):
                claimed.add(index)
                claims.append(_claim(tree, index, length))
        branches.append(Branch(leaf, path, length, length < total, claims))
    return branches


def leaves(tree: Tree, dropped: Mapping[int, Reason]) -> list[int]:
    """Kept draws without a kept draw behind them, depth first, children in the order they came."""
    order = []
    stack = [*reversed(tree.children[ROOT])]
    while stack:
        index = stack.pop()
        order.append(index)
        stack.extend(reversed(tree.children[index]))
    continued: set[int] = set()
    found = []
    for index in reversed(order):
        kept = _kept(tree, index, dropped)
        if kept and index not in continued:
            found.append(index)
        if kept or index in continued:
            continued.add(tree.nodes[index].parent)
    found.reverse()
    return found


def _kept(tree: Tree, index: int, dropped: Mapping[int, Reason]) -> bool:
    return tree.nodes[index].origin == "sampled" and tree.nodes[index].turn not in dropped


def _claim(tree: Tree, index: int, length: int) -> Claim:
    node = tree.nodes[index]
    turn = tree.turns[node.turn]
    if turn.reason is None and (turn.logprobs is None or len(turn.logprobs) != len(turn.sampled)):
        given = "none" if turn.logprobs is None else len(turn.logprobs)
        raise LogCorrupt(f"turn {turn.id} may train, but has {given} logprobs for {len(turn.sampled)} sampled ids")
    start = node.length - node.sampled
    return Claim(turn, node.offset, start, node.sampled, max(0, min(node.sampled, length - start)), turn.reason)


def _accounts(tree: Tree, dropped: Mapping[int, Reason], branches: Sequence[Branch]) -> list[Account]:
    accounts = [Account(len(turn.sampled), dropped.get(turn.seq) or turn.reason) for turn in tree.turns]
    for seq, reason in dropped.items():
        accounts[seq].count(reason, accounts[seq].sampled)
    index = 0
    for branch in branches:
        for claim in branch.claims:
            account = accounts[claim.turn.seq]
            account.trained += claim.trained
            account.count(claim.reason or "over_length", claim.kept - claim.trained)
            account.count("over_length", claim.sampled - claim.kept)
            if branch.emitted and claim.kept and index not in account.samples:
                account.samples.append(index)
        index += branch.emitted
    return accounts


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
            place = slice(claim.start, claim.start + claim.kept)
            mask[place] = 1
            logprobs[place] = claim.turn.logprobs[claim.offset : claim.offset + claim.kept]
    spans = _spans(branch.claims)
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
        branch=branch.leaf,
        kinds=tuple(dict.fromkeys(span.kind for span in spans)),
        history=options.history,
        sampling=options.sampling,
        status=_status(tree, branch, options.status),
        untrained=_untrained(branch.claims),
        prompt_len=spans[0].start,
        turns=spans,
        metadata=options.metadata,
    )


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
        account.count(claim.reason or "over_length", claim.kept - claim.trained)
        account.count("over_length", claim.sampled - claim.kept)
    return account.untrained


def _status(tree: Tree, branch: Branch, rollout: Status) -> Status:
    last = tree.turns[tree.nodes[branch.leaf].turn]
    if rollout == "completed" and (branch.cut or last.finish_reason == "length"):
        return "truncated"
    return rollout
