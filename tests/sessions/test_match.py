from __future__ import annotations

import msgspec
import pytest

from bridle.errors import BadRequest
from bridle.messages import Message, Text, Thinking, ToolCall
from bridle.sessions.match import Settled, digest, match
from bridle.sessions.session import Session
from bridle.sessions.tree import ROOT
from bridle.testing.conversation import STOP, Played, call, request, result, said, system, user


def echoes(played: Played) -> list[tuple[int, str, bool]]:
    return [(echo.turn, echo.echo, echo.transplanted) for echo in played.session.facts[played.last.seq].echoes]


def opened(*calls: ToolCall, text: str = "look", thinking: str = "") -> tuple[Played, list[Message], Message]:
    played = Played()
    head = [system("s"), user("u")]
    answer = played.turn(request(*head), said(text, *calls, thinking=thinking))
    return played, head, answer


def test_a_history_that_extends_the_last_turn_splices_its_sampled_ids() -> None:
    played, head, answer = opened(call())
    before = played.prompt()
    played.start(request(*head, answer, result(answer.calls[0].id)))
    assert played.prompt()[: len(before) + 3] == [*before, 5, 6, STOP]
    assert echoes(played) == [(0, "exact", False)]


def rewritten(message: Message, **fields: object) -> Message:
    """The echo with its (only) call changed."""
    parts = [msgspec.structs.replace(p, **fields) if isinstance(p, ToolCall) else p for p in message.parts]
    return Message("assistant", tuple(parts))


@pytest.mark.parametrize(
    ("expected", "edit"),
    [
        ("exact", lambda m: m),
        ("form", lambda m: msgspec.structs.replace(m, form="list")),
        ("whitespace", lambda m: Message("assistant", (Thinking("hm "), Text("  look\n"), *m.calls))),
        ("reasoning_dropped", lambda m: Message("assistant", tuple(p for p in m.parts if not isinstance(p, Thinking)))),
        ("reasoning_dropped", lambda m: Message("assistant", (Thinking(""), *m.parts[1:]))),
        ("args_rewritten", lambda m: rewritten(m, arguments='{"a": 5000, "b": false}')),
        ("renamed_invalid", lambda m: rewritten(m, name="invalid")),
    ],
)
def test_an_echo_that_still_is_the_draw_is_spliced_under_its_class(expected: str, edit) -> None:  # type: ignore[no-untyped-def]
    played, head, answer = opened(call('{"b": "x", "a": "5000"}'), thinking="hm")
    played.start(request(*head, edit(answer), result(answer.calls[0].id)))
    assert echoes(played) == [(0, expected, False)]
    assert played.session.tree.length(0) < played.session.facts[1].held
    assert [node.origin for node in played.session.tree.nodes] == ["prompt", "sampled", "prompt"]


@pytest.mark.parametrize(
    ("expected", "edit"),
    [
        ("text_edited", lambda m: Message("assistant", (Text("I looked"), *m.calls))),
        ("call_dropped", lambda m: Message("assistant", m.parts[:2])),
        ("call_added", lambda m: Message("assistant", (*m.parts, ToolCall("x1", "bash", "{}")))),
    ],
)
def test_an_edited_echo_forks_and_becomes_context(expected: str, edit) -> None:  # type: ignore[no-untyped-def]
    played, head, answer = opened(call(id="a"), call(id="b"))
    edited = edit(answer)
    played.start(request(*head, edited, *(result(c.id) for c in edited.calls)))
    assert echoes(played) == [(0, expected, False)]
    assert played.session.tree.nodes[2].origin == "context"
    assert played.session.tree.nodes[2].parent == 0
    assert STOP not in played.prompt()


def test_one_turn_echoed_as_two_messages_is_merged_then_spliced() -> None:
    played, head, answer = opened(call())
    split = [Message("assistant", answer.parts[:1]), Message("assistant", answer.parts[1:])]
    played.start(request(*head, *split, result(answer.calls[0].id)))
    assert echoes(played) == [(0, "split", False)]


