"""What a gateway may answer to anything at all: its protocol's own answer or error, and never a word too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bridle.testing.fuzz.client import Answer

TELLTALES = (b"Traceback", b'File "', b"internal error", b"gateway's log")


def wrong(protocol: str, answer: Answer) -> str:
    """-> what is wrong with the answer; "" when nothing is. `protocol` "": any one's errors will do."""
    if answer.status >= 500:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if any(word in answer.body for word in TELLTALES) and b"no route" not in answer.body:
        return f"speaks of itself: {answer.body[:300]!r}"
    if answer.status == 200 and not protocol:
        return ""
    streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
    if streamed:
        return "" if _ended(protocol, answer.body) else f"a stream without its end: {answer.body[-300:]!r}"
    try:
        document = msgspec.json.decode(answer.body) if answer.body else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"no JSON: {answer.body[:300]!r}"
    spoken = [ERRORS[protocol]] if protocol else [*ERRORS.values(), _control]
    if answer.status >= 400 and not any(known(document) for known in spoken):
        return f"no error of {protocol}: {answer.body[:300]!r}"
    return ""


def _anthropic(document: Any) -> bool:
    return _has(document, "type") and document["type"] == "error" and _has(document["error"], "type", "message")


def _openai(document: Any) -> bool:
    return _has(document, "error") and _has(document["error"], "message", "type", "param", "code")


def _gemini(document: Any) -> bool:
    if isinstance(document, list) and document:
        document = document[0]
    return _has(document, "error") and _has(document["error"], "code", "message", "status")


def _control(document: Any) -> bool:
    return _has(document, "error") and _has(document["error"], "kind", "message")


ERRORS: dict[str, Callable[[Any], bool]] = {
    "anthropic": _anthropic,
    "openai_chat": _openai,
    "openai_responses": _openai,
    "gemini": _gemini,
}
ENDS = {
    "anthropic": (b'"message_stop"', b"event: error"),
    "openai_chat": (b"[DONE]", b'"error"'),
    "openai_responses": (b"response.completed", b"response.incomplete", b"response.failed"),
    "gemini": (b'"finishReason"', b'"error"'),
}


def _ended(protocol: str, body: bytes) -> bool:
    return any(mark in body for mark in ENDS[protocol])


def _has(document: Any, *keys: str) -> bool:
    return isinstance(document, dict) and all(key in document for key in keys)
