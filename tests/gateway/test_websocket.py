"""Responses over a WebSocket: one frame a call, the events of its stream as frames; nothing kills the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bridle.engines.script import ScriptTurn
from bridle.gateway.client import OpenedSession
from bridle.messages import KindRule
from bridle.sessions.records import Finished, Limits
from bridle.testing.ground import Ground, shell

BASH: Any = {
    "type": "function",
    "name": "bash",
    "description": "run",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="word " * 400, delay_s=0.01)
PATIENCE_S = 20.0


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class Client:
    """As Codex talks: a warm-up, then only what is new, naming the response before."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.previous = ""

    async def create(self, *items: Any, **more: Any) -> list[dict[str, Any]]:
        """-> the events of one call, its terminal one last."""
        await self.send(*items, **more)
        events = [await self.event()]
        while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
            events.append(await self.event())
        if events[-1]["type"] == "response.completed":
            self.previous = events[-1]["response"]["id"]
        return events

    async def send(self, *items: Any, **more: Any) -> None:
        before = {"previous_response_id": self.previous} if self.previous else {}
        asked = {"type": "response.create", "model": "bridle", "input": items, "tools": [BASH], "store": False}
        await self.socket.send(orjson.dumps({**asked, **before, **more}).decode())

    async def event(self) -> dict[str, Any]:
        told: dict[str, Any] = orjson.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE_S))
        return told


@asynccontextmanager
async def talking(
    g: Ground, session: OpenedSession, path: str = "/v1/responses", **headers: str
) -> AsyncIterator[Client]:
    url = g.gateway.url.replace("http", "ws", 1) + path
    named = {"authorization": f"Bearer {session.key}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    async with connect(url, additional_headers=named, max_size=None) as socket:
        yield Client(socket)


def outputs(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]


async def test_turns_follow_each_other_on_one_connection(grounds) -> None:  # type: ignore[no-untyped-def]
    work = (shell("ls", "pwd", text="Looking.", thinking="Hm."), shell("cat a"), ScriptTurn(text="Done."))
    async with grounds(*work, samples=1) as g:
        async with talking(g, await g.open()) as client:
            warm = await client.create(user("Be kind."), generate=False)
            first = await client.create(user("Go."))
            second = await client.create(*outputs(first))
            last = await client.create(*outputs(second))
        report = await g.checked()
    assert [event["type"] for event in warm] == ["response.created", "response.in_progress", "response.completed"]
    assert warm[-1]["response"]["output"] == []
    assert [event["sequence_number"] for event in first] == list(range(len(first)))
    assert last[-1]["response"]["output"][0]["content"][0]["text"] == "Done."
    assert (report.generations, report.trained) == (3, report.sampled)
    assert g.echoes == ["exact", "exact"]


async def test_events_are_those_of_an_http_stream(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="One.", thinking="Hm."), samples=2) as g:
        session, other = await g.open(), await g.open("other")
        async with talking(g, session) as client:
            over_socket = await client.create(user("Go."))
        async with AsyncOpenAI(api_key=other.key, base_url=other.base_urls["openai"]) as sdk:
            stream: Any = await sdk.responses.create(
                model="bridle", input=[{"role": "user", "content": "Go."}], tools=[BASH], stream=True, store=True
            )
            over_http = [event.to_dict() async for event in stream]
        kinds = [event["type"] for event in over_http if not str(event["type"]).endswith(".delta")]
        assert [event["type"] for event in over_socket if not event["type"].endswith(".delta")] == kinds
        await g.finish("other")
        await g.finish()


async def test_the_official_sdk_talks_over_a_connection(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, ScriptTurn(text="Again."), samples=1) as g:
        session = await g.open()
        async with (
            AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as sdk,
            sdk.responses.connect() as connection,
        ):
            said: list[str] = []
            previous: dict[str, Any] = {}
            for text in ("Go.", "And?"):
                await connection.response.create(model="bridle", input=text, **previous)
                async for event in connection:
                    if event.type == "response.completed":
                        said.append(event.response.output_text)
                        previous = {"previous_response_id": event.response.id}
                        break
        await g.checked()
    assert said == ["Short.", "Again."]
    assert g.echoes == ["exact"]


