"""Which ids may come next where an answer is held to a JSON Schema. The only file that imports llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import numpy.typing as npt

from bridle.errors import BadRequest
from bridle.tokens import Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LAYOUT: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As `json.dumps` writes it. Where any white space is allowed, a model can go on with it for ever."""


class Grammars:
    """Makes grammars over one model's vocabulary. `stop_ids` end an answer where it may end."""

    def __init__(self, vocabulary: Vocabulary, stop_ids: Sequence[int]) -> None:
        self._stop_ids = list(stop_ids)
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary, stop_ids[0])), eos_token=list(stop_ids)
        )

    def start(self, schema: Mapping[str, Any], behind: int | None) -> Grammar:
        """`behind`: the id after which the answer begins, None when it begins at once. Raises BadRequest."""
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=LAYOUT)
        matcher = llguidance.LLMatcher(self._tokens, text, log_level=0)
        if matcher.is_error():
            raise BadRequest(f"response_format: the engine cannot hold an answer to this schema: {matcher.get_error()}")
        return Grammar(matcher, behind, self._stop_ids)


class Grammar:
    """The state of one answer. Before it begins anything goes but to stop."""

    def __init__(self, matcher: Any, behind: int | None, stop_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._behind = behind
        self._stop_ids = stop_ids

    def allowed(self, size: int) -> npt.NDArray[np.bool_]:
        """-> bool[size] over the ids."""
        if self._behind is not None:
            allowed = np.ones(size, np.bool_)
            allowed[self._stop_ids] = False
            return allowed
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(size, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[:size].astype(np.bool_)
        allowed[: len(known)] = known
        return allowed

    def take(self, id: int) -> None:
        if self._behind is None:
            self._matcher.consume_token(id)
        elif id == self._behind:
            self._behind = None


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    def __init__(self, vocabulary: Vocabulary, eos: int) -> None:
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [vocabulary.token_bytes(id) for id in range(vocabulary.size)]
        self.special_token_ids = sorted(vocabulary.control_ids)
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._vocabulary.encode(text).tolist()
        return ids
