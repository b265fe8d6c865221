"""An engine that answers from a script, in token sequences no tokenizer would have chosen.

It stands in for a model at the outside edge: whatever re-tokenizes its text gets other ids than it gave out, and its
journal knows. `Actor` turns a request into ids and is shared with engines that force a script through a real model.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from bridle.engines.base import CallRule, Chunk, EngineFacts, EngineFinish, GenerateRequest, ReplyWriter
from bridle.engines.journal import How, Journal
from bridle.engines.schema import misfit
from bridle.engines.script import Script, ScriptTurn, reply
from bridle.engines.stops import StopTexts
from bridle.errors import EngineError
from bridle.messages import ToolCall
from bridle.tokens import EMPTY, Ids, Vocabulary, concatenate, ids_of

CHUNK = 16
"""Ids given out at a time."""

Floats = npt.NDArray[np.float32]
Score = Literal["none", "fake"]


class ScriptedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`script`: a file; without one the tasks bring theirs. `score`: see `ScriptedEngine`."""

    script: str | None = None
    context_length: int = 131072
    score: Score = "none"

    def __post_init__(self) -> None:
        if self.context_length < 1:
            raise ValueError(f"context_length: expected at least 1 token, got {self.context_length}")


class Line(msgspec.Struct, frozen=True):
    """What the script says to one request. `ids`: int32[n], the stop id included where there is one. `constrained`: a
    model would have been held to it."""

    ids: Ids
    finish: EngineFinish
    stopped_by: str
    turn: ScriptTurn
    thread: int
    kind: str
    constrained: bool


class Actor:
    """Plays a script in the tokens of one model."""

    def __init__(self, script: Script, vocabulary: Vocabulary, writer: ReplyWriter) -> None:
        self.script = script
        self._vocabulary = vocabulary
        self._writer = writer
        self._faults: Counter[int] = Counter()
        self._said: defaultdict[str, set[int]] = defaultdict(set)

    def fault(self, turn: ScriptTurn) -> None:
        """Raises the error that the script puts into a turn, as often as it says."""
        if turn.error is not None and (turn.error_times is None or self._faults[id(turn)] < turn.error_times):
            self._faults[id(turn)] += 1
            raise EngineError(turn.error)

    def line(self, request: GenerateRequest) -> Line:
        """Siblings differ in segmentation: it is seeded by the script's seed and the rid. Raises EngineError."""
        if request.conversation is None:
            raise EngineError("a script answers conversations, and this request has none; pass it beside the ids")
        number = self.script.thread(request.conversation)
        thread = self.script.threads[number]
        said = self._said[request.rid.rpartition("-")[0]]
        turn = thread.turn(request.conversation, said)
        if turn.once:
            said.add(id(turn))
        pieces = self._pieces(turn, request)
        constrained = _held(turn, pieces, request)
        ids = _until_stop(self._ids(turn, pieces, request.rid), request.sampling.stop_ids)
        ids, stopped_by = self._until_text(ids[: request.sampling.max_tokens + 1], request.sampling.stop)
        cut = len(ids) > request.sampling.max_tokens or (turn.finish == "length" and not stopped_by)
        finish: EngineFinish = "length" if cut else "stop"
        if turn.no_stop and finish == "stop" and not stopped_by:
            ids = ids[:-1]
        ids = ids[: request.sampling.max_tokens]
        if not len(ids):
            raise EngineError("the turn of the script says nothing, not even a stop id; give it a text or let it stop")
        return Line(ids, finish, stopped_by, turn, number, thread.kind, constrained)

    def _pieces(self, turn: ScriptTurn, request: GenerateRequest) -> list[str | int]:
        assert request.conversation is not None
        if turn.raw is not None:
            return [*self._vocabulary.split(turn.raw), request.sampling.stop_ids[0]]
        return self._writer(reply(turn, request.conversation.tools), request.thinking_open)

    def _ids(self, turn: ScriptTurn, pieces: list[str | int], rid: str) -> Ids:
        if turn.finish == "length":
            pieces = pieces[:-1]
        elif turn.stop is not None:
            pieces = [*pieces[:-1], self._control(turn.stop)]
        rng = random.Random(f"{self.script.seed}:{rid}")
        return concatenate([self._segment(piece, rng) for piece in pieces])

    def _until_text(self, ids: Ids, stop: tuple[str, ...]) -> tuple[Ids, str]:
        """-> `ids` as far as the one that completes a stop text, and that text."""
        texts = StopTexts(stop, self._vocabulary)
        for at, id in enumerate(ids.tolist() if stop else []):
            if found := texts.feed(id):
                return ids[: at + 1], found
        return ids, ""

    def _segment(self, piece: str | int, rng: random.Random) -> Ids:
        if isinstance(piece, int):
            return ids_of([piece])
        return self._vocabulary.resegment(self._vocabulary.encode(piece).tolist(), rng, self.script.resegment)

    def _control(self, text: str) -> int:
        if text not in self._vocabulary.controls:
            known = ", ".join(self._vocabulary.controls)
            raise EngineError(f"the script stops with {text!r}, no control token of this model (it has {known})")
        return self._vocabulary.controls[text]


