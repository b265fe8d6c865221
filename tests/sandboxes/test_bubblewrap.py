"""What bubblewrap isolates: files, users, processes, and a network in which one address answers."""

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridle.errors import ConfigError, SandboxError
from bridle.sandboxes import bubblewrap, default_sandbox
from bridle.sandboxes.base import Mount, SandboxConfig
from bridle.sandboxes.bubblewrap import BubblewrapSandbox

works, why = BubblewrapSandbox.available()
pytestmark = pytest.mark.skipif(not works, reason=f"bubblewrap: {why}")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5) as there:
    there.sendall(sys.stdin.buffer.read())
    there.shutdown(socket.SHUT_WR)
    while data := there.recv(65536):
        sys.stdout.buffer.write(data)
"""


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[BubblewrapSandbox]:
    async with BubblewrapSandbox(tmp_path / "box", SandboxConfig()) as sandbox:
        yield sandbox


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """-> the port on the host's loopback."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only after the other side has finished: half-closes must be carried."""
    writer.write((await reader.read(-1)).upper())
    await writer.drain()


async def output(box: BubblewrapSandbox, script: str, **options: bool) -> str:
    result = await box.exec(["sh", "-c", script], **options)
    return result.stdout.decode()


# --- what is there --------------------------------------------------------------------------------------------------


async def test_nothing_of_the_host_but_its_programs_is_visible(box: BubblewrapSandbox, tmp_path: Path) -> None:
    hidden = ["/etc/shadow", "/etc/ssl/private", "/var/lib", "/sys", "/root/.ssh", "/root/.bashrc", "/run/systemd"]
    hidden += [str(tmp_path), os.getcwd(), sys.prefix]
    assert await output(box, f"ls -d {' '.join(hidden)} 2>/dev/null") == ""
    assert (await output(box, "ls /home; ls /tmp; ls -A /workspace /home/agent")).split() == (
        ["agent", "/home/agent:", "/workspace:"]
    )


async def test_the_system_and_the_root_are_read_only(box: BubblewrapSandbox) -> None:
    for path in ("/x", "/usr/x", "/etc/x", "/etc/passwd", "/run/x", "/home/x"):
        assert (await box.exec(["sh", "-c", f"echo x >>{path}"])).exit_code != 0
    assert (await box.exec(["sh", "-c", "touch /tmp/x /var/tmp/y ~/z /workspace/w"])).ok


async def test_no_switch_of_the_kernel_can_be_turned(box: BubblewrapSandbox) -> None:
    """The file is rewritten with what it holds, so that a broken sandbox harms no one."""
    rewrite = "for file in /proc/sys/kernel/core_pattern /proc/irq/default_smp_affinity; do cat $file | tee $file; done"
    held = await box.exec(["sh", "-c", f"{rewrite} >/dev/null"])
    assert held.stderr.count(b"Read-only file system") == 2
    others = "find /proc -type f -not -path '/proc/[0-9]*' -not -path '/proc/*self/*' -not -path '/proc/pressure/*'"
    assert await output(box, f"for file in $({others} -writable); do test -f $file && echo $file; done") == ""
    assert await output(box, "cat /proc/kmsg /proc/slabinfo /proc/timer_list") == ""
    nested = await box.exec(["unshare", "-Urpf", "--mount-proc", "sh", "-c", "echo in"])
    assert nested.stdout == b""


async def test_the_user_is_plain_and_without_capabilities(box: BubblewrapSandbox) -> None:
    assert await output(box, "id -un; id -u; id -g; hostname") == "agent\n1000\n1000\nsandbox\n"
    status = await output(box, "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status")
    assert status.split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]


async def test_only_its_own_processes_are_visible(box: BubblewrapSandbox, tmp_path: Path) -> None:
    await box.spawn(["sleep", "61"], logs=tmp_path / "logs")
    names = await output(box, "cat /proc/[0-9]*/comm")
    assert "pytest" not in names
    assert "sleep" not in names
    assert len(names.split()) <= 4


async def test_python_is_the_one_that_runs_bridle(box: BubblewrapSandbox) -> None:
    version = f"Python {sys.version.split()[0]}\n"
    assert await output(box, "python3 --version") == version


