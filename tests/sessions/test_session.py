from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from bridle.errors import LimitReached, LogCorrupt, SessionSealed
from bridle.messages import KindRule, ThreadFacts, ThreadRule
from bridle.sessions.codec import MAGIC, decode, encode
from bridle.sessions.match import match
from bridle.sessions.records import Distribution, Limits, Refused, SessionOptions
from bridle.sessions.session import STOP_NOT_RETURNED, Draw, Session
from bridle.testing.conversation import STOP, Played, call, request, result, said, user
from bridle.tokens import ids_of


def play(steps: list[int]) -> Played:
    """A session of `steps`: 0 goes on, 1 asks again, 2 begins anew, 3 goes on before the stop, 4 is not delivered."""
    played = Played()
    history = [user("u")]
    for number, step in enumerate(steps):
        if step == 2:
            history = [user(f"u{number}")]
        turn = played.start(request(*history), before_stop=step == 3 and len(history) > 1)
        played.finish(turn, said(f"t{number}", call()), (20 + number, 6, STOP), delivered=step != 4)
        assert turn.message is not None
        if step in (0, 3):
            history = [*history, turn.message, result(turn.message.calls[0].id, f"r{number}")]
    return played


def state(session: Session) -> object:
    tree = session.tree
    nodes = [(n.parent, n.origin, n.key, n.ids.tolist(), n.length, n.turn, n.lead, n.offset) for n in tree.nodes]
    turns = [(t.id, t.sampled.tolist(), t.logprobs.tolist(), t.delivered, t.reason, t.nodes) for t in tree.turns]  # type: ignore[union-attr]
    return nodes, turns, session.facts, tree.by_key, tree.turn_by_call, session.refused, session.sealed


@given(st.lists(st.sampled_from([0, 0, 1, 2, 3, 4]), min_size=1, max_size=12))
def test_a_log_replays_to_the_same_session(steps: list[int]) -> None:
    played = play(steps)
    played.session.seal("finished", 3.0)
    data = MAGIC + b"".join(map(encode, played.records))  # type: ignore[arg-type]
    assert state(Session.replay(decode(data))) == state(played.session)


@given(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=1, max_size=6), st.data())
def test_a_log_cut_anywhere_replays_to_what_was_whole(steps: list[int], data: st.DataObject) -> None:
    played = play(steps)
    frames = [encode(record) for record in played.records]  # type: ignore[arg-type]
    whole = MAGIC + b"".join(frames)
    cut = data.draw(st.integers(len(MAGIC) + len(frames[0]), len(whole)))
    records = list(decode(whole[:cut]))
    assert records == played.records[: len(records)]
    Session.replay(records)


@given(st.integers(0), st.integers(1, 255))
def test_a_changed_byte_inside_a_log_is_an_error(place: int, change: int) -> None:
    played = play([0, 0])
    data = bytearray(MAGIC + b"".join(map(encode, played.records)))  # type: ignore[arg-type]
    # Past the first frame header's length field: a changed length can look like a cut-off end.
    place = len(MAGIC) + 8 + place % (len(encode(played.records[0])) - 8)  # type: ignore[arg-type]
    data[place] ^= change
    with pytest.raises(LogCorrupt):
        list(decode(bytes(data)))


def test_a_record_is_written_before_it_changes_anything() -> None:
    def full(record: object) -> None:
        raise OSError("disk full")

    played = play([0])
    played.session.sink = full
    before = state(played.session)
    with pytest.raises(OSError, match="disk full"):
        played.start(request(user("u")))
    assert state(played.session) == before


def test_a_sealed_session_admits_no_turn() -> None:
    played = play([0])
    played.session.seal("finished", 3.0)
    with pytest.raises(SessionSealed, match="finished"):
        played.start(request(user("u")))


def test_nothing_is_recorded_behind_the_seal() -> None:
    played = play([0])
    turn = played.start(request(user("another")))
    played.session.seal("finished", 3.0)
    with pytest.raises(SessionSealed, match="finished"):
        played.finish(turn, said("late"))
    with pytest.raises(SessionSealed):
        played.session.deliver(turn, delivered=False)


