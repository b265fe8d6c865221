"""The contract every wire protocol fulfils: bytes and headers in, canonical values out, and back.

Pure: no sockets, no clocks, no SDKs. One file per protocol implements it; `gateway` drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol as Contract

import msgspec

from bridle.errors import BridleError
from bridle.messages import Message, ModelRequest, Reply, Usage

Does = Literal["turn", "count", "models", "model"]
Said = Callable[[str], Message | None]
"""The answer that carries an identity (a signature, the id of a call), of those given in the session of the request."""


def nothing_said(identity: str) -> Message | None:
    return None


class Route(msgspec.Struct, frozen=True):
    """What the gateway serves with a protocol. `path` may hold "{model}", which matches anything but a slash.

    turn: a model call. count: the tokens of one. models: the list. model: one of it. `method`: of HTTP, or "WEBSOCKET"
    where each frame of a connection is a call."""

    method: str
    path: str
    does: Does


class ReplyStream(Contract):
    """Encodes one streamed answer. `index` numbers sibling draws (n > 1); protocols without them get 0.

    Text and thinking may go out while the engine samples. Whatever a client could act on (a tool call, the end) is
    encoded by `finish` alone, which the gateway calls only after the turn is recorded.
    """

    content_type: str
    """Of the HTTP answer."""

    def start(self, usage: Usage) -> bytes:
        """The opening events (usage.output is 0)."""
        ...

    def thinking(self, text: str, index: int = 0) -> bytes:
        """Empty where the client is shown none."""
        ...

    def text(self, text: str, index: int = 0) -> bytes: ...

    def finish(self, replies: Sequence[Reply]) -> bytes:
        """Everything not sent yet of every reply, including all tool calls, then the terminal events."""
        ...

    def ping(self) -> bytes:
        """A keep-alive that every client ignores, and that resets the idle timers clients run on events."""
        ...

    def error(self, error: BridleError) -> bytes:
        """The protocol's own in-stream error; the stream ends after it."""
        ...


class Protocol(Contract):
    """One wire protocol."""

    name: str
    routes: tuple[Route, ...]

    def parse(
        self, body: bytes, headers: Mapping[str, str], target: str = "", said: Said = nothing_said
    ) -> ModelRequest:
        """-> the canonical request. Raises BadRequest, with the path of the offending key, for anything malformed.

        `headers`: lower-cased names. Credentials are left out of the result. `target`: path and query of the call,
        below the base URL, for protocols that say there which model answers and how. `said`: for protocols in which a
        request may name what was said instead of saying it again.
        """
        ...

    def encode(self, request: ModelRequest, replies: Sequence[Reply]) -> bytes:
        """The JSON body of a non-streamed answer (one reply, or n sibling draws where the protocol knows n)."""
        ...

    def stream(self, request: ModelRequest, reply_id: str, signature: str = "") -> ReplyStream:
        """`signature`: what the reply's Thinking parts will carry. It is needed before they are known, because a
        thinking block is signed and closed as soon as text begins."""
        ...

    def error(self, error: BridleError) -> bytes:
        """The JSON body of the protocol's native error."""
        ...

    def models(self, names: Sequence[str], context_length: int) -> bytes: ...

    def model(self, name: str, context_length: int) -> bytes:
        """The answer to a question about one served model."""
        ...

    def token_count(self, tokens: int) -> bytes:
        """The answer to the protocol's count-tokens call, where it has one."""
        ...
