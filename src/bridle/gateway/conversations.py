"""What a request that names an earlier reply goes on from, for one session.

Conversations are kept as a tree with one message a node: a client that sends its whole history each time, as most do,
adds the new messages alone, and one that names the reply before adds nothing twice.
"""

from __future__ import annotations

import msgspec

from bridle.errors import PreviousNotFound
from bridle.messages import Message, ModelRequest, Reply, beside_summary, signed

START = -1
"""The place before every first message."""


class Conversations:
    def __init__(self) -> None:
        self._nodes: list[tuple[int, Message]] = []
        self._children: dict[tuple[int, Message], int] = {}
        self._ends: dict[str, int] = {}

    def __len__(self) -> int:
        """Messages that are kept."""
        return len(self._nodes)

    def resolve(self, request: ModelRequest) -> ModelRequest:
        """`request` with everything it goes on from. Raises PreviousNotFound."""
        if not request.previous:
            return request
        own, new = request.messages[: request.instructions], request.messages[request.instructions :]
        return msgspec.structs.replace(request, messages=(*own, *self._held(request.previous), *new))

    def remember(self, request: ModelRequest, reply: Reply) -> None:
        """`request` as resolved. Its instructions are its own: a request that goes on from it brings others. What goes
        on from a summary has that before it in place of what it stands for."""
        self._keep(request, reply.id, (signed(reply.message, reply.signature),))

    def remember_prompt(self, request: ModelRequest, reply_id: str) -> None:
        """A request that was answered without a turn: what goes on from it has the same prompt before it."""
        self._keep(request, reply_id, ())

    def _keep(self, request: ModelRequest, reply_id: str, said: tuple[Message, ...]) -> None:
        if not request.store:
            return
        asked = request.messages[request.instructions :]
        at = START
        for message in (*(beside_summary(asked) if request.kind == "compaction" else asked), *said):
            at = self._step(at, message)
        self._ends[reply_id] = at

    def _step(self, at: int, message: Message) -> int:
        if (found := self._children.get((at, message))) is not None:
            return found
        self._nodes.append((at, message))
        return self._children.setdefault((at, message), len(self._nodes) - 1)

    def _held(self, reply_id: str) -> tuple[Message, ...]:
        if (at := self._ends.get(reply_id)) is None:
            raise PreviousNotFound(
                f"no response {reply_id!r} to go on from: this session keeps {len(self._ends)}, those that were asked "
                "for with `store`; send the whole input instead"
            )
        held = []
        while at != START:
            at, message = self._nodes[at]
            held.append(message)
        held.reverse()
        return tuple(held)
