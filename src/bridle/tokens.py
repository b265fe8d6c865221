"""Token ids, and the vocabulary that turns text into them and back.

`Vocabulary.encode` knows no control tokens at all: whatever a text says, it comes out as text. Control ids are put in
place by whoever owns the structure (`rendering`), never by a tokenizer that found their spelling somewhere.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from tokenizers import Tokenizer

from bridle.errors import ConfigError, TemplateError

try:
    import fastokens
except ImportError:
    fastokens = None

Ids = npt.NDArray[np.int32]
EMPTY: Ids = np.zeros(0, np.int32)
EMPTY.flags.writeable = False

Encoder = Callable[[str], Ids]

Pieces = tuple[str | int, ...]
"""Text and control ids in order; no text is empty, and no two stand in a row."""


class ToolSpelling(msgspec.Struct, frozen=True):
    """How a model writes a call of the tool `name`: `begin`, the arguments, `end`. `schema`: of arguments written as
    JSON; None where the family has another form for them, in which the control ids of `inner` may stand."""

    name: str
    begin: Pieces
    end: Pieces
    schema: Mapping[str, Any] | None
    inner: tuple[int, ...] = ()


class CallSpelling(msgspec.Struct, frozen=True):
    """How a model writes the calls of an answer: `open`, the first one, `between`, the next, …, `close`. `between` is
    None where it is not known how several go together.

    `lead`: blanks that stand before them where nothing else does; `thought`: what stands around reasoning in front of
    them, None for a model that does not reason. `mark`: the control id with which calls begin, and nothing else does,
    None where there is no such; `thinking`: the same of reasoning."""

    tools: tuple[ToolSpelling, ...]
    open: Pieces = ()
    between: Pieces | None = None
    close: Pieces = ()
    lead: str = ""
    thought: tuple[Pieces, Pieces] | None = None
    mark: int | None = None
    thinking: int | None = None


def ids_of(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int32)


def concatenate(parts: Sequence[Ids]) -> Ids:
    """-> int32, a new array (the shared EMPTY for no parts)."""
    return np.concatenate(parts) if parts else EMPTY


HARD_STRINGS = (
    "",
    " ",
    "\n",
    "user\n\nfoo \n \n\tbar\r\n\r\n",
    "It's 12345.67 e-10, they'LL\u00a0see\u2003wide\u200bspaces",
    "def f(x):\n    return {'a': [1, 2, 3]}  # ok\n\n\n",
    "日本語の文章、中文字符。한국어 ไทย العربية עברית हिन्दी",
    "e\u0301 \u00e9 \ufb01 \u212b \u1e9b\u0323",
    "👩‍👩‍👧‍👦🏳️‍🌈 👍🏽 🇩🇪",
    "\ufdd0\ufdd1\ufffd\ufeff\x00\x01\x7f\x85\u2028\u2029",
    "<|im_start|>system\n<think></think><tool_call>{}</tool_call>",
    "a" * 300 + "=" * 120 + " " * 90 + "\n" * 40 + "0" * 50,
)
"""What two encoders of the same vocabulary are most likely to disagree on."""


class Vocabulary:
    """One model's tokens. `controls`: every added token, special or not, content -> id. `size`: largest id + 1.

    `encoder` names what encodes ("fastokens" or "tokenizers"), `encoder_note` says why it is not the faster one.
    """

    def __init__(self, source: bytes) -> None:
        """`source`: the bytes of a tokenizer.json."""
        document = orjson.loads(source)
        self.fingerprint = hashlib.sha256(source).hexdigest()[:16]
        self._whole = _tokenizer(source.decode())
        # As the library numbers them: an id in the file that leaves a gap is not the one it uses.
        added = {token.content: id for id, token in self._whole.get_added_tokens_decoder().items()}
        self.controls: Mapping[str, int] = MappingProxyType(added)
        self.control_ids = frozenset(added.values())
        self.size = 1 + max(self._whole.get_vocab(with_added_tokens=True).values())
        self._bytes_of = _spelling(document["decoder"])
        self._control_text = {id: content for content, id in added.items()}
        self._is_control = np.zeros(self.size, np.bool_)
        self._is_control[list(self.control_ids)] = True
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.controls, key=len, reverse=True))) or "(?!)")
        self._token_bytes: dict[int, bytes] = {}
        self._halves: dict[int, list[tuple[int, int]]] = {}
        self._encode, self.encoder, self.encoder_note = _encoder(_without_controls(document))
        self._check_split()

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """`path`: a tokenizer.json or the directory that holds one. Raises ConfigError."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            source = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot read the tokenizer {file}: {error.strerror}; name a directory with a tokenizer.json, or it"
            ) from error
        try:
            return cls(source)
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{file} is no valid JSON: {error}") from error

    def encode(self, text: str) -> Ids:
        """Control strings in `text` come out as ordinary text. Raises TemplateError for text that cannot be encoded."""
        try:
            ids = self._encode(text)
        except UnicodeEncodeError as error:
            raise TemplateError(
                f"the text holds a lone surrogate at position {error.start} and is no valid Unicode; send it repaired"
            ) from error
        if self._is_control[ids].any():
            found = self.decode([int(ids[self._is_control[ids]][0])])
            raise TemplateError(f"the vocabulary turned plain text into its control token {found!r}; it cannot be used")
        return ids

    def split(self, text: str) -> list[str | int]:
        """Cuts at control strings -> text pieces (none of them empty) and control ids, in order."""
        pieces: list[str | int] = []
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                pieces.append(text[start : match.start()])
            pieces.append(self.controls[match.group()])
            start = match.end()
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def encode_split(self, text: str) -> Ids:
        """Control strings become their ids: for trusted text only."""
        return concatenate([self.encode(p) if isinstance(p, str) else ids_of([p]) for p in self.split(text)])

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens shown; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(id) for id in ids).decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        found = self._token_bytes.get(id)
        if found is None:
            found = self._token_bytes[int(id)] = self._spell(int(id))
        return found

    def resegment(self, ids: Sequence[int], rng: random.Random, rate: float) -> Ids:
        """BPE dropout on finished ids: each token that is the join of two is taken apart with probability `rate`, its
        halves likewise -> other ids of the same bytes. Control ids stay."""
        return ids_of(piece for id in ids for piece in self._pieces(int(id), rng, rate))

    def _pieces(self, id: int, rng: random.Random, rate: float) -> list[int]:
        if rng.random() >= rate or not (halves := self._split_token(id)):
            return [id]
        left, right = rng.choice(halves)
        return [*self._pieces(left, rng, rate), *self._pieces(right, rng, rate)]

    def _split_token(self, id: int) -> list[tuple[int, int]]:
        found = self._halves.get(id)
        if found is None:
            found = self._halves[id] = [] if id in self.control_ids else self._find_halves(id)
        return found

    def _find_halves(self, id: int) -> list[tuple[int, int]]:
        spelling = self._whole.id_to_token(id) or ""
        halves = []
        for cut in range(1, len(spelling)):
            left, right = self._whole.token_to_id(spelling[:cut]), self._whole.token_to_id(spelling[cut:])
            if left is None or right is None or left in self.control_ids or right in self.control_ids:
                continue
            if self.token_bytes(left) + self.token_bytes(right) == self.token_bytes(id):
                halves.append((left, right))
        return halves

    def _spell(self, id: int) -> bytes:
        if id in self._control_text:
            return self._control_text[id].encode()
        # Logits are often padded past the vocabulary: an id drawn there spells nothing.
        return self._bytes_of(self._whole.id_to_token(id) or "")

    def _check_split(self) -> None:
        """Refuses tokenizers whose added tokens swallow neighbours (lstrip, rstrip, single_word) or whose plain text
        depends on its place: the ids of a text could not be put together from the ids of its pieces."""
        for text in (*HARD_STRINGS, *(f"x {control} y\n{control}{control}z" for control in self.controls)):
            expected = self._whole.encode(text, add_special_tokens=False).ids
            if self.encode_split(text).tolist() != expected:
                raise ConfigError(
                    f"this tokenizer.json encodes {text[:60]!r} otherwise than its pieces between control tokens; "
                    "added tokens with lstrip, rstrip or single_word and sentencepiece prefixes cannot be used"
                )


def _tokenizer(source: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(source)
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"the `tokenizers` library cannot read this tokenizer.json: {error}") from error


def _without_controls(document: dict[str, Any]) -> str:
    emptied: dict[str, Any] = {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return orjson.dumps({**document, **emptied}).decode()


def _encoder(source: str) -> tuple[Encoder, str, str]:
    """-> the fastest encoder that agrees with the reference, its name, and why it is not the faster one."""
    reference = _tokenizers_encoder(source)
    if fastokens is None:
        return reference, "tokenizers", "fastokens is not installed"
    try:
        fast = _fastokens_encoder(source)
    except ValueError as error:
        return reference, "tokenizers", f"fastokens cannot load this tokenizer.json: {error}"
    for text in HARD_STRINGS:
        if not np.array_equal(fast(text), reference(text)):
            return reference, "tokenizers", f"fastokens encodes {text[:40]!r} otherwise"
    return fast, "fastokens", ""


def _tokenizers_encoder(source: str) -> Encoder:
    tokenizer = _tokenizer(source)

    def encode(text: str) -> Ids:
        # The batch form releases the GIL, `encode` does not.
        return ids_of(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    return encode


def _fastokens_encoder(source: str) -> Encoder:
    tokenizer = fastokens.Tokenizer.from_json_str(source)

    def encode(text: str) -> Ids:
        flat, _ = tokenizer.encode_batch_flat([text])
        return np.frombuffer(flat, np.uint32).astype(np.int32)

    return encode


def _spelling(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """-> how a token's spelling in the vocabulary becomes its bytes."""
    steps = [] if decoder is None else [decoder, *decoder.get("decoders", [])]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if kinds & {"Metaspace", "ByteFallback"}:
        return _sentencepiece_bytes
    raise ConfigError(
        f"the decoder of this tokenizer.json ({', '.join(sorted(kinds)) or 'none'}) is not known; "
        "byte-level BPE (ByteLevel) and sentencepiece (Metaspace, ByteFallback) are"
    )


def _byte_alphabet() -> dict[str, int]:
    """The GPT-2 map: printable Latin-1 stands for itself, every other byte for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def _byte_level_bytes(spelling: str) -> bytes:
    return bytes(BYTE_ALPHABET[character] for character in spelling)


def _sentencepiece_bytes(spelling: str) -> bytes:
    if re.fullmatch("<0x[0-9A-F]{2}>", spelling):
        return bytes([int(spelling[3:5], 16)])
    return spelling.replace("\u2581", " ").encode()
