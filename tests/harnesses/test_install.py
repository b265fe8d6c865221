from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bridle.errors import HarnessError
from bridle.harnesses.install import installed, python_packages, run_installer

FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"-m pip"*) echo "$@" >>{asked} ;;
  *) echo '{{"program": "{program}", "prefix": "{prefix}", "version": [3, {minor}]}}' ;;
esac
"""
SHIM = "#!/bin/sh\nexit 127\n"
HOLD_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


async def test_whoever_asks_at_the_same_time_gets_one_installation(tmp_path: Path) -> None:
    builds = 0

    async def build(folder: Path) -> None:
        nonlocal builds
        builds += 1
        await asyncio.sleep(0.05)
        (folder / "agent").write_text("x")

    lines: list[str] = []
    asked = [installed(tmp_path, "agent", "1.0", build, lines.append) for _ in range(5)]
    paths = await asyncio.gather(*asked)
    assert set(paths) == {tmp_path / "agent" / "1.0"}
    assert (paths[0] / "agent").exists()
    assert builds == 1
    assert lines.count("waiting for another process that installs agent 1.0") == 4
    await installed(tmp_path, "agent", "1.0", build, lines.append)
    assert builds == 1


async def test_an_installation_that_failed_is_not_there_and_is_done_anew(tmp_path: Path) -> None:
    async def broken(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise HarnessError("no network")

    async def build(folder: Path) -> None:
        (folder / "whole").write_text("x")

    with pytest.raises(HarnessError, match="no network"):
        await installed(tmp_path, "agent", "1.0", broken, print)
    assert not (tmp_path / "agent" / "1.0").exists()
    path = await installed(tmp_path, "agent", "1.0", build, print)
    assert [file.name for file in path.iterdir()] == ["whole"]


async def test_another_process_that_installs_is_waited_for_until_it_is_dead(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    lock = tmp_path / "agent" / ".1.0.lock"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, str(lock), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    await holder.stdout.readline()

    async def build(folder: Path) -> None:
        pass

    lines: list[str] = []
    waiting = asyncio.create_task(installed(tmp_path, "agent", "1.0", build, lines.append))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert lines == ["waiting for another process that installs agent 1.0"]
    holder.kill()
    await holder.wait()
    assert (await waiting).is_dir()


async def test_a_version_is_no_path_and_no_option(tmp_path: Path) -> None:
    for version in ("../x", "-r", "1 2", "", "1;2"):
        with pytest.raises(HarnessError, match="no version"):
            await installed(tmp_path, "agent", version, lambda _: asyncio.sleep(0), print)


async def test_an_installer_reports_its_lines_and_its_last_ones_when_it_fails() -> None:
    lines: list[str] = []
    await run_installer(["/bin/sh", "-c", "echo one; echo two >&2"], lines.append)
    assert lines == ["one", "two"]
    with pytest.raises(HarnessError, match="ended with 4:\nbecause"):
        await run_installer(["/bin/sh", "-c", "echo because; exit 4"], lines.append)


async def test_what_package_tools_say_unasked_is_not_passed_on() -> None:
    lines: list[str] = []
    said = "WARNING: Location is ignored\n[notice] A new release\nnpm warn deprecated x\n\nadded 3 packages in 2s\n"
    await run_installer(["/usr/bin/printf", "%s", said], lines.append)
    assert lines == ["added 3 packages in 2s"]


async def test_a_cancelled_installer_is_dead_with_all_it_started(tmp_path: Path) -> None:
    script = f"while :; do date +%N >>{tmp_path}/alive; sleep 0.01; done & wait"
    running = asyncio.create_task(run_installer(["/bin/sh", "-c", script], print))
    while not (tmp_path / "alive").exists():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = (tmp_path / "alive").read_bytes()
    await asyncio.sleep(0.1)
    assert (tmp_path / "alive").read_bytes() == before


@pytest.fixture
def pythons(tmp_path: Path, monkeypatch) -> Callable[..., Path]:
    """(minors) -> a machine that has these Pythons besides one that is too old; what their pip was asked for."""
    asked = tmp_path / "asked"
    folder = tmp_path / "bin"
    folder.mkdir()

    def place(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def make(*minors: int, prefix: str = "/opt/python", shims: tuple[int, ...] = ()) -> Path:
        for minor in minors:
            program = folder / f"python3.{minor}"
            place(program, FAKE_PYTHON.format(asked=asked, program=program, prefix=prefix, minor=minor))
        for minor in shims:
            place(folder / f"python3.{minor}", SHIM)
        return asked

    place(tmp_path / "old", FAKE_PYTHON.format(asked=asked, program="old", prefix="/opt/old", minor=9))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return make


async def test_an_agent_gets_the_oldest_python_that_is_new_enough_and_starts(pythons, tmp_path: Path) -> None:
    asked = pythons(18, 19, shims=(17,))
    installation = await python_packages(tmp_path, "agent", "1.0", ["agent==1.0"], print, minimum=(3, 17))
    folder = tmp_path / "agent" / "1.0-python3.18"
    assert installation.version == "1.0"
    assert installation.runtime == f"{folder}/bin/python"
    assert installation.path == f"{folder}/lib/python3.18/site-packages"
    assert [mount.source for mount in installation.mounts] == [str(folder), "/opt/python"]
    assert asked.read_text().endswith(" agent==1.0\n")


async def test_a_python_of_the_system_is_in_every_sandbox_already(pythons, tmp_path: Path) -> None:
    pythons(18, prefix="/usr")
    installation = await python_packages(tmp_path, "agent", "1.0", ["agent==1.0"], print, minimum=(3, 17))
    assert len(installation.mounts) == 1


async def test_without_a_python_in_the_range_the_error_says_which_is_missing(pythons, tmp_path: Path) -> None:
    pythons(16, 18, shims=(17,))
    with pytest.raises(HarnessError, match="agent needs Python 3.17 to before 3.18") as caught:
        await python_packages(tmp_path, "agent", "1.0", ["agent==1.0"], print, minimum=(3, 17), below=(3, 18))
    assert str(tmp_path / "pyenv") in caught.value.message
    assert not (tmp_path / "agent").exists()
