"""How a unit follows a sampled turn: what the template writes between them, and whose the stop id is."""

from __future__ import annotations

from collections.abc import Set

from bridle.tokens import Ids, concatenate


def after_turn(closing: Ids, stop_id: int | None, unit: Ids, ends: Set[int] = frozenset()) -> tuple[Ids, bool]:
    """-> the ids that come after the turn, and whether they leave it before its stop id.

    `closing`: what the template puts behind an assistant message, its closing token first. `stop_id`: the id that ended
    the draw, None when the draw holds none (cut by length, or the engine did not return it). `ends`: ids each of which
    closes a message: one stands for the other.
    """
    closed = concatenate([closing, unit])
    if stop_id is None:
        return closed, False
    if len(closed) and (closed[0] == stop_id or (len(closing) and {stop_id, int(closed[0])} <= ends)):
        # The stop id belongs to the turn and trains; where nothing closes a message it is the next one's opener (GLM).
        return closed[1:], False
    return closed, True
