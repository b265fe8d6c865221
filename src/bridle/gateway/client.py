"""How everything else reaches a gateway: its control routes over HTTP."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from bridle.http import Client
from bridle.sessions.records import SessionOptions


class OpenedSession(msgspec.Struct, frozen=True):
    """`key` is the agent's credential; `base_urls` maps "anthropic", "openai" and "gemini" to where such clients' calls
    go (with "/v1" for "openai", the bare base for the others)."""

    id: str
    key: str
    base_urls: dict[str, str]
    model: str


class GatewayClient:
    """`async with GatewayClient(url, control_token) as gateway: session = await gateway.open("r1", options)`."""

    def __init__(self, url: str, control_token: str) -> None:
        self._http = Client(url, key=control_token)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def open(self, session_id: str, options: SessionOptions) -> OpenedSession:
        answer = await self._http.post("/sessions", {"id": session_id, **msgspec.to_builtins(options)})
        return msgspec.convert(answer, OpenedSession)

    async def pause(self) -> dict[str, Any]:
        """No draw begins until `resume` -> {"paused": true, "running": draws that go on, "held": those that wait}."""
        paused: dict[str, Any] = await self._http.post("/pause", {}, idempotent=True)
        return paused

    async def resume(self) -> dict[str, Any]:
        resumed: dict[str, Any] = await self._http.post("/resume", {}, idempotent=True)
        return resumed

    async def show(self, session_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = await self._http.get(f"/sessions/{session_id}")
        return shown

    async def finish(self, session_id: str, cause: str, samples: dict[str, Any]) -> dict[str, Any]:
        """Seals the session -> {"samples": [...], "fidelity": {...}, "refused": the limit that refused a call or None}.

        Repeatable. `samples`: how to linearize."""
        body = {"cause": cause, **samples}
        finished: dict[str, Any] = await self._http.post(f"/sessions/{session_id}/finish", body, idempotent=True)
        return finished
