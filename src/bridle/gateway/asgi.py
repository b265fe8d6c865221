"""The bits of ASGI the hot path needs: whole bodies in, answers and paced streams out, disconnects noticed."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Protocol as Contract, TypeVar

from bridle.errors import BadRequest, BodyTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Exchange(Contract):
    """A call's way back to its client, whatever carries it."""

    @property
    def started(self) -> bool:
        """Something was sent already."""
        ...

    @property
    def ended(self) -> bool:
        """What ends an answer was sent, or is being sent: nothing may follow."""
        ...

    @property
    def gone(self) -> bool:
        """The client left before it was sent everything."""
        ...

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None: ...

    async def start_stream(self, content_type: str) -> None: ...

    async def chunk(self, data: bytes, *, last: bool = False) -> None: ...

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; cancels it when the client goes away first."""
        ...


class Connection:
    """One HTTP exchange. `gone`: the client left before it was sent everything."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.started = False
        self.streaming = False
        self.ended = False
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
            self.ended = True
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
        self.gone = not self.ended

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def paced(source: AsyncIterator[bytes], ping: Callable[[], bytes], ping_s: float) -> AsyncGenerator[bytes, None]:
    """`source`, with a keep-alive whenever it has been silent for `ping_s`."""
    pending: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            pending = pending or _asked(source)
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


async def interleaved(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What each source gives as it gives it, with the source's number. Raises what one of them raises."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for value in only:
                yield 0, value
        return
    pending = {_asked(source): index for index, source in enumerate(sources)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index, given = pending.pop(task), task.result()
                if given is not None:
                    yield index, given
                    pending[_asked(sources[index])] = index
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for source in sources:
            await source.aclose()


def _asked(source: AsyncIterator[T]) -> asyncio.Task[T | None]:
    return asyncio.create_task(_next(source), name="next event")


async def _next(source: AsyncIterator[T]) -> T | None:
    return await anext(source, None)
