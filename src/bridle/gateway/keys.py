"""Session keys: how one is made, where a call may carry it, and how it is kept out of what is written down."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qs, unquote_plus

QUERY_FIELD = "key"
STRUCK_OUT = "[session key]"

_KEY = re.compile(r"sk-bridle-[0-9a-f]{48}")
_KEY_BYTES = re.compile(_KEY.pattern.encode())


def new_key() -> str:
    return f"sk-bridle-{secrets.token_hex(24)}"


def agent_key(headers: Mapping[str, str], query: str = "") -> str:
    """Some Gemini clients send it inside the URL alone."""
    given = headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer(headers)
    return given or parse_qs(query).get(QUERY_FIELD, [""])[0]


def bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def without_key(query: str) -> str:
    return "&".join(pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]) != QUERY_FIELD)


def strike_out(text: str) -> str:
    """`text` without the keys that a client wrote where none belongs."""
    return _KEY.sub(STRUCK_OUT, text)


def strike_out_bytes(data: bytes) -> bytes:
    return _KEY_BYTES.sub(STRUCK_OUT.encode(), data)
