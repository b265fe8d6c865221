"""A proxy on loopback between an agent and a gateway: it fails one model call and lets everything else through.

One request per connection. Behind its head bytes are carried as they come, so streams pass. Over a WebSocket each
message that asks for a turn is a model call, and what the gateway sends until the next one is its answer. When one side
leaves the other is told at once: to the gateway, a client that was cut off is a client that went away.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from bridle.doctor.frames import CLOSE, NORMAL_CLOSURE, framed, frames, is_model_call, messages
from bridle.lifetimes import Supervisor

MODEL_CALL = re.compile(
    rb"POST \S*(/messages|/chat/completions|/responses|:generateContent|:streamGenerateContent)(\?\S*)? "
)
HEAD_BYTES = 1 << 20
CHUNK = 65536
PASSES_S = 0.05
"""How long bytes before a reset get to pass: a reset overtakes what is still under way."""
logger = logging.getLogger("bridle.doctor")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to the `call`-th model call, counted from 1; `after_bytes` of its answer's body come through before.

    status: an answer with `status` in its place, the gateway is not asked. reset: a TCP reset. cut: the connection ends
    in the middle of the HTTP message. cut_clean: the HTTP message ends as it should, the protocol's own does not (of an
    answer that is no stream, a plain cut). stall: silence for `seconds`, then the rest. Over a WebSocket a status is an
    error event, a cut ends the connection within a message, a clean one with a closing frame between two."""

    kind: Literal["status", "reset", "cut", "cut_clean", "stall"]
    call: int = 2
    status: int = 500
    retry_after_s: int | None = None
    after_bytes: int = 0
    seconds: float = 0.0


