"""Record, then acknowledge: whatever moment the gateway is killed at, what a client ever saw complete is in the log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
from bridle.testing.exchange import raw
from bridle.testing.ground import lay_down, linearize_log, read_log

KILLS = 6
SESSIONS = 3
CALL_IDS = re.compile(rb'"id":"(call[0-9a-f]{20})"')


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


async def streaming_agent(url: str, session: OpenedSession, seen: dict[str, list[bytes]]) -> None:
    """Works until the gateway is gone; `seen` gets the calls of every turn whose call events arrived."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools = [{"name": "bash", "input_schema": schema}]
    while True:
        body = {"model": session.model, "max_tokens": 4096, "stream": True, "messages": messages, "tools": tools}
        async with raw(url, "/v1/messages", session.key, body) as http:
            answer = b""
            while piece := await http.reader.read(65536):
                answer += piece
                calls = CALL_IDS.findall(answer)
                seen.setdefault(session.id, []).extend(call for call in calls if call not in seen[session.id])
            if b"message_stop" not in answer:
                return
        used = [{"type": "tool_use", "id": c.decode(), "name": "bash", "input": {"command": "x"}} for c in calls]
        results = [{"type": "tool_result", "tool_use_id": c.decode(), "content": "ok"} for c in calls]
        text = "".join(orjson.loads(t) for t in re.findall(rb'"text_delta","text":("(?:[^"\\]|\\.)*")', answer))
        messages += [{"role": "assistant", "content": [{"type": "text", "text": text}, *used]}]
        messages += [{"role": "user", "content": results}]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
async def test_after_a_kill_everything_a_client_saw_is_recorded(
    renderer_directory: Path, tmp_path: Path, number: int
) -> None:
    seen: dict[str, list[bytes]] = {}
    async with served(tmp_path, renderer_directory) as (process, url):
        async with GatewayClient(url, "control") as client:
            sessions = [await client.open(f"s{n}", SessionOptions()) for n in range(SESSIONS)]
        for session in sessions:
            seen[session.id] = []
        agents = [asyncio.create_task(streaming_agent(url, session, seen)) for session in sessions]
        await asyncio.sleep(0.3 + random.Random(number).random() * 0.7)
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*agents, return_exceptions=True)
    started: set[str] = set()
    for session in sessions:
        records = read_log(tmp_path, session.id)
        started |= {record.id for record in records if isinstance(record, Started)}
        finished = {c.id.encode() for r in records if isinstance(r, Finished) for c in r.message.calls}
        assert seen[session.id], "the agents worked"
        assert set(seen[session.id]) <= finished
        lay_down(tmp_path, session.id, document(linearize_log(tmp_path, session.id)))
    assert set(rids(tmp_path)) <= started, "a turn is in the log before the engine speaks"
    report = check(tmp_path)
    assert report.ok, render(report)
    assert (report.doubled, report.lost) == (0, 0)
    assert set(report.untrained) <= {"lost_in_crash", "undelivered"}
    assert report.trained > 0


def rids(directory: Path) -> list[str]:
    lines = (directory / "journal.jsonl").read_bytes().splitlines(keepends=True)[1:]
    return [orjson.loads(line)["rid"] for line in lines if line.endswith(b"\n")]
