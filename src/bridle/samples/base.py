"""The contract of a builder: which rows a tree gives, and which draws each of them accounts for.

A builder only says where rows lie. What of them trains, what is cut and how all of it is counted is `assign`'s, the
same for every builder: none can train a draw twice, or behind other ids, or lose one without a count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol as Contract

import msgspec

from bridle.samples.sample import Reason
from bridle.sessions.tree import Tree

Dropped = Mapping[int, Reason]
"""Turns that make no row, by number, and why."""


class Route(msgspec.Struct, frozen=True):
    """A row to be: the path from the root to `leaf`, the node of a kept draw.

    `draws`: the sampled nodes it accounts for, in any order, as far as no route before it does; None: every kept one of
    its path. One beside the path must have been drawn behind the very ids that stand in it, and no two may stand at the
    same place. `prompt`: tokens of the row that are its
    prompt; None: all before its first draw."""

    leaf: int
    draws: Sequence[int] | None = None
    prompt: int | None = None


class Builder(Contract):
    def __call__(self, tree: Tree, dropped: Dropped) -> list[Route]:
        """Routes end at kept draws. A kept draw that no route accounts for is counted as `dropped_branch`."""
        ...


def kept(tree: Tree, index: int, dropped: Dropped) -> bool:
    return tree.nodes[index].origin == "sampled" and tree.nodes[index].turn not in dropped
