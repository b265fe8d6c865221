"""The client side of JSON over HTTP: what the gateway's client and the engine drivers share.

One `Client` is one connection pool to one server. Its failures are Bridle's errors and name method, URL, status and the
start of the answer, never the key.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from bridle.errors import (
    AccessDenied,
    BadRequest,
    BodyTooLarge,
    BridleError,
    ConfigError,
    Conflict,
    InfrastructureError,
    NotFound,
)

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
PASSING = frozenset({502, 503, 504})
"""Statuses of a server that is starting, restarting or overloaded."""
REFUSALS: dict[int, type[BridleError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: Conflict,
    413: BodyTooLarge,
}
EXCERPT = 300
"""Characters of an answer's body that an error shows."""


class TransientFailure(Exception):
    """One attempt failed in a way that may pass. `sent`: the server may have seen the request."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Client:
    """`async with Client("http://127.0.0.1:8000", key=token) as client: await client.get("/healthz")`.

    Bodies and answers are JSON. A request that never reached the server is tried again, one that may have reached it
    only when it is idempotent: `attempts` in all, with growing, jittered pauses, all within `timeout_s`. Redirects are
    not followed: they would carry the key elsewhere.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str = "",
        connect_timeout_s: float = 5.0,
        timeout_s: float = 600.0,
        attempts: int = 4,
        pause_s: float = 0.2,
    ) -> None:
        if not base_url.startswith(("http://", "https://")) or "@" in base_url:
            raise ConfigError('a base URL looks like "http://host:port" and holds no credentials; give the key apart')
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self.attempts = attempts
        self.pause_s = pause_s
        self._key = key
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        return await self.request("GET", path, timeout_s=timeout_s)

    async def post(self, path: str, body: Any, *, idempotent: bool = False, timeout_s: float | None = None) -> Any:
        return await self.request("POST", path, body, idempotent=idempotent, timeout_s=timeout_s)

    async def request(
        self, method: str, path: str, body: Any = None, *, idempotent: bool = False, timeout_s: float | None = None
    ) -> Any:
        """-> the decoded answer, None for an empty one.

        Raises BadRequest, AccessDenied, NotFound, Conflict or BodyTooLarge for what the server refused, and
        InfrastructureError for a server that cannot be reached, fails, or takes longer than `timeout_s`.
        """
        what = f"{method} {self.base_url}{path.partition('?')[0]}"
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._attempts(what, method, path, body, idempotent or method in IDEMPOTENT)
        except TimeoutError as error:
            raise InfrastructureError(f"{what}: no answer within {limit_s} s") from error

    async def _attempts(self, what: str, method: str, path: str, body: Any, idempotent: bool) -> Any:
        for attempt in range(1, self.attempts + 1):
            try:
                return await self._once(what, method, path, body)
            except TransientFailure as failure:
                if attempt == self.attempts or (failure.sent and not idempotent):
                    raise InfrastructureError(f"{what}: {failure} (attempt {attempt} of {self.attempts})") from failure
                await asyncio.sleep(self.pause_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, what: str, method: str, path: str, body: Any) -> Any:
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        data, headers = (None, {}) if body is None else (orjson.dumps(body), {"content-type": "application/json"})
        try:
            async with self._session.request(
                method, self.base_url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                return self._answer(what, response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise TransientFailure(f"cannot connect: {error or type(error).__name__}", sent=False) from error
        except aiohttp.ClientError as error:
            raise TransientFailure(f"connection failed: {error or type(error).__name__}", sent=True) from error

    def _answer(self, what: str, status: int, body: bytes) -> Any:
        if 200 <= status < 300:
            return self._decode(what, status, body) if body else None
        message = f"answered {status}: {self._excerpt(body)}"
        if status in PASSING:
            raise TransientFailure(message, sent=True)
        if 400 <= status < 500 and status != 429:
            raise REFUSALS.get(status, BadRequest)(f"{what} {message}")
        raise InfrastructureError(f"{what} {message}")

    def _decode(self, what: str, status: int, body: bytes) -> Any:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InfrastructureError(f"{what} answered {status}, but no JSON: {self._excerpt(body)}") from error

    def _excerpt(self, body: bytes) -> str:
        text = " ".join(body.decode("utf-8", "replace").split())
        text = text.replace(self._key, "[key]") if self._key else text
        return text if len(text) <= EXCERPT else text[:EXCERPT] + " …"
