"""The contract every engine fulfils: token ids in, sampled ids and logprobs out.

An engine never sees a chat template. A logprob is log-softmax(logits / temperature) over the full vocabulary at the
sampled id, in nats.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol as Contract, Self

import msgspec
import numpy as np

from bridle.extras import NO_EXTRAS, Extras
from bridle.messages import Message, ModelRequest
from bridle.tokens import CallSpelling, Ids

EngineFinish = Literal["stop", "length", "abort"]


class CallRule(msgspec.Struct, frozen=True):
    """How many calls an answer has: `least` (0 or 1) to `most` (0, 1, None: any number), each of a tool in `spelling`
    and written as it says. With `most` 0 the spelling tells what may not be written.

    One that needs a call is calls alone, behind the reasoning: what the prompt opened, or, where `may_think`, what the
    model opens with its first id. Elsewhere text stands around calls as the model likes."""

    spelling: CallSpelling
    least: int = 0
    most: int | None = None
    may_think: bool = False

    @property
    def narrows(self) -> bool:
        """Whether it narrows what an answer without calls is drawn from."""
        return self.least > 0 or self.most == 0


class Sampling(msgspec.Struct, frozen=True):
    """What the engine is told. top_k -1 is off, temperature 0 takes the likeliest id. `stop_ids` end a turn; the one
    drawn is returned with the ids.

    `stop`: texts that end a turn with the id that completes one; none reaches across a control id. `schema`: a JSON
    Schema the answer is held to, by engines that can (`EngineFacts.constrains`; BadRequest for what it says that they
    cannot). `calls`: the same for its tool calls (`EngineFacts.holds_calls`). What is drawn under either is
    `constrained`."""

    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    calls: CallRule | None = None


class GenerateRequest(msgspec.Struct, frozen=True):
    """`rid` names the turn to the engine (aborts, journals). `ids`: int32[n], exactly what is to be consumed.

    `conversation` is there for engines that answer from text (scripted); `thinking_open` says that the prompt ends
    inside an opened reasoning block, which `thinking_end` closes: a schema or a needed call comes behind that id.
    """

    rid: str
    ids: Ids
    sampling: Sampling
    conversation: ModelRequest | None = None
    thinking_open: bool = False
    thinking_end: int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """Some more of a turn: `ids` int32[k] and `logprobs` float32[k], or None where the engine gave none.

    Logprobs are of the full softmax at the given temperature, whatever narrows the draw (top_p, top_k, a schema, a
    rule of calls); a greedy draw (temperature 0) has none. `version` is the policy version that sampled these ids. The
    last chunk carries `finish`.
    `forced`: ids were put in place, not drawn. `constrained`: drawn under a mask or grammar.
    """

    ids: Ids
    logprobs: np.ndarray | None
    version: int = 0
    finish: EngineFinish | None = None
    forced: bool = False
    constrained: bool = False
    stopped_by: str = ""
    """With finish "stop": the text of `Sampling.stop` that ended the turn."""
    extras: Extras = NO_EXTRAS
    """Of these ids, for engines that say more of each."""

    def __post_init__(self) -> None:
        if not self.extras.fit(len(self.ids)):
            raise ValueError(f"a chunk of {len(self.ids)} ids has extras of another number of ids")


class EngineFacts(msgspec.Struct, frozen=True):
    """What the start-up probe established."""

    name: str
    model: str
    context_length: int
    returns_stop_id: bool = True
    constrains: bool = False
    """Whether it can hold an answer to a JSON Schema."""
    holds_calls: bool = False
    """Whether it can hold an answer to a CallRule."""
    logprobs: Literal["processed", "raw"] = "processed"
    """Of which distribution its logprobs are: the one at the given temperature, or the model's own (temperature 1)."""


ReplyWriter = Callable[[Message, bool], list[str | int]]
"""(reply, thinking_open) -> text pieces and control ids in order, closing token last (`Renderer.write`). Handed in by
config to engines that answer from text; how the text pieces become ids is theirs."""


class Engine(Contract):
    """An async context manager: entered to load or connect and probe, left to stop. Chunks come in order.

    A class with options has a `Config`, a frozen msgspec Struct of them that forbids unknown fields. A user's own class
    is made as `Class(config)`, and as `Class()` when it has none; the built-in ones also get a script, a model and a
    journal handed in. Making one checks its options and opens nothing.
    """

    facts: EngineFacts

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Closing the iterator early aborts the generation. Raises EngineError."""
        ...

    async def abort(self, rid: str) -> None:
        """Ends a running generation; unknown ids are ignored."""
        ...
