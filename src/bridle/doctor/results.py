"""What a play came to, judged by the independent checker's report and by what the script says is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bridle.doctor.scenarios import Play, Skipped
from bridle.rollouts.records import RolloutRecord
from bridle.samples.check import Report
from bridle.samples.fidelity import Fidelity


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`wrong`: everything that is not as it should be, in words; empty when all is well. `kinds` in turns, `due` what
    was to be kept of the sampled tokens. `depth`: of the deepest sub-agent, None where no header says. `fault_came`:
    None without one."""

    agent: str
    harness: str
    version: str
    protocol: str
    scenario: str
    fault: str
    gives_up: bool
    """It is known to end there: its tokens are judged, its work is not."""
    wrong: tuple[str, ...]
    cause: str
    reward: float | None
    turns: int
    kinds: Mapping[str, int]
    depth: int | None
    samples: int
    sampled: int
    due: int
    kept: int
    doubled: int
    lost: int
    untrained: Mapping[str, int]
    echoes: Mapping[str, int]
    fault_came: bool | None
    model_calls: int
    seconds: float
    directory: str

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def title(self) -> str:
        return f"{self.agent} {self.scenario}{' under ' + self.fault if self.fault else ''}"


class Missing(msgspec.Struct, frozen=True):
    """An agent that cannot be installed here."""

    agent: str
    why: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """All of an examination."""

    bridle: str
    sandbox: str
    results: tuple[Result, ...]
    missing: tuple[Missing, ...]
    skipped: tuple[Skipped, ...]

    @property
    def ok(self) -> bool:
        return bool(self.results) and all(result.ok for result in self.results)

    def document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"verdict": verdict(self), "ok": self.ok, **msgspec.to_builtins(self)}


class Seen(msgspec.Struct, frozen=True):
    """What a play left: `fidelity` None when there was no session."""

    record: RolloutRecord
    report: Report
    fidelity: Fidelity | None
    fault_came: bool | None
    model_calls: int
    seconds: float

    @property
    def kinds(self) -> dict[str, int]:
        return {str(kind): turns for kind, turns in self.fidelity.totals.kinds.items()} if self.fidelity else {}

    @property
    def depth(self) -> int | None:
        turns = self.fidelity.turns if self.fidelity else ()
        depths = [turn.thread.depth for turn in turns if turn.thread and turn.thread.depth is not None]
        return max(depths, default=None)


def judged(play: Play, protocol: str, seen: Seen) -> Result:
    record, report = seen.record, seen.report
    return Result(
        agent=play.agent,
        harness=play.harness,
        version=record.harness_version,
        protocol=protocol,
        scenario=play.scenario,
        fault=play.fault_name,
        gives_up=play.reward is None,
        wrong=tuple(_complaints(play, seen)),
        cause=record.cause,
        reward=record.reward,
        turns=record.turns,
        kinds=seen.kinds,
        depth=seen.depth,
        samples=record.samples,
        sampled=report.sampled,
        due=report.sampled - report.excused,
        kept=report.kept,
        doubled=report.doubled,
        lost=report.lost,
        untrained=report.untrained,
        echoes=seen.fidelity.totals.echoes if seen.fidelity else {},
        fault_came=seen.fault_came,
        model_calls=seen.model_calls,
        seconds=round(seen.seconds, 1),
        directory=record.directory,
    )


def broken(play: Play, why: str) -> Result:
    """Of a play around which something failed: nothing is known of its tokens."""
    return Result(
        agent=play.agent,
        harness=play.harness,
        version="",
        protocol="",
        scenario=play.scenario,
        fault=play.fault_name,
        gives_up=False,
        wrong=(why,),
        cause="",
        reward=None,
        turns=0,
        kinds={},
        depth=None,
        samples=0,
        sampled=0,
        due=0,
        kept=0,
        doubled=0,
        lost=0,
        untrained={},
        echoes={},
        fault_came=None,
        model_calls=0,
        seconds=0.0,
        directory="",
    )


def _complaints(play: Play, seen: Seen) -> list[str]:
    """What is wrong with a play, the tokens first."""
    record, report, kinds = seen.record, seen.report, seen.kinds
    found = [] if report.ok else report.findings[:5] or ["the checker found nothing sampled"]
    if play.reward is not None and record.status != "completed":
        found.append(f"ended as {record.cause}: {' '.join(record.detail.split())[:300]}")
    if play.reward is not None and record.reward != play.reward:
        found.append(f"reward {record.reward}, {play.reward} expected")
    if unseen := [kind for kind in play.kinds if not kinds.get(kind)]:
        found.append(f"no turn of kind {', '.join(unseen)} (there were {kinds})")
    if play.depth is not None and seen.depth != play.depth:
        found.append(f"sub-agents {seen.depth} deep, {play.depth} expected")
    if play.reward is not None and not record.samples:
        found.append("no sample")
    if seen.fault_came is False:
        found.append(f"the fault did not come: the agent made {seen.model_calls} model calls")
    return found


def verdict(finding: Finding) -> str:
    """The one line that says it all."""
    results = finding.results
    live = len({result.harness for result in results if result.ok})
    due, kept = sum(result.due for result in results), sum(result.kept for result in results)
    percent = f"{_percent(kept, due)} %" if due else "nothing"
    line = (
        f"agents: {live} live, {len(results)} scenarios, kept {percent} of main tokens, "
        f"{sum(result.doubled for result in results)} doubled, {sum(result.lost for result in results)} lost"
    )
    short = [result.title for result in results if not result.ok]
    return f"{line}; fell short: {', '.join(short)}" if short else line


def table(finding: Finding) -> list[str]:
    """Agent × version × protocol × scenario, as Markdown."""
    scenarios = list(dict.fromkeys(_column(result) for result in finding.results))
    lines = [
        f"| agent | version | protocol | {' | '.join(scenarios)} |",
        f"|---|---|---|{'---|' * len(scenarios)}",
    ]
    rows: dict[tuple[str, str, str], dict[str, Result]] = {}
    for result in finding.results:
        rows.setdefault((result.agent, result.version, result.protocol), {})[_column(result)] = result
    for (agent, version, protocol), cells in rows.items():
        shown = (_cell(cells.get(name)) for name in scenarios)
        lines.append(f"| `{agent}` | {version} | `{protocol}` | {' | '.join(shown)} |")
    return lines


def _column(result: Result) -> str:
    return result.fault or result.scenario


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if not result.ok:
        return "**no**"
    return "ends" if result.gives_up else "ok"


def _percent(kept: int, due: int) -> str:
    """Never rounded up to 100."""
    return "100.0" if kept == due else f"{min(100.0 * kept / due, 99.9):.1f}"
