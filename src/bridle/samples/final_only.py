"""The builder `final_only`: one row, what the agent ended with."""

from __future__ import annotations

from bridle.samples.base import Dropped, Route
from bridle.sessions.tree import Tree


def final_only(tree: Tree, dropped: Dropped) -> list[Route]:
    """The branch to the last kept draw of kind main, or to the last kept one where none is main."""
    kept = [turn for turn in tree.turns if turn.seq not in dropped]
    last = [turn for turn in kept if turn.kind == "main"][-1:] or kept[-1:]
    return [Route(turn.end) for turn in last]
