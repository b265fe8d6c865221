"""The table "The same request again", a row each, with clients that behave so; and what comes while a session ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from bridle.engines.base import Chunk, GenerateRequest
from bridle.engines.script import Expect, Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.errors import BridleError
from bridle.gateway.client import OpenedSession
from bridle.messages import KindRule
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground, shell

SLOW = ScriptTurn(text="One word after the other, " * 8, delay_s=0.05)
BAD = ScriptTurn(text="")
SHORT = ScriptTurn(text="Short.")
TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def scrambled(value: Any) -> Any:
    """Equal as JSON, with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: scrambled(value[key]) for key in reversed(value)}
    return [scrambled(each) for each in value] if isinstance(value, list) else value


def codex(session: OpenedSession) -> dict[str, Any]:
    """A turn as Codex asks for it; the order of its metadata changes from try to try."""
    return {
        "model": session.model,
        "instructions": "You are a coding agent.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}],
        "tools": [{"type": "function", "name": "shell", "parameters": TOOL, "strict": False}],
        "tool_choice": "auto",
        "store": False,
        "stream": True,
        "client_metadata": {"x-codex-window-id": "w", "turn": "1", "thread": "t"},
    }


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def left(g: Ground, path: str, session: OpenedSession, body: Any, after: bytes, **headers: str) -> None:
    """A client that goes away in mid-stream, once it was sent `after`."""
    async with raw(g.gateway.url, path, session.key, body, **headers) as http:
        await http.until(after)
        await http.leave()
    await until(lambda: all(draw.listeners == 0 for draw in g.live().running))


async def test_an_official_client_that_ran_out_of_time_joins_its_own_draw(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=1, abort_grace_s=5.0) as g:
        agent = agents(protocol, await g.open())
        agent.client = agent.client.with_options(timeout=0.25, max_retries=9)
        agent.tell("Go.")
        answer = await agent.ask()
        report = await g.checked()
    assert answer.text == SLOW.text
    assert (report.generations, report.untrained, report.kept_percent) == (1, {}, 100.0)