def test_the_log_holds_how_a_draw_came_back_once() -> None:
    played = play([0] * 30)
    told = [echo for facts in played.session.facts.values() for echo in facts.echoes]
    assert [echo.turn for echo in told] == list(range(29))
    sizes = [len(encode(record)) for record in played.records[-20:]]  # type: ignore[arg-type]
    assert max(sizes) < 700


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(turns=2), "turns"),
        (Limits(sampled_tokens=6), "sampled_tokens"),
        (Limits(total_tokens=12), "total_tokens"),
    ],
)
def test_a_limit_refuses_the_next_turn(limits: Limits, name: str) -> None:
    played = Played(SessionOptions(limits=limits))
    for text in ("a", "b"):
        played.turn(request(user(text)), said("x"))
    assert played.session.refused is None
    for _ in range(2):
        with pytest.raises(LimitReached, match="has used its"):
            played.start(request(user("c")))
    assert played.session.refused == name
    assert [record for record in played.records if isinstance(record, Refused)] == [Refused(played.session.refused)]
    assert Session.replay(played.records).refused == played.session.refused  # type: ignore[arg-type]


def test_time_is_counted_from_the_opening() -> None:
    played = Played(SessionOptions(limits=Limits(wall_s=5.0)))
    played.session.admit(4.9)
    with pytest.raises(LimitReached, match="has used its 5 s"):
        played.session.admit(5.0)
    assert played.session.refused == "wall_s"


def test_a_prompt_too_long_is_made_good_by_the_next_turn_that_is_not_auxiliary() -> None:
    rules = (KindRule("auxiliary", "title", last_user_contains="title"),)
    played = Played(SessionOptions(kinds=rules))
    for text, refused in (("title", "context_tokens"), ("go on", None)):
        played.session.note_refusal("context_tokens")
        played.turn(request(user(text)), said("x"))
        assert played.session.refused == refused
        assert Session.replay(played.records).refused == refused  # type: ignore[arg-type]
    played.session.note_refusal("turns")
    played.session.note_refusal("context_tokens")
    assert played.session.refused == "turns", "what refuses every call is not made good"


def test_tokens_are_counted_as_turns_start_and_finish() -> None:
    played = play([0, 0, 1, 4])
    session, replayed = played.session, Session.replay(played.records)  # type: ignore[arg-type]
    prompts = [len(session.tree.prompt(turn)) for turn in session.tree.turns]
    assert (session.prompt_tokens, session.sampled_tokens) == (sum(prompts), 12)
    assert (replayed.prompt_tokens, replayed.sampled_tokens) == (sum(prompts), 12)


THREADS = (ThreadRule("thread-id", "parent-id"), ThreadRule("x-agent-id"))


def test_depth_follows_the_chain_of_threads_as_far_as_headers_tell_it() -> None:
    played = Played(SessionOptions(threads=THREADS))
    calls: list[tuple[dict[str, str], ThreadFacts | None]] = [
        ({}, None),
        ({"thread-id": "a"}, ThreadFacts("a", "", 0)),
        ({"thread-id": "b", "parent-id": "a"}, ThreadFacts("b", "a", 1)),
        ({"thread-id": "c", "parent-id": "b"}, ThreadFacts("c", "b", 2)),
        ({"thread-id": "d", "parent-id": "nobody"}, ThreadFacts("d", "nobody", None)),
        ({"x-agent-id": "e"}, ThreadFacts("e", "", None)),
        ({"thread-id": "b", "parent-id": "a"}, ThreadFacts("b", "a", 1)),
    ]
    for headers, thread in calls:
        played.start(msgspec.structs.replace(request(user("u")), headers=headers))
        assert played.session.facts[played.last.seq].thread == thread
    replayed = Session.replay(played.records)  # type: ignore[arg-type]
    assert replayed.facts == played.session.facts
    assert replayed.depths == {"a": 0, "b": 1, "c": 2, "d": None, "e": None}


