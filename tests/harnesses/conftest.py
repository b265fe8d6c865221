from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from bridle.harnesses.base import Harness, Launch, Outcome
from bridle.harnesses.install import default_cache
from bridle.registry import resolve
from bridle.sandboxes import NAMES, default_sandbox
from bridle.sandboxes.base import Sandbox, SandboxConfig

NewSandbox = Callable[..., Awaitable[Sandbox]]
FakeNpm = Callable[..., Path]
KEY = "key-of-this-rollout"
SESSION = "http://127.0.0.1:4180/s/1"


@pytest.fixture
async def new_sandbox(tmp_path: Path) -> AsyncIterator[NewSandbox]:
    """Starts the kind of sandbox that is the default on this machine; `mounts` are an installation's."""
    name, _ = default_sandbox()
    kind = resolve("sandbox", NAMES, name)
    count = 0
    async with AsyncExitStack() as stack:

        async def start(mounts=()) -> Sandbox:
            nonlocal count
            count += 1
            return await stack.enter_async_context(kind(tmp_path / f"sandbox-{count}", SandboxConfig(), mounts))

        yield start


@pytest.fixture
def make_launch(tmp_path: Path) -> Callable[..., Launch]:
    def make(**changes: object) -> Launch:
        fields = {
            "instruction": "Fix it.\n{model} 'quoted' $HOME \u00e9\n",
            "model": "policy",
            "base_urls": {"anthropic": SESSION, "openai": f"{SESSION}/v1", "gemini": SESSION},
            "key": KEY,
            "time_budget_s": 30.0,
            "logs": tmp_path / "logs",
        }
        return Launch(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNpm:
    """(names) -> an npm that installs empty files of these names; what it was asked for is in the path returned."""
    folder = tmp_path / "bin"
    folder.mkdir()
    asked = tmp_path / "asked"

    def make(*names: str) -> Path:
        script = [f'echo "$@" >>{asked}', *(f'mkdir -p "$3/$(dirname {name})" && : >"$3/{name}"' for name in names)]
        (folder / "npm").write_text("\n".join(["#!/bin/sh", *script, ""]))
        (folder / "npm").chmod(0o755)
        return asked

    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return make


@dataclass
class Refused:
    """One run of a real agent whose model calls were all answered 400. `shown`: the command lines of the machine's
    processes during its calls."""

    outcome: Outcome
    calls: list[tuple[web.Request, bytes]]
    shown: bytes


@pytest.fixture
async def refused(new_sandbox, make_launch) -> AsyncIterator[Callable[[Harness], Awaitable[Refused]]]:
    """-> runs an agent and asserts what holds for every one: its key is in no command line, no log and no file but
    those it was started with, its instruction in no command line, and its workspace is as it was."""
    calls: list[tuple[web.Request, bytes]] = []
    shown: list[bytes] = []

    async def refuse(request: web.Request) -> web.Response:
        calls.append((request, await request.read()))
        shown.extend(map(_command_line, Path("/proc").glob("[0-9]*")))
        error = {"code": 400, "message": "no", "status": "INVALID_ARGUMENT", "type": "invalid_request_error"}
        return web.json_response({"error": error}, status=400)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()

    async def run(harness: Harness) -> Refused:
        installation = await harness.install(default_cache(), print)
        sandbox = await new_sandbox(installation.mounts)
        await sandbox.exec(["git", "init", "--quiet"], cwd=sandbox.workspace)
        url = await sandbox.expose(f"{site.name}/s/1")
        launch = make_launch(base_urls={"anthropic": url, "openai": f"{url}/v1", "gemini": url}, time_budget_s=120.0)
        outcome = await harness.launch(sandbox, installation, launch)
        given = [f"--exclude={Path(path).name}" for path in harness.recipe(installation, launch, sandbox).files]
        kept = await sandbox.exec(["grep", "-r", "", *given, sandbox.home])
        logs = b"".join(path.read_bytes() for path in launch.logs.iterdir())
        changed = await sandbox.exec(["git", "status", "--short"], cwd=sandbox.workspace)
        ran = Refused(outcome, calls, b"".join(shown))
        assert launch.key.encode() not in logs + kept.stdout + ran.shown
        assert b"quoted" not in ran.shown, launch.instruction
        assert changed.stdout == b""
        return ran

    yield run
    await runner.cleanup()


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
