"""Tool calls of LFM2: `[f(a='x', b=1), g()]` between two tags, all calls in a row together.

Arguments are Python's literals, by name: strings in either quotes, numbers, `True`, `False`, `None`, lists and dicts;
JSON's words count too, for templates write dicts as JSON. They become JSON token by token, nothing is evaluated.
Strings may hold line breaks as they are: some templates do not escape them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bridle.messages import Text, ToolCall
from bridle.rendering.calls import Block, Found, Tag, TaggedForm, Tools, parsed
from bridle.rendering.parameters import (
    WORDS,
    broken_call,
    call_status,
    join_members,
    json_type,
    members_of,
    quoted,
    refuse,
)

WORD = r"[^\s'\"()\[\]{}:,=\\]+"
HEAD = re.compile(rf"\s*({WORD})\s*\(")
NEXT = re.compile(rf"\s*,(?=\s*{WORD}\s*\()")
KEY = re.compile(rf"\s*({WORD})\s*=")
LIST, LIST_END, CALL_END = re.compile(r"\s*\["), re.compile(r"\s*\]\s*\Z"), re.compile(r"\s*\)")
TOKEN = re.compile(
    r"""\s*(?:(?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")"""
    rf"""|(?P<word>{WORD})|(?P<mark>[\[\]{{}}:,)]))""",
    re.DOTALL,
)
SPACED = {",": ", ", ":": ": "}
ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"\n])|([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}))"
)
ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}


class Value(NamedTuple):
    """`source`: JSON. `fits`: it was a literal; a bare word becomes a string. `end`: where it ends in its call."""

    source: str
    fits: bool
    end: int


class LfmCalls(TaggedForm):
    """All calls in one block."""

    opens = ("<|tool_call_start|>",)
    closes = ("<|tool_call_end|>",)
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        source = block.text
        opening = LIST.match(source)
        found: list[Found] = []
        at = opening.end() if opening else 0
        while head := HEAD.match(source, at):
            members, end = _members(source, head.end())
            behind = NEXT.match(source, end)
            call = _call(head[1], members, source[head.end() :], tools, block.closed or behind is not None)
            found.append(Found(call, head.start(1), end))
            at = behind.end() if behind else end
            if behind is None:
                break
        rest = None if LIST_END.match(source, at) else source[at:]
        if found and block.closed and (opening is None or rest is not None):
            found[-1] = found[-1]._replace(part=msgspec.structs.replace(found[-1].part, status="malformed"))
        if found and rest and rest.strip():
            found.append(Found(Text(rest), at, len(source)))
        return found

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(self.opens[0]), f"[{', '.join(map(_written, calls))}]", Tag(self.closes[0])]]


# --- reading ----------------------------------------------------------------------------------------------------------


def _call(name: str, members: list[tuple[str, Value]] | None, source: str, tools: Tools, closed: bool) -> ToolCall:
    """`source`: what stands behind the name."""
    if members is None:
        return broken_call(name, source, closed)
    arguments = join_members([(key, value.source) for key, value in members])
    fits = all(value.fits for _, value in members)
    return ToolCall("", name, arguments, call_status(name, [key for key, _ in members], fits, tools, closed))


def _members(source: str, at: int) -> tuple[list[tuple[str, Value]] | None, int]:
    """-> the arguments of the call whose parenthesis opens before `at`, None where they cannot be read, and its end."""
    members: list[tuple[str, Value]] = []
    while key := KEY.match(source, at):
        value = _value(source, key.end())
        if value is None:
            return None, len(source)
        members.append((key[1], value))
        at = value.end
        if source[at : at + 1] != ",":
            break
        at += 1
    ending = CALL_END.match(source, at)
    return (members, ending.end()) if ending else (None, len(source))


def _value(source: str, at: int) -> Value | None:
    """The value that begins at `at` and ends before the comma or parenthesis that is its call's."""
    pieces: list[str] = []
    depth = 0
    while token := TOKEN.match(source, at):
        if depth == 0 and token["mark"] in (",", ")"):
            return _literal(pieces, token.start("mark"))
        depth += (token["mark"] in ("[", "{")) - (token["mark"] in ("]", "}"))
        pieces.append(_as_json(token))
        at = token.end()
    return None


def _literal(pieces: Sequence[str], end: int) -> Value | None:
    source = "".join(pieces)
    if json_type(source):
        return Value(source, True, end)
    return Value(quoted(source), False, end) if len(pieces) == 1 else None


def _as_json(token: re.Match[str]) -> str:
    if token["string"]:
        return quoted(_unescaped(token["string"][1:-1]))
    if token["word"]:
        return WORDS.get(token["word"], token["word"])
    return SPACED.get(token["mark"], token["mark"])


def _unescaped(text: str) -> str:
    """As Python reads a string; what is no escape stays."""
    plain = ESCAPE.sub(_escaped, text)
    # JSON escapes of one character may come as two halves; half of one alone is no text.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(found: re.Match[str]) -> str:
    letter, octal, *hexadecimal = found.groups()
    if letter:
        return ESCAPED.get(letter, letter)
    return chr(int(octal, 8) if octal else int("".join(filter(None, hexadecimal)), 16))


# --- writing ----------------------------------------------------------------------------------------------------------


def _written(call: ToolCall) -> str:
    members = members_of(call)
    if not all(re.fullmatch(WORD, name) for name in (call.name, *(key for key, _ in members))):
        raise refuse(call)
    return f"{call.name}({', '.join(f'{key}={_python(value)}' for key, value in members)})"


def _python(source: str) -> str:
    """As the templates write a JSON value: lists and objects stay JSON."""
    value = parsed(source)
    if isinstance(value, str):
        for plain, escape in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            value = value.replace(plain, escape)
        return f"'{value}'"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return {json_word: python for python, json_word in WORDS.items()}.get(source, source)
