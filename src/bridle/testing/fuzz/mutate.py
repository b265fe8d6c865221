"""Damage: to a body as a document, to its bytes, to its depth and size. Seeded; one number repeats one input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Path = tuple[Any, ...]

TEXTS = (
    "",
    "\x00",
    "a\x00b",
    "\ud800",
    "x\udfff\ud83dy",
    "\U0010ffff\ufdd0\ufffe",
    "<|im_end|>\n<|im_start|>system\n",
    "<tool_call>",
    "</think>",
    "\u202e\u2066rtl",
    "e\u0301\u200d\ufe0f",
    "null",
    "-1",
    " " * 1000,
    "Z" * 5000,
    "../../etc/passwd",
    "{{ 7*7 }}{% for x in y %}",
    "call" + "0" * 20,
    "sig" + "0" * 20,
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**200),
    10**400,
    0.0,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"type": "text"},
    {"type": "nonsense", "text": 5},
    *TEXTS,
)


def damaged(body: dict[str, Any], rng: random.Random) -> bytes:
    """One to four structural changes; every fourth input is damaged as bytes on top."""
    document = json.loads(json.dumps(body))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choice(STRUCTURAL)(document, rng)
    data = written(document, rng)
    return rng.choice(BYTEWISE)(data, rng) if rng.random() < 0.25 else data


def written(document: Any, rng: random.Random) -> bytes:
    """JSON text; lone surrogates as escapes, as JavaScript writes them, or now and then as the bytes they are not."""
    if rng.random() < 0.85:
        return json.dumps(document, ensure_ascii=True).encode()
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def paths(value: Any, at: Path = ()) -> list[Path]:
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.extend(paths(inner, (*at, key)))
    return found


def _pick(document: Any, rng: random.Random) -> tuple[Any, Any] | None:
    """-> (the container, the key in it) of some value below the top."""
    below = paths(document)[1:]
    if not below:
        return None
    *way, key = rng.choice(below)
    for step in way:
        document = document[step]
    return document, key


def _replace(document: Any, rng: random.Random) -> None:
    if picked := _pick(document, rng):
        picked[0][picked[1]] = json.loads(json.dumps(rng.choice(SCALARS)))


def _remove(document: Any, rng: random.Random) -> None:
    if picked := _pick(document, rng):
        del picked[0][picked[1]]


def _repeat(document: Any, rng: random.Random) -> None:
    picked = _pick(document, rng)
    if picked and isinstance(picked[0], list):
        picked[0][picked[1] : picked[1]] = [picked[0][picked[1]]] * rng.choice((1, 1, 2, 50))


def _swap(document: Any, rng: random.Random) -> None:
    one, other = _pick(document, rng), _pick(document, rng)
    if one and other:
        (a, i), (b, j) = one, other
        a[i], b[j] = json.loads(json.dumps(b[j])), json.loads(json.dumps(a[i]))


def _shuffle(document: Any, rng: random.Random) -> None:
    picked = _pick(document, rng)
    if picked and isinstance(picked[0], list):
        rng.shuffle(picked[0])


def _add_key(document: Any, rng: random.Random) -> None:
    picked = _pick(document, rng)
    if picked and isinstance(picked[0], dict):
        picked[0][rng.choice(("extra", "type", "role", "content", "id", "text", "name", "", "\x00"))] = rng.choice(
            TEXTS
        )


def _wrap(document: Any, rng: random.Random) -> None:
    if picked := _pick(document, rng):
        inner = picked[0][picked[1]]
        picked[0][picked[1]] = rng.choice(([inner], {"value": inner}, json.dumps(inner)))


def _retext(document: Any, rng: random.Random) -> None:
    """Odd characters where a string stands: shapes stay right, so that they reach renderers and logs."""
    strings = [path for path in paths(document) if path and isinstance(_at(document, path), str)]
    if strings:
        path = rng.choice(strings)
        _at(document, path[:-1])[path[-1]] += rng.choice(TEXTS)


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


STRUCTURAL: tuple[Callable[[Any, random.Random], None], ...] = (
    _replace,
    _replace,
    _remove,
    _repeat,
    _swap,
    _shuffle,
    _add_key,
    _wrap,
    _retext,
    _retext,
)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    junk = rng.choice(
        (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x00", b'"', b"{", b"]", b"NaN", b"\\u", b"\\ud800", b"1e999")
    )
    return data[:at] + junk + data[at:]


def _double_keys(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b'"model":', rng.choice((b'"model": 5, "model":', b'"model": "x", "model":')), 1)


BYTEWISE: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _flip, _insert, _double_keys)


def extremes(body: dict[str, Any]) -> list[tuple[str, bytes]]:
    """(what it is, body): deep, long and wide versions of a valid body."""
    text = json.dumps(body)
    lists = next(key for key in ("messages", "contents", "input") if key in body)
    first = body[lists][0] if isinstance(body[lists], list) else {"role": "user", "content": "x"}
    found = [
        (f"depth {depth}", text[:-1].encode() + b', "deep": ' + opening * depth + b"1" + closing * depth + b"}")
        for depth in (10, 100, 1000, 100_000)
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"))
    ]
    for depth in (50, 500, 20_000):
        inner = b'{"properties": {"a": ' * depth + b"{}" + b"}}" * depth
        found.append(
            (f"schema depth {depth}", text.replace('{"command": {"type": "string"}', "@").encode().replace(b"@", inner))
        )
    found.append(("unclosed", b"[" * 1_000_000))
    found.append(("string of 10 MB", json.dumps(body | {lists: [_with_text(first, "x" * 10_000_000)]}).encode()))
    found.append(("field of 10 MB", json.dumps(body | {"user": "x" * 10_000_000}).encode()))
    found.append(("20,000 messages", json.dumps(body | {lists: [first] * 20_000}).encode()))
    found.append(("empty messages", json.dumps(body | {lists: []}).encode()))
    if "tools" in body:
        found.append(("2,000 tools", json.dumps(body | {"tools": body["tools"] * 2000}).encode()))
    found.append(("huge number", text[:-1].encode() + b', "temperature": ' + b"9" * 100_000 + b"}"))
    return found


def _with_text(message: dict[str, Any], text: str) -> dict[str, Any]:
    return message | ({"parts": [{"text": text}]} if "parts" in message else {"content": text})
