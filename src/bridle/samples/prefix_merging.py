"""The builder `prefix_merging`: chains of draws, each of whose prompts begins with all of the chain before it.

Ids alone decide, not the tree: a history that came back otherwise and gave the same ids all the same goes on in its
chain. A draw whose prompt begins with no chain's end begins a chain of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from bridle.samples.base import Dropped, Route
from bridle.samples.tree import depth_first
from bridle.sessions.tree import ROOT, Node, Tree, Turn


@dataclass
class Chain:
    """`end`: the node of its last draw."""

    first: Turn
    draws: list[int]
    end: int


def prefix_merging(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(chain.end, chain.draws) for chain in _chains(tree, dropped)]


def prefix_merging_first_user(tree: Tree, dropped: Dropped) -> list[Route]:
    """The prompt is what the conversation opens with (tools, leading system messages, the first message behind them);
    all behind that is response, what was not drawn of it masked. A chain whose first draw has more before it, or
    nothing, keeps all of that as its prompt."""
    return [Route(chain.end, chain.draws, _opening(tree, chain.first)) for chain in _chains(tree, dropped)]


def _opening(tree: Tree, first: Turn) -> int | None:
    root = tree.nodes[first.nodes[0]].parent
    alone = root != ROOT and tree.nodes[root].parent == ROOT and tree.nodes[root].origin == "prompt"
    return tree.length(root) if alone else None


def _chains(tree: Tree, dropped: Dropped) -> list[Chain]:
    """In the order their first draws came."""
    ends = _Ends(tree)
    chains: list[Chain] = []
    for turn in tree.turns:
        if turn.seq in dropped:
            continue
        chain = ends.take(turn)
        if chain is None:
            chain = Chain(turn, [], turn.end)
            chains.append(chain)
        chain.draws += turn.nodes
        chain.end = turn.end
        ends.add(chain)
    return chains


class _Ends:
    """Where chains end, by length and by a digest of all that stands before. Hashes every id of the tree once, and a
    node once more for each turn that looks for ends within it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.chains: dict[int, dict[bytes, list[Chain]]] = {}
        self.lengths: list[int] = []
        self.running: dict[int, Any] = {ROOT: blake2b(digest_size=16)}
        for index in depth_first(tree):
            node = tree.nodes[index]
            self.running[index] = self.running[node.parent].copy()
            self.running[index].update(node.ids.tobytes())

    def add(self, chain: Chain) -> None:
        length = self.tree.length(chain.end)
        if length not in self.chains:
            insort(self.lengths, length)
        here = self.chains.setdefault(length, {})
        here.setdefault(self.running[chain.end].digest(), []).append(chain)

    def take(self, turn: Turn) -> Chain | None:
        """The chain with the longest end that begins the turn's prompt, no longer among the ends. Of several equal ones
        the one that the turn hangs on, else the first."""
        path = self.tree.path(turn.nodes[0])
        prompt = _prompt_length(self.tree.nodes[path[-1]])
        found = next(filter(None, (self._longest(index, prompt) for index in reversed(path))), None)
        if found is None:
            return None
        length, digest = found
        equal = self.chains[length][digest]
        held = set(path)
        chain = next((chain for chain in equal if chain.end in held), equal[0])
        equal.remove(chain)
        if not equal:
            del self.chains[length][digest]
        if not self.chains[length]:
            del self.chains[length]
            del self.lengths[bisect_left(self.lengths, length)]
        return chain

    def _longest(self, index: int, prompt: int) -> tuple[int, bytes] | None:
        """The longest end that lies within this node and its `prompt` and begins it: length and digest."""
        node = self.tree.nodes[index]
        start = at = node.length - len(node.ids)
        first, last = bisect_right(self.lengths, start), bisect_right(self.lengths, min(node.length, prompt))
        if first == last:
            return None
        found = None
        running = self.running[node.parent].copy()
        for length in self.lengths[first:last]:
            running.update(node.ids[at - start : length - start].tobytes())
            at, digest = length, running.digest()
            if digest in self.chains[length]:
                found = length, digest
        return found


def _prompt_length(draw: Node) -> int:
    return draw.length - draw.sampled
