"""Deep, long, wide and odd requests: the protocol's own 400 or 413, or an answer; and the session goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.protocols import NAMES
from bridle.testing.fuzz.client import Answer, RawClient
from bridle.testing.fuzz.corpus import Seed, seeds
from bridle.testing.fuzz.mutate import TEXTS, extremes
from bridle.testing.fuzz.oracle import wrong
from bridle.testing.fuzz.run import MARKS, key_of
from bridle.testing.ground import Ground

SHORT = ScriptTurn(text="Short.")
SECONDS = 60


async def send(g: Ground, session: OpenedSession, seed: Seed, body: bytes) -> Answer:
    parts = urlsplit(g.gateway.url)
    headers = key_of(session) | MARKS.get(seed.protocol, {})
    async with RawClient(parts.hostname or "", parts.port or 0) as client, asyncio.timeout(SECONDS):
        return await client.send("POST", seed.target, headers, body)


def swapped(value: Any, old: str, new: str) -> bytes:
    return json.dumps(value).replace(json.dumps(old), json.dumps(new)).encode()


@pytest.fixture(params=NAMES)
def seed(request: pytest.FixtureRequest) -> Seed:
    return seeds(request.param)[0]


@pytest.mark.slow
async def test_extremes_get_an_answer_or_the_protocols_own_refusal(grounds: Callable[..., Any], seed: Seed) -> None:
    statuses: dict[str, int] = {}
    async with grounds(SHORT) as g:
        session = await g.open()
        for what, body in extremes(seed.body):
            answer = await send(g, session, seed, body)
            assert wrong(seed.protocol, answer) == "", what
            statuses[what] = answer.status
        sound = await send(g, session, seed, json.dumps(seed.body).encode())
        await g.checked()
    assert sound.status == 200
    assert set(statuses.values()) <= {200, 400}
    assert statuses["unclosed"] == statuses["string of 10 MB"] == 400


async def test_a_body_over_the_limit_is_refused_with_413(grounds: Callable[..., Any], seed: Seed) -> None:
    async with grounds(SHORT, max_body_mb=1) as g:
        answer = await send(g, await g.open(), seed, b"x" * ((1 << 20) + 1))
    assert answer.status == 413
    assert wrong(seed.protocol, answer) == ""


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_any_text_a_client_can_write_is_answered(grounds: Callable[..., Any], seed: Seed, text: str) -> None:
    """NUL, lone surrogates, noncharacters, control strings of the vocabulary, template source: text is text."""
    async with grounds(SHORT, samples=1) as g:
        answer = await send(g, await g.open(), seed, swapped(seed.body, "Fix it.", f"Fix {text}."))
        await g.checked()
    assert answer.status == 200, answer.body
    assert wrong(seed.protocol, answer) == ""
