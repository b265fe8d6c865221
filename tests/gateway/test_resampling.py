"""The same request again, a test for each row of the table, by official clients with the habits of agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anthropic
import openai
import pytest

from bridle.engines.base import Chunk, GenerateRequest
from bridle.engines.calls import Call
from bridle.engines.script import ScriptTurn
from bridle.engines.scripted import ScriptedEngine
from bridle.gateway.generation import Generation
from bridle.sessions.records import Delivery
from bridle.testing.ground import shell

BROKEN = ScriptTurn(text="I look.", calls=(Call(tool="bash", arguments_text='{"command": "ls", "descr'),))
SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 8, delay_s=0.05)


async def test_hermes_asks_five_times_more_after_a_malformed_call_and_each_time_draws_anew(  # type: ignore[no-untyped-def]
    grounds, agents, stream: bool
) -> None:
    """It leaves the malformed answers out of its history and goes on from the one it takes."""
    async with grounds(BROKEN, samples=6) as g:
        agent = agents("openai", await g.open(), stream=stream)
        agent.tell("Go.")
        for _ in range(6):
            answer = await agent.ask()
        agent.remember(answer)
        agent.results([(name, "cannot be read") for name, _, _ in answer.calls])
        await agent.ask()
        report = await g.checked()
    assert (report.generations, report.untrained, report.kept_percent) == (7, {}, 100.0)
    assert len({turn.turn_id for turn in g.turns}) == 7
    assert [echo.turn for turn in g.turns for echo in turn.echoes] == [5], "the one that came back"


async def test_qwen_asks_once_more_with_twice_the_length_after_a_malformed_call(grounds, agents, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(BROKEN, samples=2) as g:
        agent = agents("openai", await g.open(), stream=stream)
        agent.tell("Go.")
        await agent.ask(max_tokens=32000)
        answer = await agent.ask(max_tokens=64000)
        agent.remember(answer)
        agent.results([(name, "cannot be read") for name, _, _ in answer.calls])
        await agent.ask(max_tokens=32000)
        report = await g.checked()
    assert (report.generations, report.untrained, report.kept_percent) == (3, {}, 100.0)


async def test_an_answer_the_agent_threw_away_trains_unless_that_is_not_wanted(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(BROKEN, reasons=("unused_draw",)) as g:
        agent = agents("openai", await g.open())
        agent.tell("Go.")
        await agent.ask()
        answer = await agent.ask()
        agent.remember(answer)
        agent.results([(name, "cannot be read") for name, _, _ in answer.calls])
        await agent.ask()
        report = await g.checked(unused_draws="drop")
    assert set(report.untrained) == {"unused_draw"}


async def test_an_equal_call_beside_one_that_is_answered_is_a_sibling(
    grounds, agents, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=2) as g:
        session = await g.open()
        pair = [agents(protocol, session, stream=stream) for _ in range(2)]
        for agent in pair:
            agent.tell("Go.")
        await asyncio.gather(*(agent.ask() for agent in pair))
        report = await g.checked()
    assert (report.generations, report.kept_percent) == (2, 100.0)


async def test_a_client_that_stops_reading_a_stream_and_asks_again_joins_its_draw(
    grounds, agents, protocol: str
) -> None:  # type: ignore[no-untyped-def]
    """As an agent does whose user pressed a key, or whose idle timer ended."""
    async with grounds(SLOW, samples=1, abort_grace_s=5.0) as g:
        agent = agents(protocol, await g.open(), stream=True)
        agent.tell("Go.")
        await read_a_little(agent, protocol)
        while any(draw.listeners for draw in g.live().running):
            await asyncio.sleep(0.01)
        assert (await agent.ask()).text == SLOW.text
        report = await g.checked()
    assert (report.generations, report.untrained) == (1, {})


async def test_a_client_that_asks_again_past_the_grace_gets_another_draw(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=1, abort_grace_s=0.02, reasons=("undelivered",)) as g:
        agent = agents(protocol, await g.open(), stream=True)
        agent.tell("Go.")
        await read_a_little(agent, protocol)
        while g.live().running:
            await asyncio.sleep(0.01)
        assert (await agent.ask()).text == SLOW.text
        report = await g.checked()
    assert [turn.reason for turn in g.turns] == ["undelivered", None]
    assert (report.generations, report.kept_percent) == (2, 100.0)


async def read_a_little(agent: Any, protocol: str) -> None:
    if protocol == "anthropic":
        events = await agent.client.messages.create(**{"max_tokens": 4096, **agent.request()}, stream=True)
    else:
        events = await agent.client.chat.completions.create(
            **agent.request(), stream=True, stream_options={"include_usage": True}
        )
    for _ in range(4):
        await anext(aiter(events))
    await events.close()


async def test_a_turn_whose_client_left_before_it_was_whole_is_served_once_it_is(
    grounds, agents, protocol: str
) -> None:  # type: ignore[no-untyped-def]
    turn = ScriptTurn(text="Look.", calls=shell("ls").calls, delay_s=0.1)
    async with grounds(turn, samples=1, abort_grace_s=5.0) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        hasty = agent.client.with_options(timeout=0.05, max_retries=0)
        patient, agent.client = agent.client, hasty
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await agent.ask()
        while g.live().running:
            await asyncio.sleep(0.01)
        agent.client = patient
        (turn_held,) = g.live().session.tree.turns
        answer = await agent.ask()
        assert [name for name, _, _ in answer.calls] == [call.id for call in turn_held.message.calls]
        report = await g.checked()
    assert [record.delivered for record in g.log() if isinstance(record, Delivery)][-1:] == [True]
    assert (report.generations, report.untrained) == (1, {})


async def test_a_delivered_answer_is_given_again_to_a_client_that_says_it_retries(  # type: ignore[no-untyped-def]
    grounds, agents, protocol: str, stream: bool
) -> None:
    """The answer was sent, and lost behind the gateway: only the SDK's own count tells of it."""
    async with grounds(shell("ls"), samples=1) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        first = await agent.ask()
        again = await agent.ask(extra_headers={"x-stainless-retry-count": "1"})
        assert again.calls == first.calls
        report = await g.checked()
    assert report.generations == 1


