"""What a page shows of a rollout: its turns, the ids behind each, and what became of every sampled one.

The tree of a session holds each id once, and so does this: a row is the path from a node to the root. From samples
alone there is no tree; each sample is then a chain of its own, and what is not in it (undelivered turns, notes) is not
shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from bridle.messages import KINDS, CallStatus, FinishReason, Kind, Note, ThreadFacts
from bridle.samples.fidelity import Fidelity, TurnRecord
from bridle.samples.sample import Floats, Mask, Reason, Sample, TurnSpan
from bridle.sessions.match import Echo
from bridle.sessions.records import Distribution, Finished, Record, Started
from bridle.sessions.tree import ROOT, Origin, Tree, Turn
from bridle.tokens import Ids, concatenate


class NodeView(msgspec.Struct, frozen=True):
    """`tokens` ids added behind `parent`. Of a sampled node the first `lead` are context and the rest are those of the
    draw `turn` from number `offset` on."""

    parent: int
    origin: Origin
    tokens: int
    turn: int = -1
    lead: int = 0
    offset: int = 0


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """`node`: the last of its row. `behind`: the turn it goes on from, -1 for none. `start`, `end`: seconds from the
    first turn on, or its place in order where no times are known. `again`: the same was asked before. `said`: what the
    model said, as the agent got it."""

    seq: int
    id: str
    kind: Kind
    rule: str
    node: int
    behind: int
    start: float
    end: float
    prompt_tokens: int
    held_tokens: int | None
    new_tokens: int | None
    sampled: int
    trained: int
    untrained: Mapping[str, int]
    finish_reason: FinishReason
    echoes: tuple[Echo, ...] = ()
    forks: tuple[Echo, ...] = ()
    notes: tuple[Note, ...] = ()
    distribution: Distribution | None = None
    thread: ThreadFacts | None = None
    ill_formed: tuple[CallStatus, ...] = ()
    failed: str = ""
    delivered: bool = True
    again: bool = False
    samples: tuple[int, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()
    said: Any = None
    lane: int = 0

    @property
    def added(self) -> int:
        """Prompt tokens that this turn brought; all of them where nobody recorded it."""
        return self.prompt_tokens if self.new_tokens is None else self.new_tokens

    @property
    def transplanted(self) -> bool:
        return any(echo.transplanted for echo in self.echoes)

    @property
    def marks(self) -> tuple[str, ...]:
        """What is out of the ordinary: names of `MARKS`."""
        holds = {
            "fork": bool(self.forks),
            "transplanted": self.transplanted,
            "retry": self.again,
            "undelivered": not self.delivered,
            "abort": self.finish_reason == "abort" or bool(self.failed),
            "length": self.finish_reason == "length",
            "ill_formed": bool(self.ill_formed),
        }
        return tuple(name for name in MARKS if holds[name])


MARKS = {
    "fork": "fork: what came back is not what was sampled",
    "transplanted": "transplanted: sampled ids under a new history",
    "retry": "asked again",
    "undelivered": "undelivered",
    "abort": "aborted, or the engine failed",
    "length": "cut by length",
    "ill_formed": "a call that is not well formed",
}


class Tokens(msgspec.Struct, frozen=True, eq=False):
    """`ids` int32, of all nodes one after another. Of all draws, one after another: `logprobs` float32 (NaN: none) and
    `states` uint8: 0 trains, k does not, for `reasons[k - 1]`."""

    ids: Ids
    logprobs: Floats
    states: Mask
    reasons: tuple[str, ...]


class Known(msgspec.Struct, frozen=True):
    """What its folder says of a rollout."""

    id: str
    task: str = ""
    group: str = ""
    harness: str = ""
    harness_version: str = ""
    status: str = ""
    cause: str = ""
    detail: str = ""
    reward: float | None = None
    reward_valid: bool = False
    grade_cause: str = ""


class RolloutView(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """`timed`: turns carry times. `context`: tokens that stand in its samples beside the draws accounted for there.
    `vocabulary`: which of the page's spells its ids, -1 for none."""

    known: Known
    run: str
    source: str
    nodes: tuple[NodeView, ...]
    turns: tuple[TurnView, ...]
    tokens: Tokens
    timed: bool
    context: int
    samples: int
    lanes: tuple[str, ...] = ()
    advantage: float | None = None
    vocabulary: int = -1
    notice: str = ""

    @property
    def sampled(self) -> int:
        return sum(turn.sampled for turn in self.turns)

    @property
    def trained(self) -> int:
        return sum(turn.trained for turn in self.turns)

    @property
    def untrained(self) -> dict[str, int]:
        """By reason, those with most tokens first."""
        counts: dict[str, int] = {}
        for turn in self.turns:
            for reason, tokens in turn.untrained.items():
                counts[reason] = counts.get(reason, 0) + tokens
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    @property
    def kinds(self) -> list[Kind]:
        return [kind for kind in KINDS if any(turn.kind == kind for turn in self.turns)]


