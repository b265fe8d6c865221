"""A session as a fold over its records: what was asked, what was sampled, what the client had.

Pure: records go to a `sink` before they change anything, so that a log written by the sink is always at least as new as
the state. Times are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NoReturn

import msgspec
import numpy as np

from bridle.errors import LimitReached, LogCorrupt, SessionSealed
from bridle.extras import NO_EXTRAS, Extras, pack, unpack
from bridle.messages import (
    CallStatus,
    FinishReason,
    Message,
    ModelRequest,
    Note,
    Thinking,
    ThreadFacts,
    ToolCall,
    kind_of,
    thread_of,
)
from bridle.sessions.echo import FORKS
from bridle.sessions.match import Echo, Match
from bridle.sessions.records import (
    Delivery,
    Distribution,
    Finished,
    Limit,
    NewNode,
    Opened,
    Record,
    Refused,
    Sealed,
    SessionOptions,
    Started,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from bridle.sessions.tree import Origin, Tree, Turn, TurnReason
from bridle.tokens import Ids

STOP_NOT_RETURNED = Note(
    "stop_not_returned", "the engine stopped, but not with a stop id: what closes the turn is context"
)


class TurnFacts(msgspec.Struct, frozen=True):
    """How a turn's prompt came to be. `held`: ids spliced from what was held, `new`: ids rendered or transplanted.
    `failed`: what the engine failed with, where it did."""

    held: int
    new: int
    echoes: tuple[Echo, ...] = ()
    notes: tuple[Note, ...] = ()
    before_stop: bool = False
    distribution: Distribution = Distribution()
    thread: ThreadFacts | None = None
    failed: str = ""


class Draw(msgspec.Struct, frozen=True):
    """What an engine returned for one turn. `logprobs` float32, None where there were none; lengths as they came."""

    ids: Ids
    logprobs: np.ndarray | None
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...] = ()
    forced: bool = False
    constrained: bool = False
    stop_id: int | None = None
    stop_sequence: str = ""
    failed: str = ""
    ill_formed: tuple[CallStatus, ...] = ()
    extras: Extras = NO_EXTRAS


class Session:
    """The turn tree and everything else a session's records say.

    `told`: how draws came back in place. Every longer history says it again; the log holds it once. `refused`: the
    limit that refused a call and was not made good since. `prompt_tokens`, `sampled_tokens`: of all turns so far.
    `depths`: of the agent's conversations, where known."""

    def __init__(self, sink: Callable[[Record], None] = lambda record: None) -> None:
        self.sink = sink
        self.opened: Opened | None = None
        self.tree = Tree()
        self.facts: dict[int, TurnFacts] = {}
        self.told: set[Echo] = set()
        self.refused: Limit | None = None
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.depths: dict[str, int | None] = {}
        self.sealed: Sealed | None = None

    @classmethod
    def replay(cls, records: Iterable[Record], sink: Callable[[Record], None] = lambda record: None) -> Session:
        session = cls()
        for record in records:
            session._apply(record)
        if session.opened is None:
            raise LogCorrupt("a session log must begin with its opening record; this one has none")
        session.sink = sink
        return session

    @property
    def id(self) -> str:
        return self._opened.session

    @property
    def options(self) -> SessionOptions:
        return self._opened.options

    @property
    def _opened(self) -> Opened:
        if self.opened is None:
            raise SessionSealed("the session was never opened")
        return self.opened

    @property
    def used_turns(self) -> int:
        """A turn that an engine ended without a token was not the agent's."""
        return sum(turn.status == "started" or len(turn.sampled) > 0 for turn in self.tree.turns)

    def said(self, identity: str) -> Message | None:
        """The answer with this signature, or with a call of this id."""
        tree = self.tree
        seq = tree.turn_by_signature.get(identity, tree.turn_by_call.get(identity))
        return None if seq is None else tree.turns[seq].message

    def open(self, record: Opened) -> None:
        self._record(record)

    def admit(self, at: float, turns: int = 1) -> None:
        """Raises SessionSealed or LimitReached when so many further turns may not start."""
        self._refuse_sealed()
        limits = self.options.limits
        if limits.turns and self.used_turns + turns > limits.turns:
            self._refuse("turns", f"{limits.turns} turns")
        if limits.sampled_tokens and self.sampled_tokens >= limits.sampled_tokens:
            self._refuse("sampled_tokens", f"{limits.sampled_tokens} sampled tokens")
        if limits.total_tokens and self.prompt_tokens + self.sampled_tokens >= limits.total_tokens:
            self._refuse("total_tokens", f"{limits.total_tokens} tokens of prompts and answers")
        if limits.wall_s and at - self._opened.at >= limits.wall_s:
            self._refuse("wall_s", f"{limits.wall_s:g} s")

    def note_refusal(self, limit: Limit) -> None:
        """Writes down that a limit refused a call."""
        if self.refused in (None, "context_tokens") and self.refused != limit:
            self._record(Refused(limit))

    def start(
        self,
        request: ModelRequest,
        digest: bytes,
        found: Match,
        rendered: Sequence[Ids],
        lead: Ids,
        at: float,
        before_stop: bool = False,
        notes: Sequence[Note] = (),
        distribution: Distribution = Distribution(),
    ) -> Turn:
        """Adds what the request brought (`rendered[i]`: the ids of `found.steps[i]`) and a started turn behind it.

        What may start was asked of `admit`, for siblings together: the first must not use up what the second needs."""
        kind, rule = kind_of(request, self.options.kinds)
        seq = len(self.tree.turns)
        self._echoed(found.echoes)
        nodes = tuple(
            NewNode(step.key, _ORIGINS[step.unit], pack_ids(ids), step.turn)
            for step, ids in zip(found.steps, rendered, strict=True)
        )
        self._record(
            Started(
                seq=seq,
                id=f"{self.id}-{seq}",
                base=found.base,
                before_stop=before_stop,
                nodes=nodes,
                lead=pack_ids(lead),
                kind=kind,
                rule=rule,
                digest=digest,
                echoes=tuple(echo for echo in found.echoes if echo not in self.told),
                notes=(*found.notes, *notes),
                at=at,
                distribution=distribution,
                thread=thread_of(request, self.options.threads, self.depths),
            )
        )
        return self.tree.turns[seq]

    def finish(self, turn: Turn, draw: Draw, message: Message, at: float, delivered: bool = True) -> Turn:
        """Records a draw with the identities minted into its message."""
        logprobs, reason = _trainable(draw, self.facts[turn.seq].distribution)
        self._record(
            Finished(
                seq=turn.seq,
                ids=pack_ids(draw.ids),
                logprobs=None if logprobs is None else pack_logprobs(logprobs),
                finish_reason=draw.finish_reason,
                versions=draw.versions,
                message=self.mint(turn, message),
                stop_id=draw.stop_id,
                reason=reason,
                at=at,
                stop_sequence=draw.stop_sequence,
                failed=draw.failed,
                ill_formed=draw.ill_formed,
                extras=pack(draw.extras),
                delivered=delivered,
            )
        )
        return turn

    def deliver(self, turn: Turn, *, delivered: bool) -> None:
        if turn.delivered != delivered:
            self._record(Delivery(turn.seq, delivered))

    def seal(self, cause: str, at: float) -> None:
        self._record(Sealed(cause, at))

    def mint(self, turn: Turn, message: Message) -> Message:
        """The message with this turn's identity in every field a protocol echoes: call ids and thinking signatures.

        Alphanumeric only (agents drop other characters), unique over sessions, computable from the turn."""
        parts = []
        calls = 0
        for part in message.parts:
            if isinstance(part, ToolCall):
                part = msgspec.structs.replace(part, id=f"call{_token(turn.id, calls)}")
                calls += 1
            elif isinstance(part, Thinking):
                part = msgspec.structs.replace(part, signature=signature(turn.id))
            parts.append(part)
        return msgspec.structs.replace(message, parts=tuple(parts))

    def _echoed(self, echoes: Sequence[Echo]) -> None:
        """A whole draw that comes back was delivered, whatever its connection looked like from here."""
        for echo in echoes:
            if echo.turn >= 0 and echo.echo not in FORKS:
                turn = self.tree.turns[echo.turn]
                if turn.finish_reason != "abort":
                    self.deliver(turn, delivered=True)

    def _refuse(self, limit: Limit, what: str) -> NoReturn:
        self.note_refusal(limit)
        raise LimitReached(f"session {self.id} has used its {what}")

    def _refuse_sealed(self) -> None:
        if self.sealed:
            raise SessionSealed(f"session {self.id} is sealed ({self.sealed.cause}); a rollout's turns end with it")

    def _record(self, record: Record) -> None:
        self._refuse_sealed()
        self.sink(record)
        self._apply(record)

    def _apply(self, record: Record) -> None:
        match record:
            case Opened():
                self.opened = record
            case Started():
                self._started(record)
            case Finished():
                self._finished(self._turn(record.seq), record)
            case Delivery():
                self._turn(record.seq).delivered = record.delivered
            case Refused():
                self.refused = record.limit
            case Sealed():
                self.sealed = record

    def _started(self, record: Started) -> None:
        tree = self.tree
        node = record.base
        if record.before_stop:
            node = tree.split_stop(tree.turns[tree.nodes[node].turn])
        held = tree.length(node)
        for new in record.nodes:
            node = tree.add_context(node, new.key, unpack_ids(new.ids), new.origin, new.turn).index
        lead = unpack_ids(record.lead)
        self.prompt_tokens += tree.length(node) + len(lead)
        if self.refused == "context_tokens" and record.kind != "auxiliary":
            self.refused = None
        tree.start(Turn(record.seq, record.id, node, lead, record.kind, record.rule, record.digest))
        self.told.update(echo for echo in record.echoes if echo.echo not in FORKS and not echo.transplanted)
        self.facts[record.seq] = TurnFacts(
            held,
            tree.length(node) + len(lead) - held,
            record.echoes,
            record.notes,
            record.before_stop,
            record.distribution,
            record.thread,
        )
        if record.thread is not None:
            self.depths.setdefault(record.thread.thread, record.thread.depth)

    def _finished(self, turn: Turn, record: Finished) -> None:
        turn.sampled = unpack_ids(record.ids)
        self.sampled_tokens += len(turn.sampled)
        turn.logprobs = None if record.logprobs is None else unpack_logprobs(record.logprobs)
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.sampled):
            raise LogCorrupt(
                f"turn {turn.id}: {len(turn.logprobs)} logprobs for {len(turn.sampled)} sampled ids; a log must hold "
                "as many of one as of the other"
            )
        turn.finish_reason = record.finish_reason
        turn.versions = record.versions
        turn.message = record.message
        turn.stop_id = record.stop_id
        turn.reason = record.reason
        turn.ill_formed = record.ill_formed
        turn.extras = unpack(record.extras)
        if not turn.extras.fit(len(turn.sampled)):
            raise LogCorrupt(f"turn {turn.id}: extras that are not of its {len(turn.sampled)} sampled ids")
        turn.delivered = record.delivered
        self.tree.finish(turn)
        self.tree.turn_by_signature[signature(turn.id)] = turn.seq
        if record.finish_reason == "stop" and record.stop_id is None and not record.stop_sequence:
            facts = self.facts[turn.seq]
            self.facts[turn.seq] = msgspec.structs.replace(facts, notes=(*facts.notes, STOP_NOT_RETURNED))
        if record.failed:
            self.facts[turn.seq] = msgspec.structs.replace(self.facts[turn.seq], failed=record.failed)

    def _turn(self, seq: int) -> Turn:
        if not 0 <= seq < len(self.tree.turns):
            raise LogCorrupt(f"a record names turn {seq}; {len(self.tree.turns)} turns have started")
        return self.tree.turns[seq]


