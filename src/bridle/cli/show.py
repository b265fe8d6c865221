"""`bridle show`: what a run left, from its files."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import orjson

from bridle.errors import ConfigError
from bridle.samples.fidelity import Fidelity


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rollout", help="Show this rollout's turns.")
def command(run: Path, rollout: str | None) -> None:
    """Show the rollouts of RUN, or with --rollout how each turn's prompt came to be."""
    if rollout:
        _turns(run / "rollouts" / rollout)
        return
    _summary(run)


def _summary(run: Path) -> None:
    from bridle.cli.report import summarize
    from bridle.rollouts.records import RolloutRecord
    from bridle.samples.check import check

    records = [
        msgspec.convert(orjson.loads(path.read_bytes()), RolloutRecord)
        for path in sorted(run.glob("rollouts/*/rollout.json"))
    ]
    if not records:
        raise ConfigError(f"{run} holds no finished rollout; expected {run}/rollouts/*/rollout.json")
    summarize(records, check(run) if (run / "journal.jsonl").exists() else None, run)


def _turns(directory: Path) -> None:
    if not (directory / "fidelity.json").exists():
        there = ", ".join(sorted(path.name for path in directory.parent.glob("*"))) or "none"
        raise ConfigError(f"no rollout {directory.name} here; there are: {there}")
    fidelity = msgspec.json.decode((directory / "fidelity.json").read_bytes(), type=Fidelity)
    for turn in fidelity.turns:
        echoes = ", ".join(echo.echo for echo in turn.echoes) or "-"
        lost = ", ".join(f"{tokens} {reason}" for reason, tokens in turn.untrained.items()) or "-"
        click.echo(
            f"{turn.turn_id}  {turn.kind} ({turn.rule})  prompt {turn.prompt_tokens} = {turn.held_tokens} held + "
            f"{turn.new_tokens} new  sampled {turn.sampled}, trained {turn.trained}, untrained {lost}  "
            f"{turn.finish_reason}  echoes {echoes}"
        )
        for note in turn.notes:
            click.echo(f"    {note.what}: {note.detail}")
