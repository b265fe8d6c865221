from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest
from aiohttp import web

from bridle.errors import (
    AccessDenied,
    BadRequest,
    BodyTooLarge,
    BridleError,
    ConfigError,
    Conflict,
    InfrastructureError,
    NotFound,
)
from bridle.http import Client

KEY = "sk-very-secret"


class Server:
    """A real server on a loopback port that answers from `answers`, in order, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Callable[[web.Request], Awaitable[web.StreamResponse]]] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path_qs, headers, await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    def will(self, *statuses: int, body: bytes = b'{"ok": true}', headers: dict[str, str] | None = None) -> None:
        for status in statuses:

            async def answer(request: web.Request, status: int = status) -> web.Response:
                return web.Response(status=status, body=body, headers=headers)

            self.answers.append(answer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, key=KEY, pause_s=0.001, timeout_s=5) as opened:
        yield opened


async def drop(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_bodies_and_answers_are_json_and_the_key_is_sent_as_bearer(server: Server, client: Client) -> None:
    server.will(200, body=b'{"id": "s1"}')
    assert await client.post("/sessions", {"n": 1}) == {"id": "s1"}
    method, path, headers, body = server.seen[0]
    assert (method, path, orjson.loads(body)) == ("POST", "/sessions", {"n": 1})
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["content-type"] == "application/json"


async def test_an_empty_answer_is_none(server: Server, client: Client) -> None:
    server.will(204, body=b"")
    assert await client.request("DELETE", "/sessions/s1") is None


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_passing_status_is_tried_again_for_an_idempotent_call(
    status: int, server: Server, client: Client
) -> None:
    server.will(status, status, 200)
    assert await client.get("/healthz") == {"ok": True}
    assert len(server.seen) == 3


async def test_a_passing_status_is_final_for_a_call_that_may_have_acted(server: Server, client: Client) -> None:
    server.will(503, 200)
    with pytest.raises(InfrastructureError, match="answered 503"):
        await client.post("/sessions", {})
    assert len(server.seen) == 1


async def test_a_post_that_says_it_is_idempotent_is_tried_again(server: Server, client: Client) -> None:
    server.will(503, 200)
    assert await client.post("/sessions/s1/finish", {}, idempotent=True) == {"ok": True}


async def test_a_dropped_connection_is_tried_again_only_when_that_is_safe(server: Server, client: Client) -> None:
    server.answers.append(drop)
    with pytest.raises(InfrastructureError, match=r"POST .*/sessions: connection failed: .* \(attempt 1 of 4\)"):
        await client.post("/sessions", {})
    assert len(server.seen) == 1
    server.will(200)
    server.answers.insert(0, drop)
    assert await client.get("/healthz") == {"ok": True}


async def test_attempts_end(server: Server, client: Client) -> None:
    server.will(503, body=b"warming up")
    with pytest.raises(InfrastructureError, match=r"GET http.*/healthz: answered 503: warming up \(attempt 4 of 4\)"):
        await client.get("/healthz")
    assert len(server.seen) == 4


async def test_a_server_that_is_not_there_is_tried_again_even_for_a_post_as_nothing_was_sent() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with Client(f"http://127.0.0.1:{port}", pause_s=0.1, attempts=6) as client:
        asking = asyncio.create_task(client.post("/sessions", {}))
        await asyncio.sleep(0.05)
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            assert await asking == {}


async def test_a_server_that_never_comes_is_named_with_what_was_tried() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}", pause_s=0.001, attempts=2) as client:
        with pytest.raises(InfrastructureError, match=rf"127\.0\.0\.1:{port}/healthz: cannot connect.*attempt 2 of 2"):
            await client.get("/healthz")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, BadRequest),
        (401, AccessDenied),
        (403, AccessDenied),
        (404, NotFound),
        (409, Conflict),
        (413, BodyTooLarge),
        (422, BadRequest),
        (429, InfrastructureError),
        (500, InfrastructureError),
        (307, InfrastructureError),
    ],
)
async def test_a_refusal_is_the_error_of_its_status_and_is_not_tried_again(
    status: int, error: type[BridleError], server: Server, client: Client
) -> None:
    server.will(status, 200, body=b'{"error": "no  such\\nthing"}', headers={"location": "/elsewhere"})
    with pytest.raises(error) as caught:
        await client.get("/sessions/s1")
    assert type(caught.value) is error
    assert str(caught.value) == f'GET {server.url}/sessions/s1 answered {status}: {{"error": "no such\\nthing"}}'
    assert len(server.seen) == 1


async def test_errors_never_show_the_key_or_the_query_and_only_the_start_of_the_answer(
    server: Server, client: Client
) -> None:
    server.will(400, body=f"bad key {KEY}; ".encode() + b"x" * 5000)
    with pytest.raises(BadRequest) as caught:
        await client.get("/sessions?token=hidden")
    message = str(caught.value)
    assert KEY not in message
    assert "hidden" not in message
    assert "bad key [key]; xxx" in message
    assert len(message) < 450
    assert server.seen[0][1] == "/sessions?token=hidden"


async def test_an_answer_that_is_no_json_is_an_infrastructure_error(server: Server, client: Client) -> None:
    server.will(200, body=b"<html>proxy</html>")
    with pytest.raises(InfrastructureError, match="answered 200, but no JSON: <html>proxy"):
        await client.get("/healthz")


async def test_the_time_limit_holds_over_all_attempts(server: Server, client: Client) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    server.will(503)
    server.answers.append(slow)
    with pytest.raises(InfrastructureError, match=r"GET .*/healthz: no answer within 0\.2 s"):
        await client.get("/healthz", timeout_s=0.2)


async def test_a_timeout_of_the_callers_own_stays_his(server: Server, client: Client) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    server.answers.append(slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.get("/healthz")


async def test_many_calls_run_at_once(server: Server, client: Client) -> None:
    waiting, everybody = [], asyncio.Event()

    async def together(request: web.Request) -> web.StreamResponse:
        waiting.append(request)
        if len(waiting) == 150:
            everybody.set()
        await everybody.wait()
        return web.Response(body=b"1")

    server.answers.append(together)
    assert await asyncio.gather(*(client.get(f"/{n}") for n in range(150))) == [1] * 150


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://user:secret@host"])
def test_a_base_url_that_cannot_work_or_holds_credentials_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(url)
    assert "secret" not in str(caught.value)
