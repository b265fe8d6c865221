"""The turn tree: every message of a session as a node that holds only the ids it adds.

A branch is a root-to-leaf path; concatenating its nodes' ids gives exactly what an engine consumed and sampled. Nothing
here knows how ids came to be; `match` decides where a request hangs, `session` replays records into the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bridle.extras import NO_EXTRAS, Extras
from bridle.messages import CallStatus, FinishReason, Kind, Message
from bridle.tokens import Ids, concatenate

ROOT = -1
"""The parent of every first node."""

Origin = Literal["prompt", "sampled", "context", "transplanted"]
"""prompt: system, user and tool messages. sampled: a draw. context: an assistant message that is not a draw of this
session as it stands (edited, foreign, the template's rendering). transplanted: a draw's ids under other ancestors."""

TurnReason = Literal[
    "forced", "constrained", "no_logprob", "bad_logprob", "undelivered", "lost_in_crash", "duplicate_draw"
]


@dataclass(slots=True)
class Node:
    """`ids`: int32, what this node adds. Of a sampled node the first `lead` ids are the generation prompt (context),
    the rest are sampled, the first of them being number `offset` of the turn's draw. `length`: ids from the root on.
    `turn`: the draw it is, carries, or stands for as the template writes it."""

    index: int
    parent: int
    origin: Origin
    key: bytes
    ids: Ids
    length: int
    turn: int = -1
    lead: int = 0
    offset: int = 0

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.lead if self.origin == "sampled" else 0


@dataclass(slots=True)
class Turn:
    """One model call. `sampled` int32[n] and `logprobs` float32[n] (None: the engine gave none) are what was drawn;
    `reason`: why all of it does not train (None: it may). `nodes`: its sampled nodes (two once split at the stop)."""

    seq: int
    id: str
    parent: int
    lead: Ids
    kind: Kind
    rule: str
    digest: bytes
    status: Literal["started", "finished"] = "started"
    sampled: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray | None = None
    finish_reason: FinishReason = "abort"
    versions: tuple[tuple[int, int], ...] = ()
    """(first sampled position, policy version), ascending."""
    message: Message | None = None
    delivered: bool = True
    reason: TurnReason | None = None
    stop_id: int | None = None
    """The sampled stop id, when the draw ended with one."""
    ill_formed: tuple[CallStatus, ...] = ()
    """Of each call in it that is not ok, in order."""
    extras: Extras = NO_EXTRAS
    """Of each of `sampled`."""
    nodes: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The node a continuation hangs on."""
        return self.nodes[-1]


class Tree:
    """Append-only but for `split_stop`. Cost of every operation: the ids it adds, or the nodes of one path."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.turns: list[Turn] = []
        self.children: dict[int, list[int]] = {ROOT: []}
        self.by_key: dict[tuple[int, bytes], int] = {}
        self.turn_by_call: dict[str, int] = {}
        self.turn_by_signature: dict[str, int] = {}
        self.said: dict[str, str] = {}
        """Call id -> the id that the model itself gave the call, of those that have one."""

    def length(self, node: int) -> int:
        return 0 if node == ROOT else self.nodes[node].length

    def add_context(self, parent: int, key: bytes, ids: Ids, origin: Origin = "prompt", turn: int = -1) -> Node:
        """A node nobody sampled here. A second one with the same parent and key replaces none: the first is found."""
        node = self._append(parent, origin, key, ids)
        node.turn = turn
        self.by_key.setdefault((parent, key), node.index)
        return node

    def start(self, turn: Turn) -> Turn:
        if turn.seq != len(self.turns):
            raise ValueError(f"turn {turn.seq} out of order: {len(self.turns)} turns are held")
        self.turns.append(turn)
        return turn

    def finish(self, turn: Turn) -> Node:
        """Hangs the draw into the tree and indexes the identities it minted."""
        turn.status = "finished"
        node = self._append(turn.parent, "sampled", b"", concatenate([turn.lead, turn.sampled]))
        node.turn, node.lead = turn.seq, len(turn.lead)
        turn.nodes = [node.index]
        if turn.message is not None:
            for call in turn.message.calls:
                self.turn_by_call[call.id] = turn.seq
                if call.said:
                    self.said[call.id] = call.said
            for signature in turn.message.signatures:
                self.turn_by_signature[signature] = turn.seq
        return node

    def split_stop(self, turn: Turn) -> int:
        """Makes the draw's stop id a node of its own, so that a branch can leave before it -> the node before it."""
        if len(turn.nodes) == 1 and turn.stop_id is not None:
            body = self.nodes[turn.nodes[0]]
            followers = self.children[body.index]
            self.children[body.index] = []
            stop = self._append(body.index, "sampled", b"", body.ids[-1:])
            stop.turn, stop.offset, stop.length = turn.seq, len(turn.sampled) - 1, body.length
            body.ids, body.length = body.ids[:-1], body.length - 1
            self.children[stop.index] = followers
            for child in followers:
                self.nodes[child].parent = stop.index
                key = self.nodes[child].key
                if self.by_key.pop((body.index, key), None) is not None:
                    self.by_key[(stop.index, key)] = child
            for held in self.turns:
                if held.parent == body.index:
                    held.parent = stop.index
            turn.nodes.append(stop.index)
        return turn.nodes[0]

    def child(self, parent: int, key: bytes) -> int | None:
        return self.by_key.get((parent, key))

    def draws(self, parent: int) -> list[Turn]:
        """Finished turns sampled right behind `parent`, oldest first."""
        return [
            self.turns[self.nodes[index].turn]
            for index in self.children[parent]
            if self.nodes[index].origin == "sampled" and self.nodes[index].offset == 0
        ]

    def path(self, node: int) -> list[int]:
        """Node indexes from the root to `node`."""
        found = []
        while node != ROOT:
            found.append(node)
            node = self.nodes[node].parent
        found.reverse()
        return found

    def ids(self, node: int) -> Ids:
        """int32[length(node)]: everything from the root on."""
        return concatenate([self.nodes[index].ids for index in self.path(node)])

    def prompt(self, turn: Turn) -> Ids:
        """Exactly the ids the engine consumes for `turn`."""
        return concatenate([self.ids(turn.parent), turn.lead])

    def _append(self, parent: int, origin: Origin, key: bytes, ids: Ids) -> Node:
        node = Node(len(self.nodes), parent, origin, key, ids, self.length(parent) + len(ids))
        self.nodes.append(node)
        self.children[parent].append(node.index)
        self.children[node.index] = []
        return node
