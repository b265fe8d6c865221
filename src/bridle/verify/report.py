"""What was proved and what was refuted, counted by property, with the first counterexample of each."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bridle.errors import BridleError

Property = Literal["prefix", "splice", "parse", "injection", "end_of_turn", "roles", "switches", "logprobs"]
Verdict = Literal["pass", "differs", "fails", "skipped"]

PROPERTIES: dict[Property, str] = {
    "prefix": "each prompt begins with what is held, and every sampled id trains once behind its own prompt",
    "splice": "held ids and the new tail are the stock rendering of the whole conversation",
    "parse": "what the model says is read as it was meant, however it arrives and wherever it is cut",
    "injection": "no text becomes a control id, and none is lost",
    "end_of_turn": "every turn is closed once",
    "roles": "every message is shown, in its place",
    "switches": "what the template reads is known, and a change of it keeps what is held",
    "logprobs": "the weights give each sampled id the logprob it was captured with",
}

LONGEST = 300
"""Characters and ids of a counterexample's sides."""


class Finding(msgspec.Struct, frozen=True):
    """A counterexample. `kind`: of the difference. `declared`: the renderer's facts say that this is so."""

    play: str
    turn: int
    kind: str
    what: str
    found: str = ""
    expected: str = ""
    found_ids: tuple[int, ...] = ()
    expected_ids: tuple[int, ...] = ()
    declared: bool = False


class Row(msgspec.Struct, frozen=True):
    """`checked`: how often it was put to the test. `differs`, `fails`: by kind. `notes`: what else there is to say;
    `skipped`: by reason."""

    property: Property
    verdict: Verdict
    checked: int
    differs: dict[str, int] = {}
    fails: dict[str, int] = {}
    skipped: dict[str, int] = {}
    first: Finding | None = None
    first_difference: Finding | None = None
    undeclared: int = 0


class Ledger:
    """Where checks put what they find."""

    def __init__(self) -> None:
        self._rows: dict[Property, _Count] = {}

    def passed(self, property: Property, times: int = 1) -> None:
        self._count(property).checked += times

    def skipped(self, property: Property, reason: str) -> None:
        skipped = self._count(property).skipped
        skipped[reason[:LONGEST]] = skipped.get(reason[:LONGEST], 0) + 1

    def differs(self, property: Property, finding: Finding) -> None:
        count = self._count(property)
        count.checked += 1
        count.differs[finding.kind] = count.differs.get(finding.kind, 0) + 1
        count.undeclared += not finding.declared
        if count.first_difference is None or (count.first_difference.declared and not finding.declared):
            count.first_difference = shortened(finding)

    def fails(self, property: Property, finding: Finding) -> None:
        count = self._count(property)
        count.checked += 1
        count.fails[finding.kind] = count.fails.get(finding.kind, 0) + 1
        count.first = count.first or shortened(finding)

    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows[name].row(name) for name in PROPERTIES if name in self._rows)

    def _count(self, property: Property) -> _Count:
        return self._rows.setdefault(property, _Count())


class _Count:
    def __init__(self) -> None:
        self.checked = self.undeclared = 0
        self.differs: dict[str, int] = {}
        self.fails: dict[str, int] = {}
        self.skipped: dict[str, int] = {}
        self.first: Finding | None = None
        self.first_difference: Finding | None = None

    def row(self, property: Property) -> Row:
        verdict: Verdict = (
            "fails" if self.fails else "differs" if self.differs else "pass" if self.checked else "skipped"
        )
        return Row(
            property,
            verdict,
            self.checked,
            self.differs,
            self.fails,
            self.skipped,
            self.first,
            self.first_difference,
            self.undeclared,
        )


class Report(msgspec.Struct, frozen=True):
    """`facts`: the renderer's own. `spelling`: how the model calls a tool, "" where no form is known. `cost`: ids that
    are fed to the engine for each that is sampled, over the longest chat, and whether it is extended or forks.
    `audit`: of the weights, where there are some."""

    model: str
    seed: int
    short: bool
    seconds: float
    vocabulary: int
    encoder: str
    facts: dict[str, Any]
    stop_ids: dict[str, int]
    spelling: str
    cost: dict[str, Any]
    rows: tuple[Row, ...]
    audit: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(row.verdict != "fails" for row in self.rows)

    @property
    def undeclared(self) -> list[str]:
        """Properties with differences that the renderer's facts do not tell of."""
        return [row.property for row in self.rows if row.undeclared]

    def row(self, property: Property) -> Row:
        return next(row for row in self.rows if row.property == property)

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {**fields, "ok": self.ok, "undeclared": self.undeclared}

    def reason(self) -> str:
        """Why it is refused, in one line; "" where it is not."""
        failed = [row for row in self.rows if row.first]
        return "; ".join(f"{row.property}: {told(row.first)}" for row in failed if row.first)


def warnings(report: Report) -> list[str]:
    """What who starts a gateway should know, a line each."""
    lines = []
    if not report.facts["extendable"]:
        lines.append(
            f"this template cannot be extended ({report.facts['why_not']}): every turn is a sample of its own, and a "
            f"trainer reads {report.cost['read_per_sampled']:g} tokens for each sampled one in a chat of "
            f"{report.cost['turns']} turns"
        )
    if not report.ok:
        lines.append(f"not faithful: {report.reason()}")
    return lines


def broken(play: str, turn: int, error: BridleError) -> Finding:
    """No answer to a request that neither its client nor the template is to blame for."""
    return Finding(play, turn, error.kind, f"no prompt can be built: {error.message}")


def told(finding: Finding) -> str:
    where = f"{finding.play}, turn {finding.turn}" if finding.turn >= 0 else finding.play
    sides = f": {finding.found!r} in the place of {finding.expected!r}" if finding.found or finding.expected else ""
    return f"{finding.what} ({where}){sides}"


def shortened(finding: Finding) -> Finding:
    return msgspec.structs.replace(
        finding,
        what=finding.what[:LONGEST],
        found=finding.found[:LONGEST],
        expected=finding.expected[:LONGEST],
        found_ids=finding.found_ids[:LONGEST],
        expected_ids=finding.expected_ids[:LONGEST],
    )
