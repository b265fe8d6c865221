from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bridle.harnesses.base import Launch
from bridle.registry import resolve
from bridle.sandboxes import NAMES, default_sandbox
from bridle.sandboxes.base import Sandbox, SandboxConfig

NewSandbox = Callable[..., Awaitable[Sandbox]]
KEY = "key-of-this-rollout"


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
            "base_urls": {"anthropic": "http://127.0.0.1:4180/s/1", "openai": "http://127.0.0.1:4180/s/1/v1"},
            "key": KEY,
            "time_budget_s": 30.0,
            "logs": tmp_path / "logs",
        }
        return Launch(**{**fields, **changes})  # type: ignore[arg-type]

    return make
