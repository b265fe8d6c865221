"""What a run shows people: progress while it goes on, tables when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from bridle.rollouts.records import STAGES, RolloutRecord, totals
from bridle.rollouts.run import Rollout
from bridle.rollouts.scheduler import Watcher
from bridle.samples.check import Report, render

PLAIN_WIDTH = 160
DETAIL = 240
"""Characters of a rollout's detail that are shown; its rollout.json has all of it."""
TOLD = {"provision": "started", "run": "the agent runs", "grade": "grading"}
"""The stages that plain lines tell of; the others are short."""


class Teller(Watcher):
    """What people are told of a batch."""

    def note(self, line: str) -> None: ...


class Lines(Teller):
    """One plain line for everything that happens: logs, pipes, CI."""

    def note(self, line: str) -> None:
        click.echo(line, err=True)

    def stage(self, rollout: Rollout) -> None:
        if rollout.stage in TOLD:
            self.note(f"{rollout.id}: {TOLD[rollout.stage]}")

    def ended(self, record: RolloutRecord) -> None:
        self.note(f"{record.id}: {ending(record)}")


class Bars(Teller):
    """A bar for the batch and one for each rollout under way."""

    def __init__(self, bars: Progress, total: int) -> None:
        self.bars = bars
        self.all = bars.add_task("rollouts", total=total)
        self.running: dict[str, TaskID] = {}

    def note(self, line: str) -> None:
        self.bars.console.print(escape(line), style="dim", highlight=False, soft_wrap=True)

    def stage(self, rollout: Rollout) -> None:
        if rollout.id not in self.running:
            self.running[rollout.id] = self.bars.add_task(rollout.id, total=len(STAGES))
        done = STAGES.index(rollout.stage)
        description = escape(f"{rollout.id}  {rollout.stage}")
        self.bars.update(self.running[rollout.id], completed=done, description=description)

    def ended(self, record: RolloutRecord) -> None:
        if record.id in self.running:
            self.bars.remove_task(self.running.pop(record.id))
        self.bars.advance(self.all)
        self.bars.console.print(escape(f"{record.id}: {ending(record)}"), highlight=False, soft_wrap=True)


@contextmanager
def progress(total: int) -> Iterator[Teller]:
    """On stderr, so that stdout holds the result alone."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Bars(bars, total)


def ending(record: RolloutRecord) -> str:
    grade = "no grade" if record.reward is None else f"reward {record.reward:g}"
    numbers = f"{record.turns} turns, {record.sampled_tokens} tokens, {sum(record.stages.values()):.1f} s"
    detail = " ".join(record.detail.split())
    why = f" ({detail if len(detail) <= DETAIL else detail[:DETAIL] + ' …'})" if detail else ""
    return f"{grade}, {record.cause}{why}, {numbers}"


def summarize(records: Sequence[RolloutRecord], report: Report | None, directory: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    several = len({(record.harness, record.harness_version) for record in records}) > 1
    if not several:
        console.print(f"agent: {escape(_agent(records[0]))}\n")
    console.print(_table(records, several))
    console.print()
    console.print(_stage_table(records))
    console.print()
    for record in records:
        if record.reward is None or record.status == "failed":
            console.print(escape(f"{record.id}: {ending(record)}"), style="red", soft_wrap=True)
    if report:
        for line in render(report):
            console.print(escape(line), soft_wrap=True)
    console.print(_closing(records, directory), soft_wrap=True, markup=False)


def _table(records: Sequence[RolloutRecord], agents: bool) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("rollout", overflow="fold")
    if agents:
        table.add_column("agent", overflow="fold")
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    for name in ("turns", "sampled", "kept", "trained"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("not trained", overflow="fold")
    table.add_column("samples", justify="right", no_wrap=True)
    for record in records:
        table.add_row(
            escape(record.id),
            *([escape(_agent(record))] if agents else []),
            _reward(record.reward),
            record.cause,
            f"{record.turns}",
            f"{record.sampled_tokens}",
            f"{record.kept_tokens}",
            f"{record.trained_tokens}",
            _reasons(record.untrained),
            f"{record.samples}",
        )
    return table


def _stage_table(records: Sequence[RolloutRecord]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("seconds in", overflow="fold")
    for stage in STAGES:
        table.add_column(stage, justify="right", no_wrap=True)
    for record in records:
        seconds = (f"{record.stages[stage]:.2f}" if stage in record.stages else "-" for stage in STAGES)
        table.add_row(escape(record.id), *seconds)
    return table


def _closing(records: Sequence[RolloutRecord], directory: Path) -> str:
    counted = totals(records)
    mean = "" if counted["mean_reward"] is None else f", mean reward {counted['mean_reward']:.3g}"
    return (
        f"\n{counted['rollouts']} rollouts, {counted['graded']} graded{mean}, {counted['samples']} samples\n"
        f"samples and session logs: {directory}/rollouts/*/\n"
        f"next: bridle show {directory} --rollout {records[0].id}\n"
        f"      bridle check {directory}\n"
        f"      bridle export {directory} samples.jsonl"
    )


def _agent(record: RolloutRecord) -> str:
    return f"{record.harness} {record.harness_version}"


def _reward(reward: float | None) -> str:
    if reward is None:
        return "[red]-[/]"
    return f"[{'green' if reward > 0 else 'yellow'}]{reward:g}[/]"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens} {reason}" for reason, tokens in counts.items()) or "-"
