"""A limit of a session ends its agent at once, in every protocol, is written down, and puts nothing into the data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bridle.engines.script import ScriptTurn
from bridle.sessions.records import Limits, Refused
from bridle.testing.exchange import exchange

SHORT = ScriptTurn(text="Short.")
LIMITS = {
    "turns": Limits(turns=1),
    "sampled_tokens": Limits(sampled_tokens=1),
    "total_tokens": Limits(total_tokens=10),
    "wall_s": Limits(wall_s=1.5),
    "context_tokens": Limits(context_tokens=60),
}
SAID = {
    "turns": "has used its 1 turns",
    "sampled_tokens": "has used its 1 sampled tokens",
    "total_tokens": "has used its 10 tokens of prompts and answers",
    "wall_s": "has used its 1.5 s",
    "context_tokens": "prompt is too long|maximum context length|exceeds the maximum number of tokens|context window",
}
LONG = "word " * 100


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_limit_ends_every_official_client_with_one_refusal_that_is_recorded(grounds, say, limit: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        session = await g.open(limits=LIMITS[limit])
        assert await say(session, "Go.") == "Short."
        await asyncio.sleep(1.5 if limit == "wall_s" else 0)
        with pytest.raises(Exception, match=SAID[limit]) as refused:
            await say(session, LONG if limit == "context_tokens" else "Go on.")
        code = vars(refused.value).get("status_code") or vars(refused.value).get("code")
        assert code in ((400,) if limit == "context_tokens" else (400, 403))
        assert g.refusals == 1, "the SDK did not come back"
        report = await g.checked()
        finished = await g.client.finish("s", "", {})
    assert finished["refused"] == limit
    assert [record for record in g.log() if isinstance(record, Refused)] == [Refused(limit)]  # type: ignore[arg-type]
    assert (len(g.turns), report.kept_percent) == (1, 100.0)


async def test_a_refusal_that_comes_back_as_history_is_context(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        agent = agents(protocol, await g.open(limits=Limits(context_tokens=200)))
        agent.tell("Go.")
        agent.history += [{"role": "assistant", "content": "API Error: prompt is too long"}]
        agent.tell("Go on.")
        await agent.ask()
        await g.checked()
    assert g.echoes == ["foreign"]
    assert g.samples[0].trained == g.turns[0].sampled


async def test_a_prompt_made_shorter_goes_on_and_the_limit_is_no_end(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        agent = agents(protocol, await g.open(limits=Limits(context_tokens=200)))
        for text in (LONG, "Go.", LONG, LONG):
            agent.history = [{"role": "user", "content": text}]
            if text == LONG:
                with pytest.raises(Exception, match="too long|maximum context"):
                    await agent.ask()
            else:
                await agent.ask()
                assert g.live().session.refused is None
        await g.checked()
    assert [type(record).__name__ for record in g.log()] == [
        *("Opened", "Refused", "Started", "Finished", "Refused", "Sealed")
    ]


async def test_the_engines_own_context_is_no_limit_of_the_session(grounds, agents, protocol: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, context_length=60) as g:
        agent = agents(protocol, await g.open(limits=Limits(context_tokens=60)))
        agent.tell(LONG)
        with pytest.raises(Exception, match="too long|maximum context"):
            await agent.ask()
        await g.finish()
        assert (await g.client.finish("s", "", {}))["refused"] is None


async def test_siblings_are_admitted_together_or_not_at_all(grounds) -> None:  # type: ignore[no-untyped-def]
    """The first one's prompt uses up the limit that the second one was admitted under."""
    async with grounds(SHORT, samples=2) as g:
        session = await g.open(limits=Limits(total_tokens=10))
        body = {"model": session.model, "n": 2, "messages": [{"role": "user", "content": "Go."}]}
        statuses = [(await exchange(g.gateway.url, "/v1/chat/completions", session.key, body))[0] for _ in range(2)]
        await g.checked()
    assert statuses == [200, 403]
    assert len(g.turns) == 2


SAYING: list[dict[str, str]] = [{"role": "user", "content": LONG}]
TOO_LONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "anthropic": ("/v1/messages", {"max_tokens": 99, "messages": SAYING}, "prompt is too long: "),
    "openai_chat": ("/v1/chat/completions", {"messages": SAYING}, "context_length_exceeded"),
    "openai_responses": ("/v1/responses", {"input": SAYING}, "context_length_exceeded"),
    "gemini": (
        "/v1beta/models/bridle:streamGenerateContent?alt=sse",
        {"contents": [{"parts": [{"text": LONG}]}]},
        "The input token count (",
    ),
}
"""Protocol -> path, body, the words of its refusal."""


@pytest.mark.parametrize("limits", [Limits(context_tokens=60), Limits()], ids=["the session's", "the engine's"])
@pytest.mark.parametrize("protocol", TOO_LONG)
async def test_a_stream_with_too_long_a_prompt_is_refused_before_its_first_byte(  # type: ignore[no-untyped-def]
    grounds, protocol: str, limits: Limits
) -> None:
    """After an early 200 no client looks for these words."""
    path, body, words = TOO_LONG[protocol]
    async with grounds(SHORT, context_length=9999 if limits.context_tokens else 60) as g:
        session = await g.open(limits=limits)
        status, answer = await exchange(g.gateway.url, path, session.key, {"model": "bridle", "stream": True, **body})
        await g.finish()
    assert status == 400
    assert words in answer.decode()
    assert b"data: " not in answer
    assert (g.turns, g.journal()) == ((), [])
