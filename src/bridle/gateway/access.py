"""Who may do what: one key per session routes and authorises an agent's calls; control calls need another token."""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from bridle.errors import AccessDenied, Conflict, NotFound, SessionSealed
from bridle.gateway.asgi import Exchange
from bridle.gateway.capture import Capture
from bridle.gateway.conversations import Conversations
from bridle.gateway.generation import Generation
from bridle.gateway.journal import Journal
from bridle.gateway.keys import agent_key, bearer
from bridle.sessions.session import Session

RETRY_WINDOW = 64
"""Draws of a session that a retry can still join; more than any agent keeps in flight."""


@dataclass(slots=True)
class LiveSession:
    """A session with its key, its log and its draws, under way and newest. `ending`: why no call is let in any more."""

    session: Session
    key: str
    journal: Journal
    capture: Capture | None = None
    ending: str = ""
    conversations: Conversations = field(default_factory=Conversations)
    running: set[Generation] = field(default_factory=set)
    recent: deque[Generation] = field(default_factory=lambda: deque(maxlen=RETRY_WINDOW))

    def taped(
        self, exchange: Exchange, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[Exchange]:
        """`exchange`, kept as it goes over the wire where the session asks for that."""
        if self.capture is None:
            return nullcontext(exchange)
        return self.capture.call(exchange, method, target, headers, body)

    def refuse_ending(self) -> None:
        if self.ending:
            raise has_ended(self.session.id, self.ending)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is left of a finished session in memory; its log has the rest."""

    id: str
    cause: str
    log: Path
    turns: int
    sampled_tokens: int


class Access:
    """All sessions of one gateway. Registration and removal are atomic: nothing here awaits."""

    def __init__(self, control_token: str) -> None:
        self._control_token = control_token
        self._by_id: dict[str, LiveSession] = {}
        self._by_key: dict[str, LiveSession | Ended] = {}
        self._ended: dict[str, Ended] = {}

    def __iter__(self) -> Iterator[LiveSession]:
        """Those that have not ended."""
        return iter(self._by_id.values())

    def add(self, live: LiveSession) -> None:
        if self.has(live.session.id):
            raise Conflict(f"session {live.session.id!r} exists; a session's id is used once")
        self._by_id[live.session.id] = live
        self._by_key[live.key] = live

    def has(self, session_id: str) -> bool:
        return session_id in self._by_id or session_id in self._ended

    def end(self, live: LiveSession) -> None:
        """Its tree is let go; its key goes on saying that it has ended."""
        session = live.session
        ended = Ended(session.id, live.ending, live.journal.path, len(session.tree.turns), session.sampled_tokens)
        self._by_id.pop(ended.id, None)
        self._ended[ended.id] = self._by_key[live.key] = ended

    def ended(self, session_id: str) -> Ended | None:
        return self._ended.get(session_id)

    def get(self, session_id: str) -> LiveSession:
        try:
            return self._by_id[session_id]
        except KeyError:
            known = len(self._by_id) + len(self._ended)
            raise NotFound(f"no session {session_id!r} here; {known} sessions are known") from None

    def agent(self, headers: Mapping[str, str], path_session: str, query: str = "") -> LiveSession:
        """The session an agent's call belongs to. Raises AccessDenied (403: clients retry a 401)."""
        key = agent_key(headers, query)
        live = self._by_key.get(key) if key else None
        if live is None:
            raise AccessDenied(
                "unknown key; send the session's key as x-api-key, as x-goog-api-key or as a bearer token"
            )
        session_id = live.id if isinstance(live, Ended) else live.session.id
        if path_session and path_session != session_id:
            raise AccessDenied(f"this key does not open session {path_session!r}")
        if isinstance(live, Ended):
            raise has_ended(live.id, live.cause)
        live.refuse_ending()
        return live

    def control(self, headers: Mapping[str, str]) -> None:
        if not hmac.compare_digest(bearer(headers).encode(), self._control_token.encode()):
            raise AccessDenied("control routes need the control token as a bearer token")


def has_ended(session_id: str, cause: str) -> SessionSealed:
    return SessionSealed(f"session {session_id} has ended ({cause}); its key is revoked")
