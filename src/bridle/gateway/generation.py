"""One draw under way: the engine's chunks, what clients may already see of them, who listens, and how it is recorded.

A draw outlives the connection that asked for it by `abort_grace_s`, within which a retry may join. It is recorded the
moment sampling ends, before any listener learns that it ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress

import msgspec
import numpy as np

from bridle.engines.base import Chunk
from bridle.errors import BridleError, EngineError
from bridle.extras import joined
from bridle.gateway.stops import Withheld, cut
from bridle.messages import FinishReason, Message, Reply, TokenLogprob, Usage
from bridle.rendering.base import Event, ReplyParser
from bridle.sessions.session import Draw, Session, signature
from bridle.sessions.tree import Turn
from bridle.tokens import concatenate

Spelling = Callable[[int], bytes]
"""Token id -> its bytes."""

log = logging.getLogger("bridle.gateway")


class Generation:
    """`reply` or `error` is set once `finished`. `events` are safe to pass on while sampling goes on.

    `stops`: the client's stop texts. `spelling`: given where the client asked for logprobs."""

    def __init__(
        self,
        session: Session,
        turn: Turn,
        model: str,
        parser: ReplyParser,
        usage: Usage,
        stops: Sequence[str] = (),
        spelling: Spelling | None = None,
    ) -> None:
        self.session = session
        self.turn = turn
        self.model = model
        self.usage = usage
        self.events: list[Event] = []
        self.reply: Reply | None = None
        self.error: BridleError | None = None
        self.finished = False
        self.delivered = False
        self.listeners = 0
        self.ended = asyncio.Event()
        self._left = asyncio.Event()
        self._abandoned = False
        self._parser = parser
        self._withheld = Withheld(stops)
        self._spelling = spelling
        self._chunks: list[Chunk] = []
        self._changed = asyncio.Event()

    @property
    def joinable(self) -> bool:
        """Whether a retry of the same request gets this draw."""
        aborting = self._abandoned and self.reply is None
        return self.error is None and not aborting and not self.delivered and self.listeners == 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1
            if self.listeners == 0 and not self.finished:
                self._left.set()

    async def abandon(self) -> None:
        """Aborts the draw at once and waits until it is recorded."""
        self._abandoned = True
        self._left.set()
        await self.ended.wait()

    async def follow(self) -> AsyncGenerator[Event, None]:
        """Every event from the first on, until the draw is recorded. Raises the draw's error."""
        at = 0
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self.finished:
                break
            await self._changed.wait()
        if self.error:
            raise self.error

    async def begun(self, within_s: float) -> None:
        """Returns with the first event, the end, or after `within_s`. Raises the error of a draw that never began."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.events and not self.finished:
                    await self._changed.wait()
        if self.error and not self.events:
            raise self.error

    async def wait(self) -> Reply:
        async for _ in self.follow():
            pass
        if self.reply is None:
            raise EngineError(f"turn {self.turn.id} was aborted: its client went away and nobody took its place")
        return self.reply

    async def run(self, chunks: AsyncGenerator[Chunk, None], stop_ids: tuple[int, ...], abort_grace_s: float) -> None:
        """Takes `chunks` to the end, or until nobody has listened for `abort_grace_s`; then records."""
        sampling = asyncio.create_task(self._sample(chunks), name=f"sample {self.turn.id}")
        lonely = asyncio.create_task(self._lonely(abort_grace_s), name=f"abort {self.turn.id}")
        try:
            await asyncio.wait((sampling, lonely), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sampling, lonely):
                task.cancel()
            await asyncio.gather(sampling, lonely, return_exceptions=True)
            self._record(sampling, stop_ids)

    async def _sample(self, source: AsyncGenerator[Chunk, None]) -> None:
        async with aclosing(source) as chunks:
            async for chunk in chunks:
                self._chunks.append(chunk)
                self._publish(self._parser.feed(chunk.ids.tolist()))

    async def _lonely(self, abort_grace_s: float) -> None:
        """Returns when nobody has listened for `abort_grace_s` since the last one left; at once when abandoned."""
        while True:
            await self._left.wait()
            self._left.clear()
            if self._abandoned:
                return
            try:
                async with asyncio.timeout(abort_grace_s):
                    await self._left.wait()
            except TimeoutError:
                if self.listeners == 0:
                    self._abandoned = True
                    return

    def _record(self, sampling: asyncio.Task[None], stop_ids: tuple[int, ...]) -> None:
        """The draw as far as it came, then the news of it."""
        events: list[Event] = []
        try:
            draw = _draw(self._chunks, stop_ids, _failure(sampling, self._chunks))
            complete = not sampling.cancelled() and not draw.failed
            message, events = self._parser.finish()
            message = cut(message, draw.stop_sequence)
            broken = tuple(call.status for call in self._parser.calls if call.status != "ok")
            draw = msgspec.structs.replace(draw, ill_formed=broken)
            self.session.finish(self.turn, draw, message, time.time(), delivered=complete and self.listeners > 0)
            if complete:
                self.reply = self._reply(draw)
            else:
                self.error = _error(self.turn, sampling)
        except BridleError as error:
            self.error = error
        except Exception:
            log.exception("turn %s could not be recorded", self.turn.id)
            self.error = BridleError(f"turn {self.turn.id} could not be recorded; the gateway's log has the traceback")
        finally:
            self.finished = True
            self._chunks.clear()
            self._publish(events)
            self.ended.set()

    def _reply(self, draw: Draw) -> Reply:
        message = self.turn.message
        assert message is not None
        return Reply(
            id=self.turn.id,
            model=self.model,
            message=message,
            finish_reason=_finish_reason(draw, message),
            usage=Usage(self.usage.input, len(draw.ids), self.usage.cached, self._parser.reasoning_ids),
            stop_sequence=draw.stop_sequence,
            logprobs=_logprobs(self.turn, self._spelling) if self._spelling else None,
            signature=signature(self.turn.id),
        )

    def _publish(self, events: list[Event]) -> None:
        self.events.extend(self._withheld.pass_on(events))
        self._changed.set()
        self._changed = asyncio.Event()


def _draw(chunks: list[Chunk], stop_ids: tuple[int, ...], failed: str) -> Draw:
    ids = concatenate([chunk.ids for chunk in chunks])
    known = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    finish: FinishReason = next((chunk.finish for chunk in reversed(chunks) if chunk.finish), "abort")
    return Draw(
        ids=ids,
        logprobs=np.concatenate(known) if known else None,
        finish_reason=finish,
        versions=_versions(chunks),
        forced=any(chunk.forced for chunk in chunks),
        constrained=any(chunk.constrained for chunk in chunks),
        stop_id=int(ids[-1]) if finish == "stop" and len(ids) and int(ids[-1]) in stop_ids else None,
        stop_sequence=chunks[-1].stopped_by if chunks else "",
        failed=failed,
        extras=joined([chunk.extras for chunk in chunks if len(chunk.ids)]),
    )


def _logprobs(turn: Turn, spelling: Spelling) -> tuple[TokenLogprob, ...] | None:
    """Of every sampled id but the stop id; None where the engine gave none that are usable."""
    if turn.logprobs is None:
        return None
    ids = turn.sampled if turn.stop_id is None else turn.sampled[:-1]
    spelled = [spelling(id) for id in ids.tolist()]
    return tuple(
        TokenLogprob(data.decode(errors="replace"), logprob, data)
        for data, logprob in zip(spelled, turn.logprobs.tolist(), strict=False)
    )


def _versions(chunks: list[Chunk]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    at = 0
    for chunk in chunks:
        if len(chunk.ids) and (not spans or spans[-1][1] != chunk.version):
            spans.append((at, chunk.version))
        at += len(chunk.ids)
    return tuple(spans)


def _finish_reason(draw: Draw, message: Message) -> FinishReason:
    """A call that a stop text cut is not one to be run."""
    cut_short = draw.stop_sequence and message.calls and message.calls[-1].status == "unclosed"
    return "tool_calls" if draw.finish_reason == "stop" and message.calls and not cut_short else draw.finish_reason


def _failure(sampling: asyncio.Task[None], chunks: list[Chunk]) -> str:
    """What the engine failed with; "" where it ended the draw as it should, or was told to break it off."""
    if sampling.cancelled():
        return ""
    if (failure := sampling.exception()) is not None:
        return str(failure)
    return "" if any(chunk.finish in ("stop", "length") for chunk in chunks) else "the engine broke the draw off"


def _error(turn: Turn, sampling: asyncio.Task[None]) -> BridleError:
    failure = None if sampling.cancelled() else sampling.exception()
    if isinstance(failure, BridleError):
        return failure
    if failure is not None:
        return EngineError(f"turn {turn.id}: the engine driver failed: {type(failure).__name__}: {failure}")
    return EngineError(f"turn {turn.id} was aborted before its end")
