"""What every protocol reads alike: a JSON body against its declared shape, files in it, headers that stay with it."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Annotated, TypeVar

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Document, Image, Note, Text

T = TypeVar("T")
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
StopText = Annotated[str, msgspec.Meta(min_length=1)]

DATA_URL = re.compile(r"data:(?P<media_type>[^;,]*)(?:;[^;,]*)*?;base64,(?P<data>.*)", re.DOTALL)

KEPT_HEADERS = ("x-", "anthropic-", "openai-", "user-agent", "session-id", "session_id", "thread-id", "conversation_id")
CREDENTIAL = re.compile(r"key|token|auth|secret|cookie")

LONGEST_COMPLAINT = 300
"""Characters: a complaint quotes what the client wrote, which may be megabytes."""
_AT = " - at `$"
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


def unfollowed(**wishes: object) -> Iterator[Note]:
    """Wishes about sampling that nothing here follows, whatever a session's precedence."""
    yield from (Note("wish_dropped", f"{name}: {value}"[:200]) for name, value in wishes.items() if value)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in headers.items() if name.startswith(KEPT_HEADERS) and not CREDENTIAL.search(name)
    }


def texts(text: str) -> tuple[Text, ...]:
    """Empty text makes no part: agents add and remove it at will."""
    return (Text(text),) if text else ()


def titled(*said: str) -> str:
    """One text with what is said of it in front."""
    return "\n\n".join(filter(None, said))


def file_parts(media_type: str, data: str, title: str = "") -> tuple[Text | Document, ...]:
    """A file that came inline, in base64. One of plain text is a text any model can read."""
    if media_type.startswith("text/"):
        try:
            return texts(titled(title, b64decode(data, validate=True).decode()))
        except ValueError:
            pass
    return (Document(media_type, data, title),)


def linked_file(url: str, title: str = "") -> tuple[Text | Document, ...]:
    """A file by its URL, which may hold it."""
    inline = DATA_URL.fullmatch(url)
    return file_parts(inline["media_type"], inline["data"], title) if inline else (Document("", url, title),)


def linked_image(url: str) -> Image:
    inline = DATA_URL.fullmatch(url)
    return Image(inline["media_type"], inline["data"]) if inline else Image("", url)


def _complaint(error: str, known: Mapping[str, str]) -> str:
    """Expected `str`, got `int` - at `$.messages[3].role` -> messages[3].role: expected str, got int"""
    end = error.rfind(_AT)
    what, where = (error[:end], error[end + len(_AT) : -1].removeprefix(".")) if end >= 0 else (error, "")
    what = what if len(what) <= LONGEST_COMPLAINT else f"{what[:LONGEST_COMPLAINT]}…"
    if missing := _MISSING.match(what):
        where = f"{where}.{missing['field']}" if where else missing["field"]
        what = "required, but missing"
    what = what.replace("`", "")
    allowed = known.get(re.sub(r"\[\d+\]", "[]", where))
    return f"{where or 'body'}: {what[0].lower()}{what[1:]}{f'; known: {allowed}' if allowed else ''}"


def _without_lone_surrogates(body: bytes) -> bytes:
    """JavaScript agents cut strings in the middle of a pair; JSON writes such a half, no UTF-8 encoder can."""
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match["lone"] else match[0], body)
