"""Who owns what runs: background tasks with a name and a supervisor, and releases that are finished in any case.

Hazard, Python 3.11: a cancellation that arrives while one waits for a release must not be lost. Everything here goes on
waiting (within its bound) and raises the CancelledError afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from bridle.errors import InfrastructureError

T = TypeVar("T")
logger = logging.getLogger("bridle.lifetimes")

UNWIND_S = 1.0
"""How long a release that ran out of time may take to unwind after it was cancelled."""


class Supervisor:
    """Owns background tasks: `async with Supervisor("gateway") as background: background.start("sweep", sweep())`.

    A task that fails cancels the body of the `async with`, and leaving it raises that failure: the first one, the
    others are logged. A task may end or be cancelled on its own. Leaving cancels what still runs and waits for it, at
    most `stop_timeout_s`. A cancellation from outside, and an error of the body's own, come before a task's failure.
    """

    def __init__(self, name: str, stop_timeout_s: float = 10.0) -> None:
        self.name = name
        self.stop_timeout_s = stop_timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._owner: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._leaving = False
        self._told = False
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        assert self._owner is not None
        self._cancels_before = self._owner.cancelling()
        return self

    def start(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._owner is None or self._leaving:
            work.close()
            raise RuntimeError(f"{self.name}: {name} cannot start, the supervisor is not running")
        task = asyncio.create_task(work, name=f"{self.name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._owner is not None
        self._leaving = True
        cancelled = await self._stop()
        if self._told:
            self._owner.uncancel()
        cancel = error if isinstance(error, asyncio.CancelledError) else cancelled
        if cancel is not None and self._owner.cancelling() > self._cancels_before:
            raise cancel
        if self._failure is not None and (error is None or cancel is error):
            raise self._failure

    async def _stop(self) -> asyncio.CancelledError | None:
        running = set(self._tasks)
        for task in running:
            task.cancel()
        cancelled = await _wait(running, self.stop_timeout_s)
        cancelled = await _yield_once() or cancelled
        if stuck := sorted(task.get_name() for task in running if not task.done()):
            late = f"not stopped within {self.stop_timeout_s} s of being cancelled: {', '.join(stuck)}"
            self._record(InfrastructureError(late), self.name)
        return cancelled

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is None:
            return
        self._record(failure, task.get_name())
        if not self._leaving and not self._told and self._owner is not None:
            self._told = self._owner.cancel()

    def _record(self, failure: BaseException, name: str) -> None:
        logger.error("%s failed", name, exc_info=failure)
        if self._failure is None:
            self._failure = failure


async def shielded(release: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
    """Runs `release` to its end, whatever happens to the caller, but at most `timeout_s`.

    A cancellation of the caller is raised once the release has ended; a failure of the release is then logged only.
    Raises InfrastructureError, naming `what`, when the time is up; the release is cancelled.
    """
    task = asyncio.create_task(release, name=what)
    cancelled = await _wait({task}, timeout_s)
    failure: BaseException | None = None
    if not task.done():
        failure = InfrastructureError(f"{what} did not end within {timeout_s} s and was cancelled")
        task.cancel()
        cancelled = await _wait({task}, UNWIND_S) or cancelled
    if task.done() and not task.cancelled():
        failure = failure or task.exception()
    if cancelled is not None:
        if failure is not None:
            logger.error("%s failed", what, exc_info=failure)
        raise cancelled
    if failure is not None:
        raise failure
    return task.result()


async def _wait(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> asyncio.CancelledError | None:
    """Waits for `tasks` through any cancellation of the caller -> the last one that came."""
    clock = asyncio.get_running_loop().time
    until = clock() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while (pending := [task for task in tasks if not task.done()]) and (left := until - clock()) > 0:
        try:
            await asyncio.wait(pending, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def _yield_once() -> asyncio.CancelledError | None:
    """Lets callbacks of tasks that just ended run, and a cancellation that was requested but not yet thrown surface."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        return error
    return None
