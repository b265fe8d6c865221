"""What `local` does not do, and that it says so."""

import asyncio
import logging
from pathlib import Path

import pytest

from bridle.sandboxes import cgroups, detached, local
from bridle.sandboxes.base import SandboxConfig
from bridle.sandboxes.local import LocalSandbox


async def test_it_warns_once_that_it_isolates_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="bridle.sandboxes"):
        for name in ("one", "two"):
            async with LocalSandbox(tmp_path / name, SandboxConfig()):
                pass
    assert [record.message for record in caplog.records if "isolates nothing" in record.message] == [
        "sandbox `local` isolates nothing: commands run with your rights on your files. Trusted code only."
    ]
    assert "trusted code only" in LocalSandbox.available()[1]


async def test_paths_and_addresses_are_the_hosts_own(tmp_path: Path) -> None:
    async with LocalSandbox(tmp_path / "box", SandboxConfig()) as box:
        assert box.workspace == str(tmp_path / "box" / "workspace")
        assert await box.expose("http://127.0.0.1:1234/s/a") == "http://127.0.0.1:1234/s/a"
        assert (await box.exec(["sh", "-c", "echo $TMPDIR"])).stdout.decode().strip() == str(tmp_path / "box" / "tmp")


async def test_programs_that_reserve_much_address_space_run(tmp_path: Path) -> None:
    """Node reserves gigabytes it never touches: a limit on address space would break it."""
    async with LocalSandbox(tmp_path / "box", SandboxConfig(memory_mb=200)) as box:
        assert (await box.exec(["python3", "-c", "import mmap; mmap.mmap(-1, 8 * 2**30); print('ok')"])).ok


async def test_a_process_that_escaped_everything_does_not_hold_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without cgroups: its launcher killed, its environment cleared, the command's output still open."""
    monkeypatch.setattr(cgroups, "hierarchies", lambda: ())
    monkeypatch.setattr(detached, "DRAIN_S", 0.2)
    async with LocalSandbox(tmp_path / "box", SandboxConfig()) as box, asyncio.timeout(4):
        result = await box.exec(["sh", "-c", "echo said; (env -i sleep 5 &) ; sleep 0.2; kill -9 $PPID; sleep 60"])
    assert (result.signal, result.stdout) == (9, b"said\n")
