"""Control routes of the gateway: sessions are opened, inspected and finished here, with the control token only."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bridle.decoding import decode
from bridle.errors import BadRequest, BridleError, Conflict, NotFound
from bridle.gateway.access import Access, LiveSession
from bridle.gateway.capture import Capture
from bridle.gateway.journal import Journal
from bridle.gateway.keys import new_key
from bridle.gateway.metrics import Metrics
from bridle.gateway.pause import Pause
from bridle.registry import resolve
from bridle.rendering.base import Renderer
from bridle.samples import BUILDERS
from bridle.samples.assign import OverLength
from bridle.samples.drop import Kinds
from bridle.samples.linearize import DEFAULT, Options, document, linearize
from bridle.sessions.codec import decode as read_log
from bridle.sessions.records import Opened, SessionOptions
from bridle.sessions.session import Session

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,139}")
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


class OpenSession(SessionOptions, frozen=True, forbid_unknown_fields=True):
    """Body of POST /sessions: the options, and an id. Without one it is made."""

    id: str = ""

    def session_options(self) -> SessionOptions:
        return SessionOptions(**{name: value for name, value in msgspec.structs.asdict(self).items() if name != "id"})


class Linearization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tree becomes samples, see `bridle.samples.linearize.Options`."""

    builder: str = DEFAULT.builder
    kinds: Kinds = DEFAULT.kinds
    max_sample_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    over_length: OverLength = DEFAULT.over_length
    max_samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    unused_draws: Literal["train", "drop"] = "train"

    def options(self, session: Session) -> Options:
        return msgspec.structs.replace(
            Options.of(session),
            builder=self.builder,
            kinds=self.kinds,
            max_sample_tokens=self.max_sample_tokens,
            over_length=self.over_length,
            max_samples=self.max_samples,
            unused_draws=self.unused_draws,
        )


class FinishSession(Linearization, frozen=True, forbid_unknown_fields=True):
    """Body of POST /sessions/{id}/finish."""

    cause: str = "finished"


