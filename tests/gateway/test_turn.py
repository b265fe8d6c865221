"""The same request again: an intended sibling, a retry of what its client never had, or a new draw."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.gateway import turn
from bridle.gateway.client import OpenedSession
from bridle.gateway.prompt import Prompt
from bridle.sessions.records import Finished, Limits, TrainingSampling
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground, shell

LONG = ScriptTurn(text="One word after the other, " * 20, delay_s=0.03)
SHORT = ScriptTurn(text="Short.")
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
TEXT = {"anthropic": b"text_delta", "openai": b'"content":"'}
END = {"anthropic": b"message_stop", "openai": b"[DONE]"}


def asked(session: OpenedSession, stream: bool = False, text: str = "Go.", **more: Any) -> dict[str, Any]:
    return {
        "model": session.model,
        "max_tokens": 2048,
        "stream": stream,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


async def whole(g: Ground, session: OpenedSession, protocol: str, stream: bool = False, **headers: str) -> bytes:
    status, body = await exchange(g.gateway.url, PATHS[protocol], session.key, asked(session, stream), **headers)
    assert status == 200
    return body


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_same_request_while_the_first_is_connected_is_a_sibling(grounds, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(LONG, samples=2) as g:
        session = await g.open()
        await asyncio.gather(*(whole(g, session, protocol, stream) for _ in range(2)))
        report = await g.checked()
    assert (report.generations, report.untrained, report.kept_percent) == (2, {}, 100.0)


async def test_a_client_that_leaves_for_good_has_its_draw_aborted_and_undelivered(
    grounds, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(LONG, abort_grace_s=0.05) as g:
        session = await g.open()
        async with raw(g.gateway.url, PATHS[protocol], session.key, asked(session, stream)) as http:
            await (http.until(TEXT[protocol]) if stream else until(lambda: g.live().running))
            await http.leave()
        await until(lambda: not g.live().running)
        again = asyncio.create_task(whole(g, session, protocol))
        await again
        report = await g.checked()
        first, second = g.journal()
    assert first.aborted
    assert not second.aborted
    assert list(report.untrained) in ([], ["undelivered"]), "what was not given out before the abort is nothing"
    assert [turn.reason for turn in g.turns] == ["undelivered", None]
    assert g.turns[0].failed == "", "the engine did nothing wrong"
    finished = [record for record in g.log() if isinstance(record, Finished)]
    assert [record.delivered for record in finished] == [False, True], "one record says both, so no crash falls between"
    assert report.kept_percent == 100.0


async def test_a_retry_within_the_grace_joins_the_draw(grounds, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(LONG, samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        async with raw(g.gateway.url, PATHS[protocol], session.key, asked(session, stream)) as http:
            await (http.until(TEXT[protocol]) if stream else until(lambda: g.live().running))
            await http.leave()
        await until(lambda: next(iter(g.live().running)).listeners == 0)
        body = await whole(g, session, protocol, stream)
        report = await g.checked()
    assert b"One word" in body
    assert (report.generations, report.untrained, report.kept_percent) == (1, {}, 100.0)


async def test_the_grace_begins_anew_when_a_retry_leaves_too(grounds) -> None:  # type: ignore[no-untyped-def]
    clock = asyncio.get_running_loop().time
    async with grounds(ScriptTurn(text=LONG.text, delay_s=0.3), abort_grace_s=0.4) as g:
        session = await g.open()
        async with raw(g.gateway.url, PATHS["openai"], session.key, asked(session)) as http:
            await until(lambda: g.live().running)
            await http.leave()
        (draw,) = g.live().running
        await until(lambda: draw.listeners == 0)
        await asyncio.sleep(0.2)
        with draw.listening():
            pass
        left = clock()
        await draw.ended.wait()
        stayed = clock() - left
        await g.finish()
        (entry,) = g.journal()
    assert entry.aborted
    assert stayed >= 0.4


async def test_a_retry_after_the_draw_completed_gets_the_recorded_turn(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", delay_s=0.05), samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        async with raw(g.gateway.url, PATHS[protocol], session.key, asked(session, tools=tools(protocol))) as http:
            await until(lambda: g.live().running)
            await http.leave()
        await until(lambda: not g.live().running)
        assert not g.live().session.tree.turns[0].delivered
        status, body = await exchange(
            g.gateway.url, PATHS[protocol], session.key, asked(session, tools=tools(protocol))
        )
        report = await g.checked()
    assert status == 200
    assert g.live().session.tree.turns[0].message.calls[0].id.encode() in body
    assert (report.generations, report.untrained) == (1, {})


def tools(protocol: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    if protocol == "anthropic":
        return [{"name": "bash", "input_schema": schema}]
    return [{"type": "function", "function": {"name": "bash", "parameters": schema}}]


async def test_of_two_siblings_the_one_whose_client_left_is_joined(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(LONG, samples=2, abort_grace_s=5.0) as g:
        session = await g.open()
        async with raw(g.gateway.url, PATHS["openai"], session.key, asked(session)) as leaver:
            await until(lambda: len(g.live().running) == 1)
            stayer = asyncio.create_task(whole(g, session, "openai"))
            await until(lambda: len(g.live().running) == 2)
            await leaver.leave()
            await until(lambda: any(draw.listeners == 0 for draw in g.live().running))
            await whole(g, session, "openai")
            await stayer
        report = await g.checked()
    assert (report.generations, report.untrained) == (2, {})


async def test_the_same_request_after_full_delivery_is_a_new_draw(grounds, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=2) as g:
        session = await g.open()
        await whole(g, session, protocol, stream)
        await whole(g, session, protocol, stream)
        await g.checked()
    assert len(g.turns) == 2


async def test_a_delivered_turn_is_served_again_to_a_request_that_says_it_is_a_retry(
    grounds, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        session = await g.open()
        first = await whole(g, session, protocol, stream)
        again = await whole(g, session, protocol, stream, x_stainless_retry_count="1")
        await g.checked()
    assert first == again
    assert len(g.turns) == 1


async def test_a_retry_count_of_another_request_serves_nothing_old(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=2) as g:
        session = await g.open()
        await whole(g, session, "openai")
        body = asked(session, chat_template_kwargs={"enable_thinking": False})
        await exchange(g.gateway.url, PATHS["openai"], session.key, body, x_stainless_retry_count="1")
        await g.checked()
    assert len(g.turns) == 2


async def test_a_stream_left_before_its_closing_events_is_undelivered(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    turn = ScriptTurn(text="Look. ", calls=shell("ls").calls * 12, delay_s=0.05)
    async with grounds(turn, abort_grace_s=5.0) as g:
        session = await g.open()
        body = asked(session, True, tools=tools(protocol))
        async with raw(g.gateway.url, PATHS[protocol], session.key, body) as http:
            seen = await http.until(b"Look.")
            assert END[protocol] not in seen
            await http.leave()
        await until(lambda: not g.live().running)
        (entry,) = g.journal()
        await g.finish()
    assert not entry.aborted, "it completed within the grace"
    assert [turn.reason for turn in g.turns] == ["undelivered"]


async def test_an_echo_proves_that_a_draw_was_delivered(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", delay_s=0.05), SHORT, samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        body = asked(session, tools=tools(protocol))
        async with raw(g.gateway.url, PATHS[protocol], session.key, body) as http:
            await until(lambda: g.live().running)
            await http.leave()
        await until(lambda: not g.live().running)
        (call,) = g.live().session.tree.turns[0].message.calls
        body["messages"] += echoed(protocol, call.id)
        status, _ = await exchange(g.gateway.url, PATHS[protocol], session.key, body)
        assert status == 200
        report = await g.checked()
    assert (report.generations, report.untrained, report.kept_percent) == (2, {}, 100.0)


def echoed(protocol: str, call_id: str) -> list[dict[str, Any]]:
    if protocol == "anthropic":
        used = {"type": "tool_use", "id": call_id, "name": "bash", "input": {"command": "ls"}}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}
        return [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    function = {"name": "bash", "arguments": '{"command":"ls"}'}
    call = {"id": call_id, "type": "function", "function": function}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call_id, "content": "ok"}]


@pytest.mark.parametrize(
    ("limits", "context_length"), [({"sampling": TrainingSampling(max_tokens=50)}, 9999), ({}, 400)]
)
async def test_a_length_above_the_trainers_or_the_contexts_is_a_wish_that_is_recorded(
    grounds, agents, protocol: str, limits: dict[str, Any], context_length: int
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, context_length=context_length) as g:
        agent = agents(protocol, await g.open(**limits))
        for max_tokens in (20, 900):
            agent.tell("Go.")
            await agent.ask(max_tokens=max_tokens)
        await g.checked()
    first, second = g.turns
    assert first.notes == ()
    assert [orjson.loads(note.detail) for note in second.notes] == [{"max_tokens": 900}]


async def test_siblings_that_do_not_fit_the_limit_are_refused_together(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        agent = agents("openai", await g.open(limits=Limits(turns=3)))
        agent.tell("Go.")
        await agent.ask_all(n=2)
        with pytest.raises(Exception, match="3 turns"):
            await agent.ask_all(n=2)
        await g.checked()
    assert len(g.turns) == 2


async def test_a_prompt_without_room_for_an_answer_says_so_in_the_protocols_words(
    grounds, agents, protocol: str
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, context_length=60) as g:
        agent = agents(protocol, await g.open())
        agent.tell("word " * 100)
        said = (
            r"prompt is too long: \d+ tokens > 60 maximum"
            if protocol == "anthropic"
            else "maximum context length is 60"
        )
        with pytest.raises(Exception, match=said):
            await agent.ask()
        await g.finish()
    assert g.turns == ()


async def test_an_overlong_prompt_is_counted_too(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    """Clients count to learn how much has to go."""
    async with grounds(SHORT, context_length=60) as g:
        agent = agents("anthropic", await g.open())
        agent.tell("word " * 100)
        assert (await agent.client.messages.count_tokens(**agent.request())).input_tokens > 60
        await g.finish()


async def test_a_count_is_the_length_of_the_prompt_then_consumed(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls", text="I look."), SHORT) as g:
        agent = agents("anthropic", await g.open())
        agent.tell("Go.")
        counts = []
        for _ in range(2):
            counts.append((await agent.client.messages.count_tokens(**agent.request())).input_tokens)
            answer = await agent.ask()
            assert answer.prompt_tokens == counts[-1]
            agent.remember(answer)
            if answer.calls:
                agent.results([(answer.calls[0][0], "ok")])
        await g.checked()
        assert [len(entry.prompt) for entry in g.journal()] == counts


async def test_a_turn_whose_prompt_is_not_as_long_as_was_rendered_has_failed_and_the_session_goes_on(  # type: ignore[no-untyped-def]
    grounds, monkeypatch
) -> None:
    rendered = turn.prepare

    def longer(*asked: Any) -> Prompt:
        prompt = rendered(*asked)
        return replace(prompt, length=prompt.length + 1)

    async with grounds(SHORT) as g:
        session = await g.open()
        with monkeypatch.context() as patched:
            patched.setattr(turn, "prepare", longer)
            status, body = await exchange(g.gateway.url, PATHS["openai"], session.key, asked(session))
        assert (status, b"and is held as" in body) == (500, True)
        await whole(g, session, "openai")
        report = await g.checked()
    failed, answered = g.turns
    assert "turn s-0: its prompt was rendered as" in failed.failed
    assert (failed.reason, answered.failed) == ("undelivered", "")
    assert (report.kept_percent, report.untrained) == (100.0, {})
