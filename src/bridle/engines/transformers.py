"""A local engine over any Hugging Face model directory: one request at a time, exact logprobs, nothing downloaded.

The only file that imports torch and transformers. `LocalModel` is the model itself, also used to audit what was
captured.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from bridle.engines.base import Chunk, EngineFacts, EngineFinish, GenerateRequest, Sampling
from bridle.engines.grammar import Grammars, Held
from bridle.engines.journal import Journal, Recording
from bridle.engines.scripted import Actor, Floats, Line, spoil
from bridle.engines.stops import StopTexts
from bridle.errors import BadRequest, ConfigError, EngineError
from bridle.tokens import EMPTY, Ids, Vocabulary, ids_of

P = ParamSpec("P")
Result = TypeVar("Result")
NOTHING = np.zeros(0, np.float32)


class TransformersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`script`: a file whose answers are forced through the model. `device`, `threads`: torch's."""

    script: str | None = None
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads: expected at least 1, got {self.threads}")


class LocalModel:
    """Weights in memory. float32 on a CPU, the precision of the files elsewhere.

    `threads`: torch's, for the whole process. Several wait for each other in every small product, and where agents keep
    the cores busy that is most of the time: measured 1.1 ms a step with one, 45 ms with two on two busy cores."""

    def __init__(self, directory: Path, device: str = "cpu", threads: int = 1) -> None:
        if not (directory / "config.json").is_file():
            raise ConfigError(f"{directory} is no model directory: no config.json; give one with config and weights")
        torch.set_num_threads(threads)
        self._device = device
        self._model = _load(directory, torch.float32 if device == "cpu" else "auto").eval().to(device)
        self.context_length = int(self._model.config.get_text_config().max_position_embeddings)

    def score(self, tokens: Ids, positions: npt.NDArray[np.int64], temperature: float = 1.0) -> npt.NDArray[np.float32]:
        """-> float32[len(positions)]: the logprob of tokens[p] behind tokens[:p], p >= 1, by one pass without a cache.

        Memory: positions x vocabulary floats, twice."""
        logits, _ = self.logits(tokens, torch.from_numpy(positions - 1).to(self._device))
        chosen = torch.from_numpy(tokens[positions].astype(np.int64))
        return _logprobs(logits, temperature).gather(1, chosen[:, None])[:, 0].numpy()

    def logits(
        self, ids: Ids, keep: torch.Tensor | int, cache: object = None, grow: bool = False
    ) -> tuple[torch.Tensor, object]:
        """-> float32[kept, vocabulary] on the CPU, and the cache grown by `ids` (None unless `grow`).

        `keep`: the positions wanted, or how many from the end."""
        fed = torch.from_numpy(ids.astype(np.int64))[None].to(self._device)
        with torch.inference_mode():
            output = self._model(fed, past_key_values=cache, use_cache=grow, logits_to_keep=keep)
            return output.logits[0].float().cpu(), output.past_key_values


class Draw:
    """One generation: its KV cache, a random stream of its own, what it is held to and the texts that end it.

    `stopped_by`: the one that did. `constrained`: not every id could be drawn so far."""

    def __init__(
        self,
        model: LocalModel,
        ids: Ids,
        sampling: Sampling,
        seed: int = 0,
        held: Held | None = None,
        stops: StopTexts | None = None,
    ) -> None:
        self._model = model
        self._unread = ids
        self._sampling = sampling
        self._random = torch.Generator().manual_seed(seed)
        self._held = held
        self._stops = stops
        self._cache: object = None
        self.count = 0
        self.stopped_by = ""
        self.constrained = False

    def step(self, forced: int | None) -> tuple[int, float]:
        """-> the next id, drawn or the one `forced`, and its logprob at the temperature (1 for a greedy draw)."""
        logits, self._cache = self._model.logits(self._unread, 1, self._cache, grow=True)
        logprobs = _logprobs(logits[-1], self._sampling.temperature or 1.0)
        id = self._choose(logprobs) if forced is None else forced
        if self._held is not None:
            self._held.take(id)
        if self._stops is not None:
            self.stopped_by = self._stops.feed(id)
        self._unread = ids_of([id])
        self.count += 1
        return id, float(logprobs[id])

    def _choose(self, logprobs: torch.Tensor) -> int:
        if self._held is not None and (allowed := self._held.allowed(len(logprobs))) is not None:
            logprobs = logprobs.masked_fill(torch.from_numpy(~allowed), -torch.inf)
            self.constrained = True
        if self._sampling.temperature == 0:
            return int(logprobs.argmax())
        narrowed = narrow(logprobs, self._sampling.top_k, self._sampling.top_p)
        return int(torch.multinomial(narrowed.exp(), 1, generator=self._random))