class Parts(msgspec.Struct, frozen=True, eq=False):
    """The half of a view that says what was sampled."""

    nodes: tuple[NodeView, ...]
    turns: tuple[TurnView, ...]
    tokens: Tokens
    timed: bool


def from_session(tree: Tree, fidelity: Fidelity, samples: Sequence[Sample], records: Sequence[Record]) -> Parts:
    """`samples` and `fidelity` as the rollout delivered them, so that what is shown is what a trainer got."""
    times = _times(records)
    trained = _trained(fidelity, samples)
    reasons = _reasons(turn.untrained for turn in fidelity.turns)
    asked: set[tuple[int, bytes]] = set()
    turns, logprobs, states = [], [], []
    for turn, record in zip(tree.turns, fidelity.turns, strict=True):
        again = (turn.parent, turn.digest) in asked
        asked.add((turn.parent, turn.digest))
        turns.append(_turn(tree, turn, record, times[turn.seq], again))
        logprobs.append(_logprobs(turn))
        states.append(_states(trained[record.turn_id], record, reasons))
    nodes = tuple(NodeView(n.parent, n.origin, len(n.ids), n.turn, n.lead, n.offset) for n in tree.nodes)
    ids = concatenate([node.ids for node in tree.nodes])
    return Parts(nodes, tuple(turns), _tokens(ids, logprobs, states, reasons), timed=True)


def _turn(tree: Tree, turn: Turn, record: TurnRecord, times: tuple[float, float], again: bool) -> TurnView:
    return TurnView(
        seq=turn.seq,
        id=turn.id,
        kind=turn.kind,
        rule=turn.rule,
        node=turn.end if turn.nodes else turn.parent,
        behind=_behind(tree, turn),
        start=times[0],
        end=times[1],
        prompt_tokens=record.prompt_tokens,
        held_tokens=record.held_tokens,
        new_tokens=record.new_tokens,
        sampled=record.sampled,
        trained=record.trained,
        untrained=msgspec.to_builtins(record.untrained),
        finish_reason=record.finish_reason,
        echoes=record.echoes,
        forks=record.forks,
        notes=record.notes,
        distribution=record.distribution,
        thread=record.thread,
        ill_formed=record.ill_formed,
        failed=record.failed,
        delivered=turn.delivered,
        again=again,
        samples=record.samples,
        versions=turn.versions,
        said=None if turn.message is None else msgspec.to_builtins(turn.message.parts),
    )


def _behind(tree: Tree, turn: Turn) -> int:
    node = turn.parent
    while node != ROOT:
        if tree.nodes[node].origin == "sampled":
            return tree.nodes[node].turn
        node = tree.nodes[node].parent
    return -1


def _times(records: Sequence[Record]) -> dict[int, tuple[float, float]]:
    """Of each turn, in seconds from the first one on. One whose end was never recorded has none of its own."""
    starts = {record.seq: record.at for record in records if isinstance(record, Started)}
    ends = {record.seq: record.at for record in records if isinstance(record, Finished)}
    zero = min(starts.values(), default=0.0)
    return {seq: (at - zero, max(at, ends.get(seq, at)) - zero) for seq, at in starts.items()}


