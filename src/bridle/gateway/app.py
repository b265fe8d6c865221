"""The gateway as an ASGI application: agent calls on a thin hot path, every other path to the control routes.

Agent routes exist bare (`/v1/...`, the key routes) and under `/s/<session>` (the key must match it).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from bridle.errors import BadRequest, BridleError, InfrastructureError, NotFound
from bridle.gateway.access import Access, LiveSession
from bridle.gateway.asgi import App, Connection, Exchange, Receive, Scope, Send, interleaved, paced
from bridle.gateway.generation import Generation
from bridle.gateway.keys import strike_out, without_key
from bridle.gateway.metrics import Metrics
from bridle.gateway.routes import Routes
from bridle.gateway.turn import Turns
from bridle.gateway.websocket import METHOD as WEBSOCKET, accepted, read_create, refuse
from bridle.messages import Message, ModelRequest, Reply, Usage
from bridle.protocols.base import Does, Protocol, ReplyStream
from bridle.rendering.base import TextDelta, ThinkingDelta
from bridle.sessions.session import signature

log = logging.getLogger("bridle.gateway")

AGENT_PATHS = ("/v1/", "/v1beta/", "/api/")
BEGIN_S = 1.0
"""How long the status line of a stream waits for the first word."""
STOPPING = InfrastructureError("the gateway is being stopped; ask again")


@dataclass(frozen=True, slots=True)
class Call:
    """One agent's call, authorised."""

    protocol: Protocol
    live: LiveSession
    headers: dict[str, str]
    body: bytes
    connection: Exchange
    route: str
    """Method and path, as the log shows them."""
    target: str
    """Path and query below the base URL."""
    model: str
    """The model named in the path, where the route has one."""
    framed: bool = False
    """It came over a WebSocket: the answer is streamed, and the next call may go on from it whatever this one says."""


