"""One turn's chunks from an engine that may be paused, or fail before it said anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from bridle.engines.base import Chunk, Engine, GenerateRequest
from bridle.errors import InfrastructureError
from bridle.gateway.pause import Pause

BACKOFF_S = 0.1
"""Before the first retry, doubled for each one after it: what fails for good shall be told while a status can be."""

log = logging.getLogger("bridle.gateway")


async def sampled(engine: Engine, order: GenerateRequest, pause: Pause, retries: int) -> AsyncGenerator[Chunk, None]:
    """Chunks as they come. A failure that may pass is tried again, `retries` times, while not one id has been given:
    an attempt without ids is no draw, so the engine may record it under the same rid. Raises what the last one did."""
    for attempt in range(retries + 1):
        await pause.passed()
        begun = False
        try:
            async with aclosing(engine.generate(order)) as chunks:
                async for chunk in chunks:
                    begun = begun or len(chunk.ids) > 0
                    yield chunk
            return
        except InfrastructureError as error:
            if begun or not error.retryable or attempt == retries:
                raise
            log.warning("turn %s: attempt %d failed before its first token: %s", order.rid, attempt + 1, error.message)
        await asyncio.sleep(BACKOFF_S * 2**attempt)
