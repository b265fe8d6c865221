"""A command's cgroup: made, entered, emptied, removed; and what is chosen where several hierarchies exist."""

import asyncio
from pathlib import Path

import pytest

from bridle.sandboxes import cgroups
from bridle.sandboxes.base import SandboxConfig

needs_cgroups = pytest.mark.skipif(not cgroups.hierarchies(), reason="this user can make no cgroup here")


@needs_cgroups
async def test_a_command_is_inside_from_its_first_instruction_and_dies_with_it() -> None:
    cgroup = cgroups.create("test-enter.1", SandboxConfig(memory_mb=64, processes=10))
    assert cgroup is not None
    try:
        words = [*cgroup.enter(), "sh", "-c", "cat /proc/self/cgroup; setsid sleep 60 & echo end; exec sleep 60"]
        child = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        lines = (await child.stdout.readuntil(b"end\n")).decode()
        assert lines.count("bridle-test-enter.1") == len(cgroup.folders)
        assert len(cgroup.pids()) == 2
        await cgroup.kill()
        assert await child.wait() == -9
        assert cgroup.pids() == set()
    finally:
        await cgroup.kill()
        await cgroup.remove()
    assert not any(folder.exists() for folder in cgroup.folders)


@needs_cgroups
async def test_what_a_sandbox_left_is_found_by_its_name_and_no_others() -> None:
    made = [cgroups.create(name, SandboxConfig()) for name in ("test-left.1", "test-left.2", "test-lefty.1")]
    bases = [hierarchy.base for hierarchy in cgroups.hierarchies()]
    found = {cgroup.folders[0].name for cgroup in cgroups.left_by("test-left", bases)}
    for cgroup in made:
        assert cgroup is not None
        await cgroup.remove()
    assert found == {"bridle-test-left.1", "bridle-test-left.2"}


def test_every_controller_is_taken_from_one_hierarchy_only() -> None:
    names = [name for hierarchy in cgroups.hierarchies() for name in hierarchy.controllers]
    assert sorted(names) == sorted(set(names))


def test_no_probe_is_left_behind() -> None:
    assert [path for hierarchy in cgroups.hierarchies() for path in hierarchy.base.glob("bridle-probe-*")] == []


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (2, {"memory.max": "104857600", "memory.swap.max": "0", "pids.max": "7"}),
        (1, {"memory.limit_in_bytes": "104857600", "memory.memsw.limit_in_bytes": "104857600", "pids.max": "7"}),
    ],
)
def test_limits_are_written_as_each_version_names_them(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    """On plain folders: version 2 with controllers is not at hand wherever this runs."""
    hierarchy = cgroups.Hierarchy(tmp_path, version, frozenset(cgroups.CONTROLLERS))
    assert dict(cgroups.settings(hierarchy, SandboxConfig(memory_mb=100, processes=7))) == files
    assert dict(cgroups.settings(hierarchy, SandboxConfig(memory_mb=0, processes=0))) == {}
