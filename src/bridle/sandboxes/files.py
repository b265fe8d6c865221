"""Files of a sandbox, reached from the host while an agent may be rearranging them.

Every path is walked one component at a time with O_NOFOLLOW, so no link planted inside leads outside, at no moment.
A link is copied as a link and never read through. Modes keep their permission bits; set-uid and set-gid are dropped,
because inside the agent's files may belong to the user that runs Bridle.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from bridle.errors import BadRequest, NotFound, SandboxError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: a fifo planted in the place of a file must not hold the reader."""
READ_LIMIT = 256 * 2**20
COPY_LIMIT = 4 * 2**30
"""Bytes; a sparse file costs the agent nothing and the host all of it."""
DEPTH_LIMIT = 256
PERMISSIONS = 0o777
AGENTS_DOING = (errno.EACCES, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG)
"""What can be wrong with a path because of what was put there; anything else is the host's trouble."""
Parts = tuple[str, ...]
logger = logging.getLogger("bridle.sandboxes")


class Place:
    """A folder of the host that a sandbox shows under the name `shown`."""

    def __init__(self, folder: Path, shown: str) -> None:
        self.folder = folder
        self.shown = shown

    def read(self, parts: Parts) -> bytes:
        with self._parent(parts) as parent, _plain(parent, parts[-1], self.name(parts)) as source:
            data = source.read(READ_LIMIT + 1)
        if len(data) > READ_LIMIT:
            raise BadRequest(f"{self.name(parts)} is larger than {READ_LIMIT} bytes; use `download`")
        return data

    def write(self, parts: Parts, data: bytes, mode: int) -> None:
        path = self.name(parts)
        with self._parent(parts, make=True) as parent, _named(path), _replacing(parent, parts[-1], mode) as target:
            target.write(data)

    def name(self, parts: Parts) -> str:
        return "/".join((self.shown, *parts))

    @contextlib.contextmanager
    def open(self, parts: Parts, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder at `parts`; `make` creates what is missing on the way."""
        if len(parts) > DEPTH_LIMIT:
            raise BadRequest(f"{self.name(parts[:8])}/… is deeper than {DEPTH_LIMIT} folders")
        current = os.open(self.folder, FOLDER & ~os.O_NOFOLLOW)
        try:
            for depth, part in enumerate(parts, start=1):
                with _named(self.name(parts[:depth])):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o755, dir_fd=current)
                    below = os.open(part, FOLDER, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)

    @contextlib.contextmanager
    def _parent(self, parts: Parts, make: bool = False) -> Iterator[int]:
        if not parts:
            raise BadRequest(f"{self.shown} is a folder; a file was expected")
        with self.open(parts[:-1], make) as parent:
            yield parent


def copy(source: Place, taken: Parts, target: Place, put: Parts) -> None:
    """Copies the file, link or tree at `taken` to `put`, merging into folders that exist there."""
    if not taken:
        _copy_tree(source, taken, target, put)
        return
    with source.open(taken[:-1]) as parent, _named(source.name(taken)):
        mode = os.stat(taken[-1], dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        _copy_tree(source, taken, target, put)
    elif not put:
        raise BadRequest(f"{source.name(taken)} is not a folder, and {target.shown} is: name the file to make")
    else:
        with source.open(taken[:-1]) as here, target.open(put[:-1], make=True) as there:
            _copy_entry(here, taken[-1], there, put[-1], source.name(taken), COPY_LIMIT)


def _copy_tree(source: Place, taken: Parts, target: Place, put: Parts) -> None:
    """Iterative: an agent chooses the depth. Folder modes come last, so that one without `w` can be filled."""
    left = COPY_LIMIT
    waiting: list[Parts] = [()]
    modes: list[tuple[Parts, int]] = []
    while waiting:
        below = waiting.pop()
        with source.open(taken + below) as here, target.open(put + below, make=True) as there:
            modes.append((below, stat.S_IMODE(os.fstat(here).st_mode) & PERMISSIONS))
            for name in os.listdir(here):
                path = source.name((*taken, *below, name))
                if _is_folder(here, name):
                    waiting.append((*below, name))
                else:
                    left -= _copy_entry(here, name, there, name, path, left)
    for below, mode in reversed(modes):
        with target.open(put + below) as there:
            os.fchmod(there, mode)


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _copy_entry(here: int, name: str, there: int, new: str, path: str, limit: int) -> int:
    """-> the bytes copied. Sockets, fifos and devices are left out: they mean nothing elsewhere."""
    with _named(path):
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            _replace_link(there, new, os.readlink(name, dir_fd=here))
        elif not stat.S_ISREG(found.st_mode):
            logger.info("%s is neither file, folder nor link: left out of the copy", path)
        elif found.st_size > limit:
            raise BadRequest(f"{path}: more than {COPY_LIMIT} bytes in one copy")
        else:
            with _plain(here, name, path) as source, _replacing(there, new, found.st_mode & PERMISSIONS) as target:
                _pour(source, target, found.st_size)
                os.utime(target.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            return found.st_size
    return 0


def _pour(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copies `size` bytes and no more: the file may be growing."""
    while size > 0 and (data := source.read(min(size, 2**20))):
        target.write(data)
        size -= len(data)
    target.flush()


def _replace_link(parent: int, name: str, leads_to: str) -> None:
    temporary = f".{secrets.token_hex(8)}"
    os.symlink(leads_to, temporary, dir_fd=parent)
    os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


@contextlib.contextmanager
def _plain(parent: int, name: str, path: str) -> Iterator[BinaryIO]:
    """The file opened for reading; anything but a plain file is refused."""
    with _named(path):
        descriptor = os.open(name, PLAIN, dir_fd=parent)
    with open(descriptor, "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise BadRequest(f"{path} is not a plain file")
        yield source


@contextlib.contextmanager
def _replacing(parent: int, name: str, mode: int) -> Iterator[BinaryIO]:
    """A new file that takes the name once written: a link of that name is replaced, not followed."""
    temporary = f".{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        with open(descriptor, "wb") as target:
            yield target
            os.fchmod(target.fileno(), mode & PERMISSIONS)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(temporary, dir_fd=parent)
        raise


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Says of the sandbox's path what went wrong."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path} in the sandbox") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BadRequest(f"{path} is, or lies behind, a link or a file, and links are not followed") from error
        if error.errno in AGENTS_DOING:
            raise BadRequest(f"{path} cannot be used: {error.strerror}") from error
        raise SandboxError(f"{path}: {error.strerror}") from error


def parts_of(path: str, shown: str) -> Parts:
    return tuple(part for part in path.removeprefix(shown).split("/") if part not in ("", "."))


def within(path: str, places: Sequence[Place]) -> tuple[Place, Parts]:
    """-> the place that shows the absolute `path`, and the way below it."""
    for place in places:
        if path == place.shown or path.startswith(place.shown.rstrip("/") + "/"):
            parts = parts_of(path, place.shown)
            if ".." in parts:
                break
            return place, parts
    known = ", ".join(place.shown for place in places)
    raise BadRequest(f"{path} cannot be read or written from the host: expected a path without '..' below {known}")
