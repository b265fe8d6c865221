"""A session is closed ground: one key, one session, and nothing after its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from bridle.engines.base import Chunk, GenerateRequest
from bridle.engines.script import Script, ScriptTurn, Thread
from bridle.engines.scripted import ScriptedEngine
from bridle.errors import BridleError, SessionSealed
from bridle.gateway.client import OpenedSession
from bridle.gateway.pause import Pause
from bridle.gateway.turn import Turns
from bridle.lifetimes import Supervisor
from bridle.protocols.openai_chat import OpenAIChat
from bridle.rendering.template import TemplateRenderer
from bridle.samples.base import Dropped, Route
from bridle.sessions.tree import Tree
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground, ground, shell

SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 20, delay_s=0.05)
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
BODY = {"model": "bridle", "max_tokens": 64, "messages": [{"role": "user", "content": "Go."}]}


def shape(protocol: str, body: bytes) -> tuple[str, str]:
    """-> (type, message) of an error in the protocol's own shape."""
    error = orjson.loads(body)
    if protocol == "anthropic":
        assert error["type"] == "error"
    return error["error"]["type"], error["error"]["message"]


@pytest.mark.parametrize(
    "case", ["unknown", "control token", "other session's path", "unknown session's path", "ended"]
)
async def test_a_wrong_key_is_refused_in_the_protocols_shape_and_not_retried(
    grounds, agents, protocol: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level(logging.WARNING, "bridle")
    async with grounds(SHORT) as g:
        mine, other = await g.open("mine"), await g.open("other")
        refused = await wrong(g, case, mine, other)
        agent = agents(protocol, refused)
        agent.tell("Go.")
        denied: Any = {"anthropic": anthropic.PermissionDeniedError, "openai": openai.PermissionDeniedError}[protocol]
        with pytest.raises(denied):
            await agent.ask()
        assert g.refusals == 1
        await g.finish("other")
        assert g.turns == ()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "403" in line
    for secret in (mine.key, other.key, g.gateway.control_token, refused.key):
        assert secret not in line
    assert ("session mine" in line) == (case != "unknown session's path")


async def wrong(g: Ground, case: str, mine: OpenedSession, other: OpenedSession) -> OpenedSession:
    def with_key(key: str, base: OpenedSession = mine) -> OpenedSession:
        return OpenedSession(mine.id, key, base.base_urls, mine.model)

    match case:
        case "unknown":
            return with_key("sk-bridle-wrong")
        case "control token":
            return with_key(g.gateway.control_token)
        case "other session's path":
            return with_key(other.key)
        case "unknown session's path":
            urls = {name: url.replace("/s/mine", "/s/nowhere") for name, url in mine.base_urls.items()}
            return OpenedSession("nowhere", mine.key, urls, mine.model)
    await g.finish("mine")
    return mine


async def test_a_call_without_any_key_is_refused(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        status, body = await exchange(g.gateway.url, PATHS[protocol], "", BODY)
    assert status == 403
    assert shape(protocol, body)[0] == "permission_error"


async def test_a_body_is_not_read_before_its_key_is_known(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g, raw(g.gateway.url, "/v1/messages", "wrong", b"") as http:
        http.writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n")
        assert b"403" in await http.until(b"\r\n")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/sessions"), ("GET", "/sessions/s"), ("POST", "/sessions/s/finish"), ("GET", "/metrics")],
)
async def test_control_routes_refuse_an_agents_key(grounds, method: str, path: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        for key in (session.key, "", "wrong"):
            status, body = await exchange(g.gateway.url, path, key, b"", method=method)
            assert (status, orjson.loads(body)["error"]["kind"]) == (403, "access_denied")
        for inside in (f"/s/s{path}", f"/s/s/..{path}"):
            status, _ = await exchange(g.gateway.url, inside, session.key, b"", method=method)
            assert status == 404
        assert (await g.client.show("s"))["sealed"] is None


async def test_an_id_is_used_once(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        await g.open()
        with pytest.raises(BridleError, match="used once"):
            await g.open()
        await g.finish()
        with pytest.raises(BridleError, match="used once"):
            await g.open()
        assert len(g.log()) == 2


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x" * 141, "a b"])
async def test_an_id_that_is_no_plain_name_is_refused(grounds, name: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        with pytest.raises(BridleError, match="letters, digits"):
            await g.open(name)


async def test_finishing_again_gives_the_same(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), SHORT, samples=1) as g:
        await agents(protocol, await g.open()).work("Go.")
        first = await g.client.finish("s", "finished", {})
        second = await g.client.finish("s", "again", {})
        assert first == second
        await g.checked()
        assert (await g.client.show("s"))["sealed"] == "finished"


def nowhere(tree: Tree, dropped: Dropped) -> list[Route]:
    return [Route(99)]


async def test_a_builder_that_fails_is_named_and_the_session_can_be_finished_with_another(  # type: ignore[no-untyped-def]
    grounds, agents, protocol: str
) -> None:
    async with grounds(SHORT, samples=1) as g:
        await agents(protocol, await g.open()).work("Go.")
        path, token = "/sessions/s/finish", g.gateway.control_token
        for builder, said in (("tre", 'did you mean "tree"'), (f"{__name__}:nowhere", "which is no draw")):
            status, body = await exchange(g.gateway.url, path, token, orjson.dumps({"builder": builder}))
            error = orjson.loads(body)["error"]
            assert (status, error["kind"], said in error["message"]) == (400, "config", True)
            assert (await g.client.show("s"))["sealed"] == (None if builder == "tre" else "finished")
        assert [live.session.id for live in g.gateway.control.access] == []
        await g.checked()


async def test_finishing_aborts_and_records_what_still_runs(grounds, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW) as g:
        session = await g.open()
        body = {**BODY, "max_tokens": 4096, "stream": True}
        async with raw(g.gateway.url, PATHS[protocol], session.key, body) as http:
            await http.until(b"One word")
            report = await g.checked()
            rest = await http.rest()
        (entry,) = g.journal()
        assert entry.aborted
        assert b"error" in rest, "the stream ends with the protocol's error"
    assert list(report.untrained) == ["undelivered"]
    assert report.sampled > 0


async def test_a_draw_that_has_not_begun_to_run_is_finished_too(grounds) -> None:  # type: ignore[no-untyped-def]
    """Requests and the end arrive in one burst, so that some draws are made but not yet running when the end comes."""
    async with grounds(SLOW) as g:
        session = await g.open()
        body = {**BODY, "stream": True}

        async def call(delay_s: float) -> int:
            await asyncio.sleep(delay_s)
            return (await exchange(g.gateway.url, "/v1/messages", session.key, body))[0]

        calls = [asyncio.create_task(call(number / 2000)) for number in range(40)]
        await asyncio.sleep(0.01)
        await g.finish()
        statuses = await asyncio.gather(*calls)
        assert set(statuses) <= {200, 403, 503}
        started = len(g.live().session.tree.turns)
        assert started == len(g.turns), "no turn entered after the end"
        assert all(turn.status == "finished" for turn in g.live().session.tree.turns)


class SlowToStop(ScriptedEngine):
    """Takes a while to end a draw that is aborted, as an engine behind a network does."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/messages/count_tokens"])
async def test_a_call_whose_body_arrives_while_its_session_ends_is_refused(
    renderer: TemplateRenderer, tmp_path: Path, path: str
) -> None:
    script = Script((Thread((SLOW,)),), resegment=0.4)
    engine = SlowToStop(script, renderer.vocabulary, renderer.write, tmp_path / "journal.jsonl", score="fake")
    body = orjson.dumps(BODY)
    async with ground(tmp_path, renderer, script, engine) as g:
        session = await g.open()
        async with (
            raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as running,
            raw(g.gateway.url, path, session.key, body, held_back=9) as late,
        ):
            await running.until(b"One word")
            ending = asyncio.create_task(g.checked())
            while not g.live().ending:
                await asyncio.sleep(0.01)
            late.writer.write(body[-9:])
            answer = await late.rest()
            report = await ending
    assert b"403" in answer.splitlines()[0]
    assert b"has ended (finished)" in answer
    assert (report.generations, list(report.untrained)) == (1, ["undelivered"])


async def test_no_draw_begins_in_a_session_that_is_ending(grounds, renderer: TemplateRenderer) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g, Supervisor("test") as supervisor:
        await g.open()
        g.live().ending = "finished"
        with pytest.raises(SessionSealed, match="has ended"):
            turns = Turns(renderer, g.engine, supervisor, Pause(1.0), abort_grace_s=1.0, engine_retries=0)
            turns.draws(g.live(), OpenAIChat().parse(orjson.dumps(BODY), {}))
        assert not g.live().running


async def test_an_end_does_not_wait_for_a_client_that_left_to_come_back(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, abort_grace_s=60.0) as g:
        session = await g.open()
        async with raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as http:
            await http.until(b"One word")
            await http.leave()
        while next(iter(g.live().running)).listeners:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            await g.checked()
        (entry,) = g.journal()
    assert entry.aborted


async def test_a_gateway_that_stops_records_what_still_runs(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW) as g:
        session = await g.open()
        async with raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as http:
            await http.until(b"One word")
            await http.leave()
    g.recover()
    report = g.check()
    assert list(report.untrained) == ["undelivered"]
