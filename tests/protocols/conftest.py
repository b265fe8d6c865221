"""A real HTTP server that answers official SDKs through the protocol objects, with canned replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anthropic
import openai
import pytest
import uvicorn

from bridle.errors import BridleError
from bridle.messages import Message, ModelRequest, Reply, Text, Thinking, Usage
from bridle.protocols.anthropic import Anthropic
from bridle.protocols.base import Protocol
from bridle.protocols.gemini import Gemini
from bridle.protocols.openai_chat import OpenAIChat
from bridle.protocols.openai_responses import OpenAIResponses

Delta = tuple[int, type[Text] | type[Thinking], str]


def leading(message: Message, index: int = 0, size: int = 3) -> list[Delta]:
    """What a parser passes on early, in pieces of `size` characters: all before the first call. A part of the same kind
    as the one before it is the source of a call that could not be read, so it waits as a call does."""
    deltas: list[Delta] = []
    for before, part in zip((None, *message.parts), message.parts, strict=False):
        if not isinstance(part, Text | Thinking) or type(part) is type(before):
            break
        pieces = range(0, len(part.text), size)
        deltas.extend((index, type(part), part.text[start : start + size]) for start in pieces)
    return deltas


class Canned:
    """What the server answers next, and the requests it parsed."""

    def __init__(self) -> None:
        self.replies: Sequence[Reply] = ()
        self.deltas: Sequence[Delta] | None = None
        self.refusal: BridleError | None = None
        self.broken_stream: BridleError | None = None
        self.requests: list[ModelRequest] = []
        self.hits = 0
        self.events: list[bytes] = []

    def answers(self, *replies: Reply, deltas: Sequence[Delta] | None = None) -> None:
        self.replies, self.deltas = replies, deltas

    def planned(self) -> Sequence[Delta]:
        if self.deltas is not None:
            return self.deltas
        return [delta for index, one in enumerate(self.replies) for delta in leading(one.message, index)]


def speaks(path: str, headers: dict[str, str]) -> Protocol:
    if path.startswith("/v1/responses"):
        return OpenAIResponses()
    if "x-goog-api-key" in headers:
        return Gemini()
    return Anthropic() if "anthropic-version" in headers else OpenAIChat()


class Server:
    """`canned` is replaced before every test, so that tests share one server and nothing else."""

    def __init__(self) -> None:
        self.canned = Canned()
        self.url = ""

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        protocol = speaks(scope["path"], headers)
        self.canned.hits += 1
        try:
            target = f"{scope['path']}?{scope['query_string'].decode()}"
            status, kind, chunks = 200, *self.respond(protocol, target, body, headers)
        except BridleError as error:
            status, kind, chunks = error.status, b"application/json", [protocol.error(error)]
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def respond(
        self, protocol: Protocol, target: str, body: bytes, headers: dict[str, str]
    ) -> tuple[bytes, list[bytes]]:
        canned = self.canned
        if canned.refusal:
            raise canned.refusal
        path = target.partition("?")[0]
        if path.endswith("/models"):
            return b"application/json", [protocol.models(["policy", "draft"], 32768)]
        if path.endswith("/models/policy"):
            return b"application/json", [protocol.model("policy", 32768)]
        request = protocol.parse(body, headers, target)
        canned.requests.append(request)
        if path.endswith(("/count_tokens", "/input_tokens", ":countTokens")):
            return b"application/json", [protocol.token_count(1234)]
        if not request.stream:
            return b"application/json", [protocol.encode(request, canned.replies)]
        canned.events = self.streamed(protocol, request)
        return b"text/event-stream", canned.events

    def streamed(self, protocol: Protocol, request: ModelRequest) -> list[bytes]:
        canned, first = self.canned, self.canned.replies[0]
        signatures = [part.signature for part in first.message.parts if isinstance(part, Thinking)]
        stream = protocol.stream(request, first.id, signatures[0] if signatures else "")
        chunks = [stream.ping(), stream.start(Usage(first.usage.input, 0, first.usage.cached))]
        for index, kind, text in canned.planned():
            chunks += [stream.thinking(text, index) if kind is Thinking else stream.text(text, index), stream.ping()]
        if canned.broken_stream:
            return [*chunks, stream.error(canned.broken_stream)]
        return [*chunks, stream.finish(canned.replies)]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    app = Server()
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none", interface="asgi3")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    app.url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    yield app
    running.should_exit = True
    thread.join()


@pytest.fixture
def canned(server: Server) -> Iterator[Canned]:
    server.canned = Canned()
    yield server.canned
    server.canned = Canned()


@pytest.fixture(scope="session")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="secret") as client:
        yield client


@pytest.fixture(scope="session")
def chat(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
        yield client
