"""The first process inside a sandbox: runs one command, and ends only when nothing that command started is left.

Started by path with a bare interpreter, so it imports nothing of Bridle and only modules that load in no time
(`socket`, `signal` and `subprocess` double its 8 ms). As pid 1 of a namespace its exit is the end of every other
process; elsewhere it adopts orphans (also those of a setsid double fork) and kills them one generation after another.

It speaks with the host over one socket: takes the request, answers `R` with the listening sockets asked for, and sends
the command's raw wait status last. The end of that socket means that the host is gone: then everything is killed.
"""

from __future__ import annotations

import _socket
import _thread
import os
import sys
import time
from collections.abc import Sequence

NOT_FOUND, NOT_RUNNABLE = 127, 126
"""Exit codes as shells give them."""
DEFAULT_AGAIN = (2, 13, 25)
"""SIGINT, SIGPIPE, SIGXFSZ: Python handles or ignores them, and a command would inherit that."""
PR_SET_CHILD_SUBREAPER = 36


def main(control: int) -> None:
    os.set_inheritable(control, False)
    cwd, ports, argv, env = receive(control)
    adopt_orphans()
    announce(control, [listen(port) for port in ports])
    _thread.start_new_thread(end_with_host, (control,))
    status = run(cwd, argv, env)
    end_the_rest()
    os.write(control, b"%d" % status)


def receive(control: int) -> tuple[bytes, list[int], list[bytes], dict[bytes, bytes]]:
    """Reads what `detached.request` wrote: a length, then fields ended by NUL."""
    size = int.from_bytes(exactly(control, 8), "big")
    cwd, ports, count, *rest = exactly(control, size).split(b"\0")
    argv, pairs = rest[: int(count)], rest[int(count) :]
    return cwd, [int(port) for port in ports.split()], argv, dict(pair.split(b"=", 1) for pair in pairs)


def exactly(control: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(control, size - len(data))
        if not piece:
            sys.exit("bridle: the host went away before it said what to run")
        data += piece
    return data


def adopt_orphans() -> None:
    if os.getpid() == 1:
        return
    import ctypes

    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("bridle: cannot become a subreaper (Linux 3.4 or newer)")


def listen(port: int) -> _socket.socket:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def announce(control: int, listeners: Sequence[_socket.socket]) -> None:
    """Hands the listeners over: they stay in this network, and the host alone accepts on them."""
    numbers = b"".join(listener.fileno().to_bytes(4, sys.byteorder) for listener in listeners)
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if listeners else []
    channel = _socket.socket(fileno=os.dup(control))
    channel.sendmsg([b"R"], ancillary)
    channel.close()
    for listener in listeners:
        listener.close()


def run(cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """-> the raw wait status of the command; orphans that end meanwhile are reaped."""
    os.environb[b"PATH"] = env.get(b"PATH", b"")  # posix_spawnp searches the caller's PATH
    try:
        os.chdir(cwd)
    except OSError as error:
        return complain(cwd, error, NOT_RUNNABLE)
    try:
        child = os.posix_spawnp(argv[0], argv, env, setsigdef=DEFAULT_AGAIN)
    except FileNotFoundError as error:
        return complain(argv[0], error, NOT_FOUND)
    except OSError as error:
        return complain(argv[0], error, NOT_RUNNABLE)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def complain(what: bytes, error: OSError, code: int) -> int:
    os.write(2, b"bridle: %s: %s\n" % (what, os.fsencode(str(error.strerror))))
    return code << 8


def end_the_rest() -> None:
    if os.getpid() == 1:
        return  # the kernel ends a namespace with its pid 1, and lets no one see it dead before the others are
    while pids := children():
        for pid in pids:
            os.kill(pid, 9)
        for pid in pids:
            os.waitpid(pid, 0)


def children() -> list[int]:
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(name) == me]


def parent(name: str) -> int:
    try:
        with open(f"/proc/{name}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def end_with_host(control: int) -> None:
    os.read(control, 1)
    if os.getpid() == 1:
        os._exit(1)
    while True:  # the main thread reaps them, and leaves with the last one
        for pid in children():
            os.kill(pid, 9)
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
