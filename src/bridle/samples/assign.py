"""Who accounts for what: a builder's routes cut to size, each draw claimed once, and every sampled token counted.

A draw lies at the same place in every row that holds it, so what a cut leaves of it is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from bridle.errors import ConfigError, LogCorrupt
from bridle.samples.base import Dropped, Route, kept
from bridle.samples.fidelity import Account
from bridle.samples.sample import Reason
from bridle.sessions.tree import ROOT, Tree, Turn

OverLength = Literal["cut", "cut_turn", "drop", "context"]
"""cut: the row ends at the limit, within a draw if need be. cut_turn: it ends with the last draw that fits. drop: there
is no such row. context: it stays whole, and nothing behind the limit trains."""


class Bounds(msgspec.Struct, frozen=True):
    """`tokens` of a row and `samples` of a rollout at most, None any number. Of too many samples those stay in which
    most tokens train, the earlier of equal ones."""

    tokens: int | None = None
    over_length: OverLength = "cut"
    samples: int | None = None


class Claim(msgspec.Struct, frozen=True):
    """A sampled node in the branch that accounts for it. `start`: its first sampled position there. Of its `sampled`
    ids the first `kept` stand in the row and the first `usable` of them may train; the first is number `offset` of the
    draw. `reason`: why none trains. `lost`: why the others do not stand in the row."""

    node: int
    turn: Turn
    offset: int
    start: int
    sampled: int
    kept: int
    usable: int
    reason: Reason | None
    lost: Reason = "over_length"

    @property
    def trained(self) -> int:
        return self.usable if self.reason is None else 0

    @property
    def worth(self) -> int:
        """Forced tokens count: a scripted run must come out as it would with a model that trains."""
        return self.kept if self.reason == "forced" else self.trained

    def count(self, account: Account) -> None:
        account.count(self.reason or "over_length", self.kept - self.trained)
        account.count(self.lost, self.sampled - self.kept)


class Branch(msgspec.Struct, frozen=True):
    """`length`: tokens after the cut. `claims`: the sampled nodes assigned here, in order."""

    route: Route
    path: list[int]
    length: int
    cut: bool
    claims: list[Claim]

    @property
    def trained(self) -> int:
        return sum(claim.trained for claim in self.claims)

    @property
    def worth(self) -> int:
        return sum(claim.worth for claim in self.claims)

    @property
    def emitted(self) -> bool:
        return self.worth > 0


def assign(tree: Tree, routes: Sequence[Route], dropped: Dropped, bounds: Bounds) -> list[Branch]:
    """Every kept draw in the first branch that holds it; last, what no branch accounts for. Not all are `emitted`."""
    for route in routes:
        _check(tree, route, dropped)
    fitting = [route for route in routes if _fits(tree, route, bounds)]
    branches = _claimed(tree, fitting, dropped, bounds)
    if bounds.samples is not None and sum(branch.emitted for branch in branches) > bounds.samples:
        branches = _claimed(tree, _worthiest(branches, bounds.samples), dropped, bounds)
    too_long = [route for route in routes if not _fits(tree, route, bounds)]
    return [*branches, _left_out(tree, branches, too_long, dropped)]


def _check(tree: Tree, route: Route, dropped: Dropped) -> None:
    for index in (route.leaf, *(route.draws or ())):
        if not 0 <= index < len(tree.nodes) or tree.nodes[index].origin != "sampled":
            draws = ", ".join(str(node.index) for node in tree.nodes if node.origin == "sampled")
            raise ConfigError(f"the builder names node {index}, which is no draw; draws are {draws or 'none'}")
    last = tree.turns[tree.nodes[route.leaf].turn]
    if last.seq in dropped:
        raise ConfigError(f"the builder ends a row at turn {last.id}, which makes none: {dropped[last.seq]}")
    if route.prompt is not None and route.prompt < 0:
        raise ConfigError(
            f"the builder gives a row a prompt of {route.prompt} tokens; None is all before its first draw"
        )


def _fits(tree: Tree, route: Route, bounds: Bounds) -> bool:
    return bounds.tokens is None or bounds.over_length != "drop" or tree.length(route.leaf) <= bounds.tokens


def _worthiest(branches: Sequence[Branch], most: int) -> list[Route]:
    """Draws they share with a branch that goes are claimed anew, by one that stays."""
    ranked = sorted(range(len(branches)), key=lambda number: -branches[number].worth)
    return [branches[number].route for number in sorted(ranked[:most])]


def _claimed(tree: Tree, routes: Sequence[Route], dropped: Dropped, bounds: Bounds) -> list[Branch]:
    claimed: set[int] = set()
    branches = []
    for route in routes:
        path = tree.path(route.leaf)
        draws = list(_draws(tree, route, path, dropped))
        length = _length(tree, route, draws, bounds)
        fresh = [index for index in draws if index not in claimed]
        claimed.update(fresh)
        _check_places(tree, fresh)
        claims = [_claim(tree, index, length, bounds) for index in fresh]
        branches.append(Branch(route, path, length, length < tree.length(route.leaf), claims))
    return branches


def _check_places(tree: Tree, draws: Sequence[int]) -> None:
    for one, other in pairwise(draws):
        if _start(tree, other) < tree.length(one):
            turn = tree.turns[tree.nodes[other].turn]
            raise ConfigError(
                f"the builder puts turn {turn.id} where another draw of the same row stands; "
                "one that was drawn behind the same ids needs a route of its own"
            )


def _start(tree: Tree, index: int) -> int:
    return tree.length(index) - tree.nodes[index].sampled


def _draws(tree: Tree, route: Route, path: Sequence[int], dropped: Dropped) -> Iterator[int]:
    """In the order they stand in the row, each once."""
    if route.draws is None:
        yield from (index for index in path if kept(tree, index, dropped))
        return
    here = set(path)
    for index in sorted(set(route.draws), key=lambda index: (_start(tree, index), index)):
        if index not in here and not np.array_equal(tree.ids(index), tree.ids(route.leaf)[: tree.length(index)]):
            turn = tree.turns[tree.nodes[index].turn]
            raise ConfigError(
                f"the builder puts turn {turn.id} into a row that does not begin with what it was drawn behind; "
                "a route may account for draws of its own path, or behind the same ids"
            )
        if kept(tree, index, dropped):
            yield index


def _length(tree: Tree, route: Route, draws: Sequence[int], bounds: Bounds) -> int:
    whole = tree.length(route.leaf)
    if bounds.tokens is None or whole <= bounds.tokens or bounds.over_length == "context":
        return whole
    if bounds.over_length == "cut":
        return bounds.tokens
    ends = ((tree.length(index), tree.length(tree.turns[tree.nodes[index].turn].end)) for index in draws)
    return max((end for end, turn_end in ends if turn_end <= bounds.tokens), default=0)


def _claim(tree: Tree, index: int, length: int, bounds: Bounds) -> Claim:
    node = tree.nodes[index]
    turn = tree.turns[node.turn]
    if turn.reason is None and (turn.logprobs is None or len(turn.logprobs) != len(turn.sampled)):
        given = "none" if turn.logprobs is None else len(turn.logprobs)
        raise LogCorrupt(f"turn {turn.id} may train, but has {given} logprobs for {len(turn.sampled)} sampled ids")
    start = node.length - node.sampled
    here = max(0, min(node.sampled, length - start))
    usable = here if bounds.tokens is None else max(0, min(here, bounds.tokens - start))
    return Claim(index, turn, node.offset, start, node.sampled, here, usable, turn.reason)


def _left_out(tree: Tree, branches: Sequence[Branch], too_long: Sequence[Route], dropped: Dropped) -> Branch:
    """What no row accounts for, as a branch without a row. Draws that would not train anyway keep their own reason."""
    claimed = {claim.node for branch in branches for claim in branch.claims}
    long = {index for route in too_long for index in _draws(tree, route, tree.path(route.leaf), dropped)}
    claims = []
    for node in tree.nodes:
        if node.index not in claimed and kept(tree, node.index, dropped):
            turn = tree.turns[node.turn]
            why: Reason = "over_length" if node.index in long else "dropped_branch"
            lost = why if turn.reason in (None, "forced") else turn.reason
            start = node.length - node.sampled
            claims.append(Claim(node.index, turn, node.offset, start, node.sampled, 0, 0, turn.reason, lost))
    return Branch(Route(ROOT), [], 0, False, claims)


def accounts(tree: Tree, dropped: Dropped, branches: Sequence[Branch]) -> list[Account]:
    """Of each turn, in order."""
    found = [Account(len(turn.sampled), dropped.get(turn.seq) or turn.reason) for turn in tree.turns]
    for seq, reason in dropped.items():
        found[seq].count(reason, found[seq].sampled)
    index = 0
    for branch in branches:
        for claim in branch.claims:
            account = found[claim.turn.seq]
            account.trained += claim.trained
            claim.count(account)
            if branch.emitted and claim.kept and index not in account.samples:
                account.samples.append(index)
        index += branch.emitted
    return found
