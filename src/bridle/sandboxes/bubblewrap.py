"""Each command in namespaces of its own (pid, net, ipc, uts, user, mount) over the sandbox's folders, by `bwrap`.

Inside are the system's programs, the Python that runs Bridle and the mounts, all read-only; nothing of /root, /home,
/var, and of /etc only what programs need to start. Hazard: started by root, the user inside is root outside (without
any capability): prefer to run Bridle as a plain user.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bridle.errors import ConfigError
from bridle.sandboxes.base import Mount, SandboxConfig
from bridle.sandboxes.detached import LAUNCHER, PYTHON, Command
from bridle.sandboxes.directories import SYSTEM_PATH, DirectorySandbox
from bridle.sandboxes.forward import Forward

SHOWN = {"workspace": "/workspace", "home": "/home/agent", "private": "/bridle", "tmp": "/tmp"}
LAUNCHER_INSIDE = "/run/bridle/launch.py"
USER_ID = 1000
FIRST_PORT = 4180
"""Of the first exposed URL; constant, so that the first prompts of a group are equal."""
ISOLATION = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
    *("--uid", str(USER_ID), "--gid", str(USER_ID), "--hostname", "sandbox"),
)
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    *("alternatives", "ca-certificates", "debian_version", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("mime.types", "os-release", "pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "protocols"),
    *("services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"),
)
"""Never a whole /etc/ssl or /etc/pki: they hold the host's private keys."""
PROC_READ_ONLY = ("acpi", "asound", "bus", "driver", "fs", "irq", "mtrr", "scsi", "sys", "sysrq-trigger")
PROC_HIDDEN = (
    *("kcore", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "pagetypeinfo"),
    *("sched_debug", "slabinfo", "timer_list", "vmallocinfo"),
)
"""Of these files the kernel asks only that root opens them, and a sandbox that root started is root to it, even without
capabilities: through /proc/sys/kernel/core_pattern an agent would choose a program that runs as root outside. `bwrap
--proc` alone leaves them writable. Mounts over them also make the kernel refuse a bare /proc in a nested namespace."""
SYNTHESIZED = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nagent:x:{USER_ID}:{USER_ID}:agent:/home/agent:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": f"root:x:0:\nagent:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


class BubblewrapSandbox(DirectorySandbox):
    def __init__(self, root: Path, config: SandboxConfig, mounts: Sequence[Mount] = ()) -> None:
        super().__init__(root, config, mounts, SHOWN)
        self._forwards: list[Forward] = []

    @staticmethod
    @functools.cache
    def available() -> tuple[bool, str]:
        program = shutil.which("bwrap")
        if program is None:
            return False, "bwrap is not installed (Debian, Ubuntu, Fedora: package bubblewrap)"
        probe = [program, *ISOLATION, *_system(), PYTHON, "-I", "-S", "-c", ""]
        done = subprocess.run(probe, capture_output=True, check=False, timeout=30)
        if done.returncode != 0:
            return False, f"{program} cannot isolate here: {done.stderr.decode(errors='replace').strip()}"
        return True, f"{program} isolates here"

    async def expose(self, url: str) -> str:
        """Only plain HTTP: a certificate would not name the address inside."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"cannot expose {url!r}: expected http://HOST:PORT[/PATH]")
        address = (parts.hostname, parts.port or 80)
        known = {(forward.host, forward.host_port): forward.port for forward in self._forwards}
        if address not in known:
            known[address] = FIRST_PORT + len(known)
            self._forwards.append(Forward(known[address], *address))
        return parts._replace(netloc=f"127.0.0.1:{known[address]}").geturl()

    def _prepare(self) -> None:
        super()._prepare()
        (self.root / "etc").mkdir()
        for name, text in SYNTHESIZED.items():
            (self.root / "etc" / name).write_text(text)

    def _environment(self) -> dict[str, str]:
        path = SYSTEM_PATH if PYTHON.startswith("/usr/") else f"{Path(PYTHON).parent}:{SYSTEM_PATH}"
        return {"PATH": path, "HOME": self.home, "LANG": "C.UTF-8"}

    def _command(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes, private: bool) -> Command:
        program = shutil.which("bwrap") or "bwrap"
        wrapper = [program, *ISOLATION, *_system(), *self._own(private), "--remount-ro", "/", "--"]
        return Command(argv, cwd, env, wrapper, LAUNCHER_INSIDE, tuple(self._forwards), stdin)

    def _own(self, private: bool) -> Iterator[str]:
        """What this sandbox shows: its folders, made-up files of /etc, the launcher, the mounts."""
        for name, folder in self._folders.items():
            if private or name != "private":
                yield from ("--bind", str(folder), SHOWN[name])
        for name in SYNTHESIZED:
            yield from ("--ro-bind", str(self.root / "etc" / name), f"/etc/{name}")
        yield from ("--ro-bind", str(LAUNCHER), LAUNCHER_INSIDE)
        for mount in self.mounts:
            yield from ("--ro-bind", mount.source, mount.target)


@functools.cache
def _system() -> tuple[str, ...]:
    """What every sandbox shows of the host."""
    words = ["--ro-bind", "/usr", "/usr", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp", "--proc", "/proc"]
    for path in existing("/proc", PROC_READ_ONLY):
        words += ["--ro-bind", path, path]
    for path in existing("/proc", PROC_HIDDEN):
        words += ["--ro-bind", "/dev/null", path]
    for path in existing("/etc", ETC):
        words += ["--ro-bind", path, path]
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            words += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            words += ["--ro-bind", str(folder), str(folder)]
    prefix = str(Path(PYTHON).parent.parent)
    if not prefix.startswith("/usr"):
        words += ["--ro-bind", prefix, prefix]
    return tuple(words)


def existing(folder: str, names: Sequence[str]) -> Iterator[str]:
    return (path for name in names if Path(path := f"{folder}/{name}").exists())
