"""Server-sent events as bytes, and what is left to send of a text that was streamed before it was finished."""

from __future__ import annotations

import msgspec

CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(data: object, name: str = "") -> bytes:
    """One event. JSON holds no raw line break, so the data is always one line."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, msgspec.json.encode(data))


def unsent(sent: str, whole: str) -> str:
    """What of `whole` was not sent. Bytes on the wire cannot be taken back, so `sent` has to be its beginning."""
    if not whole.startswith(sent):
        raise ValueError(f"what was streamed, …{sent[-80:]!r}, is not the beginning of the reply, {whole[:80]!r}…")
    return whole[len(sent) :]
