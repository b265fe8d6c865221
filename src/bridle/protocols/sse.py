"""Server-sent events as bytes, and what is left to send of a text that was streamed before it was finished."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bridle.messages import Part, Text, Thinking

CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(data: object, name: str = "") -> bytes:
    """One event. JSON holds no raw line break, so the data is always one line."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, msgspec.json.encode(data))


def lacking(streamed: Sequence[tuple[type[Text] | type[Thinking], list[str]]], parts: Sequence[Part], what: str) -> str:
    """What of the newest streamed block the client does not have yet; the ones before it are closed, so they have to be
    whole. `what`: how the protocol calls a block."""
    rest = ""
    for index, (kind, pieces) in enumerate(streamed):
        part = parts[index] if index < len(parts) else None
        if not isinstance(part, kind):
            raise ValueError(f"{what} {index} was streamed as {kind.__name__}, the reply has {part!r} there")
        rest = unsent("".join(pieces), part.text)
        if rest and index < len(streamed) - 1:
            raise ValueError(f"{what} {index} was closed before {rest[:80]!r} of the finished reply")
    return rest


def unsent(sent: str, whole: str) -> str:
    """What of `whole` was not sent. Bytes on the wire cannot be taken back, so `sent` has to be its beginning."""
    if not whole.startswith(sent):
        raise ValueError(f"what was streamed, …{sent[-80:]!r}, is not the beginning of the reply, {whole[:80]!r}…")
    return whole[len(sent) :]