def test_a_draw_under_other_ancestors_is_transplanted_with_the_same_ids_and_closed_by_what_follows() -> None:
    played, _, answer = opened(call())
    played.start(request(system("s"), user("summary"), answer, result(answer.calls[0].id)))
    assert echoes(played) == [(0, "exact", True)]
    node = next(node for node in played.session.tree.nodes if node.origin == "transplanted")
    assert node.ids.tolist() == [7, 5, 6]
    found = match(played.session.tree, request(system("s"), user("summary"), answer, result(answer.calls[0].id)))
    assert found.steps == (), "the transplanted path is held, so the same history again adds nothing"


def test_equal_texts_of_several_draws_take_the_last_delivered_one() -> None:
    played = Played()
    head = [system("s"), user("u")]
    played.turn(request(*head), said("same"))
    played.turn(request(*head), said("same"), ids=(5, 8, STOP))
    turn = played.start(request(*head))
    played.finish(turn, said("same"), ids=(5, 5, STOP), delivered=False)
    played.start(request(*head, said("same"), user("go on")))
    assert echoes(played) == [(1, "ambiguous", False)]


def test_an_identity_decides_between_equal_texts() -> None:
    played = Played()
    head = [system("s"), user("u")]
    first = played.turn(request(*head), said("same", thinking="hm"))
    played.turn(request(*head), said("same", thinking="hm"), ids=(5, 8, STOP))
    played.start(request(*head, first, user("go on")))
    assert echoes(played) == [(0, "exact", False)]


def test_a_foreign_assistant_message_is_context_and_recorded() -> None:
    played = Played()
    played.start(request(user("u"), said("an example"), user("now you")))
    assert echoes(played) == [(-1, "foreign", False)]


def test_results_are_put_in_the_order_of_their_calls() -> None:
    played, head, answer = opened(call(), call())
    first, second = (c.id for c in answer.calls)
    played.start(request(*head, answer, result(second, "2"), result(first, "1")))
    notes = [note.what for note in played.session.facts[1].notes]
    assert notes == ["reordered"]
    found = match(played.session.tree, request(*head, answer, result(first, "1"), result(second, "2")))
    assert found.steps == ()


def test_an_unanswered_call_gets_an_explicit_empty_result() -> None:
    played, head, answer = opened(call(), call())
    found = match(played.session.tree, request(*head, answer, result(answer.calls[1].id), user("stop")))
    assert [message.text for message in found.steps[0].messages] == ["", "ok"]
    assert [note.what for note in found.notes] == ["inserted"]


def test_calls_nothing_answers_at_all_get_empty_results() -> None:
    played, head, answer = opened(call())
    found = match(played.session.tree, request(*head, answer, user("stop")))
    assert [step.unit for step in found.steps] == ["results", "message"]


def test_a_result_that_comes_after_a_note_is_not_inserted_twice() -> None:
    played, head, answer = opened(call(), call())
    first, second = (c.id for c in answer.calls)
    found = match(played.session.tree, request(*head, answer, result(first), user("note"), result(second)))
    assert [step.unit for step in found.steps] == ["results", "message", "results"]
    assert found.notes == ()


def test_a_result_for_an_unknown_call_is_refused_and_names_the_known_ones() -> None:
    played, head, answer = opened(call())
    with pytest.raises(BadRequest, match=rf"messages\[3\].*'nope'.*{answer.calls[0].id}"):
        match(played.session.tree, request(*head, answer, result("nope")))


def test_an_ephemeral_last_message_makes_branches_that_share_a_prefix() -> None:
    played = Played()
    head = [system("s"), user("u")]
    answer = played.turn(request(*head, user("note 1")), said("a", call()))
    tail = [answer, result(answer.calls[0].id)]
    played.start(request(*head, *tail, user("note 2")))
    tree = played.session.tree
    assert echoes(played) == [(0, "exact", True)]
    assert [tree.nodes[index].origin for index in tree.path(played.last.parent)] == [
        "prompt",
        "transplanted",
        "prompt",
        "prompt",
    ]


def test_other_tools_or_system_text_make_another_root() -> None:
    played, head, _ = opened()
    assert match(played.session.tree, request(*head, tools=())).base == ROOT
    assert match(played.session.tree, request(system("other"), head[1])).base == ROOT
    assert match(played.session.tree, request(*head)).base == 0


