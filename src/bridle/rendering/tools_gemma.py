"""Tool calls of Gemma 4: `call:NAME{key:<|"|>text<|"|>,n:1}`, one between each pair of tags.

Strings stand between two control tokens, so whatever they spell is theirs; keys have no quotes. The rest is JSON and is
taken over piece by piece. A bare word that is no JSON becomes a string, and the call says `invalid_json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from bridle.messages import ToolCall
from bridle.rendering.calls import Block, Found, Tag, TaggedForm, Tools, parsed
from bridle.rendering.parameters import WORDS, broken_call, call_status, cut, json_type, members_of, quoted, refuse

QUOTE = '<|"|>'
HEAD = re.compile(r"\s*call:([^\s{}\[\],:]+)\s*(?=\{)")
MARK = re.compile(r"([{}\[\]:,])")
PLAIN_KEY = re.compile(r"[^\s{}\[\]:,\"]+")
JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
SPACED = {",": ", ", ":": ": "}


class Token(NamedTuple):
    kind: Literal["mark", "word", "string"]
    text: str


class GemmaCalls(TaggedForm):
    """One call in each block."""

    opens = ("<|tool_call>",)
    closes = ("<tool_call|>",)
    inner = (QUOTE,)
    before = between = after = 0

    def read(self, block: Block, tools: Tools) -> list[Found]:
        first, *rest = cut(block, self.inner)
        head = HEAD.match(first)
        if head is None:
            return []
        arguments, keys, fits = _as_json(list(_tokens([first[head.end() :], *rest[1::2]])))
        if isinstance(parsed(arguments), dict):
            call = ToolCall("", head[1], arguments, call_status(head[1], keys, fits, tools, block.closed))
        else:
            call = broken_call(head[1], block.text[head.end() :], block.closed)
        return [Found(call, 0, len(block.text))]

    def write(self, calls: Sequence[ToolCall]) -> list[list[str]]:
        return [[Tag(self.opens[0]), *self._written(call), Tag(self.closes[0])] for call in calls]

    def _written(self, call: ToolCall) -> list[str]:
        """As JSON has it, but for strings, keys and spaces."""
        if (head := HEAD.match(f"call:{call.name}{{")) is None or head[1] != call.name:
            raise refuse(call)
        members_of(call)
        pieces = [f"call:{call.name}"]
        tokens = JSON_TOKEN.findall(call.arguments)
        for token, behind in zip(tokens, [*tokens[1:], ""], strict=True):
            if not token.startswith('"'):
                pieces.append(token)
            elif behind == ":" and PLAIN_KEY.fullmatch(key := parsed(token)):
                pieces.append(key)
            else:
                pieces += [Tag(QUOTE), parsed(token), Tag(QUOTE)]
        return pieces


def _tokens(texts: Sequence[str]) -> Iterator[Token]:
    """`texts`: what stands outside of strings and in them, by turns."""
    for number, text in enumerate(texts):
        if number % 2:
            yield Token("string", text)
        else:
            pieces = (piece.strip() for piece in MARK.split(text))
            yield from (Token("mark" if MARK.fullmatch(piece) else "word", piece) for piece in pieces if piece)


def _as_json(tokens: Sequence[Token]) -> tuple[str, list[str], bool]:
    """-> what is JSON if the spelling is right, the keys of the outermost object, and whether every bare word is one of
    JSON's values."""
    pieces: list[str] = []
    keys: list[str] = []
    depth, fits = 0, True
    for token, behind in zip(tokens, [*tokens[1:], Token("mark", "")], strict=True):
        if token.kind == "mark":
            depth += (token.text in "{[") - (token.text in "}]")
            pieces.append(SPACED.get(token.text, token.text))
        elif token.kind == "string" or behind == Token("mark", ":"):
            keys += [token.text] if depth == 1 and behind == Token("mark", ":") else []
            pieces.append(quoted(token.text))
        else:
            source = WORDS.get(token.text, token.text)
            fits = fits and bool(json_type(source))
            pieces.append(source if json_type(source) else quoted(source))
    return "".join(pieces), keys, fits