@pytest.mark.parametrize(
    ("drawn_from", "reason"),
    [
        (Distribution(), None),
        (Distribution(0.5), None),
        (Distribution(logprobs="raw"), None),
        (Distribution(0.5, logprobs="raw"), "bad_logprob"),
        (Distribution(top_p=0.9), "constrained"),
        (Distribution(top_k=3), "constrained"),
        (Distribution(0.0), "constrained"),
    ],
)
def test_what_a_turn_was_drawn_from_decides_whether_it_trains(drawn_from: Distribution, reason: str | None) -> None:
    played = Played()
    asked = request(user("u"))
    found = match(played.session.tree, asked)
    rendered = [played.ids(step) for step in found.steps]
    turn = played.session.start(asked, b"", found, rendered, ids_of([7]), 1.0, distribution=drawn_from)
    played.finish(turn, said("x"))
    assert turn.reason == reason
    assert played.session.facts[turn.seq].distribution == drawn_from


def test_a_draw_ended_by_a_stop_text_is_not_missing_its_stop_id() -> None:
    for stop_sequence, notes in (("END", ()), ("", (STOP_NOT_RETURNED,))):
        played = Played()
        turn = played.start(request(user("u")))
        draw = Draw(ids_of([1, 2]), np.float32([-0.5, -1.0]), "stop", stop_sequence=stop_sequence)
        played.session.finish(turn, draw, said("x"), 1.0)
        assert played.session.facts[turn.seq].notes == notes
        assert Session.replay(played.records).facts == played.session.facts  # type: ignore[arg-type]


def test_a_turn_in_which_nothing_was_sampled_counts_only_while_it_runs() -> None:
    played = Played(SessionOptions(limits=Limits(turns=1)))
    failed = played.start(request(user("a")))
    with pytest.raises(LimitReached):
        played.start(request(user("b")))
    played.finish(failed, said(), ())
    played.turn(request(user("a")), said("x"))
    with pytest.raises(LimitReached):
        played.start(request(user("b")))


@pytest.mark.parametrize(
    ("draw", "reason", "kept"),
    [
        (Draw(ids_of([1, 2]), np.float32([-0.5, -1.0]), "stop"), None, True),
        (Draw(ids_of([1, 2]), None, "stop"), "no_logprob", False),
        (Draw(ids_of([1, 2]), np.float32([-0.5]), "stop"), "bad_logprob", False),
        (Draw(ids_of([1, 2]), np.float32([-0.5, np.nan]), "stop"), "bad_logprob", False),
        (Draw(ids_of([1, 2]), np.float32([-0.5, -9999.0]), "stop"), "bad_logprob", False),
        (Draw(ids_of([1, 2]), np.float32([-0.5, 0.7]), "stop"), "bad_logprob", False),
        (Draw(ids_of([1, 2]), None, "stop", forced=True), "forced", False),
        (Draw(ids_of([1, 2]), np.float32([-0.5, -1.0]), "stop", constrained=True), "constrained", True),
    ],
)
def test_a_draw_that_cannot_train_says_why(draw: Draw, reason: str | None, kept: bool) -> None:
    played = Played()
    turn = played.start(request(user("u")))
    played.session.finish(turn, draw, said("x"), 1.0)
    assert (turn.reason, turn.logprobs is not None) == (reason, kept)


def test_minted_identities_are_alphanumeric_and_unique() -> None:
    played = play([0, 1, 0, 2])
    messages = [turn.message for turn in played.session.tree.turns]
    ids = [c.id for message in messages if message for c in message.calls]
    assert len(set(ids)) == 4
    assert all(name.isalnum() for name in ids)


def test_kinds_come_from_the_rules_a_session_was_opened_with() -> None:
    rules = (KindRule("compaction", "sum-up", last_user_contains="summarise"),)
    played = Played(SessionOptions(kinds=rules))
    played.start(request(user("u")))
    assert (played.last.kind, played.last.rule) == ("main", "default")
    played.start(request(user("u"), user("please summarise")))
    assert (played.last.kind, played.last.rule) == ("compaction", "sum-up")
