"""A model directory, or a renderer that serves one, put to the test: every play, every property, one report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bridle.errors import TemplateError
from bridle.messages import ModelRequest
from bridle.rendering.base import Renderer
from bridle.verify.bodies import check_injection, check_roles
from bridle.verify.conversations import LONG, Play, Writer, call, few, long_chat, plays, said
from bridle.verify.histories import check_ends, check_prefix, check_splice, check_stops, tell_broken
from bridle.verify.player import DROPOUT, Played, Player
from bridle.verify.replies import CUTS, check_noise, check_replies, check_spelled_tags
from bridle.verify.report import Finding, Ledger, Report
from bridle.verify.stock import Stock
from bridle.verify.switches import check_switches

THOROUGH = 400
"""Vocabularies with more control strings are given them all at once, not one by one."""

FEW_CUTS = 8
NOISE = 300


class Recorded(NamedTuple):
    """The calls of one conversation of a real agent, and the session they were sent in."""

    name: str
    session: str
    requests: Sequence[ModelRequest]


def verify(
    renderer: Renderer,
    directory: Path,
    *,
    seed: int = 0,
    short: bool = False,
    recorded: Sequence[Recorded] = (),
) -> Report:
    """`directory`: where the renderer's model lies. `short`: what can be shown in a fraction of a second. `recorded`:
    what agents really sent, played too."""
    started = time.monotonic()
    stock = Stock.quick(directory, renderer.vocabulary) if short else Stock.load(directory)
    ledger = Ledger()
    # One that forks renders everything for every turn.
    long = LONG if renderer.facts.extendable else LONG // 5
    tried = few(seed) if short else plays(seed, long=long)
    _check_plays(renderer, stock, tried, seed, short, ledger)
    for one in recorded:
        for dropout in (DROPOUT, 0.0):
            played = Player(renderer, seed, dropout).replay(one.name, one.requests, one.session)
            _check_played(renderer, stock, played, dropout == 0.0, CUTS, ledger)
    check_stops(renderer, ledger)
    check_injection(renderer, ledger, not short and len(renderer.vocabulary.controls) <= THOROUGH)
    check_roles(renderer, ledger)
    check_switches(renderer, stock, ledger, seed)
    check_spelled_tags(renderer, ledger, 40 if short else THOROUGH)
    check_noise(renderer, ledger, seed, NOISE // 10 if short else NOISE)
    controls = renderer.vocabulary.controls
    return Report(
        model=str(directory),
        seed=seed,
        short=short,
        seconds=round(time.monotonic() - started, 3),
        vocabulary=renderer.vocabulary.size,
        encoder=renderer.vocabulary.encoder,
        facts=msgspec.to_builtins(renderer.facts),
        stop_ids={text: id for text, id in controls.items() if id in renderer.stop_ids},
        spelling=spelling(renderer),
        cost=cost(renderer, seed, 10 if short else long),
        rows=ledger.rows(),
    )


def _check_plays(renderer: Renderer, stock: Stock, tried: list[Play], seed: int, short: bool, ledger: Ledger) -> None:
    """Each play with draws in odd segmentations, and once more in the vocabulary's own, to be compared with stock."""
    odd, own = Player(renderer, seed), Player(renderer, seed, dropout=0.0)
    for play in tried:
        _check_played(renderer, stock, odd.play(play), False, FEW_CUTS if short else CUTS, ledger)
        _check_played(renderer, stock, own.play(play), True, 0, ledger)


def _check_played(renderer: Renderer, stock: Stock, played: Played, own: bool, cuts: int, ledger: Ledger) -> None:
    """`own`: its draws are as the vocabulary segments them, and comparable."""
    tell_broken(played, ledger)
    if own:
        check_splice(renderer, stock, played, ledger)
        return
    _tell_refused(played, ledger)
    check_prefix(renderer, played, ledger)
    check_ends(renderer, played, ledger)
    check_replies(renderer, played, ledger, cuts)


def _tell_refused(played: Played, ledger: Ledger) -> None:
    if played.left_out:
        ledger.skipped("parse", played.left_out)
    if played.refused:
        number = len(played.calls)
        what = f"a request is refused: {played.refused}"
        tell = ledger.fails if played.play.name == "chat" else ledger.differs
        tell("roles", Finding(played.play.name, number, "refused", what, declared=True))


def spelling(renderer: Renderer) -> str:
    """How the model calls a tool; "" where no form of calls is known."""
    try:
        pieces = renderer.write(said("", call("bash", command="ls")), False)
    except TemplateError:
        return ""
    return "".join(p if isinstance(p, str) else renderer.vocabulary.decode([p]) for p in pieces)


def cost(renderer: Renderer, seed: int, turns: int) -> dict[str, Any]:
    """What a long chat comes to: ids rendered by the turn, and ids that a trainer reads for each sampled one."""
    played = Player(renderer, seed).play(long_chat(Writer(seed, "cost"), turns))
    sampled = sum(len(call.drawn.ids) for call in played.calls)
    rendered = [len(call.ids) - played.session.facts[call.turn.seq].held for call in played.calls]
    branches = [
        call for call in played.calls if call.turn.seq + 1 == len(played.calls) or not renderer.facts.extendable
    ]
    read = sum(len(call.ids) + len(call.drawn.ids) for call in branches)
    return {
        "turns": len(played.calls),
        "samples": len(branches),
        "rendered_last_turn": rendered[-1] if rendered else 0,
        "read_per_sampled": round(read / sampled, 2) if sampled else 0.0,
    }
