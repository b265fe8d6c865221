"""The record says of every turn how its prompt came to be and what became of its tokens, and it always balances."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from bridle.messages import Note
from bridle.samples.fidelity import Fidelity
from bridle.samples.linearize import document, linearize
from bridle.sessions.match import Echo
from bridle.sessions.session import TurnFacts
from bridle.sessions.tree import ROOT

FACTS = {
    1: TurnFacts(
        held=2,
        new=3,
        echoes=(Echo(0, "args_rewritten"), Echo(-1, "text_edited")),
        notes=(Note("reordered", "2 results"),),
    )
}


def two_turns(growth: Any) -> Fidelity:
    node = growth.draw(growth.say(ROOT, 1), 10)
    growth.draw(growth.say(node, 2, 3), 11, 12, kind="compaction", reason="forced", lead=(4,))
    return linearize(growth.tree, facts=FACTS).fidelity


def test_a_turns_record_has_what_the_session_noted(growth: Any) -> None:
    first, second = two_turns(growth).turns
    assert (first.prompt_tokens, first.held_tokens, first.new_tokens, first.echoes) == (1, None, None, ())
    assert (second.prompt_tokens, second.held_tokens, second.new_tokens) == (5, 2, 3)
    assert [echo.echo for echo in second.echoes] == ["args_rewritten", "text_edited"]
    assert [echo.echo for echo in second.forks] == ["text_edited"]
    assert second.notes == (Note("reordered", "2 results"),)
    assert (second.sampled, second.trained, second.reason, dict(second.untrained)) == (2, 0, "forced", {"forced": 2})


def test_totals_add_the_turns_up(growth: Any) -> None:
    totals = two_turns(growth).totals
    assert (totals.turns, totals.samples, totals.sampled, totals.trained, totals.forced) == (2, 1, 3, 1, 2)
    assert (dict(totals.echoes), totals.forks) == ({"args_rewritten": 1, "text_edited": 1}, 1)
    assert dict(totals.kinds) == {"main": 1, "compaction": 1}


def test_the_prompt_of_a_turn_is_measured_right_after_a_stop_id_was_split_off(growth: Any) -> None:
    node = growth.draw(growth.say(ROOT, 1), 10, 9)
    growth.draw(node, 11)
    growth.tree.split_stop(growth.tree.turns[0])
    assert [turn.prompt_tokens for turn in growth.build().fidelity.turns] == [1, 3]


def test_a_record_survives_json(growth: Any) -> None:
    fidelity = two_turns(growth)
    assert msgspec.json.decode(msgspec.json.encode(fidelity), type=Fidelity) == fidelity


def test_a_record_that_does_not_balance_cannot_be_read(growth: Any) -> None:
    fields = msgspec.to_builtins(two_turns(growth))
    fields["totals"]["trained"] += 1
    with pytest.raises(msgspec.ValidationError, match="session: 3 tokens sampled, but 2 trained"):
        msgspec.convert(fields, Fidelity)


def test_the_document_is_plain_json(growth: Any) -> None:
    growth.draw(growth.say(ROOT, 1), 10)
    written = orjson.loads(orjson.dumps(document(growth.build())))
    (sample,) = written["samples"]
    assert (sample["tokens"], sample["loss_mask"], sample["reward"]) == ([1, 10], [0, 1], None)
    assert written["fidelity"]["totals"]["trained"] == 1
