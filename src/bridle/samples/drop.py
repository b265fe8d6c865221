"""Which turns make no row, and why: what was lost on the way, what its kind says, what the agent went on without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from bridle.messages import Kind
from bridle.samples.sample import Reason
from bridle.sessions.tree import ROOT, Tree, Turn

Policy = Literal["train", "context", "drop"]
"""train: the kind's draws train. context: they do not, and stand as context where a draw that trains goes on from one.
drop: nor is there a row with one in it, so what goes on from it does not train either."""


class Kinds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    main: Policy = "train"
    subagent: Policy = "train"
    compaction: Policy = "train"
    auxiliary: Policy = "context"

    def of(self, kind: Kind) -> Policy:
        policy: Policy = msgspec.structs.asdict(self)[kind]
        return policy


def dropped_turns(tree: Tree, kinds: Kinds, unused: Literal["train", "drop"]) -> dict[int, Reason]:
    """By number. Where another turn goes on from one, its ids stay as context."""
    policies = [kinds.of(turn.kind) for turn in tree.turns]
    gone = unused_draws(tree) if unused == "drop" else set()
    reasons = {turn.seq: _why_dropped(turn, policies[turn.seq], gone) for turn in tree.turns}
    dropped = {seq: reason for seq, reason in reasons.items() if reason is not None}
    for seq in _behind_dropped(tree, policies):
        dropped.setdefault(seq, "dropped_branch")
    return dropped


def _why_dropped(turn: Turn, policy: Policy, unused: set[int]) -> Reason | None:
    if turn.status == "started" or turn.reason == "lost_in_crash":
        return "lost_in_crash"
    if turn.reason == "duplicate_draw":
        return "duplicate_draw"
    if turn.reason == "undelivered" or not turn.delivered:
        return "undelivered"
    if policy != "train":
        return "kind"
    return "unused_draw" if turn.seq in unused else None


def _behind_dropped(tree: Tree, policies: Sequence[Policy]) -> set[int]:
    """Turns in whose prompt a draw of a kind to be dropped stands, carried under other ancestors or not."""
    if "drop" not in policies:
        return set()
    behind: set[int] = set()
    stack = [(index, False) for index in tree.children[ROOT]]
    while stack:
        index, barred = stack.pop()
        node = tree.nodes[index]
        if barred and node.origin == "sampled":
            behind.add(node.turn)
        barred = barred or (node.turn >= 0 and policies[node.turn] == "drop")
        stack.extend((child, barred) for child in tree.children[index])
    return behind


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
