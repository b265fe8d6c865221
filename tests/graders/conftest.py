"""Started sandboxes of the kind that is the default on this machine, and tasks over small source trees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bridle.registry import resolve
from bridle.sandboxes import NAMES, default_sandbox
from bridle.sandboxes.base import Sandbox, SandboxConfig
from bridle.tasks.base import Spec, Task, Workspace

NewSandbox = Callable[[], Awaitable[Sandbox]]
MakeTask = Callable[..., Task]


@pytest.fixture
async def new_sandbox(tmp_path: Path) -> AsyncIterator[NewSandbox]:
    name, _ = default_sandbox()
    kind = resolve("sandbox", NAMES, name)
    count = 0
    async with AsyncExitStack() as stack:

        async def start() -> Sandbox:
            nonlocal count
            count += 1
            return await stack.enter_async_context(kind(tmp_path / f"sandbox-{count}", SandboxConfig()))

        yield start


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small source tree with something of everything an agent may change."""
    folder = tmp_path / "source"
    for path, data in {
        "code.py": b"one\ntwo\nthree\n",
        "gone.txt": b"to be deleted\n",
        "moved.txt": b"to be\nmoved\nunchanged\n",
        "binary.bin": bytes(range(256)) * 4,
        "latin.txt": b"caf\xe9\n",
        "dos.txt": b"a\r\nb\r\n",
        "tool.sh": b"#!/bin/sh\n",
        "pkg/a.py": b"a\n",
        "pkg/deep/b.py": b"b\n",
        "tests/test_code.py": b"assert True\n",
        "tests/data.json": b"{}\n",
        ".gitignore": b"*.log\nbuild/\n",
        "pkg/.gitignore": b"/local\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / "link").symlink_to("code.py")
    (folder / "tool.sh").chmod(0o755)
    return folder


@pytest.fixture
def make_task(source: Path) -> MakeTask:
    def make(**changes: object) -> Task:
        fields = {"id": "t", "instruction": "do it", "workspace": Workspace(str(source)), "grader": Spec("command")}
        return Task(**{**fields, **changes})  # type: ignore[arg-type]

    return make