async def test_mounts_are_read_only_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "t").write_text("tool")
    mounts = (Mount(str(tmp_path / "tools"), "/opt/tools"), Mount(str(tmp_path / "tools" / "t"), "/opt/one"))
    async with BubblewrapSandbox(tmp_path / "box", SandboxConfig(), mounts) as box:
        assert (
            await output(box, "cat /opt/tools/t /opt/one; echo x >/opt/tools/t || echo refused") == "tooltoolrefused\n"
        )
    with pytest.raises(SandboxError, match="no-such-tools"):
        async with BubblewrapSandbox(tmp_path / "box", SandboxConfig(), [Mount("/no-such-tools", "/opt/x")]):
            pass


async def test_the_private_folder_is_seen_by_private_commands_only(box: BubblewrapSandbox) -> None:
    await box.write("/bridle/index", b"hidden")
    assert await output(box, "cat /bridle/index", private=True) == "hidden"
    assert (
        await output(box, "ls -d /bridle; find /home /tmp /workspace /run -name index -path '*bridle*' 2>/dev/null")
        == ""
    )


async def test_two_sandboxes_look_the_same_from_inside(tmp_path: Path) -> None:
    look = "env | sort; pwd; id; hostname; stat -c '%n %U %A' /* /etc/* ~ ~/.*; cat /etc/passwd /etc/hosts"
    async with (
        BubblewrapSandbox(tmp_path / "one", SandboxConfig()) as one,
        BubblewrapSandbox(tmp_path / "another", SandboxConfig()) as another,
    ):
        urls = [await box.expose(f"http://127.0.0.1:{port}/v1") for box, port in ((one, 1234), (another, 5678))]
        assert urls == ["http://127.0.0.1:4180/v1"] * 2
        assert await output(one, look) == await output(another, look)


async def test_a_sandbox_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = [Mount(str(tmp_path), "/proc/self/nowhere")]
    async with BubblewrapSandbox(tmp_path / "box", SandboxConfig(), broken) as box:
        with pytest.raises(SandboxError, match="did not start.*bwrap: "):
            await box.exec(["true"])
        with pytest.raises(SandboxError, match="did not start.*bwrap: "):
            await box.spawn(["true"], logs=tmp_path / "logs")


async def test_a_start_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "bwrap").chmod(0o755)
    async with BubblewrapSandbox(tmp_path / "box", SandboxConfig(start_timeout_s=0.3)) as box:
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match=r"did not start within 0\.3 s"):
            await box.exec(["true"])


def test_without_bwrap_the_default_is_local_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_sandbox()[0] == "bubblewrap"
    monkeypatch.setattr(
        BubblewrapSandbox, "available", staticmethod(bubblewrap.BubblewrapSandbox.available.__wrapped__)
    )  # type: ignore[attr-defined]
    monkeypatch.setenv("PATH", "/nowhere")
    name, reason = default_sandbox()
    assert name == "local"
    assert "not installed" in reason
    assert "trusted code only" in reason


# --- network --------------------------------------------------------------------------------------------------------


async def test_nothing_of_the_hosts_network_answers(box: BubblewrapSandbox) -> None:
    async with serving(shout) as port:
        result = await box.exec(["python3", "-c", ASK, str(port)], stdin=b"hello")
        assert b"Connection refused" in result.stderr
    assert (await output(box, "cat /proc/net/dev | tail -n +3 | cut -d: -f1")).split() == ["lo"]
    result = await box.exec(["python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 2)"])
    assert b"unreachable" in result.stderr


async def test_an_exposed_address_answers_and_no_other(box: BubblewrapSandbox) -> None:
    async with serving(shout) as port, serving(shout) as other:
        url = await box.expose(f"http://127.0.0.1:{port}/s/abc")
        assert url == "http://127.0.0.1:4180/s/abc"
        assert (await box.exec(["python3", "-c", ASK, "4180"], stdin=b"hello")).stdout == b"HELLO"
        assert b"refused" in (await box.exec(["python3", "-c", ASK, str(other)], stdin=b"x")).stderr
        assert b"refused" in (await box.exec(["python3", "-c", ASK, "4181"], stdin=b"x")).stderr


async def test_several_addresses_and_several_paths_are_kept_apart(box: BubblewrapSandbox) -> None:
    async def whisper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).lower())

    async with serving(shout) as one, serving(whisper) as two:
        ports = [await box.expose(f"http://127.0.0.1:{port}{path}") for port in (one, two) for path in ("/a", "/b")]
        assert ports == [f"http://127.0.0.1:{port}{path}" for port in (4180, 4181) for path in ("/a", "/b")]
        assert (await box.exec(["python3", "-c", ASK, "4180"], stdin=b"Hi")).stdout == b"HI"
        assert (await box.exec(["python3", "-c", ASK, "4181"], stdin=b"Hi")).stdout == b"hi"


