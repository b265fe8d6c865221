"""Which ids may come next where an answer is held to a JSON Schema or to calls. Nothing else imports llguidance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol as Contract

import llguidance
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bridle.engines.base import CallRule, GenerateRequest
from bridle.errors import BadRequest, EngineError
from bridle.tokens import ToolSpelling, Vocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LAYOUT: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As `json.dumps` writes it. Where any white space is allowed, a model can go on with it for ever."""

LENIENT = LAYOUT | {"lenient": True}
"""Keywords that no grammar can express do not count: who asks for a call does not ask for more."""

OBJECT = {"type": "object"}

Mask = npt.NDArray[np.bool_]


class Held(Contract):
    """The state of one answer that is held to something."""

    def allowed(self, size: int) -> Mask | None:
        """-> bool[size] over the ids; None where any may come next."""
        ...

    def take(self, id: int) -> None: ...


class Grammars:
    """Makes grammars over one model's vocabulary. `stop_ids` end an answer where it may end."""

    def __init__(self, vocabulary: Vocabulary, stop_ids: Sequence[int]) -> None:
        self._stop_ids = list(stop_ids)
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary, stop_ids[0])), eos_token=list(stop_ids)
        )

    def schema(self, schema: Mapping[str, Any], behind: int | None) -> Held:
        """`behind`: the id after which the answer begins, None when it begins at once. Raises BadRequest."""
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=LAYOUT)
        matcher = self._matcher(text, "response_format: the engine cannot hold an answer to this schema")
        return Json(matcher, behind, self._stop_ids)

    def calls(self, rule: CallRule, request: GenerateRequest) -> Held:
        """Arguments whose schema no grammar can express are any object, unless a call is needed. Raises BadRequest."""
        if rule.most == 0:
            return Calls(rule, None, request)
        head = "" if not rule.least else _seam(rule) if request.thinking_open else _introduction(rule)
        held = rule if rule.least else self._expressible(rule)
        matcher = self._matcher(_lark(held, head), "tools: the engine cannot hold an answer to calls of these")
        return Calls(rule, matcher, request)

    def _expressible(self, rule: CallRule) -> CallRule:
        tools = tuple(tool if self._can_hold(tool) else replace(tool, schema=OBJECT) for tool in rule.spelling.tools)
        return replace(rule, spelling=replace(rule.spelling, tools=tools))

    def _can_hold(self, tool: ToolSpelling) -> bool:
        if tool.schema is None:
            return True
        grammar = f"start: {_arguments(tool.schema)}"
        return not llguidance.LLMatcher(self._tokens, grammar, log_level=0).is_error()

    def _matcher(self, grammar: str, complaint: str) -> Any:
        matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise BadRequest(f"{complaint}: {matcher.get_error()}")
        return matcher


class Json:
    """Before the answer begins anything goes but to stop."""

    def __init__(self, matcher: Any, behind: int | None, stop_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._behind = behind
        self._stop_ids = stop_ids

    def allowed(self, size: int) -> Mask:
        return _but(self._stop_ids, size) if self._behind is not None else _mask(self._matcher, size)

    def take(self, id: int) -> None:
        if self._behind is None:
            self._matcher.consume_token(id)
        elif id == self._behind:
            self._behind = None


class Calls:
    """In a reasoning block nothing is a call. An answer that needs one cannot end in such a block, and is held to the
    grammar from its end on; any other is held to it from the mark of a call until what that began is whole.

    `matcher`: at the beginning of calls, None where there may be none."""

    def __init__(self, rule: CallRule, matcher: Any, request: GenerateRequest) -> None:
        self._rule = rule
        self._beginning = matcher
        self._stop_ids = request.sampling.stop_ids
        self._thinking_end = request.thinking_end
        self._thinking = request.thinking_open
        self._matcher = None if self._thinking or not rule.least else matcher

    def allowed(self, size: int) -> Mask | None:
        if self._matcher is not None:
            return _mask(self._matcher, size)
        if self._rule.most == 0:
            return _but([self._rule.spelling.mark], size)
        return _but(self._stop_ids, size) if self._rule.least else None

    def take(self, id: int) -> None:
        rule = self._rule
        if self._thinking:
            if id == self._thinking_end:
                self._thinking = False
                self._matcher = self._beginning if rule.least else None
        elif self._matcher is not None:
            self._matcher.consume_token(id)
            if not rule.least and rule.most is None and self._matcher.is_accepting():
                self._matcher = None
        elif id == rule.spelling.thinking:
            self._thinking = True
        elif id == rule.spelling.mark and rule.most != 0:
            self._matcher = self._beginning.deep_copy()
            self._matcher.consume_token(id)


def _mask(matcher: Any, size: int) -> Mask:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():
        raise EngineError(f"the grammar an answer is held to gave up: {matcher.get_error()}")
    allowed = np.zeros(size, np.bool_)
    known = np.unpackbits(bits, bitorder="little")[:size].astype(np.bool_)
    allowed[: len(known)] = known
    return allowed


def _but(forbidden: Sequence[int | None], size: int) -> Mask:
    allowed = np.ones(size, np.bool_)
    allowed[[id for id in forbidden if id is not None]] = False
    return allowed


# --- calls as a grammar -----------------------------------------------------------------------------------------------


def _lark(rule: CallRule, head: str) -> str:
    """`head`: what may stand in front. Each call is any of the tools'; how many there are is the rule's."""
    spelling = rule.spelling
    more = "" if rule.most is not None or spelling.between is None else f"({_terms(spelling.between)} call)*"
    return "\n".join(
        [
            f"start: {head} {_terms(spelling.open)} call {more} {_terms(spelling.close)}",
            f"call: {' | '.join(f'call_{number}' for number in range(len(spelling.tools)))}",
            *(line for number, tool in enumerate(spelling.tools) for line in _call(number, tool)),
            "TEXT: /(.|\\n)+/",
        ]
    )


def _introduction(rule: CallRule) -> str:
    """What may stand before calls at the beginning of an answer."""
    lead = _maybe(rule.spelling.lead)
    if not rule.may_think or rule.spelling.thought is None:
        return lead
    opened, closed = rule.spelling.thought
    return f"({lead} {_terms(opened)} TEXT? {_terms(closed[:1])} {_seam(rule)} | {lead})"


def _seam(rule: CallRule) -> str:
    """What stands between calls and the id that ends the reasoning before them."""
    _, closed = rule.spelling.thought or ((), ())
    return " ".join(
        _maybe(piece) if isinstance(piece, str) and piece.isspace() else _terms([piece]) for piece in closed[1:]
    )


def _maybe(text: str) -> str:
    return f"({_terms([text])})?" if text else ""


def _call(number: int, tool: ToolSpelling) -> Iterator[str]:
    if tool.schema is not None:
        yield f"call_{number}: {_terms(tool.begin)} arguments_{number} {_terms(tool.end)}"
        yield f"arguments_{number}: {_arguments(tool.schema)}"
        return
    inner = "".join(f" | <[{id}]>" for id in tool.inner)
    # A text is matched as far as it goes, so what ends the arguments is part of the last one.
    last, rest = ((), tool.end) if not tool.end or isinstance(tool.end[0], int) else (tool.end[:1], tool.end[1:])
    yield f"call_{number}: {_terms(tool.begin)} (TEXT{inner})* LAST_{number} {_terms(rest)}"
    yield f"LAST_{number}: /(.|\\n)*/ {_terms(last)}"


def _arguments(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': LENIENT})}"


def _terms(pieces: Sequence[str | int]) -> str:
    """Pieces as the grammar spells them."""
    spelled = (f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False) for piece in pieces)
    return " ".join(spelled)


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
