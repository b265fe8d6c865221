"""Case files: recorded turns with the ids an engine consumed and sampled, and no tree.

For sessions whose engine rendered by itself, and for the builder's own tests. A turn hangs on the longest earlier
prompt + output that begins its prompt; ids alone decide. Message fields are for readers and are not looked at.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from bridle.errors import LogCorrupt
from bridle.messages import FinishReason
from bridle.samples.credit import Graded
from bridle.samples.linearize import Options
from bridle.samples.sample import POSITIVE_NOISE, Floats
from bridle.sessions.session import TurnFacts
from bridle.sessions.tree import ROOT, Tree, Turn, TurnReason
from bridle.tokens import Ids, concatenate, ids_of

CHAIN = re.compile(
    r"chain: prompt \[(?P<prompt>[\d, ]+)\]; turn i: output \[(?P<first>\d+)\+i\], "
    r"then tool token \[(?P<tool>[\d, ]+)\]; messages [^;]+; (?P<turns>\d+) turns"
)
CHAIN_LOGPROB = -0.5
"""Nats; a generated chain states none."""


TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class CaseTurn(msgspec.Struct, frozen=True):
    """`logprobs`: empty or null where the engine gave none. `turn_id`: draws without one that are equal count once."""

    prompt_ids: tuple[TokenId, ...]
    output_ids: tuple[TokenId, ...]
    logprobs: tuple[float | None, ...] | None = None
    finish_reason: FinishReason = "stop"
    turn_id: str = ""


class CaseFile(msgspec.Struct, frozen=True):
    """`turns` in the order they arrived, or made from the text of `generator`. `expected` is a test's."""

    turns: tuple[CaseTurn, ...] | str
    generator: str = ""
    reward: float | None = None
    max_sample_tokens: int | None = None
    expected: Any = None


class Draw(msgspec.Struct, frozen=True):
    """One recorded model call. `logprobs` None or float32, one for each id of `output`."""

    prompt: Ids
    output: Ids
    logprobs: Floats | None
    reason: TurnReason | None
    finish_reason: FinishReason
    turn_id: str = ""


class Case(msgspec.Struct, frozen=True):
    """What `linearize` needs. `expected` as the file has it."""

    tree: Tree
    facts: dict[int, TurnFacts]
    options: Options
    expected: Any


