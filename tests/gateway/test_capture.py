"""What went over the wire is kept when a session asks for it: whole, in order, and without a credential."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from click.testing import CliRunner
from google import genai
from hypothesis import given, settings, strategies as st
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from bridle.cli.show import command
from bridle.engines.script import ScriptTurn
from bridle.errors import LogCorrupt
from bridle.gateway.asgi import Connection
from bridle.gateway.capture import Capture, Wire, read_capture
from bridle.gateway.client import OpenedSession
from bridle.gateway.keys import without_key
from bridle.testing.answers import events
from bridle.testing.exchange import exchange, raw
from bridle.testing.ground import Ground, shell

SHORT = ScriptTurn(text="Short.")
SLOW = ScriptTurn(text="One word after the other, " * 20, delay_s=0.05)
BODY: dict[str, Any] = {"model": "bridle", "max_tokens": 2048, "messages": [{"role": "user", "content": "Go."}]}
GEMINI = "/v1beta/models/bridle:generateContent"
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]}


def kept(g: Ground, session_id: str = "s") -> list[Wire]:
    return list(read_capture(g.directory / "rollouts" / session_id / "wire.zst"))


async def test_requests_and_replies_are_kept_as_they_went_over_the_wire(
    grounds, agents, protocol: str, stream: bool
) -> None:  # type: ignore[no-untyped-def]
    async with grounds(shell("ls"), SHORT, samples=1) as g:
        session = await g.open(capture="raw")
        await agents(protocol, session, stream=stream).work("Go.")
        await g.checked()
        calls = kept(g)
    assert [call.status for call in calls] == [200, 200]
    assert all(call.complete and call.method == "POST" for call in calls)
    assert [len(orjson.loads(call.request)["messages"]) for call in calls] == sorted(
        len(orjson.loads(call.request)["messages"]) for call in calls
    )
    assert b"Short." in calls[1].reply
    kind = "text/event-stream" if stream else "application/json"
    assert calls[0].reply_headers["content-type"].startswith(kind)
    assert "user-agent" in calls[0].request_headers


async def test_the_bytes_kept_are_the_bytes_sent(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT, samples=1) as g:
        session = await g.open(capture="raw")
        body = orjson.dumps(BODY) + b" \n"
        _, answer = await exchange(g.gateway.url, "/v1/chat/completions", session.key, body)
        await g.checked()
        (call,) = kept(g)
    assert (call.request, call.reply) == (body, answer)
    assert call.at > 1e9
    assert 0 < call.seconds < 20


async def test_responses_and_their_streams_are_kept_as_they_went_over_the_wire(grounds, stream: bool) -> None:  # type: ignore[no-untyped-def]
    async with grounds(ScriptTurn(text="Short.", thinking="Hm."), samples=1) as g:
        session = await g.open(capture="raw")
        async with AsyncOpenAI(api_key=session.key, base_url=session.base_urls["openai"]) as sdk:
            asked: Any = {"model": session.model, "input": "Go.", "metadata": {"a": "b"}}
            if stream:
                got = [event.to_dict() async for event in await sdk.responses.create(**asked, stream=True)]
            else:
                got = [(await sdk.responses.create(**asked)).to_dict()]
        await g.checked()
        (call,) = kept(g)
    assert (call.method, call.target, call.status, call.complete) == ("POST", "/v1/responses", 200, True)
    assert orjson.loads(call.request) == asked | ({"stream": True} if stream else {})
    told = events(call.reply) if stream else [orjson.loads(call.reply)]
    assert told == got
    assert session.key not in str(call)


async def test_gemini_calls_are_kept_as_they_went_over_the_wire(grounds, stream: bool) -> None:  # type: ignore[no-untyped-def]
    def ask(session: OpenedSession) -> list[str]:
        options = genai.types.HttpOptions(base_url=session.base_urls["gemini"])
        with genai.Client(api_key=session.key, http_options=options) as sdk:
            asked: Any = {"model": session.model, "contents": "Go."}
            whole = sdk.models.generate_content_stream(**asked) if stream else [sdk.models.generate_content(**asked)]
            return [answer.text or "" for answer in whole]

    async with grounds(ScriptTurn(text="Short.", thinking="Hm."), samples=1) as g:
        session = await g.open(capture="raw")
        said = await asyncio.to_thread(ask, session)
        await g.checked()
        (call,) = kept(g)
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    assert (call.method, call.status, call.complete) == ("POST", 200, True)
    assert call.target.endswith(f"/models/bridle:{method}")
    assert orjson.loads(call.request)["contents"][0]["parts"] == [{"text": "Go."}]
    told = events(call.reply) if stream else [orjson.loads(call.reply)]
    texts = [part["text"] for chunk in told for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == "".join(said) == "Short."
    assert call.reply_headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert session.key not in str(call)


async def test_a_streamed_json_array_is_kept_as_it_was_sent(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open(capture="raw")
        path = "/v1beta/models/bridle:streamGenerateContent"
        await exchange(g.gateway.url, path, session.key, CONTENTS)
        await g.checked()
        (call,) = kept(g)
    assert call.target == path
    assert isinstance(orjson.loads(call.reply), list)


async def test_each_frame_of_a_websocket_is_kept_as_a_call(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open(capture="raw")
        url = session.base_urls["openai"].replace("http", "ws") + "/responses"
        async with connect(url, additional_headers={"authorization": f"Bearer {session.key}"}) as socket:
            for text in ("Go.", "Go on."):
                await socket.send(orjson.dumps({"type": "response.create", "model": "bridle", "input": text}).decode())
                while orjson.loads(await socket.recv())["type"] != "response.completed":
                    pass
            await socket.send("no JSON")
            await socket.recv()
        await g.checked()
        calls = kept(g)
    assert [(call.method, call.status) for call in calls] == [
        ("WEBSOCKET", 200),
        ("WEBSOCKET", 200),
        ("WEBSOCKET", 400),
    ]
    assert orjson.loads(calls[1].request)["input"] == "Go on."
    assert calls[1].reply.endswith(b"\n\n")
    assert b"response.completed" in calls[1].reply


async def test_a_refused_call_is_kept_with_its_refusal(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open(capture="raw")
        await exchange(g.gateway.url, "/v1/messages", session.key, b"{}")
        await exchange(g.gateway.url, "/v1/nothing", session.key, b"{}")
        await g.finish()
        calls = kept(g)
    assert [(call.status, call.target) for call in calls] == [(400, "/v1/messages"), (404, "/v1/nothing")]
    assert b"no route" in calls[1].reply


async def test_a_stream_its_client_left_is_kept_as_far_as_it_was_sent(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW, abort_grace_s=0.05) as g:
        session = await g.open(capture="raw")
        async with raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as http:
            await http.until(b"One word")
            await http.leave()
        await g.checked()
        (call,) = kept(g)
    assert not call.complete
    assert b"One word" in call.reply
    assert b"message_stop" not in call.reply


async def test_what_is_under_way_when_a_session_ends_is_kept_before_the_answer(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SLOW) as g:
        session = await g.open(capture="raw")
        async with raw(g.gateway.url, "/v1/messages", session.key, {**BODY, "stream": True}) as http:
            await http.until(b"One word")
            await g.checked()
            (call,) = kept(g)
            assert b"error" in call.reply
            await http.rest()
        status, _ = await exchange(g.gateway.url, "/v1/messages", session.key, BODY)
        assert status == 403
        assert len(kept(g)) == 1, "nothing is stored after the end"


async def test_no_key_is_in_what_is_kept_or_logged(grounds, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    caplog.set_level(logging.DEBUG)
    async with grounds(ScriptTurn(text="Your key is what?"), reasons=()) as g:
        session = await g.open(capture="raw")
        told = {**BODY, "messages": [{"role": "user", "content": f"my key is {session.key}"}]}
        url = g.gateway.url
        for path, key, body, headers in (
            ("/v1/messages", session.key, told, {}),
            ("/v1/messages", "", told, {"x_api_key": session.key, "cookie": session.key, "x_note": session.key}),
            (f"{GEMINI}?key={session.key}&alt=json", "", CONTENTS, {}),
            (f"{GEMINI}?alt=json&%6bey={session.key}", "", CONTENTS, {}),
            (f"/v1/no/such/{session.key}?key={session.key}", "", CONTENTS, {}),
            (f"{GEMINI}?key={session.key}", session.key, {"contents": session.key}, {}),
        ):
            status, _ = await exchange(url, path, key, body, **headers)
            assert status in (200, 400, 404)
        await g.finish()
        calls = kept(g)
        packed = (g.directory / "rollouts/s/wire.zst").read_bytes()
    frames = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    assert len(calls) == 6
    assert b"[session key]" in frames
    assert session.key.encode() not in frames
    assert calls[2].target == f"{GEMINI}?alt=json"
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("bridle")]
    assert lines
    assert not [line for line in lines if session.key in line]


async def test_a_key_in_the_url_alone_opens_the_session(grounds) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        session = await g.open()
        status, body = await exchange(g.gateway.url, f"{GEMINI}?key={session.key}", "", CONTENTS)
        assert (status, b"Short." in body) == (200, True)
        assert (await exchange(g.gateway.url, f"{GEMINI}?key=wrong", "", CONTENTS))[0] == 403
        await g.checked()


@pytest.mark.parametrize(
    ("query", "left"),
    [("", ""), ("key=a", ""), ("alt=sse&key=a", "alt=sse"), ("k%65y=a&x=1", "x=1"), ("keys=a", "keys=a")],
)
def test_a_key_is_taken_out_of_a_query(query: str, left: str) -> None:
    assert without_key(query) == left


async def test_nothing_is_kept_of_a_session_that_does_not_ask_for_it(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        await agents("openai", await g.open()).work("Go.")
        await g.checked()
        assert not (g.directory / "rollouts/s/wire.zst").exists()


async def filled(path: Path, bodies: list[bytes]) -> Capture:
    capture = Capture(path)

    async def nowhere(*values: object) -> Any: ...

    for body in bodies:
        async with capture.call(Connection(nowhere, nowhere), "POST", "/v1/messages", {}, body) as taped:
            await taped.answer(200, body)
    await capture.close()
    return capture


@settings(max_examples=20, deadline=None)
@given(bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=5), part=st.floats(0, 1))
async def test_a_file_cut_anywhere_holds_all_calls_before_the_cut(
    bodies: list[bytes], part: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "wire.zst"
    await filled(path, bodies)
    whole = path.read_bytes()
    path.write_bytes(whole[: round(part * len(whole))])
    found = [call.request for call in read_capture(path)]
    assert found == bodies[: len(found)]
    assert len(found) == len(bodies) or path.stat().st_size < len(whole)


async def test_a_file_larger_than_a_block_is_read_whole(tmp_path: Path) -> None:
    import os

    bodies = [os.urandom(90_000), b"", os.urandom(70_000)]
    await filled(tmp_path / "wire.zst", bodies)
    assert [call.reply for call in read_capture(tmp_path / "wire.zst")] == bodies


async def test_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    await filled(tmp_path / "wire.zst", [b"x" * 1000])
    data = bytearray((tmp_path / "wire.zst").read_bytes())
    data[0] ^= 255
    (tmp_path / "wire.zst").write_bytes(data)
    with pytest.raises(LogCorrupt, match=r"wire\.zst"):
        list(read_capture(tmp_path / "wire.zst"))


async def test_the_command_line_shows_it(grounds, agents) -> None:  # type: ignore[no-untyped-def]
    async with grounds(SHORT) as g:
        await agents("anthropic", await g.open(capture="raw")).work("Go.")
        await g.checked()
    shown = CliRunner().invoke(command, [str(g.directory), "--wire", "s"])
    assert shown.exit_code == 0
    assert "--- 0: POST /v1/messages  200 in " in shown.output
    assert "Short." in shown.output
    missing = CliRunner().invoke(command, [str(g.directory), "--wire", "other"])
    assert "session.capture=raw" in str(missing.exception)
