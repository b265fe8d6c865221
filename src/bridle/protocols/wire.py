"""What every protocol reads alike: a JSON body against its declared shape, and the headers that stay with a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Note

T = TypeVar("T")

KEPT_HEADERS = ("x-", "anthropic-", "openai-", "user-agent", "session-id", "session_id", "thread-id", "conversation_id")
CREDENTIAL = re.compile(r"key|token|auth|secret|cookie")

_COMPLAINT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`$")
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)


def read(body: bytes, decoder: msgspec.json.Decoder[T], known: Mapping[str, str]) -> tuple[T, tuple[Note, ...]]:
    """-> the body in the decoder's shape, and what had to be mended. Raises BadRequest with the path of the bad key.

    `known`: what may stand at a path (indexes left out: "messages[].role"), for the message of a wrong value there.
    """
    try:
        return decoder.decode(body), ()
    except msgspec.ValidationError as error:
        raise BadRequest(_complaint(str(error), known)) from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply; flatten it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mended = _without_lone_surrogates(body)
        if mended == body:
            raise BadRequest(f"the body is not valid JSON: {error}") from error
    value, _ = read(mended, decoder, known)
    return value, (Note("lone_surrogate", "half of a surrogate pair became U+FFFD"),)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in headers.items() if name.startswith(KEPT_HEADERS) and not CREDENTIAL.search(name)
    }


def _complaint(error: str, known: Mapping[str, str]) -> str:
    """Expected `str`, got `int` - at `$.messages[3].role` -> messages[3].role: expected str, got int"""
    match = _COMPLAINT.match(error)
    assert match is not None
    what, where = match["what"], match["where"] or ""
    if missing := _MISSING.match(what):
        where = f"{where}.{missing['field']}" if where else missing["field"]
        what = "required, but missing"
    what = what.replace("`", "")
    allowed = known.get(re.sub(r"\[\d+\]", "[]", where))
    return f"{where or 'body'}: {what[0].lower()}{what[1:]}{f'; known: {allowed}' if allowed else ''}"


def _without_lone_surrogates(body: bytes) -> bytes:
    """JavaScript agents cut strings in the middle of a pair; JSON writes such a half, no UTF-8 encoder can."""
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], body)
