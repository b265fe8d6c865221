"""JSON Lines: one sample a line, every field of the schema, arrays as lists of numbers.

A file is there whole or not at all. What is read back passes the same checks as what is built.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import orjson

from bridle.errors import LogCorrupt
from bridle.samples.sample import Sample


class JsonlExporter:
    """The shortest decimal is written for a float32, so that the same float32 is read back."""

    suffix = ".jsonl"

    def write(self, samples: Iterable[Sample], path: Path) -> int:
        """Replaces `path` in one step -> the number of samples."""
        path.parent.mkdir(parents=True, exist_ok=True)
        count = 0
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                for sample in samples:
                    file.write(
                        orjson.dumps(sample.arrays(), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
                    )
                    count += 1
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return count

    def read(self, path: Path) -> Iterator[Sample]:
        """Raises LogCorrupt with the line that is not a sample."""
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield Sample.from_dict(orjson.loads(line))
                except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
                    raise LogCorrupt(f"{path}:{number} is not a sample of schema version 1: {error}") from error