class FaultProxy:
    """`url` takes the place of the gateway's own. `calls`: of a model, over HTTP, `messages`: over a WebSocket.
    `fired`: the fault has come; without one all passes."""

    def __init__(self, target: str, fault: Fault | None) -> None:
        self.calls = 0
        self.messages = 0
        self.fired = False
        self.url = ""
        self._fault = fault
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its head to the end of both sides."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fault = self._due(head)
            if fault is not None and fault.kind == "status":
                await _body(head, reader)
                self.fired = True
                writer.write(_refusal(fault))
                await writer.drain()
            else:
                await self._carry(head, fault, reader, writer)
        except (OSError, asyncio.IncompleteReadError) as error:
            logger.debug("a connection through the fault proxy ended: %s", error)
        finally:
            writer.close()

    def _due(self, head: bytes) -> Fault | None:
        if not MODEL_CALL.match(head):
            return None
        self.calls += 1
        return self._next()

    def _next(self) -> Fault | None:
        """What shall happen to the newest call."""
        newest = self.calls + self.messages
        return self._fault if self._fault is not None and self._fault.call == newest else None

    async def _carry(
        self, head: bytes, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Ends with whichever side ends first."""
        far_reader, far_writer = await asyncio.open_connection(*self._target, limit=HEAD_BYTES)
        far_writer.write(_for_one_request(head))
        if _is_websocket(head):
            due: list[Fault] = []
            asked = asyncio.create_task(self._calls(due, reader, far_writer, writer))
            answered = asyncio.create_task(self._answers(due, far_reader, writer))
        else:
            asked = asyncio.create_task(_pour(reader, far_writer))
            answered = asyncio.create_task(self._answer(fault, far_reader, writer))
        try:
            await asyncio.wait((asked, answered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in (asked, answered):
                direction.cancel()
            await asyncio.gather(asked, answered, return_exceptions=True)
            far_writer.transport.abort()

    async def _answer(self, fault: Fault | None, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        if fault is None:
            await _pour(source, sink)
            return
        head = await source.readuntil(b"\r\n\r\n")
        passed = 0
        if fault.after_bytes:
            sink.write(head)
        async for piece in _pieces(source, chunked=_is_chunked(head) and fault.kind == "cut_clean"):
            if passed + len(piece) >= fault.after_bytes and not self.fired:
                self.fired = True
                if fault.kind != "stall":
                    await _fail(fault, piece, fault.after_bytes - passed, sink)
                    return
                await asyncio.sleep(fault.seconds)
                if not fault.after_bytes:
                    sink.write(head)
            passed += len(piece)
            sink.write(piece)
            await sink.drain()

    async def _calls(
        self, due: list[Fault], source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        """A client's side of a WebSocket. `due` gets the fault that the answer to come shall meet."""
        async for said, raw in messages(source):
            called = is_model_call(said)
            self.messages += called
            fault = self._next() if called else None
            if called:
                due.clear()
            if fault is not None and fault.kind == "status":
                self.fired = True
                back.write(framed(_error_event(fault)))
                await back.drain()
                continue
            if fault is not None:
                due.append(fault)
            sink.write(raw)
            await sink.drain()

    async def _answers(self, due: list[Fault], source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """A gateway's side of a WebSocket, up to the fault that ends it."""
        sink.write(await source.readuntil(b"\r\n\r\n"))
        passed = 0
        async for frame in frames(source):
            fault = due[0] if due and not frame.control else None
            if fault is not None and passed + len(frame.data) >= fault.after_bytes:
                due.clear()
                self.fired = True
                if fault.kind != "stall":
                    await _fail_frame(fault, frame.raw, sink)
                    return
                await asyncio.sleep(fault.seconds)
            passed += len(frame.data) if due else 0
            sink.write(frame.raw)
            await sink.drain()


@asynccontextmanager
async def faulty(target: str, fault: Fault | None) -> AsyncIterator[FaultProxy]:
    """A proxy in front of `target` (http://HOST:PORT), listening until left."""
    proxy = FaultProxy(target, fault)
    async with Supervisor("fault proxy") as background:

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            background.start("connection", proxy.serve(reader, writer))

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=HEAD_BYTES)
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()


async def _fail(fault: Fault, piece: bytes, room: int, sink: asyncio.StreamWriter) -> None:
    """What still passes of `piece`, then the end. A clean one keeps the chunk whole."""
    if fault.after_bytes:
        whole = fault.kind == "cut_clean"
        sink.write(piece if whole else piece[:room])
        sink.write(b"0\r\n\r\n" if whole else b"")
        await sink.drain()
    if fault.kind == "reset":
        await _reset(sink)


async def _fail_frame(fault: Fault, raw: bytes, sink: asyncio.StreamWriter) -> None:
    """What still passes of a frame, then the end. A clean one keeps the message whole."""
    if fault.after_bytes:
        sink.write(raw if fault.kind == "cut_clean" else raw[: len(raw) // 2])
    if fault.kind == "cut_clean":
        sink.write(framed(NORMAL_CLOSURE, CLOSE))
    await sink.drain()
    if fault.kind == "reset":
        await _reset(sink)


async def _reset(sink: asyncio.StreamWriter) -> None:
    await asyncio.sleep(PASSES_S)
    connection = sink.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sink.transport.abort()


async def _pieces(source: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """An answer's body as it comes; `chunked`: in whole chunks of the transfer coding, the last one left out."""
    if not chunked:
        while data := await source.read(CHUNK):
            yield data
        return
    while (size := int((line := await source.readuntil(b"\r\n")).split(b";")[0], 16)) > 0:
        yield line + await source.readexactly(size + 2)


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        sink.write(data)
        await sink.drain()


async def _body(head: bytes, reader: asyncio.StreamReader) -> None:
    """Taken whole before an answer: a client whose request is not read may see a reset in its place."""
    if _is_chunked(head):
        async for _ in _pieces(reader, chunked=True):
            pass
        await reader.readuntil(b"\r\n")
    elif length := re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE):
        await reader.readexactly(int(length[1]))


def _is_chunked(head: bytes) -> bool:
    return re.search(rb"\r\ntransfer-encoding: *chunked", head, re.IGNORECASE) is not None


def _is_websocket(head: bytes) -> bool:
    return re.search(rb"\r\nupgrade: *websocket", head, re.IGNORECASE) is not None


def _for_one_request(head: bytes) -> bytes:
    """The gateway shall close when it has answered. One that asks for a WebSocket goes on, without extensions of it."""
    if _is_websocket(head):
        return re.sub(rb"\r\nsec-websocket-extensions:[^\r]*", b"", head, flags=re.IGNORECASE)
    plain = re.sub(rb"\r\n(proxy-)?(connection|keep-alive):[^\r]*", b"", head, flags=re.IGNORECASE)
    return plain[:-2] + b"connection: close\r\n\r\n"


def _refusal(fault: Fault) -> bytes:
    """Readable by clients of every protocol."""
    body = msgspec.json.encode({"type": "error", "error": _error(fault)})
    again = b"" if fault.retry_after_s is None else b"retry-after: %d\r\n" % fault.retry_after_s
    return (
        b"HTTP/1.1 %d Fault\r\ncontent-type: application/json\r\n%sconnection: close\r\ncontent-length: %d\r\n\r\n%s"
        % (fault.status, again, len(body), body)
    )


def _error_event(fault: Fault) -> bytes:
    """Codex takes no word of one whose code is a number."""
    again = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
    error = _error(fault) | {"code": "made_to_fail"}
    return msgspec.json.encode({"type": "error", "status": fault.status, "error": error, "headers": again})


def _error(fault: Fault) -> dict[str, object]:
    kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(fault.status, "api_error")
    return {"type": kind, "code": fault.status, "status": "UNAVAILABLE", "message": "made to fail, once"}