class TransformersEngine:
    """Loads on entering. With an `actor` the script's ids are forced through the model and carry its true logprobs."""

    Config = TransformersConfig
    facts: EngineFacts

    def __init__(
        self,
        directory: Path,
        device: str = "cpu",
        *,
        threads: int = 1,
        actor: Actor | None = None,
        journal_path: Path | None = None,
    ) -> None:
        self._directory = directory
        self._threads = threads
        self._device = device
        self._actor = actor
        self._journal = Journal(journal_path, None if actor is None else actor.script.expect)
        self._one_at_a_time = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, "transformers")
        self._running: set[str] = set()
        self._grammars: dict[tuple[int, ...], Grammars] = {}

    async def __aenter__(self) -> Self:
        self.model = await self._apart(LocalModel, self._directory, self._device, self._threads)
        self.facts = EngineFacts(
            "transformers", self._directory.name, self.model.context_length, constrains=True, holds_calls=True
        )
        self._journal.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.clear()
        self._journal.__exit__(kind, error, trace)
        # A step cannot be interrupted: the thread ends with the one it is in.
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        self._check(request)
        line = None if self._actor is None else self._actor.line(request)
        with self._recording(request, line) as recording:
            self._running.add(request.rid)
            try:
                if self._actor is not None and line is not None:
                    self._actor.fault(line.turn)
                async with self._one_at_a_time:
                    draw = await self._apart(self._begin, request, line)
                    while recording.unfinished:
                        chunk, logprobs = await self._next(draw, request, line)
                        yield recording.give(chunk, logprobs)
            finally:
                self._running.discard(request.rid)

    async def abort(self, rid: str) -> None:
        self._running.discard(rid)

    def _check(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < -1:
            raise BadRequest(
                "the local engine takes a temperature from 0 on, a top_p above 0 up to 1, top_k from 1 (-1, 0: off); "
                f"asked for were temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}"
            )
        if len(request.ids) >= self.model.context_length:
            raise EngineError(f"{len(request.ids)} ids leave no room in a context of {self.model.context_length}")

    def _recording(self, request: GenerateRequest, line: Line | None) -> AbstractContextManager[Recording]:
        if line is None:
            return self._journal.recording(request, how="drawn")
        return self._journal.recording(request, how="forced-through-model", kind=line.kind, thread=line.thread)

    def _begin(self, request: GenerateRequest, line: Line | None) -> Draw:
        """What is forced needs no grammar, and ends where the script says."""
        if line is not None:
            return Draw(self.model, request.ids, request.sampling)
        stops = StopTexts(request.sampling.stop, self._vocabulary) if request.sampling.stop else None
        return Draw(self.model, request.ids, request.sampling, _seed(request), self._held(request), stops)

    def _held(self, request: GenerateRequest) -> Held | None:
        sampling = request.sampling
        if sampling.calls is not None:
            return self._grammars_ending(sampling.stop_ids).calls(sampling.calls, request)
        if sampling.schema is not None:
            behind = request.thinking_end if request.thinking_open else None
            return self._grammars_ending(sampling.stop_ids).schema(sampling.schema, behind)
        return None

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self._directory)

    def _grammars_ending(self, stop_ids: tuple[int, ...]) -> Grammars:
        if stop_ids not in self._grammars:
            self._grammars[stop_ids] = Grammars(self._vocabulary, stop_ids)
        return self._grammars[stop_ids]

    async def _next(self, draw: Draw, request: GenerateRequest, line: Line | None) -> tuple[Chunk, Floats | None]:
        """-> a chunk of one id and its true logprob, or the chunk that says it was aborted."""
        if line is not None:
            await asyncio.sleep(line.turn.delay_s)
        if request.rid not in self._running:
            return Chunk(EMPTY, NOTHING, finish="abort"), NOTHING
        try:
            id, logprob = await self._apart(draw.step, None if line is None else int(line.ids[draw.count]))
        except (RuntimeError, IndexError) as error:
            # Out of memory, or an id that the model's embedding does not hold.
            raise EngineError(f"the model failed at id {draw.count} of {request.rid}: {error}") from error
        finish = self._finish(draw, request, line, id)
        ids = ids_of([id])
        logprobs = np.array([logprob], np.float32) if request.sampling.temperature > 0 else None
        given = logprobs if line is None else spoil(line.turn, ids, logprobs, finish is not None)
        stopped_by = draw.stopped_by if line is None or finish is None else line.stopped_by
        constrained = draw.constrained if line is None else line.constrained
        return Chunk(ids, given, finish=finish, constrained=constrained, stopped_by=stopped_by), logprobs

    def _finish(self, draw: Draw, request: GenerateRequest, line: Line | None, id: int) -> EngineFinish | None:
        if line is not None and draw.count == len(line.ids):
            return line.finish
        if line is None and (id in request.sampling.stop_ids or draw.stopped_by):
            return "stop"
        room = min(request.sampling.max_tokens, self.model.context_length - len(request.ids))
        return "length" if draw.count == room else None

    async def _apart(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Off the event loop, one piece of work at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, partial(work, *args, **kwargs))


def _load(directory: Path, precision: object) -> Any:
    loader: Any = AutoModelForCausalLM
    bars: Any = transformers_logging
    bars.disable_progress_bar()
    try:
        model, loading = loader.from_pretrained(
            directory, dtype=precision, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot load the model in {directory}: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        # transformers fills them with random numbers and goes on.
        raise ConfigError(
            f"the files in {directory} lack {len(missing)} weights of the model: {', '.join(missing[:3])}"
        )
    return model


def narrow(logprobs: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """-> those of the `top_k` likeliest, and of these the fewest that hold `top_p` of their mass; -inf elsewhere."""
    if 0 < top_k < len(logprobs):
        logprobs = logprobs.masked_fill(logprobs < logprobs.topk(top_k).values[-1], -torch.inf)
    if top_p < 1:
        ordered, places = logprobs.softmax(-1).sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        logprobs = logprobs.masked_fill(torch.zeros_like(beyond).scatter(0, places, beyond), -torch.inf)
    return logprobs


def _logprobs(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return torch.log_softmax(logits / temperature, -1)


def _seed(request: GenerateRequest) -> int:
    if request.sampling.seed is not None:
        return request.sampling.seed
    return int.from_bytes(hashlib.sha256(request.rid.encode()).digest()[:7])