class Control:
    """Opens, shows and finishes sessions; `base_url` is known once the server listens."""

    def __init__(
        self, access: Access, renderer: Renderer, metrics: Metrics, pause: Pause, data: Path, model: str
    ) -> None:
        self.access = access
        self.renderer = renderer
        self.metrics = metrics
        self.pause = pause
        self.data = data
        self.model = model
        self.base_url = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", _healthz),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/pause", self._guarded(self._pause), methods=["POST"]),
                Route("/resume", self._guarded(self._resume), methods=["POST"]),
                Route("/sessions", self._guarded(self._open), methods=["POST"]),
                Route("/sessions/{id}", self._guarded(self._show)),
                Route("/sessions/{id}/finish", self._guarded(self._finish), methods=["POST"]),
            ],
            exception_handlers={404: _no_route, 405: _no_route},
        )

    def log_path(self, session: str) -> Path:
        return self.data / "rollouts" / session / "session.log"

    def open(self, order: OpenSession) -> LiveSession:
        session_id = order.id or f"session-{secrets.token_hex(6)}"
        if not _ID.fullmatch(session_id):
            raise BadRequest(
                f"session id {session_id!r}: use letters, digits, '.', '_' and '-', at most 140 characters"
            )
        if self.access.has(session_id):
            raise Conflict(f"session {session_id!r} exists; a session's id is used once")
        journal = Journal(self.log_path(session_id))
        session = Session(journal.append)
        fingerprint = f"{self.renderer.vocabulary.fingerprint}/{self.renderer.facts.fingerprint}"
        options, key = order.session_options(), new_key()
        session.open(Opened(session_id, self.model, fingerprint, options, time.time()))
        capture = Capture(journal.path.with_name("wire.zst")) if options.capture == "raw" else None
        live = LiveSession(session, key, journal, capture)
        self.access.add(live)
        self.metrics.sessions.inc()
        return live

    async def finish(self, session_id: str, order: FinishSession) -> bytes:
        """Draws under way are aborted and recorded, the session is sealed, its tree becomes samples -> JSON.

        Repeatable, also with another builder where one failed: then from the log, so that a finished session takes no
        memory."""
        if (ended := self.access.ended(session_id)) is not None:
            return await asyncio.to_thread(_from_log, ended.log, order)
        live = self.access.get(session_id)
        resolve("builder", BUILDERS, order.builder)  # a wrong name leaves the session open
        live.ending = live.ending or order.cause or "finished"
        while live.running:
            await asyncio.gather(*(generation.abandon() for generation in live.running))
        if live.session.sealed is None:
            live.session.seal(live.ending, time.time())
            live.journal.close()
            self.metrics.sessions.dec()
            self.metrics.sampled.inc(live.session.sampled_tokens)
        if live.capture is not None:
            await live.capture.close()
        # Nothing changes a sealed session, and a long one takes seconds.
        try:
            return await asyncio.to_thread(_finished, live.session, order)
        finally:
            self.access.end(live)

    async def _open(self, request: Request) -> Response:
        live = self.open(_body(await request.body(), OpenSession))
        base = f"{self.base_url}/s/{live.session.id}"
        urls = {"anthropic": base, "openai": f"{base}/v1", "gemini": base}
        return _json({"id": live.session.id, "key": live.key, "base_urls": urls, "model": self.model}, 201)

    async def _show(self, request: Request) -> Response:
        session_id = request.path_params["id"]
        if (ended := self.access.ended(session_id)) is not None:
            return _json(
                {
                    "id": ended.id,
                    "sealed": ended.cause,
                    "turns": ended.turns,
                    "running": 0,
                    "sampled_tokens": ended.sampled_tokens,
                    "log": str(ended.log),
                }
            )
        live = self.access.get(session_id)
        session = live.session
        return _json(
            {
                "id": session.id,
                "sealed": session.sealed.cause if session.sealed else None,
                "turns": len(session.tree.turns),
                "running": len(live.running),
                "sampled_tokens": session.sampled_tokens,
                "log": str(live.journal.path),
            }
        )

    async def _finish(self, request: Request) -> Response:
        answer = await self.finish(request.path_params["id"], _body(await request.body(), FinishSession))
        return Response(answer, media_type="application/json")

    async def _pause(self, request: Request) -> Response:
        self.pause.pause()
        return self._paused()

    async def _resume(self, request: Request) -> Response:
        self.pause.resume()
        return self._paused()

    def _paused(self) -> Response:
        """`running`: draws that the engine has begun, as far as is known here."""
        under_way = sum(len(live.running) for live in self.access)
        held = self.pause.held
        return _json({"paused": self.pause.paused, "running": under_way - held, "held": held})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                self.access.control(request.headers)
                return await endpoint(request)
            except BridleError as error:
                return _json({"error": {"kind": error.kind, "message": error.message}}, error.status)

        return guarded


def _finished(session: Session, order: FinishSession) -> bytes:
    result = linearize(session.tree, order.options(session), session.facts)
    return orjson.dumps({**document(result), "refused": session.refused})


def _from_log(log: Path, order: FinishSession) -> bytes:
    return _finished(Session.replay(read_log(log.read_bytes(), str(log))), order)


async def _healthz(request: Request) -> Response:
    return _json({"status": "ok"})


async def _no_route(request: Request, error: Exception) -> Response:
    message = f"no route {request.method} {request.url.path}"
    return _json({"error": {"kind": NotFound.kind, "message": message}}, 404)


def _body(data: bytes, kind: type[T]) -> T:
    try:
        document = msgspec.json.decode(data or b"{}")
    except msgspec.DecodeError as error:
        raise BadRequest(f"request body: not JSON: {error}") from error
    return decode(document, kind, "request body", BadRequest)


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
