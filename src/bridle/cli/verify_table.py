"""A report of `bridle verify` for people: facts, a row for each property, the first counterexample of each."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bridle.verify.report import PROPERTIES, Finding, Report, Row, told, warnings

PLAIN_WIDTH = 180
COLOURS = {"pass": "green", "differs": "yellow", "fails": "bold red", "skipped": "dim"}
IDS = 40


def show(report: Report) -> None:
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    for line in _facts(report):
        console.print(escape(line), soft_wrap=True)
    console.print()
    console.print(_table(report))
    for row in report.rows:
        for finding in (row.first, row.first_difference):
            if finding is not None:
                console.print(escape("\n".join(_counterexample(row, finding))), soft_wrap=True)
    console.print()
    for line in warnings(report):
        console.print(escape(line), style="yellow" if report.ok else "red", soft_wrap=True)
    console.print(escape(_verdict(report)), style="green" if report.ok else "bold red", soft_wrap=True)


def _facts(report: Report) -> list[str]:
    facts, cost = report.facts, report.cost
    strips = facts["strips_reasoning"]
    return [
        f"model       {report.model}  ({report.vocabulary} tokens, {report.encoder}, {facts['fingerprint']})",
        f"history     {'extended by what is new' if facts['extendable'] else 'every turn forks'}"
        f"{'; the stock template drops earlier reasoning' if strips else ''}",
        f"cost        {cost['turns']} turns: {cost['samples']} samples, {cost['rendered_last_turn']} ids rendered for "
        f"the last one, {cost['read_per_sampled']:g} tokens read for each sampled",
        f"ends with   {', '.join(report.stop_ids)}",
        f"calls       {report.spelling!r}" if report.spelling else "calls       no known form: they arrive as text",
        f"switches    {', '.join(facts['switches']) or 'none'}",
        *(f"rule        {note['detail']}" for note in facts["role_rules"]),
    ]


def _table(report: Report) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("property", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("checked", justify="right", no_wrap=True)
    for name in ("differs", "fails", "not applicable"):
        table.add_column(name, overflow="fold")
    table.add_column("what it says", overflow="fold")
    for row in report.rows:
        colour = COLOURS[row.verdict]
        table.add_row(
            row.property,
            f"[{colour}]{row.verdict}[/]",
            f"{row.checked}",
            _counts(row.differs),
            _counts(row.fails),
            f"{sum(row.skipped.values()) or '-'}",
            PROPERTIES[row.property],
        )
    return table


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "-"


def _counterexample(row: Row, finding: Finding) -> list[str]:
    head = f"{row.property}: {finding.what}" if finding is row.first else f"{row.property} (differs): {finding.what}"
    where = f"   in {finding.play!r}" + (f", turn {finding.turn}" if finding.turn >= 0 else "")
    sides = []
    if finding.found or finding.expected:
        sides += [f"   found     {finding.found!r}", f"   expected  {finding.expected!r}"]
    if finding.found_ids:
        sides.append(f"   found ids     {list(finding.found_ids[:IDS])}")
    if finding.expected_ids:
        sides.append(f"   expected ids  {list(finding.expected_ids[:IDS])}")
    return ["", head, where, *sides]


def _verdict(report: Report) -> str:
    checked = sum(row.checked for row in report.rows)
    if not report.ok:
        failed = [row for row in report.rows if row.verdict == "fails"]
        first = failed[0].first
        return f"verify: REFUTED: {', '.join(row.property for row in failed)}" + (f"; {told(first)}" if first else "")
    told_of = [f"{sum(row.differs.values())} differences in {row.property}" for row in report.rows if row.differs]
    return f"verify: faithful: {checked} checks in {report.seconds:g} s" + (
        f"; {', '.join(told_of)}" if told_of else ""
    )
