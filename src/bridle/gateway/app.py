"""The gateway as an ASGI application: agent calls on a thin hot path, every other path to the control routes.

Agent routes exist bare (`/v1/...`, the key routes) and under `/s/<session>` (the key must match it).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass

from bridle.errors import BadRequest, BridleError, InfrastructureError, NotFound
from bridle.gateway.access import Access, LiveSession
from bridle.gateway.asgi import App, Connection, Receive, Scope, Send, paced
from bridle.gateway.generation import Generation
from bridle.gateway.metrics import Metrics
from bridle.gateway.routes import Routes
from bridle.gateway.turn import Turns
from bridle.messages import ModelRequest
from bridle.protocols.base import Does, Protocol, ReplyStream
from bridle.rendering.base import TextDelta, ThinkingDelta
from bridle.sessions.session import signature

log = logging.getLogger("bridle.gateway")

AGENT_PATHS = ("/v1/", "/v1beta/", "/api/")
BEGIN_S = 1.0
"""How long the status line of a stream waits for the first word."""


@dataclass(frozen=True, slots=True)
class Call:
    """One agent's HTTP call, authorised."""

    protocol: Protocol
    live: LiveSession
    headers: dict[str, str]
    body: bytes
    connection: Connection
    route: str
    """Method and path, as the log shows them."""
    target: str
    """Path and query below the base URL."""
    model: str
    """The model named in the path, where the route has one."""


Handler = Callable[[Call], Awaitable[None]]


