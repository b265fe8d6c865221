"""Who may do what: one key per session routes and authorises an agent's calls; control calls need another token."""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bridle.errors import AccessDenied, Conflict, NotFound, SessionSealed
from bridle.gateway.generation import Generation
from bridle.gateway.journal import Journal
from bridle.sessions.session import Session

RETRY_WINDOW = 64
"""Draws of a session that a retry can still join; more than any agent keeps in flight."""


@dataclass(slots=True)
class LiveSession:
    """A session with its key, its log and its draws, under way and newest. `ending`: why no call is let in any more."""

    session: Session
    key: str
    journal: Journal
    ending: str = ""
    running: set[Generation] = field(default_factory=set)
    recent: deque[Generation] = field(default_factory=lambda: deque(maxlen=RETRY_WINDOW))

    def refuse_ending(self) -> None:
        if self.ending:
            raise SessionSealed(f"session {self.session.id} has ended ({self.ending}); its key is revoked")


class Access:
    """All sessions of one gateway. Registration and removal are atomic: nothing here awaits."""

    def __init__(self, control_token: str) -> None:
        self._control_token = control_token
        self._by_id: dict[str, LiveSession] = {}
        self._by_key: dict[str, LiveSession] = {}

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(self._by_id.values())

    def add(self, live: LiveSession) -> None:
        if live.session.id in self._by_id:
            raise Conflict(f"session {live.session.id!r} exists; a session's id is used once")
        self._by_id[live.session.id] = live
        self._by_key[live.key] = live

    def has(self, session_id: str) -> bool:
        return session_id in self._by_id

    def get(self, session_id: str) -> LiveSession:
        try:
            return self._by_id[session_id]
        except KeyError:
            raise NotFound(f"no session {session_id!r} here; {len(self._by_id)} sessions are known") from None

    def agent(self, headers: Mapping[str, str], path_session: str) -> LiveSession:
        """The session an agent's call belongs to. Raises AccessDenied (403: clients retry a 401)."""
        key = agent_key(headers)
        live = self._by_key.get(key) if key else None
        if live is None:
            raise AccessDenied("unknown key; send the session's key as x-api-key or as a bearer token")
        if path_session and path_session != live.session.id:
            raise AccessDenied(f"this key does not open session {path_session!r}")
        live.refuse_ending()
        return live

    def control(self, headers: Mapping[str, str]) -> None:
        if not hmac.compare_digest(_bearer(headers).encode(), self._control_token.encode()):
            raise AccessDenied("control routes need the control token as a bearer token")


def new_key() -> str:
    return f"sk-bridle-{secrets.token_hex(24)}"


def agent_key(headers: Mapping[str, str]) -> str:
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or _bearer(headers)


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