class ScriptedEngine:
    """`score="fake"` makes every id carry an invented logprob, as if it had been drawn: for checks of what is done with
    logprobs. Otherwise ids are `forced` and have none. Speaks the same whatever the sampling asks for."""

    Config = ScriptedConfig

    def __init__(
        self,
        script: Script,
        vocabulary: Vocabulary,
        writer: ReplyWriter,
        journal_path: Path | None = None,
        *,
        context_length: int = 131072,
        score: Score = "none",
    ) -> None:
        self.facts = EngineFacts("scripted", "scripted", context_length, constrains=True, holds_calls=True)
        self._actor = Actor(script, vocabulary, writer)
        self._score = score
        self._journal = Journal(journal_path, script.expect)
        self._running: set[str] = set()

    async def __aenter__(self) -> Self:
        self._journal.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        line = self._actor.line(request)
        how: How = "drawn" if self._score == "fake" or line.turn.scored else "forced"
        with self._journal.recording(request, how=how, kind=line.kind, thread=line.thread) as recording:
            self._running.add(request.rid)
            try:
                self._actor.fault(line.turn)
                for chunk, logprobs in self._chunks(line, how == "forced"):
                    await asyncio.sleep(line.turn.delay_s)
                    if request.rid not in self._running:
                        unscored = None if chunk.logprobs is None else chunk.logprobs[:0]
                        yield recording.give(Chunk(EMPTY, unscored, finish="abort", forced=chunk.forced), None)
                        return
                    yield recording.give(chunk, logprobs)
            finally:
                self._running.discard(request.rid)

    async def abort(self, rid: str) -> None:
        self._running.discard(rid)

    def _chunks(self, line: Line, forced: bool) -> Iterator[tuple[Chunk, Floats | None]]:
        """Pairs of a chunk and the logprobs this engine stands by."""
        for start in range(0, len(line.ids), CHUNK):
            ids = line.ids[start : start + CHUNK]
            last = start + CHUNK >= len(line.ids)
            logprobs = fake_logprobs(ids) if self._score == "fake" else None
            given = spoil(line.turn, ids, logprobs, last)
            finish, stopped_by = (line.finish, line.stopped_by) if last else (None, "")
            chunk = Chunk(ids, given, 0, finish, forced, line.constrained, stopped_by)
            yield chunk, logprobs


def spoil(turn: ScriptTurn, ids: Ids, logprobs: Floats | None, last: bool) -> Floats | None:
    """The logprobs of a chunk with the faults the script asks for."""
    if turn.drop_logprobs:
        return None
    if turn.extra_logprob:
        claimed = fake_logprobs(ids) if logprobs is None else logprobs
        return np.append(claimed, np.float32(-1.0)) if last else claimed
    return logprobs


def fake_logprobs(ids: Ids) -> Floats:
    """A number in (-4, 0) that depends on the id alone."""
    return (-(ids.astype(np.int64) * 2654435761 % 4093 + 1) / 1024).astype(np.float32)


def _held(turn: ScriptTurn, pieces: list[str | int], request: GenerateRequest) -> bool:
    """-> whether a model would have been held to something here. Raises EngineError for an answer that breaks it."""
    rule, schema = request.sampling.calls, request.sampling.schema
    if rule is not None:
        marks = sum(piece == rule.spelling.mark for piece in pieces)
        calls = reply(turn, request.conversation.tools).calls if request.conversation is not None else ()
        if broken := _broken(rule, turn, calls, len(calls) or marks):
            raise EngineError(f"the request {broken}")
        return rule.narrows or marks > 0
    if schema is not None:
        _check_schema(turn, schema)
    return schema is not None


def _broken(rule: CallRule, turn: ScriptTurn, calls: Sequence[ToolCall], count: int) -> str:
    """What a rule of calls asks for, and what the script says instead; "" where it does as asked."""
    may = {tool.name: tool.schema for tool in rule.spelling.tools}
    said = ", ".join(call.name for call in calls) or repr((turn.raw or turn.text or "")[:60])
    if rule.most is not None and count > rule.most:
        return f"takes {'one call at most' if rule.most else 'no call'}, and the script says {said}"
    if count < rule.least and turn.finish != "length":
        return f"asks for a call of {', '.join(may)}, and the script says {said}"
    for call in calls:
        if call.name not in may:
            return f"takes calls of {', '.join(may)}, and the script calls {call.name}"
        if (schema := may[call.name]) is not None and (reason := misfit(call.arguments, schema)):
            return f"takes calls that fit their tool, and the script calls {call.name} with {call.arguments}: {reason}"
    return ""


def _check_schema(turn: ScriptTurn, schema: Mapping[str, Any]) -> None:
    """A turn that calls tools or is cut short says nothing that could fit."""
    said = turn.raw if turn.raw is not None else turn.text or ""
    if not turn.calls and turn.finish != "length" and (reason := misfit(said, schema)):
        raise EngineError(f"the request asks for JSON of a schema, and the script says {said[:60]!r}: {reason}")


def _until_stop(ids: Ids, stop_ids: tuple[int, ...]) -> Ids:
    """A raw text may hold stop tokens; a model would have ended at the first."""
    found = np.flatnonzero(np.isin(ids, stop_ids))
    return ids[: found[0] + 1] if len(found) else ids