_ORIGINS: dict[str, Origin] = {
    "root": "prompt",
    "message": "prompt",
    "results": "prompt",
    "assistant": "context",
    "transplant": "transplanted",
}


def _trainable(draw: Draw, drawn_from: Distribution) -> tuple[np.ndarray | None, TurnReason | None]:
    """The logprobs to keep and the reason why the draw is context, if it is."""
    if draw.forced:
        return None, "forced"
    if draw.logprobs is None:
        return None, "no_logprob"
    values = draw.logprobs
    # Engines mark a missing logprob as NaN or -9999.0; a positive one is no probability (1e-6 is float noise).
    if (
        len(values) != len(draw.ids)
        or not np.isfinite(values).all()
        or (values <= -9999.0).any()
        or (values > 1e-4).any()
    ):
        return None, "bad_logprob"
    if drawn_from.logprobs == "raw" and drawn_from.temperature not in (0.0, 1.0):
        # True numbers, but of another distribution than the one that was drawn from.
        return None, "bad_logprob"
    return values, "constrained" if draw.constrained or drawn_from.truncated else None


def signature(turn_id: str) -> str:
    """The identity a turn's thinking carries; known before the turn is sampled, because streams sign early."""
    return f"sig{_token(turn_id, -1)}"


def _token(turn_id: str, index: int) -> str:
    return blake2b(f"{turn_id}/{index}".encode(), digest_size=10).hexdigest()