def _trained(fidelity: Fidelity, samples: Sequence[Sample]) -> dict[str, Mask]:
    """Which tokens of each turn train, from the masks of the samples. A draw lies behind its prompt in every row."""
    masks = {turn.turn_id: np.zeros(turn.sampled, np.uint8) for turn in fidelity.turns}
    prompts = {turn.turn_id: turn.prompt_tokens for turn in fidelity.turns}
    for sample in samples:
        for span in sample.turns:
            first = span.start - prompts[span.turn_id]
            masks[span.turn_id][first : first + span.end - span.start] |= sample.loss_mask[span.start : span.end]
    return masks


def _reasons(counts: Iterable[Mapping[Reason, int]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_named(untrained) for untrained in counts if untrained))


def _named(untrained: Mapping[Reason, int]) -> str:
    """Of a turn with several reasons no record says which token has which."""
    return " or ".join(sorted(untrained))


def _states(trained: Mask, record: TurnRecord, reasons: Sequence[str]) -> Mask:
    if not record.untrained:
        return np.zeros(record.sampled, np.uint8)
    code = 1 + reasons.index(_named(record.untrained))
    return np.where(trained.astype(bool), 0, code).astype(np.uint8)


def _logprobs(turn: Turn) -> Floats:
    if turn.logprobs is None:
        return np.full(len(turn.sampled), np.nan, np.float32)
    return turn.logprobs


def _tokens(ids: Ids, logprobs: Sequence[Floats], states: Sequence[Mask], reasons: tuple[str, ...]) -> Tokens:
    none: Floats = np.zeros(0, np.float32)
    empty: Mask = np.zeros(0, np.uint8)
    return Tokens(ids, np.concatenate([none, *logprobs]), np.concatenate([empty, *states]), reasons)


def from_samples(samples: Sequence[Sample]) -> Parts:
    nodes: list[NodeView] = []
    turns: list[TurnView] = []
    ids, logprobs, states = [], [], []
    reasons = _reasons(sample.untrained for sample in samples)
    for number, sample in enumerate(samples):
        end, parent, behind = 0, ROOT, -1
        why = _named(sample.untrained)
        for span in sample.turns:
            trains = sample.loss_mask[span.start : span.end].astype(bool)
            nodes.append(NodeView(parent, "prompt", span.start - end))
            nodes.append(NodeView(len(nodes) - 1, "sampled", span.end - span.start, len(turns)))
            parent = len(nodes) - 1
            turns.append(_sampled(span, len(turns), parent, behind, end, int(trains.sum()), why, number))
            ids.append(sample.tokens[end : span.end])
            logprobs.append(np.where(trains, sample.logprobs[span.start : span.end], np.float32(np.nan)))
            states.append(np.where(trains, 0, 1 + reasons.index(why) if why else 0).astype(np.uint8))
            end, behind = span.end, len(turns) - 1
    return Parts(tuple(nodes), tuple(turns), _tokens(concatenate(ids), logprobs, states, reasons), timed=False)


def _sampled(
    span: TurnSpan, seq: int, node: int, behind: int, held: int, trained: int, why: str, number: int
) -> TurnView:
    """`number` of its sample, which is all that is known of where it comes from. The cut part of a draw is not here."""
    lost = span.end - span.start - trained
    return TurnView(
        seq=seq,
        id=span.turn_id,
        kind=span.kind,
        rule="",
        node=node,
        behind=behind,
        start=float(seq),
        end=seq + 1.0,
        prompt_tokens=span.start,
        held_tokens=held,
        new_tokens=span.start - held,
        sampled=span.end - span.start,
        trained=trained,
        untrained={why: lost} if lost else {},
        finish_reason=span.finish_reason,
        samples=(number,),
    )