class AgentApp:
    def __init__(
        self,
        protocols: dict[str, Protocol],
        access: Access,
        turns: Turns,
        metrics: Metrics,
        control: App,
        *,
        models: tuple[str, ...],
        max_body_bytes: int,
        ping_s: float,
    ) -> None:
        self.access = access
        self.turns = turns
        self.metrics = metrics
        self.control = control
        self.models = models
        self.max_body_bytes = max_body_bytes
        self.ping_s = ping_s
        self.routes = Routes(tuple(protocols.values()))
        self.handlers: dict[Does, Handler] = {
            "turn": self._call,
            "count": self._count,
            "models": self._models,
            "model": self._model,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        session, path = split(scope["path"])
        if scope["method"] == "HEAD":
            await Connection(receive, send).answer(200, b"")
        elif session or path.startswith(AGENT_PATHS):
            await self._agent(session, path, scope, Connection(receive, send))
        else:
            await self.control(scope, receive, send)

    async def _agent(self, path_session: str, path: str, scope: Scope, connection: Connection) -> None:
        """Runs one call; errors leave in the protocol's own shape, with one log line that names the session."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        route, query = f"{scope['method']} {path}", scope["query_string"].decode("latin-1")
        found = self.routes.find(scope["method"], path, headers)
        protocol, session = found.protocol, path_session or "-"
        try:
            live = self.access.agent(headers, path_session)
            session = live.session.id
            body = await connection.body(self.max_body_bytes)
            live.refuse_ending()
            if found.route is None:
                raise NotFound(f"no route {route}; an agent may call {', '.join(self.routes)}")
            target = f"{path}?{query}" if query else path
            call = Call(protocol, live, headers, body, connection, route, target, found.model)
            await self.handlers[found.route.does](call)
        except BridleError as error:
            self._failed(f"session {session}: {route}: {error.status} {error.kind}: {error}", error)
            await connection.answer(error.status, protocol.error(error), _retry_headers(error))
        except Exception:
            log.exception("%s failed", one_line(f"session {session}: {route}"))
            if connection.started:
                raise
            internal = BridleError("internal error in the gateway; its log has the traceback")
            await connection.answer(internal.status, protocol.error(internal), _retry_headers(internal))

    async def _call(self, call: Call) -> None:
        with _refusing_endless_nesting():
            request = self._parse(call)
            draws = self.turns.draws(call.live, request)
        self.metrics.turns.labels(call.protocol.name).inc()
        respond = self._stream if request.stream else self._reply
        with ExitStack() as listening:
            for draw in draws:
                listening.enter_context(draw.listening())
            try:
                await call.connection.unless_gone(respond(call, request, draws))
            finally:
                for draw in draws:
                    _record_delivery(call.live, draw)

    async def _reply(self, call: Call, request: ModelRequest, draws: Sequence[Generation]) -> None:
        replies = [await draw.wait() for draw in draws]
        await call.connection.answer(200, call.protocol.encode(request, replies))
        _all_sent(draws)

    async def _stream(self, call: Call, request: ModelRequest, draws: Sequence[Generation]) -> None:
        stream = call.protocol.stream(request, draws[0].turn.id, signature(draws[0].turn.id))
        # An engine that fails at once is answered with a status, which clients retry; an error in a stream they do not.
        await draws[0].begun(min(self.ping_s, BEGIN_S))
        await call.connection.start_stream(stream.content_type)
        await call.connection.chunk(stream.start(draws[0].usage))
        try:
            async with aclosing(paced(_deltas(stream, draws), stream.ping, self.ping_s)) as chunks:
                async for data in chunks:
                    await call.connection.chunk(data)
            await call.connection.chunk(stream.finish([await draw.wait() for draw in draws]), last=True)
            _all_sent(draws)
        except BridleError as error:
            session = call.live.session.id
            self._failed(f"session {session}: {call.route}: failed while streaming: {error.kind}: {error}", error)
            await call.connection.chunk(stream.error(error), last=True)

    async def _count(self, call: Call) -> None:
        with _refusing_endless_nesting():
            tokens = self.turns.count(call.live, self._parse(call))
        await call.connection.answer(200, call.protocol.token_count(tokens))

    async def _models(self, call: Call) -> None:
        await call.connection.answer(200, call.protocol.models(self.models, self.turns.engine.facts.context_length))

    async def _model(self, call: Call) -> None:
        self._check_model(call.model)
        await call.connection.answer(200, call.protocol.model(call.model, self.turns.engine.facts.context_length))

    def _failed(self, line: str, error: BridleError) -> None:
        log.warning("%s", one_line(line))
        self.metrics.errors.labels(error.kind).inc()

    def _parse(self, call: Call) -> ModelRequest:
        request = call.protocol.parse(call.body, call.headers, call.target)
        self._check_model(request.model)
        return request

    def _check_model(self, name: str) -> None:
        if name not in self.models:
            raise NotFound(f"unknown model {name!r}; this gateway serves {', '.join(self.models)}")


async def _deltas(stream: ReplyStream, draws: Sequence[Generation]) -> AsyncGenerator[bytes, None]:
    """Encoded text and thinking of the draws as they come, siblings one after the other."""
    for index, draw in enumerate(draws):
        async for event in draw.follow():
            match event:
                case TextDelta(text):
                    yield stream.text(text, index)
                case ThinkingDelta(text):
                    yield stream.thinking(text, index)


@contextmanager
def _refusing_endless_nesting() -> Iterator[None]:
    """Decoders, encoders and templates give up at depths a few levels apart; nothing else in a call recurses."""
    try:
        yield
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply; flatten it") from error


def _all_sent(draws: Sequence[Generation]) -> None:
    """A draw is delivered when a client that stayed to the end was sent all of it."""
    for draw in draws:
        draw.delivered = True


def _record_delivery(live: LiveSession, draw: Generation) -> None:
    if draw.finished and not live.session.sealed:
        live.session.deliver(draw.turn, delivered=draw.delivered)


def split(path: str) -> tuple[str, str]:
    """-> (session named in the path, "" for none; the path below it, a doubled /v1 folded)."""
    session = ""
    if path.startswith("/s/"):
        session, _, rest = path[3:].partition("/")
        path = "/" + rest
    return session, path[3:] if path.startswith("/v1/v1/") else path


def one_line(text: str) -> str:
    """`text` without characters that could forge a line of the log; clients write the paths and bodies in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _retry_headers(error: BridleError) -> dict[str, str]:
    """Codex gives up on a retryable status without Retry-After; SDKs obey x-should-retry."""
    if isinstance(error, InfrastructureError) and error.retryable:
        return {"retry-after": "1"}
    return {"x-should-retry": "false"}
