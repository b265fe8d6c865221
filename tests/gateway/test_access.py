"""A session is closed ground: one key, one session, and nothing after its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anthropic
import openai
import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.errors import BridleError
from bridle.gateway.client import OpenedSession
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground, shell

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


async def test_a_gateway_that_stops_records_what_still_runs(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW) as g:
        session = await g.open()
        async with raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as http:
            await http.until(b"One word")
            await http.leave()
    g.recover()
    report = g.check()
    assert list(report.untrained) == ["undelivered"]