def read_case(path: Path) -> Case:
    """Raises LogCorrupt that names the file and the place in it."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=CaseFile)
        draws = _generated(file.generator) if file.generator else _recorded(file.turns)
        tree, facts = mount(draws)
    except (msgspec.DecodeError, ValueError) as error:
        raise LogCorrupt(f"{path}: not a usable case file: {error}") from error
    grade = None if file.reward is None else Graded(file.reward, reward_valid=True)
    return Case(tree, facts, Options(max_sample_tokens=file.max_sample_tokens, grade=grade), file.expected)


def mount(draws: Sequence[Draw]) -> tuple[Tree, dict[int, TurnFacts]]:
    """Hangs each draw on the longest earlier prompt + output that begins its prompt."""
    tree = Tree()
    facts: dict[int, TurnFacts] = {}
    ends: dict[bytes, int] = {}
    lengths: list[int] = []
    for seq, draw in enumerate(merged(draws)):
        base = _longest(draw.prompt, ends, lengths)
        parent, held = _prompt_node(tree, base, draw.prompt[tree.length(base) :])
        turn = tree.start(Turn(seq, draw.turn_id or f"turn-{seq}", parent, ids_of(()), "main", "default", b""))
        turn.sampled, turn.logprobs, turn.reason = draw.output, draw.logprobs, draw.reason
        turn.finish_reason = draw.finish_reason
        node = tree.finish(turn)
        facts[seq] = TurnFacts(held=held, new=len(draw.prompt) - held)
        if draw.reason != "duplicate_draw":
            end = _digest(draw.prompt, draw.output)
            if end not in ends and node.length not in lengths:
                insort(lengths, node.length)
            ends[end] = node.index
    return tree, facts


def merged(draws: Sequence[Draw]) -> list[Draw]:
    """Equal draws without turn ids are one: the first stays, with the first logprobs any of them has."""
    same: dict[tuple[bytes, bytes], list[int]] = {}
    for index, draw in enumerate(draws):
        if not draw.turn_id:
            same.setdefault((_digest(draw.prompt), _digest(draw.output)), []).append(index)
    result = list(draws)
    for indexes in same.values():
        usable = next((draws[index] for index in indexes if draws[index].reason is None), draws[indexes[0]])
        result[indexes[0]] = usable
        for index in indexes[1:]:
            result[index] = msgspec.structs.replace(draws[index], reason="duplicate_draw")
    return result


def _longest(prompt: Ids, ends: dict[bytes, int], lengths: Sequence[int]) -> int:
    """The node of the longest end that begins `prompt`, ROOT for none. Hashes the prompt once."""
    found, at = ROOT, 0
    running = blake2b(digest_size=16)
    for length in lengths:
        if length > len(prompt):
            break
        running.update(prompt[at:length].tobytes())
        found, at = ends.get(running.digest(), found), length
    return found


def _prompt_node(tree: Tree, base: int, ids: Ids) -> tuple[int, int]:
    """-> the node that ends a prompt which adds `ids` behind `base`, and how much of the prompt was held already."""
    if not len(ids):
        return base, tree.length(base)
    key = _digest(ids)
    known = tree.child(base, key)
    if known is not None:
        return known, tree.length(known)
    return tree.add_context(base, key, ids).index, tree.length(base)


def _digest(*parts: Ids) -> bytes:
    running = blake2b(digest_size=16)
    for part in parts:
        running.update(part.tobytes())
    return running.digest()


def _recorded(turns: tuple[CaseTurn, ...] | str) -> list[Draw]:
    if isinstance(turns, str):
        raise ValueError(f"turns is {turns!r} and there is no generator; expected a list of turns")
    return [_draw(turn, number) for number, turn in enumerate(turns)]


def _draw(turn: CaseTurn, number: int) -> Draw:
    logprobs = turn.logprobs or ()
    if logprobs and len(logprobs) != len(turn.output_ids):
        raise ValueError(
            f"turns[{number}]: {len(logprobs)} logprobs for {len(turn.output_ids)} output_ids; expected as many"
        )
    known = [value for value in logprobs if value is not None and math.isfinite(value) and value <= POSITIVE_NOISE]
    reason: TurnReason | None = None
    if len(known) < len(logprobs):
        reason = "bad_logprob"
    elif len(known) < len(turn.output_ids):
        reason = "no_logprob"
    return Draw(
        prompt=ids_of(turn.prompt_ids),
        output=ids_of(turn.output_ids),
        logprobs=np.array(known, np.float32) if reason is None else None,
        reason=reason,
        finish_reason=turn.finish_reason,
        turn_id=turn.turn_id,
    )


def _generated(text: str) -> list[Draw]:
    """One chain; the prompts are views of it."""
    found = CHAIN.fullmatch(text)
    if found is None:
        raise ValueError(
            f"generator {text!r} is not known; expected one like 'chain: prompt [1]; turn i: output [10+i], "
            "then tool token [5]; messages u, a_i, t_i; 3 turns'"
        )
    prompt, tool = (ids_of(map(int, found[name].split(","))) for name in ("prompt", "tool"))
    turns, first, step = int(found["turns"]), int(found["first"]), 1 + len(tool)
    chain = concatenate([prompt, *(part for i in range(turns) for part in (ids_of([first + i]), tool))])
    logprobs = np.full(1, CHAIN_LOGPROB, np.float32)
    starts = [len(prompt) + i * step for i in range(turns)]
    return [Draw(chain[:at], chain[at : at + 1], logprobs, None, "stop") for at in starts]
