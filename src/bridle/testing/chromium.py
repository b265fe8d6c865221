"""Drives a headless Chromium over its own protocol: enough to load a page, run an expression in it, take a picture."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import websockets

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRIES, PAUSE_S = 300, 0.1


class Tab:
    """`events`: what the browser told of itself while something was asked of it."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        await self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(await self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def run(self, expression: str) -> Any:
        got = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise AssertionError(f"{expression}: {got['exceptionDetails']}")
        return got["result"].get("value")

    async def until(self, expression: str) -> Any:
        """-> the first value of `expression` that is true. Raises AssertionError after half a minute."""
        for _ in range(TRIES):
            if value := await self.run(expression):
                return value
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(f"never true: {expression}")

    async def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))


@asynccontextmanager
async def tab(page: Path, profile: Path, *arguments: str, size: str = "1366,900") -> AsyncIterator[Tab]:
    assert PROGRAM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *flags,
        *arguments,
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with websockets.connect(await _target(port), max_size=None) as socket:
            made = Tab(socket)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await made.call(f"{domain}.enable")
            await made.call("Page.navigate", url=page.resolve().as_uri())
            yield made
    finally:
        process.kill()
        await process.wait()


async def _port(file: Path) -> int:
    for _ in range(TRIES):
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(PAUSE_S)
    raise AssertionError("Chromium did not start")


async def _target(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    body = await reader.readexactly(int(re.findall(r"(?i)content-length: *(\d+)", head)[0]))
    writer.close()
    return next(str(target["webSocketDebuggerUrl"]) for target in json.loads(body) if target["type"] == "page")