def test_a_branch_that_leaves_before_a_stop_id_is_found_again() -> None:
    played, head, answer = opened(call())
    more = request(*head, answer, result(answer.calls[0].id))
    played.start(more, before_stop=True)
    assert STOP not in played.prompt()
    assert match(played.session.tree, more).steps == ()
    assert played.session.facts[1].held == len(played.prompt()) - 3


def test_a_split_draw_is_not_taken_for_another_that_is_its_first_piece() -> None:
    played, head, answer = opened(call(), text="same")
    played.turn(request(*head), said("same"), ids=(5, 8, STOP))
    split = [Message("assistant", answer.parts[:1]), Message("assistant", answer.parts[1:])]
    played.start(request(*head, *split, result(answer.calls[0].id)))
    assert echoes(played) == [(0, "split", False)]


def test_a_request_of_nothing_but_assistant_messages_costs_no_more_than_its_length() -> None:
    """Where every run of messages is tried as one draw this takes hours."""
    played, head, answer = opened(*(call() for _ in range(20)))
    answers = [said(f"not a draw {number}") for number in range(3000)]
    found = match(played.session.tree, request(*head, *answers))
    assert len(found.steps) == 3000
    assert len(answer.calls) == 20


def test_a_conversation_may_begin_with_an_assistant_message_and_its_calls() -> None:
    played = Played()
    first = said("ready", call(id="x1"))
    played.start(request(first, result("x1"), user("u")))
    assert echoes(played) == [(-1, "foreign", False)]
    assert match(played.session.tree, request(first, result("x1"), user("u"))).steps == ()


def without_ids(message: Message, name: str = "made up") -> Message:
    """The echo of a client that puts ids of its own in the place of those it was given."""
    calls = iter(range(len(message.parts)))
    parts = [
        msgspec.structs.replace(p, id=f"{name}{next(calls)}") if isinstance(p, ToolCall) else p for p in message.parts
    ]
    return Message("assistant", tuple(parts))


def test_calls_under_other_ids_are_the_draw_where_name_order_and_arguments_agree() -> None:
    played, head, answer = opened(call('{"a": 1.0}'), call('{"b":"\\u00e9"}', "other"))
    echoed = without_ids(answer)
    echoed = Message("assistant", (echoed.parts[0], call('{"a":1}', id="x0"), call('{"b": "é"}', "other", "x1")))
    played.start(request(*head, echoed, result("x1", "2"), result("x0", "1")))
    assert echoes(played) == [(0, "args_rewritten", False)]
    found = match(
        played.session.tree, request(*head, answer, *(result(c.id, t) for c, t in zip(answer.calls, "12", strict=True)))
    )
    assert found.steps == (), "results answer the calls as the draw named them, so both histories are one"


def test_two_calls_under_one_id_fork_because_nobody_knows_which_a_result_answers() -> None:
    played, head, answer = opened(call('{"a": 1}'), call('{"a": 2}'))
    echoed = Message("assistant", (answer.parts[0], call('{"a": 1}', id="x"), call('{"a": 2}', id="x")))
    played.start(request(*head, echoed, result("x", "1"), result("x", "2")))
    assert echoes(played) == [(0, "call_added", False)]


def test_calls_under_other_ids_in_another_order_fork_even_where_the_turn_is_proved() -> None:
    played, head, answer = opened(call('{"a": 1}'), call('{"a": 2}'), thinking="hm")
    parts = (*answer.parts[:2], call('{"a":2}', id="x"), call('{"a":1}', id="y"))
    played.start(request(*head, Message("assistant", parts), result("x", "2"), result("y", "1")))
    assert echoes(played) == [(0, "call_added", False)]


def test_requests_behind_equal_draws_of_different_turns_are_not_the_same_request() -> None:
    first, second = (Message("assistant", (Thinking("hm", name), Text("look"))) for name in ("siga", "sigb"))
    assert digest(request(user("u"), first, user("v"))) != digest(request(user("u"), second, user("v")))


