"""Whether draws may begin. While weights are replaced, turns are held: recorded as started, not sampled."""

from __future__ import annotations

import asyncio

from bridle.errors import Paused


class Pause:
    """Draws under way go on; those that would begin wait at `passed`. `held`: how many do."""

    def __init__(self, max_hold_s: float) -> None:
        self.max_hold_s = max_hold_s
        self.held = 0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        """Returns once draws may begin. Raises Paused after `max_hold_s`."""
        self.held += 1
        try:
            async with asyncio.timeout(self.max_hold_s):
                await self._open.wait()
        except TimeoutError:
            raise Paused(
                f"sampling has been paused for more than {self.max_hold_s:g} s (gateway.max_hold_s); try again"
            ) from None
        finally:
            self.held -= 1
