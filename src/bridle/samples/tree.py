"""The builder `tree`: a row for every branch. What branches share stands in each of them and trains in the first."""

from __future__ import annotations

from bridle.samples.base import Dropped, Route, kept
from bridle.sessions.tree import ROOT, Tree


def tree(tree: Tree, dropped: Dropped) -> list[Route]:
    """A kept draw with no kept draw behind it ends a branch; depth first, children in the order they came."""
    order = depth_first(tree)
    continued: set[int] = set()
    found = []
    for index in reversed(order):
        alive = kept(tree, index, dropped)
        if alive and index not in continued:
            found.append(Route(index))
        if alive or index in continued:
            continued.add(tree.nodes[index].parent)
    found.reverse()
    return found


def depth_first(tree: Tree) -> list[int]:
    order = []
    stack = [*reversed(tree.children[ROOT])]
    while stack:
        index = stack.pop()
        order.append(index)
        stack.extend(reversed(tree.children[index]))
    return order
