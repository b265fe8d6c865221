"""An engine's own record of what it consumed and what it gave out, kept apart from everything built on it.

JSON Lines. The first line is `{"journal": 1, "script": {"expect": {...}} | null}`, every other one a generation,
written when it ends for whatever reason. A prompt is a list of ids, or `{"base": rid, "keep": n, "add": [...]}`: the
first n ids of an earlier line's prompt and output together, then `add`. A line that keeps all of its base is the last
to name it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from bridle.engines.base import Chunk, EngineFinish, GenerateRequest
from bridle.engines.script import Expect
from bridle.errors import LogCorrupt
from bridle.tokens import Ids, concatenate

How = Literal["drawn", "forced", "forced-through-model"]
"""drawn: sampled from the model. forced: put in place, unscored. forced-through-model: put in place, truly scored. What
an engine gave out as drawn counts as drawn here."""

BASES = 64
"""Conversations held for the relative form. One more costs a line with its whole prompt, nothing else."""


class Entry(msgspec.Struct, frozen=True):
    """One generation. `prompt` int32[n], `output` int32[k] as far as it was given out, `logprobs` float32[k] as the
    engine knows them (None: it scored nothing). `kind`, `thread`: of the script, None without one."""

    rid: str
    prompt: Ids
    output: Ids
    logprobs: npt.NDArray[np.float32] | None
    finish: EngineFinish
    kind: str | None
    thread: int | None
    aborted: bool
    forced: bool
    how: How


class Recording:
    """What one running generation has given out so far."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []
        self.logprobs: list[npt.NDArray[np.float32]] = []
        self.finish: EngineFinish = "abort"
        self.unfinished = True

    def give(self, chunk: Chunk, logprobs: npt.NDArray[np.float32] | None) -> Chunk:
        """Notes `chunk` with the true `logprobs` (those it carries may be spoilt on purpose) and hands it on."""
        self.ids.append(chunk.ids)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        if chunk.finish is not None:
            self.finish, self.unfinished = chunk.finish, False
        return chunk


class Journal:
    """A context manager over the file; without a path nothing is kept."""

    def __init__(self, path: Path | None, expect: Expect | None) -> None:
        self._path = path
        self._expect = expect
        self._file: BinaryIO | None = None
        self._bases: OrderedDict[str, Ids] = OrderedDict()

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a line is one write, so a killed process leaves whole lines.
            self._file = self._path.open("ab", buffering=0)
            if self._path.stat().st_size == 0:
                script = None if self._expect is None else {"expect": msgspec.to_builtins(self._expect)}
                self._file.write(orjson.dumps({"journal": 1, "script": script}) + b"\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._bases.clear()

    @contextmanager
    def recording(
        self, request: GenerateRequest, *, how: How, kind: str | None = None, thread: int | None = None
    ) -> Iterator[Recording]:
        """Whatever ends the block, what was given out by then is written."""
        recording = Recording()
        try:
            yield recording
        finally:
            self._write(
                Entry(
                    rid=request.rid,
                    prompt=request.ids,
                    output=concatenate(recording.ids),
                    logprobs=np.concatenate(recording.logprobs) if recording.logprobs else None,
                    finish=recording.finish,
                    kind=kind,
                    thread=thread,
                    aborted=recording.finish == "abort",
                    forced=how == "forced",
                    how=how,
                )
            )

    def _write(self, entry: Entry) -> None:
        if self._file is None:
            return
        fields = msgspec.structs.asdict(entry)
        fields["prompt"] = self._relative(entry.prompt)
        self._bases[entry.rid] = concatenate([entry.prompt, entry.output])
        while len(self._bases) > BASES:
            self._bases.popitem(last=False)
        self._file.write(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")

    def _relative(self, prompt: Ids) -> Ids | dict[str, object]:
        shared = {rid: _common(base, prompt) for rid, base in self._bases.items()}
        rid = max(shared, key=shared.__getitem__, default=None)
        if rid is None or shared[rid] == 0:
            return prompt
        if shared[rid] == len(self._bases[rid]):
            del self._bases[rid]
        else:
            self._bases.move_to_end(rid)
        return {"base": rid, "keep": shared[rid], "add": prompt[shared[rid] :]}


def read_journal(path: Path) -> Iterator[Entry]:
    """The generations in the order they ended. Raises LogCorrupt with the line that is broken."""
    bases: dict[str, Ids] = {}
    with path.open("rb") as lines:
        header = next(lines, b"")
        if not header.startswith(b'{"journal":1,'):
            raise LogCorrupt(f"{path}:1 is not the first line of a journal of version 1: {header[:60]!r}")
        for number, line in enumerate(lines, 2):
            try:
                yield _entry(orjson.loads(line), bases)
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise LogCorrupt(f"{path}:{number} is not a generation: {error!r}") from error


def _entry(fields: dict[str, Any], bases: dict[str, Ids]) -> Entry:
    prompt = fields["prompt"]
    if isinstance(prompt, dict):
        base = bases[prompt["base"]]
        if prompt["keep"] > len(base):
            raise ValueError(f"keeps {prompt['keep']} of the {len(base)} ids of {prompt['base']!r}")
        if prompt["keep"] == len(base):
            del bases[prompt["base"]]
        fields["prompt"] = concatenate([base[: prompt["keep"]], np.array(prompt["add"], np.int32)])
    else:
        fields["prompt"] = np.array(prompt, np.int32)
    fields["output"] = np.array(fields["output"], np.int32)
    if fields["logprobs"] is not None:
        fields["logprobs"] = np.array(fields["logprobs"], np.float32)
    entry = Entry(**fields)
    bases[entry.rid] = concatenate([entry.prompt, entry.output])
    return entry


def _common(first: Ids, second: Ids) -> int:
    """Length of the common prefix."""
    shorter = min(len(first), len(second))
    different = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(different[0]) if len(different) else shorter
