from __future__ import annotations

import pytest

from bridle.messages import Message, Switches, Text
from bridle.rendering.tail import after_turn
from bridle.rendering.template import TemplateRenderer
from bridle.tokens import EMPTY, ids_of

CLOSING, UNIT = ids_of([90, 10]), ids_of([80, 1, 2])


@pytest.mark.parametrize(
    ("closing", "stop_id", "expected"),
    [
        (CLOSING, 90, ([10, 80, 1, 2], False)),
        (CLOSING, None, ([90, 10, 80, 1, 2], False)),
        (CLOSING, 91, ([90, 10, 80, 1, 2], True)),
        (EMPTY, 80, ([1, 2], False)),
        (EMPTY, 81, ([80, 1, 2], True)),
        (EMPTY, None, ([80, 1, 2], False)),
    ],
    ids=[
        "the stop id closes the turn: it is not repeated",
        "cut by length: closed by context",
        "another stop id: the branch leaves before it",
        "the stop id opens the next message: it is not repeated",
        "the stop id opens another kind of message: the branch leaves before it",
        "nothing closes a turn and nothing stopped it",
    ],
)
def test_a_unit_follows_a_turn_by_its_stop_id(
    closing: list[int], stop_id: int | None, expected: tuple[list[int], bool]
) -> None:
    ids, before_stop = after_turn(ids_of(closing), stop_id, UNIT)
    assert (ids.tolist(), before_stop) == expected


def test_a_sampled_turn_and_its_tail_are_the_context_unit_of_the_same_message(tiny: TemplateRenderer) -> None:
    message = Message("assistant", (Text("fine"),))
    lead = tiny.generation(Switches()).ids.tolist()
    written = tiny.write(message, False)
    sampled = [id for piece in written for id in ([piece] if isinstance(piece, int) else tiny.vocabulary.encode(piece))]
    tail, _ = after_turn(tiny.closing, sampled[-1], EMPTY)
    assert [*lead, *sampled, *tail.tolist()] == tiny.unit([message], None, ()).tolist()