@dataclass(slots=True)
class Where:
    """Which call a line of the log speaks of. `session`: the one the path names until the key has told."""

    session: str
    route: str

    def __str__(self) -> str:
        return f"session {self.session}: {self.route}"


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
        session, path = split(scope["path"])
        if scope["type"] == "websocket":
            await self._websocket(session, path, scope, receive, send)
        elif scope["method"] == "HEAD":
            await Connection(receive, send).answer(200, b"")
        elif session or path.startswith(AGENT_PATHS):
            await self._agent(session, path, scope, Connection(receive, send))
        else:
            await self.control(scope, receive, send)

    async def _agent(self, path_session: str, path: str, scope: Scope, connection: Connection) -> None:
        """Runs one call; errors leave in the protocol's own shape, with one log line that names the session."""
        headers = _headers(scope)
        route, query = f"{scope['method']} {path}", scope["query_string"].decode("latin-1")
        found = self.routes.find(scope["method"], path, headers)
        where = Where(path_session or "-", route)
        async with self._refusing(found.protocol, connection, where):
            live = self.access.agent(headers, path_session, query)
            where.session = live.session.id
            body = await connection.body(self.max_body_bytes)
            harmless = without_key(query)
            target = f"{path}?{harmless}" if harmless else path
            async with (
                live.taped(connection, scope["method"], target, headers, body) as exchange,
                self._refusing(found.protocol, exchange, where),
            ):
                live.refuse_ending()
                if found.route is None:
                    raise NotFound(f"no route {route}; an agent may call {', '.join(self.routes)}")
                call = Call(found.protocol, live, headers, body, exchange, route, target, found.model)
                await self.handlers[found.route.does](call)

    async def _websocket(self, path_session: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the calls of one connection, one after the other; the key is checked before it opens."""
        headers = _headers(scope)
        route = f"{WEBSOCKET} {path}"
        found = self.routes.find(WEBSOCKET, path, headers)
        try:
            live = self.access.agent(headers, path_session)
            if found.route is None:
                raise NotFound(f"no route {route}; an agent may call {', '.join(self.routes)}")
        except BridleError as error:
            self._failed(f"session {path_session or '-'}: {route}: {error.status} {error.kind}: {error}", error)
            await refuse(receive, send)
            return
        async with accepted(receive, send) as socket:
            async for frame in socket.frames():
                async with (
                    live.taped(frame, WEBSOCKET, path, headers, frame.body) as exchange,
                    self._refusing(found.protocol, exchange, Where(live.session.id, route)),
                ):
                    live.refuse_ending()
                    handler = self._call if read_create(frame.body).generate else self._announced
                    call = Call(found.protocol, live, headers, frame.body, exchange, route, path, "", framed=True)
                    await handler(call)

    @asynccontextmanager
    async def _refusing(self, protocol: Protocol, connection: Exchange, where: Where) -> AsyncIterator[None]:
        """Answers the errors of a call in its protocol's shape."""
        try:
            yield
        except BridleError as error:
            self._failed(f"{where}: {error.status} {error.kind}: {error}", error)
            await connection.answer(_status(protocol, error), protocol.error(error), retry_headers(error))
        except asyncio.CancelledError:
            if not connection.started:
                await connection.answer(STOPPING.status, protocol.error(STOPPING), retry_headers(STOPPING))
            raise
        except Exception:
            log.exception("%s failed", one_line(str(where)))
            if connection.started:
                raise
            internal = BridleError("internal error in the gateway; its log has the traceback")
            await connection.answer(internal.status, protocol.error(internal), retry_headers(internal))

    async def _call(self, call: Call) -> None:
        with _refusing_endless_nesting():
            request = call.live.conversations.resolve(self._parse(call))
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
        call.live.conversations.remember(request, replies[0])
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
            replies = [await draw.wait() for draw in draws]
            call.live.conversations.remember(request, replies[0])
            await call.connection.chunk(stream.finish(replies), last=True)
            _all_sent(draws)
        except BridleError as error:
            session = call.live.session.id
            self._failed(f"session {session}: {call.route}: failed while streaming: {error.kind}: {error}", error)
            await call.connection.chunk(stream.error(error), last=True)
        except asyncio.CancelledError:
            if not call.connection.gone and not call.connection.ended:
                await call.connection.chunk(stream.error(STOPPING), last=True)
            raise

    async def _announced(self, call: Call) -> None:
        """A call that only says what the next one will bring before its own messages: no turn, nothing recorded."""
        with _refusing_endless_nesting():
            request = call.live.conversations.resolve(self._parse(call))
        if request.kind == "compaction":
            raise BadRequest(
                "compaction_trigger: with `generate` false nothing is answered, so no summary is made; send the "
                "trigger in the call that shall be answered"
            )
        reply = Reply(f"announced{token_hex(8)}", request.model, Message("assistant"), "stop", Usage(0, 0))
        call.live.conversations.remember_prompt(request, reply.id)
        stream = call.protocol.stream(request, reply.id)
        await call.connection.start_stream(stream.content_type)
        await call.connection.chunk(stream.start(reply.usage) + stream.finish([reply]), last=True)

    async def _count(self, call: Call) -> None:
        with _refusing_endless_nesting():
            request = call.live.conversations.resolve(self._parse(call))
            tokens = self.turns.count(call.live, request)
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
        request = call.protocol.parse(call.body, call.headers, call.target, call.live.session.said)
        self._check_model(request.model)
        return msgspec.structs.replace(request, stream=True, store=True) if call.framed else request

    def _check_model(self, name: str) -> None:
        if name not in self.models:
            raise NotFound(f"unknown model {name!r}; this gateway serves {', '.join(self.models)}")


async def _deltas(stream: ReplyStream, draws: Sequence[Generation]) -> AsyncGenerator[bytes, None]:
    """Encoded text and thinking of the draws as they come."""
    async with aclosing(interleaved([draw.follow() for draw in draws])) as events:
        async for index, event in events:
            match event:
                # Nothing sent (thinking the client does not want) is silence, which keep-alives have to break.
                case TextDelta(text) if data := stream.text(text, index):
                    yield data
                case ThinkingDelta(text) if data := stream.thinking(text, index):
                    yield data


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


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def split(path: str) -> tuple[str, str]:
    """-> (session named in the path, "" for none; the path below it, a doubled /v1 folded)."""
    session = ""
    if path.startswith("/s/"):
        session, _, rest = path[3:].partition("/")
        path = "/" + rest
    return session, path[3:] if path.startswith("/v1/v1/") else path


def one_line(text: str) -> str:
    """`text` without keys, and without characters that could forge a line of the log; clients write the paths and
    bodies in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in strike_out(text))


def _status(protocol: Protocol, error: BridleError) -> int:
    """529 is Anthropic's own; clients of the others know 503. What a 403 refused Codex asks five times more, what a 400
    refused never."""
    if protocol.name == "openai_responses" and error.status == 403:
        return 400
    return 503 if error.status == 529 and protocol.name != "anthropic" else error.status


def retry_headers(error: BridleError) -> dict[str, str]:
    """Codex gives up on a retryable status without Retry-After; SDKs obey x-should-retry."""
    if isinstance(error, InfrastructureError) and error.retryable:
        return {"retry-after": "1"}
    return {"x-should-retry": "false"}
