"""Session logs on disk: one append-only file per session, each record written through before the call returns."""

from __future__ import annotations

import os
from pathlib import Path

from bridle.errors import Conflict, InfrastructureError
from bridle.sessions.codec import MAGIC, encode
from bridle.sessions.records import Record


class Journal:
    """`durability = process`: a record is with the kernel when `append` returns, so it survives kill -9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise Conflict(f"{path} exists: a session's id is used once; choose another id") from error
        self._length = 0
        self._write(MAGIC)

    def append(self, record: Record) -> None:
        self._write(encode(record))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            # Half a record in the middle would make everything behind it unreadable.
            os.ftruncate(self._file, self._length)
            raise InfrastructureError(
                f"cannot write to {self.path}: {error.strerror}; make room and try again"
            ) from error
        self._length += len(data)