@pytest.mark.parametrize(
    ("frame", "status", "code"),
    [
        ("{", 400, "bad_request"),
        ("[]", 400, "bad_request"),
        (b"\xff\xfe", 400, "bad_request"),
        ('{"type": "response.cancel"}', 400, "bad_request"),
        ('{"type": "response.create"}', 400, "bad_request"),
        ('{"type": "response.create", "generate": 5}', 400, "bad_request"),
        ('{"type": "response.create", "x": ' + "[" * 100_000, 400, "bad_request"),
        ('{"type": "response.create", "model": "gpt-9", "input": "x"}', 404, "not_found"),
        (
            '{"type": "response.create", "model": "bridle", "input": "x", "previous_response_id": "resp_1"}',
            400,
            "previous_response_not_found",
        ),
    ],
)
async def test_a_bad_frame_is_an_error_and_the_connection_goes_on(grounds, frame: Any, status: int, code: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        async with talking(g, await g.open()) as client:
            await client.socket.send(frame)
            told = await client.event()
            assert (told["type"], told["status"], told["error"]["code"]) == ("error", status, code)
            assert told["error"]["message"]
            assert (await client.create(user("Go.")))[-1]["type"] == "response.completed"
        await g.checked()
    assert len(g.turns) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/sessions", "/", "/s/s/v1/realtime"])
async def test_other_paths_are_refused_before_they_open(grounds, path: str) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        with pytest.raises(InvalidStatus) as refused:
            async with talking(g, session, path):
                pass
        assert refused.value.response.status_code == 403


async def test_a_connection_opens_with_the_sessions_key_alone(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session, other = await g.open(), await g.open("other")
        for path, key in (("/v1/responses", "nothing"), ("/s/s/v1/responses", other.key)):
            with pytest.raises(InvalidStatus) as refused:
                async with talking(g, session, path, authorization=f"Bearer {key}"):
                    pass
            assert refused.value.response.status_code == 403
        async with talking(g, session, "/s/s/v1/responses") as client:
            assert (await client.create(user("Go.")))[-1]["type"] == "response.completed"


async def test_a_finished_session_answers_with_an_error(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        async with talking(g, await g.open()) as client:
            await client.create(user("Go."))
            await g.finish()
            (told,) = await client.create(user("And?"))
        assert (told["status"], told["error"]["code"]) == (400, "session_sealed")


async def test_a_limit_ends_the_calls_of_a_connection(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        async with talking(g, await g.open(limits=Limits(turns=1))) as client:
            await client.create(user("Go."))
            (told,) = await client.create(user("And?"))
        assert (told["status"], told["error"]["code"]) == (400, "limit_reached")
        await g.checked()


async def test_an_engine_that_fails_is_an_error_and_the_next_call_is_answered(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Short.", error="boom", error_times=1), samples=1, engine_retries=0) as g:
        async with talking(g, await g.open()) as client:
            (told,) = await client.create(user("Go."))
            assert (told["status"], told["headers"]["retry-after"]) == (503, "1")
            assert (await client.create(user("Go.")))[-1]["type"] == "response.completed"
        await g.checked()


async def test_a_client_that_leaves_in_the_middle_was_not_delivered_its_turn(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, abort_grace_s=0.05, samples=0, reasons=("undelivered",)) as g:
        session = await g.open()
        async with talking(g, session) as client:
            await client.send(user("Go."))
            while (await client.event())["type"] != "response.output_text.delta":
                pass
        while g.live().running:
            await asyncio.sleep(0.01)
        assert [record.delivered for record in g.log() if isinstance(record, Finished)] == [False]
        await g.checked()


async def test_calls_sent_at_once_are_answered_one_after_the_other(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=2) as g:
        async with talking(g, await g.open()) as client:
            await client.send(user("One."))
            await client.send(user("Two."))
            seen: list[str] = []
            while seen.count("response.completed") < 2:
                seen.append((await client.event())["type"])
        assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
        await g.checked()


async def test_a_client_that_asks_too_much_at_once_is_sent_away(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, abort_grace_s=0.05, reasons=("undelivered",)) as g:
        async with talking(g, await g.open()) as client:
            for number in range(40):
                await client.send(user(str(number)))
            with pytest.raises(ConnectionClosed):
                while True:
                    await client.event()
        await g.finish()
    assert len(g.turns) <= 1


async def test_what_a_call_says_of_itself_names_its_kind_and_not_what_the_connection_said(grounds) -> None:  # type: ignore[no-untyped-def]
    """Codex opens a connection once and tells of each call in its client_metadata."""
    rule = KindRule("compaction", "codex", header="x-codex-turn-metadata", header_contains="compaction")
    async with grounds(SHORT) as g:
        async with talking(g, await g.open(kinds=(rule,)), x_codex_turn_metadata="prewarm") as client:
            await client.create(user("Go."), client_metadata={"x-codex-turn-metadata": "turn"})
            await client.create(user("Sum."), client_metadata={"x-codex-turn-metadata": "compaction"})
        await g.finish()
    assert [turn.kind for turn in g.turns] == ["main", "compaction"]


async def test_a_summary_is_not_announced(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        async with talking(g, await g.open()) as client:
            (told,) = await client.create(user("Go."), {"type": "compaction_trigger"}, generate=False)
            assert (told["type"], told["status"]) == ("error", 400)
            assert "send the trigger in the call that shall be answered" in told["error"]["message"]
            assert (await client.create(user("Go.")))[-1]["type"] == "response.completed"
        await g.checked()
    assert len(g.turns) == 1


async def test_a_silent_stream_is_kept_alive_by_events(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Late.", delay_s=0.5), ping_s=0.1, samples=1) as g:
        async with talking(g, await g.open()) as client:
            events = await client.create(user("Go."))
        await g.checked()
    assert [event["type"] for event in events].count("response.in_progress") > 2
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
