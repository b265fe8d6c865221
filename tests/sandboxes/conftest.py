"""Every sandbox, each also with its limits and its death without cgroups."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from bridle.registry import resolve
from bridle.sandboxes import NAMES, cgroups, processes
from bridle.sandboxes.base import Mount, Sandbox, SandboxConfig

KINDS = [
    pytest.param((name, way), id=f"{name}-{way}", marks=[pytest.mark.slow] if way == "polled" else [])
    for name in NAMES
    for way in ("cgroup", "polled")
]
Make = Callable[..., Sandbox]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """-> a maker of sandboxes of the kind under test, each in a folder of its own."""
    name, way = request.param
    if way == "polled":
        monkeypatch.setattr(cgroups, "hierarchies", lambda: ())
    elif not cgroups.hierarchies():
        pytest.skip("this user can make no cgroup here")
    implementation = resolve("sandbox", NAMES, name)
    works, reason = implementation.available()
    if not works:
        pytest.skip(f"{name}: {reason}")

    def build(folder: str = "box", mounts: tuple[Mount, ...] = (), **config: float) -> Sandbox:
        sandbox: Sandbox = implementation(tmp_path / folder, SandboxConfig(**config), mounts)
        return sandbox

    return build


@pytest.fixture
async def box(make: Make) -> AsyncIterator[Sandbox]:
    async with make() as sandbox:
        yield sandbox


@pytest.fixture
def left_behind() -> Callable[[str], list[str]]:
    """-> what is left of the sandbox of that name: processes and cgroups."""

    def look(name: str) -> list[str]:
        pids = [f"process {pid}" for pid in processes.marked(name)]
        bases = [hierarchy.base for hierarchy in cgroups.hierarchies()]
        return pids + [str(path) for base in bases for path in base.glob(f"{cgroups.PREFIX}{name}*")]

    return look
