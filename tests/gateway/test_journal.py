"""Record, then acknowledge: whatever moment the gateway is killed at, what a client ever saw complete is in the log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from bridle.engines.script import ScriptTurn
from bridle.errors import Conflict, InfrastructureError
from bridle.gateway.asgi import Connection
from bridle.gateway.client import GatewayClient, OpenedSession
from bridle.gateway.journal import Journal
from bridle.samples.check import check, render
from bridle.samples.linearize import document
from bridle.sessions.codec import decode
from bridle.sessions.records import Delivery, Finished, SessionOptions, Started
from bridle.testing.answers import CLIENTS
from bridle.testing.exchange import raw
from bridle.testing.ground import lay_down, linearize_log, read_log

KILLS = 6
CALL_IDS = re.compile(rb'"(?:id|call_id)":"(call[0-9a-f]{20})"')


def test_a_session_log_is_never_opened_twice(tmp_path: Path) -> None:
    Journal(tmp_path / "a" / "session.log").close()
    with pytest.raises(Conflict, match="used once"):
        Journal(tmp_path / "a" / "session.log")


def test_a_record_that_does_not_fit_leaves_no_half_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "session.log")
    journal.append(Delivery(0, True))
    write = os.write
    answers = iter([3, OSError(28, "No space left on device")])

    def full(file: int, data: memoryview) -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return write(file, data[:answer])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InfrastructureError, match=r"session\.log: No space left"):
        journal.append(Delivery(1, True))
    monkeypatch.undo()
    journal.append(Delivery(2, True))
    journal.close()
    assert list(decode((tmp_path / "session.log").read_bytes())) == [Delivery(0, True), Delivery(2, True)]


async def test_a_turn_is_started_in_the_log_before_the_engine_speaks_and_finished_before_the_client_hears(  # type: ignore[no-untyped-def]
    grounds, agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with grounds(ScriptTurn(text="Short.")) as g:
        session = await g.open()
        seen: list[str] = []
        engine = g.engine
        generate, chunk = engine.generate, Connection.chunk

        def speaking(request):  # type: ignore[no-untyped-def]
            seen.append(f"engine: {type(g.log()[-1]).__name__}")
            return generate(request)

        async def hearing(self, data, *, last=False):  # type: ignore[no-untyped-def]
            if last and b"Short." in data:
                seen.append(f"client: {type(g.log()[-1]).__name__}")
            await chunk(self, data, last=last)

        monkeypatch.setattr(engine, "generate", speaking)
        monkeypatch.setattr(Connection, "chunk", hearing)
        await agents("openai", session).work("Go.")
    assert seen == ["engine: Started", "client: Finished"]


def script(directory: Path) -> Path:
    turns = [
        {"text": f"Step {number} of a long way. " * 3, "calls": [{"shell": f"echo {number}"}] * 2, "delay_s": 0.003}
        for number in range(400)
    ]
    path = directory / "script.json"
    # The engine may have said in its own journal what the gateway no longer came to record.
    expect = {"reasons": ["lost_in_crash"]}
    path.write_text(json.dumps({"resegment": 0.3, "expect": expect, "threads": [{"turns": turns}]}))
    return path


@asynccontextmanager
async def served(directory: Path, model: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`bridle serve gateway` as a process of its own -> the process and its url; the control token is "control"."""
    command = [
        sys.executable,
        "-c",
        "from bridle.cli.main import main; main()",
        "serve",
        "gateway",
        "--engine",
        "scripted",
    ]
    command += ["--model", str(model), "--script", str(script(directory)), "--data", str(directory)]
    command += ["--set", "engine.options.score=fake", "--control-token", "control"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            said = orjson.loads(await process.stdout.readline())
        yield process, said["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "run", "parameters": SCHEMA}
GO = [{"role": "user", "content": "Go."}]


class Speaker(NamedTuple):
    """How an agent of a protocol asks, which events close an answer, and how it answers a call."""

    path: str
    body: dict[str, Any]
    end: bytes
    result: Callable[[str], dict[str, Any]]


SPEAKERS = {
    "anthropic": Speaker(
        "/v1/messages",
        {
            "model": "bridle",
            "max_tokens": 4096,
            "stream": True,
            "messages": GO,
            "tools": [{"name": "bash", "input_schema": SCHEMA}],
        },
        b"message_stop",
        lambda id: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "ok"}]},
    ),
    "openai_chat": Speaker(
        "/v1/chat/completions",
        {"model": "bridle", "stream": True, "messages": GO, "tools": [{"type": "function", "function": FUNCTION}]},
        b"[DONE]",
        lambda id: {"role": "tool", "tool_call_id": id, "content": "ok"},
    ),
    "openai_responses": Speaker(
        "/v1/responses",
        {"model": "bridle", "stream": True, "input": GO, "tools": [{"type": "function", **FUNCTION}]},
        b"response.completed",
        lambda id: {"type": "function_call_output", "call_id": id, "output": "ok"},
    ),
    "gemini": Speaker(
        "/v1beta/models/bridle:streamGenerateContent?alt=sse",
        {
            "contents": [{"role": "user", "parts": [{"text": "Go."}]}],
            "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}],
        },
        b"finishReason",
        lambda id: {
            "role": "user",
            "parts": [{"functionResponse": {"id": id, "name": "bash", "response": {"output": "ok"}}}],
        },
    ),
}


