"""Plain values (from JSON, YAML, TOML) to Structs, and what is wrong with them in words that help.

Where something was written by a person, the error says at which key, what was expected and what was probably meant.
"""

from __future__ import annotations

import re
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from bridle.errors import BadRequest, ConfigError
from bridle.registry import unknown

T = TypeVar("T")


def decode(document: Any, kind: type[T], what: str, error: type[ConfigError | BadRequest] = ConfigError) -> T:
    """-> `document` as a `kind`. Raises `error`: "WHAT: key.path: what is wrong"."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as failure:
        raise error(f"{what}: {explained(str(failure), kind)}") from failure


def explained(message: str, kind: Any) -> str:
    """msgspec's "Object contains unknown field `prt` - at `$.gateway`" -> 'gateway.prt: unknown key "prt": did you
    mean "port"? There are: …', and any other "problem - at `$.gateway.port`" -> "gateway.port: problem"."""
    problem, _, place = message.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", problem):
        return f"{_join(place, found[1])}: {unknown('key', found[1], _struct_at(kind, place).__struct_encode_fields__)}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", problem):
        keys = ", ".join(_struct_at(kind, place).__struct_encode_fields__)
        return f"{_join(place, found[1])}: missing, and required. There are: {keys}"
    if found := re.fullmatch(r"Invalid enum value (.*)", problem):
        return f"{place}: expected one of {', '.join(map(str, get_args(_type_at(kind, place))))}, got {found[1]}"
    return f"{place}: {problem[0].lower()}{problem[1:]}" if place else problem


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _struct_at(kind: Any, place: str) -> type[msgspec.Struct]:
    return _type_at(kind, place)  # type: ignore[no-any-return]


def _type_at(kind: Any, place: str) -> Any:
    """The type that `place` ("session.kinds[0]", "options[...]") leads to from `kind`."""
    kind = _present(kind)
    for name in re.findall(r"\[[^]]*\]|[^.[]+", place):
        if name.startswith("["):
            inner = get_args(kind)
            kind = inner[1] if name == "[...]" and get_origin(kind) is not tuple else inner[0]
        else:
            kind = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == name)
        kind = _present(kind)
    return kind


def _present(kind: Any) -> Any:
    """`kind` without None."""
    if get_origin(kind) in (Union, UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind
