"""The record of how each turn's prompt came to be and what became of the tokens it sampled.

Knows no tree: it is given what `linearize` counted and what the session noted. That trained and untrained tokens add up
to the sampled ones is checked wherever such a record is made, when it is read back too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bridle.messages import CallStatus, FinishReason, Kind, Note, ThreadFacts
from bridle.samples.sample import Reason
from bridle.sessions.echo import FORKS
from bridle.sessions.match import Echo
from bridle.sessions.records import Distribution
from bridle.sessions.session import TurnFacts
from bridle.sessions.tree import Turn


class Account(msgspec.Struct):
    """What became of one turn's sampled tokens, while it is being counted. `samples`: indexes that account for some."""

    sampled: int
    reason: Reason | None = None
    trained: int = 0
    untrained: dict[Reason, int] = {}
    samples: list[int] = []

    def count(self, reason: Reason, tokens: int) -> None:
        if tokens:
            self.untrained[reason] = self.untrained.get(reason, 0) + tokens


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`reason`: why the turn as a whole does not train, None when it may. `held_tokens` of the prompt were spliced from
    what was held, `new_tokens` rendered (both None when nobody recorded it). `forks`: the echoes that made the branch
    leave what was held. `samples`: indexes of the samples that account for the draw. `distribution`: what it was drawn
    from and what its logprobs are of. `failed`: what the engine failed with. `thread`: which of the agent's
    conversations it belongs to, where headers say. `ill_formed`: of each of its calls that is not ok, what it is."""

    turn_id: str
    kind: Kind
    rule: str
    finish_reason: FinishReason
    prompt_tokens: int
    held_tokens: int | None
    new_tokens: int | None
    echoes: tuple[Echo, ...]
    forks: tuple[Echo, ...]
    notes: tuple[Note, ...]
    sampled: int
    trained: int
    reason: Reason | None
    untrained: Mapping[Reason, int]
    samples: tuple[int, ...]
    distribution: Distribution | None = None
    failed: str = ""
    thread: ThreadFacts | None = None
    ill_formed: tuple[CallStatus, ...] = ()

    def __post_init__(self) -> None:
        _balance(f"turn {self.turn_id}", self.sampled, self.trained, self.untrained)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """`forced` is the part of `untrained` a script put in place. `echoes` by class, `kinds` in turns.
    `sampled_by_kind`: what of the sampled tokens each kind has. `ill_formed`: turns with a call that is not ok."""

    turns: int
    samples: int
    sampled: int
    trained: int
    forced: int
    untrained: Mapping[Reason, int]
    echoes: Mapping[str, int]
    forks: int
    kinds: Mapping[Kind, int]
    sampled_by_kind: Mapping[Kind, int] = {}
    ill_formed: int = 0

    def __post_init__(self) -> None:
        _balance("session", self.sampled, self.trained, self.untrained)


class Fidelity(msgspec.Struct, frozen=True):
    turns: tuple[TurnRecord, ...]
    totals: Totals


def record(
    turns: Sequence[Turn],
    prompts: Sequence[int],
    accounts: Sequence[Account],
    facts: Mapping[int, TurnFacts],
    samples: int,
) -> Fidelity:
    """`prompts[i]`: length of turn i's prompt. Raises ValueError when a turn's account does not balance."""
    records = tuple(
        _turn(turn, prompt, account, facts.get(turn.seq))
        for turn, prompt, account in zip(turns, prompts, accounts, strict=True)
    )
    return Fidelity(records, totals(records, samples))


def _turn(turn: Turn, prompt: int, account: Account, facts: TurnFacts | None) -> TurnRecord:
    echoes = facts.echoes if facts else ()
    return TurnRecord(
        turn_id=turn.id,
        kind=turn.kind,
        rule=turn.rule,
        finish_reason=turn.finish_reason,
        prompt_tokens=prompt,
        held_tokens=facts.held if facts else None,
        new_tokens=facts.new if facts else None,
        echoes=echoes,
        forks=tuple(echo for echo in echoes if echo.echo in FORKS),
        notes=facts.notes if facts else (),
        sampled=account.sampled,
        trained=account.trained,
        reason=account.reason,
        untrained=account.untrained,
        samples=tuple(account.samples),
        distribution=facts.distribution if facts else None,
        failed=facts.failed if facts else "",
        thread=facts.thread if facts else None,
        ill_formed=turn.ill_formed,
    )


def totals(turns: Sequence[TurnRecord], samples: int) -> Totals:
    untrained = _summed(turn.untrained for turn in turns)
    return Totals(
        turns=len(turns),
        samples=samples,
        sampled=sum(turn.sampled for turn in turns),
        trained=sum(turn.trained for turn in turns),
        forced=untrained.get("forced", 0),
        untrained=untrained,
        echoes=Counter(echo.echo for turn in turns for echo in turn.echoes),
        forks=sum(len(turn.forks) for turn in turns),
        kinds=Counter(turn.kind for turn in turns),
        sampled_by_kind=_by_kind(turns),
        ill_formed=sum(bool(turn.ill_formed) for turn in turns),
    )


def _by_kind(turns: Sequence[TurnRecord]) -> dict[Kind, int]:
    sampled: Counter[Kind] = Counter()
    for turn in turns:
        sampled[turn.kind] += turn.sampled
    return sampled


def _summed(counts: Iterable[Mapping[Reason, int]]) -> dict[Reason, int]:
    total: dict[Reason, int] = {}
    for each in counts:
        for reason, tokens in each.items():
            total[reason] = total.get(reason, 0) + tokens
    return total


def _balance(what: str, sampled: int, trained: int, untrained: Mapping[Reason, int]) -> None:
    if trained + sum(untrained.values()) != sampled:
        raise ValueError(
            f"{what}: {sampled} tokens sampled, but {trained} trained and {dict(untrained)} untrained; "
            "every sampled token must be one or the other"
        )