def test_calls_under_other_ids_alone_are_another_form_of_the_draw() -> None:
    played, head, answer = opened(call())
    played.start(request(*head, without_ids(answer), result("made up0")))
    assert echoes(played) == [(0, "form", False)]
    assert [node.origin for node in played.session.tree.nodes] == ["prompt", "sampled", "prompt"]


@pytest.mark.parametrize(
    "other",
    [
        (call('{"a": 2}', id="x"),),
        (call('{"a": 1}', "other", "x"),),
        (call('{"a": 1}', id="x"), call(id="y")),
        (call('{"a": 1', id="x"),),
    ],
    ids=["arguments", "name", "one more", "unreadable"],
)
def test_calls_under_other_ids_that_say_something_else_fork(other: tuple[ToolCall, ...]) -> None:
    played, head, _ = opened(call('{"a": 1}'))
    played.start(request(*head, said("look", *other), *(result(c.id) for c in other)))
    assert echoes(played) == [(0, "call_added", False)]
    assert STOP not in played.prompt()


def test_a_signature_identifies_a_turn_whose_calls_came_back_rewritten_and_under_other_ids() -> None:
    played, _, answer = opened(call('{"b": "x", "a": "5000"}'), thinking="hm")
    parts = (Thinking("", answer.signatures[0]), Text("look"), call('{"a": 5000}', id="x0"))
    played.start(request(system("s"), user("summary"), Message("assistant", parts), result("x0")))
    assert echoes(played) == [(0, "args_rewritten", True)]
    assert [node.origin for node in played.session.tree.nodes][-2:] == ["transplanted", "prompt"]


def test_of_several_draws_with_equal_calls_under_other_ids_the_last_delivered_is_taken() -> None:
    played, head, answer = opened(call())
    played.turn(request(*head), said("look", call()), ids=(5, 8, STOP))
    played.start(request(*head, without_ids(answer), result("made up0")))
    assert echoes(played) == [(1, "ambiguous", False)]


def test_calls_that_came_back_in_another_order_are_answered_by_their_own_ids() -> None:
    played, head, answer = opened(call('{"a":1}'), call('{"a":2}'))
    first, second = answer.calls
    swapped = Message("assistant", (answer.parts[0], second, first))
    played.start(request(*head, swapped, result(second.id, "2"), result(first.id, "1")))
    found = match(played.session.tree, request(*head, answer, result(first.id, "1"), result(second.id, "2")))
    assert found.steps == ()


def settled(*dropped: int, before: int) -> Settled:
    return Settled(before, lambda turn: turn.seq in dropped)


def test_a_settled_draw_stands_for_its_turn_in_the_tree() -> None:
    played, head, answer = opened(thinking="hm")
    played.turn(request(*head), said("other", thinking="hm"))
    played.start(request(*head, answer, user("more")), settled=settled(0, before=3))
    nodes = played.session.tree.nodes
    assert [(node.origin, node.turn) for node in nodes[-2:]] == [("context", 0), ("prompt", -1)]
    assert [node.turn for node in Session.replay(played.records).tree.nodes] == [node.turn for node in nodes]  # type: ignore[arg-type]


def test_draws_behind_a_draw_that_need_not_be_settled_are_found_where_they_were_sampled() -> None:
    played, head, first = opened(call(), thinking="hm")
    history = [*head, first, result(first.calls[0].id)]
    second = played.turn(request(*history), said("", call()))
    history += [second, result(second.calls[0].id)]
    history.append(played.turn(request(*history), said("done")))
    played.start(request(*history, user("more")), settled=settled(0, before=len(history)))
    assert echoes(played) == [(1, "exact", True), (2, "exact", True)], "of the first the log told before"


def test_draws_behind_a_carried_draw_that_is_settled_now_are_found_under_its_new_ancestors() -> None:
    played, _, first = opened(call(), thinking="hm")
    history = [system("s"), user("summary"), first, result(first.calls[0].id)]
    history.append(played.turn(request(*history), said("done")))
    played.start(request(*history, user("more")), settled=settled(0, before=len(history)))
    assert echoes(played) == [(0, "exact", False), (1, "exact", True)]
