"""Which lane each turn is drawn in: one for the main conversation, one for each sub-agent, one for each other kind, and
further ones where two things of a lane went on at once.

A chain is what goes on from one turn to the next; a turn that goes on where another already did begins a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bridle.dashboard.view import TurnView
from bridle.messages import KINDS, Kind


class Lane(NamedTuple):
    """`thread`: which sub-agent, or which sample where nothing else is known; "" for the one of its kind."""

    kind: Kind
    thread: str
    number: int


def laned(turns: Sequence[TurnView], *, by_sample: bool) -> tuple[tuple[TurnView, ...], tuple[str, ...]]:
    """-> the turns with their lanes, and the names of the lanes from the top."""
    chains = _chains(turns)
    members: dict[int, list[TurnView]] = {}
    for turn in turns:
        members.setdefault(chains[turn.seq], []).append(turn)
    lanes: dict[int, Lane] = {}
    taken: dict[tuple[Kind, str], list[float]] = {}
    for chain, those in members.items():
        kind, thread = those[0].kind, _thread(those[0], chain, by_sample)
        ends = taken.setdefault((kind, thread), [])
        number = next((number for number, end in enumerate(ends) if end <= those[0].start), len(ends))
        ends[number : number + 1] = [max(turn.end for turn in those)]
        lanes[chain] = Lane(kind, thread, number)
    # In order of kinds, then as they came: a dict keeps that, and sorting is stable.
    order = sorted(dict.fromkeys(lanes.values()), key=lambda lane: KINDS.index(lane.kind))
    placed = tuple(msgspec.structs.replace(turn, lane=order.index(lanes[chains[turn.seq]])) for turn in turns)
    return placed, _names(order)


def _chains(turns: Sequence[TurnView]) -> list[int]:
    """Of each turn, the number of the first turn of its chain. What goes on as another kind is a chain of its own."""
    chains: list[int] = []
    continued: set[int] = set()
    for turn in turns:
        goes_on = turn.behind >= 0 and turn.behind not in continued and turns[turn.behind].kind == turn.kind
        if goes_on:
            continued.add(turn.behind)
        chains.append(chains[turn.behind] if goes_on else turn.seq)
    return chains


def _thread(turn: TurnView, chain: int, by_sample: bool) -> str:
    if by_sample:
        return f"sample {turn.samples[0]}"
    if turn.kind == "subagent":
        return turn.thread.thread if turn.thread is not None else f"chain {chain}"
    return ""


def _names(lanes: Sequence[Lane]) -> tuple[str, ...]:
    threads: dict[Kind, list[str]] = {}
    names = []
    for lane in lanes:
        seen = threads.setdefault(lane.kind, [])
        if lane.thread not in seen:
            seen.append(lane.thread)
        place = f" {seen.index(lane.thread) + 1}" if lane.thread else ""
        beside = f" (beside {lane.number})" if lane.number else ""
        names.append(f"{lane.kind}{place}{beside}")
    return tuple(names)