async def test_a_call_that_failed_is_drawn_anew_and_not_served(grounds, agents, protocol: str, stream: bool) -> None:  # type: ignore[no-untyped-def]
    turn = ScriptTurn(text="Short.", error="busy", error_times=1)
    async with grounds(turn, samples=1, engine_retries=0) as g:
        agent = agents(protocol, await g.open(), stream=stream)
        agent.tell("Go.")
        assert (await agent.ask()).text == "Short."
        await g.checked()
    assert [turn.reason for turn in g.turns] == ["undelivered", None]


async def test_an_answer_whose_client_ran_out_of_time_and_gave_up_is_undelivered_and_does_not_train(  # type: ignore[no-untyped-def]
    grounds, agents, protocol: str
) -> None:
    """The engine was let finish: somebody could have come back."""
    async with grounds(SLOW, samples=0, abort_grace_s=5.0, reasons=("undelivered",)) as g:
        agent = agents(protocol, await g.open())
        agent.client = agent.client.with_options(timeout=0.1, max_retries=0)
        agent.tell("Go.")
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await agent.ask()
        while g.live().running:
            await asyncio.sleep(0.01)
        report = await g.checked()
    assert report.untrained == {"undelivered": len(g.journal()[0].output)}
    assert g.samples == []


async def test_draws_change_hands_on_the_gateways_loop_alone_however_their_engine_works(  # type: ignore[no-untyped-def]
    grounds, agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are opened, worked in and finished at once, by an engine that computes in threads."""
    worked: set[int] = set()
    recorded: set[int] = set()
    generate, record = ScriptedEngine.generate, Generation._record

    async def apart(self: ScriptedEngine, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        async with aclosing(generate(self, request)) as chunks:
            async for chunk in chunks:
                worked.add(await asyncio.to_thread(threading.get_ident))
                yield chunk

    def recording(self: Generation, *values: Any) -> None:
        recorded.add(threading.get_ident())
        record(self, *values)

    monkeypatch.setattr(ScriptedEngine, "generate", apart)
    monkeypatch.setattr(Generation, "_record", recording)

    async with grounds(SLOW, abort_grace_s=0.01, reasons=("undelivered",)) as g:

        async def session(number: int) -> None:
            agent = agents("openai", await g.open(f"s{number}"), stream=True)
            agent.tell("Go.")
            asking = asyncio.create_task(agent.ask())
            await asyncio.sleep(number * 0.05)
            await g.finish(f"s{number}")
            await asyncio.gather(asking, return_exceptions=True)

        await asyncio.gather(*(session(number) for number in range(8)))
        report = g.check()
    assert recorded == {threading.get_ident()}
    assert worked.isdisjoint(recorded)
    assert (report.doubled, report.lost) == (0, 0)