async def test_an_agent_that_asks_again_after_a_bad_answer_gets_a_new_draw(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(BAD, samples=3) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        for _ in range(3):
            assert (await agent.ask()).text == ""
        report = await g.checked()
    assert (report.generations, len(g.turns), report.kept_percent) == (3, 3, 100.0)


async def test_equal_sub_agents_at_once_are_siblings_and_each_gets_its_own_draw(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    rules = (KindRule("subagent", "sub", system_contains="sub-agent"),)
    thread = Thread((shell("ls", delay_s=0.05), SHORT), "subagent")
    async with grounds(script=Script((thread,), Expect(samples=3), resegment=0.4)) as g:
        session = await g.open(kinds=rules)
        subs = [agents(protocol, session, system="You are a sub-agent.") for _ in range(3)]
        await asyncio.gather(*(sub.work("Look around.") for sub in subs))
        report = await g.checked()
    assert {turn.kind for turn in g.turns} == {"subagent"}
    assert (report.generations, report.untrained, report.kept_percent) == (6, {}, 100.0)


async def test_a_restarted_stream_that_is_equal_only_as_json_joins_its_draw(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        await left(g, "/v1/responses", session, codex(session), b"output_text.delta")
        assert orjson.dumps(scrambled(codex(session))) != orjson.dumps(codex(session))
        status, body = await exchange(g.gateway.url, "/v1/responses", session.key, scrambled(codex(session)))
        report = await g.checked()
    assert (status, b"response.completed" in body) == (200, True)
    assert (report.generations, report.untrained, report.kept_percent) == (1, {}, 100.0)


async def test_a_stream_cut_before_its_first_actionable_event_is_served_again_once_complete(grounds) -> None:  # type: ignore[no-untyped-def]
    turn = ScriptTurn(text="Look. ", calls=shell("ls").calls, delay_s=0.05)
    async with grounds(turn, samples=1, abort_grace_s=5.0) as g:
        session = await g.open()
        await left(g, "/v1/responses", session, codex(session), b"output_text.delta")
        await until(lambda: not g.live().running)
        assert not g.live().session.tree.turns[0].delivered
        _, body = await exchange(g.gateway.url, "/v1/responses", session.key, scrambled(codex(session)))
        assert g.live().session.tree.turns[0].message.calls[0].id.encode() in body
        assert g.live().session.tree.turns[0].delivered
        report = await g.checked()
    assert (report.generations, report.untrained, report.kept_percent) == (1, {}, 100.0)


async def test_a_draw_cut_past_the_grace_is_undelivered_and_the_retry_a_new_draw(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, abort_grace_s=0.02) as g:
        session = await g.open()
        await left(g, "/v1/responses", session, codex(session), b"output_text.delta")
        await until(lambda: not g.live().running)
        await exchange(g.gateway.url, "/v1/responses", session.key, codex(session))
        report = await g.checked()
    assert [turn.reason for turn in g.turns] == ["undelivered", None]
    assert (report.generations, report.kept_percent) == (2, 100.0)


async def test_a_draw_that_is_being_aborted_is_not_joined(grounds, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """An engine may take its time to end one."""
    closing, closed = asyncio.Event(), asyncio.Event()

    async def slowly(self: ScriptedEngine, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(generate(self, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except asyncio.CancelledError:
            closing.set()
            await closed.wait()
            raise

    generate = ScriptedEngine.generate
    monkeypatch.setattr(ScriptedEngine, "generate", slowly)
    async with grounds(SLOW, abort_grace_s=0.02) as g:
        session = await g.open()
        await left(g, "/v1/responses", session, codex(session), b"output_text.delta")
        await closing.wait()
        asking = asyncio.create_task(exchange(g.gateway.url, "/v1/responses", session.key, codex(session)))
        await until(lambda: len(g.live().session.tree.turns) == 2)
        closed.set()
        _, body = await asking
        report = await g.checked()
    assert b"response.completed" in body
    assert (report.generations, report.kept_percent) == (2, 100.0)


async def test_a_failed_draw_is_not_served_to_the_retry(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Short.", error="busy", error_times=1), samples=1, engine_retries=0) as g:
        agent = agents(protocol, await g.open())
        agent.tell("Go.")
        assert (await agent.ask()).text == "Short."
        await g.checked()
    assert [turn.reason for turn in g.turns] == ["undelivered", None]


async def test_of_equal_openings_at_once_one_gets_the_session(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        opened = await asyncio.gather(*(g.open() for _ in range(8)), return_exceptions=True)
        refused = [each for each in opened if isinstance(each, BridleError)]
        assert (len(refused), {error.kind for error in refused}) == (7, {"conflict"})
        assert [type(record).__name__ for record in g.log()] == ["Opened"]


async def test_finishes_at_once_and_after_it_give_the_same_and_end_the_session_once(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), SHORT, samples=1) as g:
        await agents("anthropic", await g.open()).work("Go.")
        answers = await asyncio.gather(*(g.client.finish("s", f"cause {n}", {}) for n in range(5)))
        answers.append(await g.client.finish("s", "late", {}))
        assert all(answer == answers[0] for answer in answers)
        assert [type(record).__name__ for record in g.log()].count("Sealed") == 1
        assert (await g.client.show("s"))["turns"] == 2


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.05])
async def test_no_call_enters_a_session_after_its_end(grounds, wait_s: float) -> None:  # type: ignore[no-untyped-def]
    """Calls, clients that leave, retries and the end, all at once: what the engine said is what the answer counts."""
    async with grounds(ScriptTurn(text=SLOW.text, delay_s=0.002), abort_grace_s=0.01) as g:
        session = await g.open()

        async def call(number: int) -> int:
            await asyncio.sleep(number / 500)
            body = codex(session) | {"instructions": f"{number % 3}"}
            async with raw(g.gateway.url, "/v1/responses", session.key, body) as http:
                if number % 4 == 0:
                    await asyncio.sleep(0.01)
                    await http.leave()
                    return 0
                return int((await http.rest()).split()[1])

        calls = [asyncio.create_task(call(number)) for number in range(16)]
        await asyncio.sleep(wait_s)
        await g.finish()
        statuses = await asyncio.gather(*calls)
        said = {entry.rid: len(entry.output) for entry in g.journal()}
        assert type(g.log()[-1]).__name__ == "Sealed"
    assert set(statuses) <= {0, 200, 400, 503}, "400: what a Responses client is told for 403"
    assert {rid: count for rid, count in said.items() if count} == {
        turn.turn_id: turn.sampled for turn in g.turns if turn.sampled
    }
