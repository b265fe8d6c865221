"""The records of a session log: one per thing that happened, enough to rebuild the session and nothing derivable.

Arrays travel as little-endian bytes (int32 ids, float32 logprobs).
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from bridle.errors import LogCorrupt
from bridle.extras import Packed
from bridle.messages import CallStatus, FinishReason, Kind, KindRule, Message, Note, ThreadFacts, ThreadRule
from bridle.sessions.match import Echo
from bridle.sessions.tree import Origin, TurnReason
from bridle.tokens import Ids

LOG_VERSION = 1


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends of a session, 0 = none. Reaching one refuses the next turn; it is an end the agent caused."""

    turns: int = 200
    sampled_tokens: int = 0
    total_tokens: int = 0
    """Prompts and answers of all turns, each prompt counted whole."""
    wall_s: float = 0.0
    """From the opening of the session on."""
    context_tokens: int = 0
    """Prompt and answer of one turn together; the engine's own context length applies in any case."""


class TrainingSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a training session samples: the full distribution at one temperature.

    `precedence`: whose word holds. enforce: the trainer's, what the client wished is recorded. default: the client's
    where it says something, the trainer's elsewhere. client: the client's alone, the API's defaults elsewhere. Draws
    from a truncated distribution (top_p, top_k) do not train: their logprobs are of a distribution nobody stored."""

    temperature: float = 1.0
    max_tokens: int = 8192
    seed: int | None = None
    precedence: Literal["enforce", "default", "client"] = "enforce"

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError("sampling.temperature must be > 0: a greedy draw has no logprob to train on")


class Distribution(msgspec.Struct, frozen=True):
    """What a turn was drawn from, and what its logprobs are of. `logprobs` processed: the whole distribution at
    `temperature`; raw: the model's own, at temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    logprobs: Literal["processed", "raw"] = "processed"

    @property
    def truncated(self) -> bool:
        """Not every id could be drawn: a greedy draw is one of the most likely id alone."""
        return self.top_p < 1.0 or self.top_k > 0 or self.temperature <= 0


class SessionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sampling: TrainingSampling = TrainingSampling()
    limits: Limits = Limits()
    kinds: tuple[KindRule, ...] = ()
    threads: tuple[ThreadRule, ...] = ()
    history: Literal["keep", "template"] = "keep"
    """What becomes of reasoning in a history. keep: what was sampled stays as it was sampled. template: where the chat
    template drops it the branch leaves the draw, and goes on as the template writes it."""
    thinking: bool | None = None
    """Pins the template's thinking switch, whatever requests say."""
    effort: str = ""
    """Pins the template's reasoning effort."""
    tool_choice: Literal["hold", "record"] = "hold"
    """What is done with a request that forbids calls, or needs one, or allows some: its answer is held to that and does
    not train, or that is a wish and written down."""
    media: Literal["refuse", "replace"] = "refuse"
    """What a text model does with images and files: refuse the request, or put a line of text in their place."""
    capture: Literal["none", "raw"] = "none"
    """raw: requests and replies are kept as they went over the wire, beside the session's log."""
    metadata: dict[str, str] = {}


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    session: str
    model: str
    renderer: str
    """Fingerprint of vocabulary and template."""
    options: SessionOptions
    at: float
    version: int = LOG_VERSION


class NewNode(msgspec.Struct, frozen=True):
    key: bytes
    origin: Origin
    ids: bytes
    turn: int = -1


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A request was matched and rendered; written before sampling. `before_stop`: the first node leaves `base`, a draw,
    before its stop id."""

    seq: int
    id: str
    base: int
    before_stop: bool
    nodes: tuple[NewNode, ...]
    lead: bytes
    kind: Kind
    rule: str
    digest: bytes
    echoes: tuple[Echo, ...]
    notes: tuple[Note, ...]
    at: float
    distribution: Distribution = Distribution()
    thread: ThreadFacts | None = None
    """Which of the agent's conversations this is, where its headers say so."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """What was sampled; written before the client receives anything it could act on."""

    seq: int
    ids: bytes
    logprobs: bytes | None
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]
    message: Message
    stop_id: int | None
    reason: TurnReason | None
    at: float
    stop_sequence: str = ""
    """The client's stop text that ended the draw; `message` ends before it, `ids` do not."""
    failed: str = ""
    """What the engine failed with, where it did; a draw its client left has none."""
    ill_formed: tuple[CallStatus, ...] = ()
    """Of each call in the draw that is not ok, in order; `message` has some of them as text."""
    extras: Packed = {}
    """What the engine said of each id beside its logprob, where it said something."""
    delivered: bool = True
    """Whether a client was there to have it; a `Delivery` behind it holds more."""


class Delivery(msgspec.Struct, frozen=True, tag="delivery"):
    """Whether the client had the turn after all, or had not; the last one of a turn holds."""

    seq: int
    delivered: bool


Limit = Literal["turns", "sampled_tokens", "total_tokens", "wall_s", "context_tokens"]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A limit refused a call; calls refused after it by the same limit are not written. One too long for its context
    is made good by the next turn (the agent compacted), but for an auxiliary one; the others refuse every call."""

    limit: Limit


class Sealed(msgspec.Struct, frozen=True, tag="sealed"):
    cause: str
    at: float


Record = Opened | Started | Finished | Delivery | Refused | Sealed


def pack_ids(ids: Ids) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


def unpack_ids(data: bytes) -> Ids:
    return _unpack(data, "<i4").astype(np.int32, copy=False)


def pack_logprobs(values: np.ndarray) -> bytes:
    return values.astype("<f4", copy=False).tobytes()


def unpack_logprobs(data: bytes) -> np.ndarray:
    return _unpack(data, "<f4").astype(np.float32, copy=False)


def _unpack(data: bytes, kind: str) -> np.ndarray:
    if len(data) % 4:
        raise LogCorrupt(f"an array of {len(data)} bytes is not made of 4-byte values")
    return np.frombuffer(data, kind)
