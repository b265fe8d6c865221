"""The builder `per_request`: a row for every kept draw, its whole prompt as context."""

from __future__ import annotations

from bridle.samples.base import Dropped, Route
from bridle.sessions.tree import Tree


def per_request(tree: Tree, dropped: Dropped) -> list[Route]:
    """In the order the draws came. Long sessions grow with the square of their turns: a prompt is written per draw."""
    return [Route(turn.end, turn.nodes) for turn in tree.turns if turn.seq not in dropped]
