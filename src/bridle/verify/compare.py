"""What differs between a prompt as it was built and the stock rendering of the same conversation, and whose it is.

control: an id that stands for structure. scaffold: text the template writes. assistant: text of an answer.
reasoning: an answer's reasoning, with its tags and the blank lines behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import IntEnum
from typing import Literal, NamedTuple

from bridle.rendering.reply import THOUGHTS
from bridle.tokens import Ids, Vocabulary

Kind = Literal["control", "scaffold", "assistant", "reasoning"]

FINE = 1 << 18
"""Pieces are compared byte by byte up to this many pairs of bytes."""

BYTES = 256


class Owner(IntEnum):
    """Whose an id of a prompt is. LEAD: the generation prompt of an answer that stands in the history."""

    TEMPLATE = 0
    LEAD = 1
    SAMPLED = 2
    REASONING = 3


class Difference(NamedTuple):
    """`kept`: the whole of it stands where an answer does, as it was sampled. `ours` and `stock`: text, control tokens
    spelled; `at`: the first id of ours."""

    kind: Kind
    kept: bool
    at: int
    ours: str
    stock: str


class Piece(NamedTuple):
    """A control id (`key` is it + 256) or the bytes between two of them; ids `start` to `end`."""

    key: int | bytes
    start: int
    end: int


def compare(vocabulary: Vocabulary, ours: Ids, owners: Sequence[int], stock: Sequence[int]) -> list[Difference]:
    if ours.tolist() == list(stock):
        return []
    return list(_Comparison(vocabulary, ours.tolist(), owners, stock).differences())


class _Comparison:
    def __init__(self, vocabulary: Vocabulary, ours: list[int], owners: Sequence[int], stock: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.ids = ours
        self.owners = owners
        self.ours = _pieces(vocabulary, ours)
        self.stock = _pieces(vocabulary, stock)
        self.stock_ids = list(stock)
        tags = {tag for thoughts in THOUGHTS for tag in (thoughts.open, thoughts.close)}
        self.reasoning_tags = {vocabulary.controls[tag] + BYTES for tag in tags if tag in vocabulary.controls}

    def differences(self) -> Iterator[Difference]:
        matcher = SequenceMatcher(None, [p.key for p in self.ours], [p.key for p in self.stock], autojunk=False)
        for what, i1, i2, j1, j2 in matcher.get_opcodes():
            if what == "equal":
                yield from self._resegmented(self.ours[i1:i2], self.stock[j1:j2])
            else:
                yield from self._changed(self.ours[i1:i2], self.stock[j1:j2], i1)

    def _resegmented(self, ours: Sequence[Piece], stock: Sequence[Piece]) -> Iterator[Difference]:
        """Text of the template alone must have the very ids."""
        for a, b in zip(ours, stock, strict=True):
            mine, theirs = self.ids[a.start : a.end], self.stock_ids[b.start : b.end]
            if mine != theirs and not any(self.owners[a.start : a.end]):
                yield Difference("scaffold", False, a.start, f"{mine}", f"{theirs}")

    def _changed(self, ours: Sequence[Piece], stock: Sequence[Piece], behind: int) -> Iterator[Difference]:
        mine, places = self._units(ours)
        theirs = [unit for piece in stock for unit in _bytes_of(piece)]
        start = 0
        while start < min(len(mine), len(theirs)) and mine[start] == theirs[start]:
            start += 1
        end = 0
        while end < min(len(mine), len(theirs)) - start and mine[-1 - end] == theirs[-1 - end]:
            end += 1
        edge = ours[0].start if ours else (self.ours[behind].start if behind < len(self.ours) else len(self.ids))
        places = [*places, ours[-1].end if ours else edge]
        a, b = mine[start : len(mine) - end], theirs[start : len(theirs) - end]
        if len(a) * len(b) in range(1, FINE):
            opcodes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        else:
            opcodes = [("replace", 0, len(a), 0, len(b))]
        found: list[Difference] = []
        for what, i1, i2, j1, j2 in opcodes:
            if what != "equal":
                one = self._difference(a[i1:i2], [places[start + at] for at in range(i1, i2 + 1)], b[j1:j2])
                same = found and (found[-1].kind, found[-1].kept) == (one.kind, one.kept)
                found[-1:] = [_joined(found[-1], one)] if same else [*found[-1:], one]
        yield from found

    def _difference(self, mine: Sequence[int], places: Sequence[int], theirs: Sequence[int]) -> Difference:
        """`places`: the id each unit is of, and the one behind the last."""
        behind = places[-1]
        within = {self.owners[at] for at in places[:-1]}
        # At the prompt's end stock writes its generation prompt: no answer stands there.
        ends = behind == len(self.owners)
        beside = set() if ends else {self.owners[at] for at in (behind - 1, behind) if at >= 0}
        blank = all(unit in self.reasoning_tags or bytes([unit % BYTES]).isspace() for unit in theirs)
        kept = not within & {Owner.TEMPLATE} if within else bool(beside - {Owner.TEMPLATE})
        block = not mine and kept and blank and self.reasoning_tags & set(theirs)
        # Of a form in which reasoning is a message of its own, its header is dropped with it.
        reasons = sum(self.owners[at] == Owner.REASONING for at in places[:-1])
        dropped = not theirs and not within & {Owner.TEMPLATE} and 2 * reasons > len(mine)
        kind: Kind
        if block or dropped or within == {Owner.REASONING} or (not within and blank and Owner.REASONING in beside):
            kind = "reasoning"
        elif any(unit >= BYTES for unit in (*mine, *theirs)):
            kind = "control"
        else:
            kind = "assistant" if kept else "scaffold"
        return Difference(kind, kept, places[0], self._text(mine), self._text(theirs))

    def _units(self, pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
        """Bytes and control ids, and the id that each is of."""
        units: list[int] = []
        places: list[int] = []
        for piece in pieces:
            for at in range(piece.start, piece.end):
                spelled = [piece.key] if isinstance(piece.key, int) else self.vocabulary.token_bytes(self.ids[at])
                units += spelled
                places += [at] * len(spelled)
        return units, places

    def _text(self, units: Sequence[int]) -> str:
        spelled = (self.vocabulary.token_bytes(u - BYTES) if u >= BYTES else bytes([u]) for u in units)
        return b"".join(spelled).decode(errors="replace")


def _joined(a: Difference, b: Difference) -> Difference:
    return Difference(a.kind, a.kept, a.at, f"{a.ours}…{b.ours}"[:400], f"{a.stock}…{b.stock}"[:400])


def _pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    text, start = b"", 0
    for at, id in enumerate(ids):
        if id in vocabulary.control_ids:
            if text:
                pieces.append(Piece(text, start, at))
            pieces.append(Piece(id + BYTES, at, at + 1))
            text, start = b"", at + 1
        else:
            text += vocabulary.token_bytes(id)
    return [*pieces, Piece(text, start, len(ids))] if text else pieces


def _bytes_of(piece: Piece) -> Sequence[int]:
    return [piece.key] if isinstance(piece.key, int) else piece.key
