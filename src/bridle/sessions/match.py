"""Where a request hangs in the turn tree: which held ids it provably extends and what has to be rendered behind them.

Matching walks from the root; a node matches only as a child of the node matched before it. Nothing is healed: where the
request stops being an extension of what is held, the rest becomes new nodes and the match says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Document, Image, Message, ModelRequest, Note, Role, Text, Tool, ToolCall
from bridle.sessions.echo import FORKS, EchoClass, classify, named_as
from bridle.sessions.tree import ROOT, Tree, Turn

PIECES = 64
"""Messages in a row that are tried as one draw; more than any agent splits a turn into."""


MEDIA = (Image, Document)


class Echo(msgspec.Struct, frozen=True):
    """How one draw came back in this request. `turn` is -1 for foreign messages."""

    turn: int
    echo: EchoClass
    transplanted: bool = False


class Step(msgspec.Struct, frozen=True):
    """One node to add. `messages` are rendered as a unit; of a transplant the ids of draw `turn` are put there.

    `before`: the assistant message whose calls a unit of tool results answers. `turn`: the draw that it stands for.
    `behind`: the role of what stands before it. `settled`: rendered as the template writes it where it drops
    reasoning."""

    key: bytes
    unit: Literal["root", "message", "results", "assistant", "transplant"]
    messages: tuple[Message, ...] = ()
    before: Message | None = None
    turn: int = -1
    behind: Role = "user"
    settled: bool = False


class Match(msgspec.Struct, frozen=True):
    """`base`: the deepest node this request extends (ROOT: none). `steps`: what follows it, in order. `behind`: the
    role of the message that is last."""

    base: int
    steps: tuple[Step, ...]
    echoes: tuple[Echo, ...]
    notes: tuple[Note, ...]
    behind: Role = "user"


class Settled(NamedTuple):
    """What a history that follows its template has settled: the messages before number `end`, where they are draws
    that `drops` says the template writes otherwise now."""

    end: int
    drops: Callable[[Turn], bool]


KEPT = Settled(0, lambda turn: False)
"""Every draw stays as it was sampled."""


def match(
    tree: Tree, request: ModelRequest, root_variant: str = "", insert_missing: bool = True, settled: Settled = KEPT
) -> Match:
    """Matches `request` against `tree`.

    `root_variant` goes into the root's key (what else its rendering depends on). `insert_missing`: calls nobody
    answered get an explicit empty result, for templates that pair results with calls by order. Raises BadRequest.
    """
    return _Walk(tree, insert_missing, settled).run(request, root_variant)


def digest(request: ModelRequest) -> bytes:
    """Equal for the same request sent again: conversation, tools and wishes, without per-request noise.

    In whatever order its objects have their keys: Codex writes them in another one when it asks again."""
    state = blake2b(digest_size=16)
    state.update(request.model.encode())
    asked = (request.wishes, request.switches, request.response_schema, request.tools)
    state.update(msgspec.json.encode(asked, order="deterministic"))
    for message in request.messages:
        state.update(_content(message, with_identity=True))
    return state.digest()


class _Walk:
    """One pass over a request's messages. `node` is the last matched node while `on_tree`, afterwards it stays.
    `beside`: the node at which the same history ended before a draw of it was settled; further draws of it hang there.
    `last`: the role of the last message."""

    def __init__(self, tree: Tree, insert_missing: bool, settled: Settled) -> None:
        self.tree = tree
        self.insert_missing = insert_missing
        self.settled = settled
        self.node = ROOT
        self.beside: int | None = None
        self.on_tree = True
        self.last: Role = "user"
        self.steps: list[Step] = []
        self.echoes: list[Echo] = []
        self.notes: list[Note] = []
        self.before: Message | None = None
        self.open_calls: list[str] = []

    def run(self, request: ModelRequest, root_variant: str) -> Match:
        messages = list(request.messages)
        at = self._root(request, root_variant)
        while at < len(messages):
            role = messages[at].role
            if role == "tool":
                at = self._results(messages, at)
            else:
                self._close_calls(messages, at)
                at = self._assistant(messages, at) if role == "assistant" else self._message(messages, at)
        self._close_calls(messages, at)
        return Match(self.node, tuple(self.steps), tuple(self.echoes), (*request.notes, *self.notes), self.last)

    def _root(self, request: ModelRequest, variant: str) -> int:
        """Tools, leading system messages and the first message behind them are rendered as one."""
        messages = request.messages
        end = 0
        while end < len(messages) and messages[end].role in ("system", "developer"):
            end += 1
        first = messages[end].role if end < len(messages) else ""
        if first == "user" or (first == "assistant" and end == 0):
            end += 1
        key = _key(b"root", variant.encode(), _tools_key(request.tools), *map(_content, messages[:end]))
        new = self._advance(Step(key, "root", messages[:end]))
        self.last = messages[end - 1].role if end else self.last
        if first == "assistant" and end == 1:
            self.echoes += [Echo(-1, "foreign")] if new else []
            self._said(messages[0])
        return end

    def _message(self, messages: Sequence[Message], at: int) -> int:
        message = messages[at]
        self._advance(Step(_key(b"message", _content(message)), "message", (message,), behind=self.last))
        self.last = message.role
        return at + 1

    def _results(self, messages: Sequence[Message], at: int) -> int:
        """The contiguous results of one turn, put in the order of its calls."""
        end = at
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        order = {call.id: rank for rank, call in enumerate(self.before.calls)} if self.before else {}
        for index in range(at, end):
            if messages[index].call_id not in order:
                known = ", ".join(order) or "none"
                raise BadRequest(
                    f"messages[{index}]: tool result for unknown call {messages[index].call_id!r}; "
                    f"calls of the turn before it: {known}"
                )
        results = sorted(messages[at:end], key=lambda message: order[message.call_id])
        reordered = results != list(messages[at:end])
        answered = {message.call_id for message in results}
        self.open_calls = [name for name in self.open_calls if name not in answered]
        if missing := self._missing(messages, end):
            results = sorted([*results, *missing], key=lambda message: order[message.call_id])
        self._add_results(results, reordered, missing)
        return end

    def _close_calls(self, messages: Sequence[Message], at: int) -> None:
        """Calls of a turn that nothing answers, when no result stood at all behind it."""
        if missing := self._missing(messages, at):
            self._add_results(missing, False, missing)

    def _missing(self, messages: Sequence[Message], at: int) -> list[Message]:
        if not self.open_calls or not self.insert_missing:
            return []
        later = set()
        for message in messages[at:]:
            if message.role == "assistant":
                break
            later.add(message.call_id)
        missing = [name for name in self.open_calls if name not in later]
        self.open_calls = [name for name in self.open_calls if name in later]
        return [Message("tool", (Text(""),), call_id=name) for name in missing]

    def _add_results(self, results: Sequence[Message], reordered: bool, missing: Sequence[Message]) -> None:
        calls = [call.id for call in self.before.calls] if self.before else []
        parts = [_key(str(calls.index(message.call_id)).encode(), _content(message)) for message in results]
        self.last = "tool"
        if not self._advance(Step(_key(b"results", *parts), "results", tuple(results), self.before)):
            return
        if reordered:
            self.notes.append(Note("reordered", f"{len(results)} tool results put in the order of their calls"))
        if missing:
            unanswered = ", ".join(message.call_id for message in missing)
            self.notes.append(Note("inserted", f"empty results for unanswered calls {unanswered}"))

    def _assistant(self, messages: list[Message], at: int) -> int:
        """A draw that came back, whole or split over several messages, or context."""
        end = at + 1
        while end < len(messages) and messages[end].role == "assistant":
            end += 1
        # The longest first: the first piece of a split draw may equal another draw. Without a bound on the pieces, a
        # request of nothing but assistant messages would cost their cube.
        for stop in range(min(end, at + self._most_pieces(messages[at:end])), at, -1):
            echoed = _merged(messages[at:stop])
            if found := self._find(echoed):
                turn, echo = found[0], "split" if stop > at + 1 else found[1]
                if at < self.settled.end and self.settled.drops(turn):
                    self._settle(turn, echo)
                else:
                    self._splice(turn, echo)
                _answer_as(self.before, echoed, messages, stop)
                return stop
        self._foreign(messages[at], at < self.settled.end)
        return at + 1

    def _most_pieces(self, echoed: Sequence[Message]) -> int:
        """Into how many messages a draw that may begin here can have been split: one a part."""
        turns = [self._identified(message) for message in echoed[:PIECES]] if len(echoed) > 1 else []
        held = self._draws() if len(echoed) > 1 else []
        parts = [len(turn.message.parts) for turn in (*turns, *held) if turn is not None and turn.message is not None]
        return max(1, min(PIECES, max(parts, default=1)))

    def _find(self, echoed: Message) -> tuple[Turn, EchoClass] | None:
        """The draw `echoed` provably is."""
        if (turn := self._identified(echoed)) is not None:
            assert turn.message is not None
            echo = classify(turn.message, named_as(turn.message, echoed, proved=True))
            return None if echo in FORKS else (turn, echo)
        equal = [
            (turn, echo)
            for turn in self._draws()
            if turn.message is not None
            and len(turn.sampled)
            and (echo := classify(turn.message, named_as(turn.message, echoed, proved=False))) not in FORKS
        ]
        if not equal:
            return None
        turn, echo = max(equal, key=lambda pair: (pair[0].delivered, pair[0].seq))
        return turn, "ambiguous" if len(equal) > 1 else echo

    def _draws(self) -> list[Turn]:
        """Those that may have come back here."""
        held = self.tree.draws(self.node) if self.on_tree else []
        return held if self.beside is None else [*held, *self.tree.draws(self.beside)]

    def _identified(self, echoed: Message) -> Turn | None:
        for call in echoed.calls:
            if (seq := self.tree.turn_by_call.get(call.id)) is not None:
                return self.tree.turns[seq]
        for signature in echoed.signatures:
            if (seq := self.tree.turn_by_signature.get(signature)) is not None:
                return self.tree.turns[seq]
        return None

    def _splice(self, turn: Turn, echo: EchoClass) -> None:
        if self.on_tree and turn.parent == self.node:
            self.echoes.append(Echo(turn.seq, echo))
            self.node, self.beside = turn.end, None
        else:
            beside = None if self.beside is None else self._as_sampled(turn)
            if self._advance(Step(_transplant_key(turn), "transplant", turn=turn.seq, behind=self.last)):
                self.echoes.append(Echo(turn.seq, echo, transplanted=True))
            self.beside = beside
        self._said(turn.message)

    def _settle(self, turn: Turn, echo: EchoClass) -> None:
        """A draw whose reasoning the template drops by now: rendered as the template writes it, on a branch that leaves
        before the draw."""
        assert turn.message is not None
        beside = self._as_sampled(turn)
        key = _key(b"settled", str(turn.seq).encode())
        if self._advance(Step(key, "assistant", (turn.message,), turn=turn.seq, behind=self.last, settled=True)):
            self.echoes.append(Echo(turn.seq, echo))
            self.notes.append(Note("settled", f"the template drops the reasoning of turn {turn.id} here"))
        self.beside = beside
        self._said(turn.message)

    def _as_sampled(self, turn: Turn) -> int:
        """Where the same history goes on whose draws are all as they were sampled: behind the draw, or behind its ids
        where that history carried them."""
        carried = self._child(self.node if self.beside is None else self.beside, _transplant_key(turn))
        return turn.end if carried is None else carried

    def _foreign(self, echoed: Message, settled: bool) -> None:
        turn = self._identified(echoed)
        if turn is None and self.on_tree and (draws := self.tree.draws(self.node)):
            turn = draws[-1]
        key = _key(b"settled" if settled else b"assistant", _content(echoed))
        if self._advance(Step(key, "assistant", (echoed,), behind=self.last, settled=settled)):
            if turn is not None and turn.message is not None:
                self.echoes.append(Echo(turn.seq, classify(turn.message, echoed)))
            else:
                self.echoes.append(Echo(-1, "foreign"))
        self._said(echoed)

    def _said(self, message: Message | None) -> None:
        self.before, self.last = message, "assistant"
        self.open_calls = [call.id for call in message.calls] if message else []

    def _advance(self, step: Step) -> bool:
        """-> whether the step is new: what is held already was told when it came."""
        if self.beside is not None:
            self.beside = self._child(self.beside, step.key)
        if self.on_tree and (child := self._child(self.node, step.key)) is not None:
            self.node = child
            return False
        self.on_tree = False
        self.steps.append(step)
        return True

    def _child(self, at: int, key: bytes) -> int | None:
        """A continuation may hang behind a draw or, where its stop id disagreed, before the stop."""
        child = self.tree.child(at, key)
        if child is None and at != ROOT:
            node = self.tree.nodes[at]
            if node.origin == "sampled" and node.offset > 0:
                return self.tree.child(node.parent, key)
        return child


def _merged(messages: Sequence[Message]) -> Message:
    if len(messages) == 1:
        return messages[0]
    return Message("assistant", tuple(part for message in messages for part in message.parts))


def _answer_as(said: Message | None, echoed: Message, messages: list[Message], at: int) -> None:
    """The results behind a draw answer the calls as it named them, whatever ids its echo had."""
    assert said is not None
    ids = {now.id: call.id for now, call in zip(echoed.calls, said.calls, strict=False)}
    if not ids or ids.keys() & set(ids.values()):
        return
    while at < len(messages) and messages[at].role != "assistant":
        message = messages[at]
        messages[at] = msgspec.structs.replace(message, call_id=ids.get(message.call_id, message.call_id))
        at += 1


def _key(*parts: bytes) -> bytes:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _transplant_key(turn: Turn) -> bytes:
    return _key(b"transplant", str(turn.seq).encode())


def _tools_key(tools: Sequence[Tool]) -> bytes:
    # As JSON: a schema may hold integers that msgpack cannot.
    return _key(msgspec.json.encode(tools)) if tools else b""


def _content(message: Message, with_identity: bool = False) -> bytes:
    """The canonical content of a message: what its rendering depends on, and with `with_identity` its ids too."""
    # With its place: a line of text may be shown there.
    media = [(at, part) for at, part in enumerate(message.parts) if isinstance(part, MEDIA)]
    calls = [
        (call.name, call.arguments, call.id if with_identity else "")
        for call in message.parts
        if isinstance(call, ToolCall)
    ]
    identity = (message.call_id, *message.signatures) if with_identity else ""
    return msgspec.msgpack.encode(
        (message.role, message.text, message.thinking, media, calls, message.is_error, identity)
    )
