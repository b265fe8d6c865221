"""What every sandbox promises of commands and of its end, run over every implementation."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridle.errors import BadRequest, SandboxError
from bridle.sandboxes import cgroups, processes
from bridle.sandboxes.base import Sandbox
from bridle.sandboxes.detached import PYTHON
from bridle.sandboxes.owner import reap

Make = Callable[..., Sandbox]
Left = Callable[[str], list[str]]
SURVIVOR = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "while :; do echo >>beat; sleep 0.02; done"], {})
    os._exit(0)
while not os.path.exists("beat"):
    time.sleep(0.01)
"""
"""A double-forked child in a session of its own, with an environment of its own; its parent waits until it beats."""
BOMB = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        count += 1
finally:
    print(count, flush=True)
time.sleep(3)
"""
HOLD = SURVIVOR + "time.sleep(60)\n"


def grows(beat: Path) -> bool:
    before = beat.stat().st_size
    time.sleep(0.15)
    return beat.stat().st_size > before


async def beats(box: Sandbox) -> bool:
    return await asyncio.to_thread(grows, beat_of(box))


def beat_of(box: Sandbox) -> Path:
    return Path(str(box.root)) / "workspace" / "beat"


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not there():
            await asyncio.sleep(0.02)


# --- how a command ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "exit_code", "number"),
    [
        (["true"], 0, None),
        (["sh", "-c", "exit 3"], 3, None),
        (["sh", "-c", "kill -9 $$"], None, 9),
        (["sh", "-c", "kill -TERM $$"], None, 15),
        (["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], 137, None),
        (["no-such-program"], 127, None),
        (["./no-such-program"], 127, None),
        (["/etc"], 126, None),
    ],
)
async def test_an_exit_code_is_an_exit_code_and_a_signal_a_signal(
    box: Sandbox, argv: list[str], exit_code: int | None, number: int | None
) -> None:
    result = await box.exec(argv)
    assert (result.exit_code, result.signal, result.timed_out) == (exit_code, number, False)
    assert result.ok == (exit_code == 0)


async def test_what_cannot_be_run_is_named_on_stderr(box: Sandbox) -> None:
    assert b"no-such-program" in (await box.exec(["no-such-program"])).stderr


async def test_a_missing_folder_is_an_exit_code_since_an_agent_may_have_removed_it(box: Sandbox) -> None:
    result = await box.exec(["true"], cwd=f"{box.workspace}/gone")
    assert result.exit_code == 126
    assert b"gone" in result.stderr


async def test_a_timeout_kills_the_whole_tree_and_says_so(box: Sandbox) -> None:
    result = await box.exec([PYTHON, "-c", HOLD], timeout_s=1.0)
    assert (result.timed_out, result.exit_code, result.signal) == (True, None, None)
    assert not await beats(box)


async def test_output_before_a_timeout_is_kept(box: Sandbox) -> None:
    result = await box.exec(["sh", "-c", "echo early; sleep 60"], timeout_s=0.5)
    assert result.timed_out
    assert result.stdout == b"early\n"


async def test_what_a_command_leaves_running_dies_with_it(box: Sandbox) -> None:
    assert (await box.exec([PYTHON, "-c", SURVIVOR])).ok
    assert not await beats(box)


async def test_a_command_that_kills_all_it_can_reach_is_never_reported_as_done(box: Sandbox) -> None:
    async with asyncio.timeout(4):
        result = await box.exec(["sh", "-c", "setsid sleep 60 & kill -9 $PPID; kill -9 $$"])
    assert (result.exit_code, result.signal) == (None, 9)
    assert processes.marked(box.name) == set()


async def test_a_cancelled_exec_leaves_nothing_running(box: Sandbox) -> None:
    task = asyncio.create_task(box.exec([PYTHON, "-c", HOLD]))
    await until(lambda: beat_of(box).exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await beats(box)


# --- what a command gets --------------------------------------------------------------------------------------------


async def test_the_environment_is_minimal_and_what_was_given(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "s3cret")
    result = await box.exec(["env"], env={"KEY": "value with = and\nnewline", "LANG": "C"})
    assert b"KEY=value with = and\nnewline" in result.stdout
    assert b"LANG=C\n" in result.stdout
    assert f"HOME={box.home}\n".encode() in result.stdout
    assert b"PATH=" in result.stdout
    assert b"s3cret" not in result.stdout


async def test_no_process_list_shows_the_environment_of_a_command(box: Sandbox, tmp_path: Path) -> None:
    job = await box.spawn(["sleep", "60"], env={"API_KEY": "sk-very-secret"}, logs=tmp_path / "logs")
    words = b"".join((processes.PROC / str(pid) / "cmdline").read_bytes() for pid in processes.marked(box.name))
    assert b"launch.py" in words
    assert b"sk-very-secret" not in words
    await job.kill()


async def test_a_command_starts_in_the_workspace_or_where_it_is_told(box: Sandbox) -> None:
    assert (await box.exec(["pwd"])).stdout.decode().strip() == box.workspace
    assert (await box.exec(["pwd"], cwd=box.home)).stdout.decode().strip() == box.home


async def test_stdin_arrives_whole_and_unread_stdin_does_no_harm(box: Sandbox) -> None:
    data = os.urandom(3_000_000)
    assert (await box.exec(["cat"], stdin=data, output_limit=5_000_000)).stdout == data
    assert (await box.exec(["true"], stdin=data)).ok
    assert (await box.exec(["cat"])).stdout == b""


async def test_a_pipe_that_breaks_ends_a_writer_quietly(box: Sandbox) -> None:
    result = await box.exec(["sh", "-c", "yes | head -1"])
    assert (result.stdout, result.stderr) == (b"y\n", b"")


async def test_long_output_is_cut_from_the_middle_and_does_not_block(box: Sandbox) -> None:
    script = "echo first; head -c 40000000 /dev/zero; echo; echo last; head -c 40000000 /dev/zero >&2"
    result = await box.exec(["sh", "-c", script], output_limit=1000)
    assert result.ok
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"\nlast\n")
    assert b"\n[bridle: 39999012 bytes left out]\n" in result.stdout
    assert len(result.stdout) < 1100
    assert len(result.stderr) < 1100


async def test_output_within_the_limit_is_exact(box: Sandbox) -> None:
    assert (await box.exec(["printf", "%01001d", "7"], output_limit=1001)).stdout == b"0" * 1000 + b"7"


async def test_an_impossible_command_is_refused(box: Sandbox) -> None:
    with pytest.raises(BadRequest, match="NUL"):
        await box.exec(["echo", "a\0b"])
    with pytest.raises(BadRequest, match="empty"):
        await box.exec([])


# --- detached commands ----------------------------------------------------------------------------------------------


async def test_a_detached_command_writes_its_logs_on_the_host_and_is_awaited(box: Sandbox, tmp_path: Path) -> None:
    job = await box.spawn(["sh", "-c", "cat; echo out; echo err >&2; exit 4"], logs=tmp_path / "deep" / "logs")
    result = await job.wait(timeout_s=20)
    assert (result.exit_code, result.signal) == (4, None)
    assert await job.poll() == result
    assert job.stdout_path.read_bytes() == b"out\n"
    assert job.stderr_path.read_bytes() == b"err\n"


async def test_killing_a_detached_command_is_idempotent_and_reports_the_signal(box: Sandbox, tmp_path: Path) -> None:
    job = await box.spawn([PYTHON, "-c", HOLD], logs=tmp_path / "logs")
    await until(lambda: beat_of(box).exists())
    assert await job.poll() is None
    await job.kill()
    await job.kill()
    assert (await job.wait()).signal == 9
    assert not await beats(box)


async def test_waiting_too_long_for_a_detached_command_kills_it(box: Sandbox, tmp_path: Path) -> None:
    job = await box.spawn(["sleep", "60"], logs=tmp_path / "logs")
    result = await job.wait(timeout_s=0.2)
    assert (result.timed_out, result.exit_code, result.signal) == (True, None, None)
    assert 0.2 <= result.seconds < 5


async def test_kill_all_ends_every_command_and_keeps_the_files(box: Sandbox, tmp_path: Path) -> None:
    jobs = [await box.spawn(["sh", "-c", f"echo {n} >f{n}; sleep 60"], logs=tmp_path / str(n)) for n in range(3)]
    written = [beat_of(box).with_name(f"f{n}") for n in range(3)]
    await until(lambda: all(path.exists() and path.stat().st_size for path in written))
    await box.kill_all()
    assert [(await job.wait()).signal for job in jobs] == [9, 9, 9]
    assert processes.marked(box.name) == set()
    assert await box.read("f2") == b"2\n"
    assert (await box.exec(["true"])).ok


# --- limits ---------------------------------------------------------------------------------------------------------


async def test_a_command_that_takes_too_much_memory_is_killed_by_signal_9(make: Make) -> None:
    async with make(memory_mb=100) as box:
        hog = "import time\nkept = [bytearray(2**20) for _ in range(400)]\ntime.sleep(20)"
        result = await box.exec([PYTHON, "-c", hog])
        assert (result.exit_code, result.signal, result.timed_out) == (None, 9, False)
        assert (await box.exec(["true"])).ok


async def test_a_command_that_forks_without_end_is_stopped(make: Make) -> None:
    async with make(processes=40) as box:
        result = await box.exec([PYTHON, "-c", BOMB])
        if any("pids" in hierarchy.controllers for hierarchy in cgroups.hierarchies()):
            assert (result.exit_code, result.signal) == (1, None), "the fork is refused, the command goes on"
            assert 10 < int(result.stdout) < 40
        else:
            assert result.signal == 9, "a polled limit can only kill"
        assert processes.marked(box.name) == set()
        assert (await box.exec(["true"])).ok


# --- life -----------------------------------------------------------------------------------------------------------


async def test_nothing_is_left_after_stop(make: Make, tmp_path: Path, left_behind: Left) -> None:
    box = make()
    async with box:
        await box.spawn([PYTHON, "-c", HOLD], logs=tmp_path / "logs")
        nest = "mkdir locked && touch locked/file && chmod 000 locked; mkdir -p $(printf 'd/%.0s' $(seq 1100))"
        await box.exec(["sh", "-c", nest])
        await until(lambda: (tmp_path / "box" / "workspace" / "beat").exists())
        assert left_behind(box.name) != []
    assert left_behind(box.name) == []
    assert not (tmp_path / "box").exists()
    await box.stop()


async def test_a_stopped_sandbox_runs_nothing(make: Make) -> None:
    box = make()
    async with box:
        pass
    with pytest.raises(SandboxError, match="not running"):
        await box.exec(["true"])


async def test_a_folder_with_something_in_it_is_not_taken(make: Make, tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "thesis.tex").write_text("years of work")
    with pytest.raises(SandboxError, match="not empty"):
        async with make():
            pass
    assert (tmp_path / "box" / "thesis.tex").read_text() == "years of work"


async def test_twenty_sandboxes_start_and_work_at_once(make: Make, left_behind: Left) -> None:
    async def one(number: int) -> tuple[str, bytes]:
        async with make(f"box{number}") as box:
            await box.write("number", str(number).encode())
            return box.name, (await box.exec(["cat", "number"])).stdout

    ended = await asyncio.gather(*(one(number) for number in range(20)))
    assert [output for _, output in ended] == [str(number).encode() for number in range(20)]
    assert [left for name, _ in ended for left in left_behind(name)] == []


async def test_sandboxes_do_not_end_each_other(make: Make, tmp_path: Path) -> None:
    async with make("one") as one:
        job = await one.spawn(["sleep", "60"], logs=tmp_path / "logs")
        async with make("two") as two:
            await two.spawn(["sleep", "60"], logs=tmp_path / "logs2")
        assert await reap(tmp_path) == []
        assert await job.poll() is None
        assert (await one.exec(["true"])).ok


OWNER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from bridle.registry import resolve
from bridle.sandboxes import NAMES, cgroups
from bridle.sandboxes.base import SandboxConfig
if sys.argv[2] == "polled":
    cgroups.hierarchies = lambda: ()

async def main():
    box = await resolve("sandbox", NAMES, sys.argv[1])(Path(sys.argv[3]) / "box", SandboxConfig()).__aenter__()
    await box.spawn([sys.argv[4], "-c", sys.argv[5]], logs=Path(sys.argv[3]) / "logs")
    print(box.name, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
async def test_what_a_killed_owner_left_is_removed_by_the_next_run(
    make: Make, request: pytest.FixtureRequest, tmp_path: Path, left_behind: Left, frozen: bool
) -> None:
    """Its commands die with it; where they cannot notice (frozen), the next run ends them."""
    name, way = request.node.callspec.params["make"]
    words = [sys.executable, "-c", OWNER_PROGRAM, name, way, str(tmp_path), PYTHON, HOLD]
    owner = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    box = (await owner.stdout.readline()).decode().strip()
    beat = tmp_path / "box" / "workspace" / "beat"
    await until(beat.exists)
    assert await reap(tmp_path) == []
    for pid in processes.marked(box) if frozen else ():
        os.kill(pid, signal.SIGSTOP)
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    if not frozen:
        await until(lambda: not grows(beat))
    assert await reap(tmp_path) == [box]
    assert left_behind(box) == []
    assert not (tmp_path / "box").exists()
    await asyncio.sleep(0.1)
    assert not beat.exists()
