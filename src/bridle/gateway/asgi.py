"""The bits of ASGI the hot path needs: whole bodies in, answers and paced streams out, disconnects noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from bridle.errors import BadRequest, BodyTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Connection:
    """One HTTP exchange. `gone`: the client left before it was sent everything."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.started = False
        self.streaming = False
        self.complete = False
        self.gone = False
        self._receive = receive
        self._send = send

    async def body(self, limit: int) -> bytes:
        """The whole request body. Raises BodyTooLarge past `limit` bytes."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client went away before its request was complete")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise BodyTooLarge(f"request body exceeds {limit} bytes (gateway.max_body_mb)")
            if not message.get("more_body"):
                return b"".join(chunks)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        lines = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._start(status, lines)
        await self.chunk(body, last=True)

    async def start_stream(self, content_type: str) -> None:
        self.streaming = True
        await self._start(200, [(b"content-type", content_type.encode()), (b"cache-control", b"no-cache")])

    async def chunk(self, data: bytes, *, last: bool = False) -> None:
        if last:
            # A disconnect that the server has noticed must count, one behind a full send buffer too; after the last
            # chunk servers report one in any case.
            if self.streaming:
                await self._send({"type": "http.response.body", "body": b"", "more_body": True})
            await asyncio.sleep(0)
            self.complete = True
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; cancels it when the client goes away first."""
        working = asyncio.create_task(work, name="answer")
        leaving = asyncio.create_task(self._until_gone(), name="disconnect")
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done() or not self.gone:
                await working
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = not self.complete

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def paced(source: AsyncIterator[bytes], ping: Callable[[], bytes], ping_s: float) -> AsyncGenerator[bytes, None]:
    """`source`, with a keep-alive whenever it has been silent for `ping_s`."""
    pending: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            pending = pending or asyncio.create_task(_next(source), name="next event")
            if not (await asyncio.wait((pending,), timeout=ping_s))[0]:
                yield ping()
                continue
            data = pending.result()
            pending = None
            if data is None:
                return
            yield data
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