async def streaming_agent(url: str, session: OpenedSession, protocol: str, seen: dict[str, list[bytes]]) -> None:
    """Works until the gateway is gone; `seen` gets the calls of every turn whose call events arrived."""
    path, body, end, result = SPEAKERS[protocol]
    heard, key, _ = CLIENTS[protocol]
    while True:
        async with raw(url, path, session.key, body) as http:
            answer, calls = b"", []
            while piece := await http.reader.read(65536):
                answer += piece
                calls = CALL_IDS.findall(answer)
                seen[session.id].extend(call for call in calls if call not in seen[session.id])
        if end not in answer:
            return
        results = [result(call.decode()) for call in dict.fromkeys(calls)]
        body = {**body, key: [*body[key], *heard(unchunked(answer)), *results]}


def unchunked(answer: bytes) -> bytes:
    """The body of a whole HTTP answer that came in chunks."""
    body, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while size := int(rest.partition(b"\r\n")[0], 16):
        rest = rest.partition(b"\r\n")[2]
        body, rest = body + rest[:size], rest[size + 2 :]
    return body


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
async def test_after_a_kill_everything_a_client_saw_is_recorded(
    renderer_directory: Path, tmp_path: Path, number: int
) -> None:
    """One agent of each protocol works at once."""
    async with served(tmp_path, renderer_directory) as (process, url):
        async with GatewayClient(url, "control") as client:
            sessions = {protocol: await client.open(protocol, SessionOptions()) for protocol in SPEAKERS}
        seen: dict[str, list[bytes]] = {session.id: [] for session in sessions.values()}
        agents = [
            asyncio.create_task(streaming_agent(url, session, protocol, seen)) for protocol, session in sessions.items()
        ]
        await asyncio.sleep(0.4 + random.Random(number).random() * 0.8)
        assert not any(agent.done() for agent in agents), "they work until the gateway is gone"
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*agents, return_exceptions=True)
    started: set[str] = set()
    for id in seen:
        records = read_log(tmp_path, id)
        started |= {record.id for record in records if isinstance(record, Started)}
        finished = {c.id.encode() for r in records if isinstance(r, Finished) for c in r.message.calls}
        assert seen[id], "the agents worked"
        assert set(seen[id]) <= finished
        lay_down(tmp_path, id, document(linearize_log(tmp_path, id)))
    assert set(rids(tmp_path)) <= started, "a turn is in the log before the engine speaks"
    report = check(tmp_path)
    assert report.ok, render(report)
    assert (report.doubled, report.lost) == (0, 0)
    assert set(report.untrained) <= {"lost_in_crash", "undelivered"}
    assert report.trained > 0


def rids(directory: Path) -> list[str]:
    lines = (directory / "journal.jsonl").read_bytes().splitlines(keepends=True)[1:]
    return [orjson.loads(line)["rid"] for line in lines if line.endswith(b"\n")]