async def test_large_bodies_pass_both_ways_and_many_connections_at_once(box: BubblewrapSandbox) -> None:
    data = os.urandom(1).hex().encode() * 4_000_000
    many = f"""
import concurrent.futures, subprocess, sys
run = lambda n: subprocess.run([sys.executable, "-c", {ASK!r}, "4180"], input=b"n%d" % n, capture_output=True).stdout
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sorted(pool.map(run, range(8))))
"""
    async with serving(shout) as port:
        await box.expose(f"http://127.0.0.1:{port}")
        result = await box.exec(["python3", "-c", ASK, "4180"], stdin=data, output_limit=10_000_000)
        assert result.stdout == data.upper()
        assert (await box.exec(["python3", "-c", many])).stdout.decode().strip() == str([b"N%d" % n for n in range(8)])


async def test_an_address_without_a_server_breaks_the_connection_only(box: BubblewrapSandbox) -> None:
    async with serving(shout) as port:
        await box.expose(f"http://127.0.0.1:{port}")
    result = await box.exec(["python3", "-c", ASK, "4180"], stdin=b"hello")
    assert result.stdout == b""
    assert (await box.exec(["true"])).ok


async def test_the_end_of_a_command_is_seen_by_the_server_as_a_disconnect(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    connected, gone = asyncio.Event(), asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read(-1)
        gone.set()

    async with serving(endless) as port, asyncio.timeout(20):
        await box.expose(f"http://127.0.0.1:{port}")
        hold = "import socket, time; s = socket.create_connection(('127.0.0.1', 4180)); time.sleep(60)"
        job = await box.spawn(["python3", "-c", hold], logs=tmp_path / "logs")
        await connected.wait()
        assert not gone.is_set()
        await job.kill()
        await gone.wait()


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:80", "http://", "unix:///x"])
async def test_only_plain_http_is_exposed(box: BubblewrapSandbox, url: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        await box.expose(url)


# --- without root ---------------------------------------------------------------------------------------------------

UNPRIVILEGED = """
import asyncio, os, sys
from pathlib import Path
from bridle.sandboxes.base import SandboxConfig
from bridle.sandboxes.bubblewrap import BubblewrapSandbox

async def main():
    assert os.getuid() == 65534
    assert BubblewrapSandbox.available()[0], BubblewrapSandbox.available()[1]
    async with BubblewrapSandbox(Path(sys.argv[1]), SandboxConfig(memory_mb=100)) as box:
        print((await box.exec(["sh", "-c", "id -un; touch /workspace/x && echo written"])).stdout.decode())
        hog = "kept = [bytearray(2**20) for _ in range(300)]; import time; time.sleep(20)"
        print("hog", (await box.exec(["python3", "-c", hog])).signal)
        print("late", (await box.exec(["sh", "-c", "setsid sleep 50 & sleep 60"], timeout_s=0.3)).timed_out)
    print("left", os.path.exists(sys.argv[1]))

asyncio.run(main())
"""
SYSTEM_PYTHON = f"/usr/bin/python3.{sys.version_info.minor}"


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv") or not Path(SYSTEM_PYTHON).exists(),
    reason=f"needs root, setpriv and {SYSTEM_PYTHON}, which every user may run",
)
def test_a_plain_user_gets_the_same_sandbox(tmp_path: Path) -> None:
    libraries = tmp_path / "lib"
    shutil.copytree(Path(bubblewrap.__file__).parents[1], libraries / "bridle")
    shutil.copytree(Path(sysconfig.get_paths()["purelib"]) / "msgspec", libraries / "msgspec")
    home = Path("/tmp") / f"bridle-test-{os.getpid()}"
    shutil.move(libraries, home)
    home.chmod(0o777)
    try:
        done = subprocess.run(
            [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                SYSTEM_PYTHON,
                "-c",
                UNPRIVILEGED,
                home / "box",
            ],
            env={"PYTHONPATH": str(home), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        shutil.rmtree(home)
    assert done.stdout.split() == ["agent", "written", "hog", "9", "late", "True", "left", "False"], done.stderr
