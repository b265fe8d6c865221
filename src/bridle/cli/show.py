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
@click.option("--wire", help="Show what went over the wire in this rollout (session.capture=raw keeps it).")
def command(run: Path, rollout: str | None, wire: str | None) -> None:
    """Show the rollouts of RUN, with --rollout how each turn's prompt came to be, with --wire its calls."""
    if wire:
        _wire(run / "rollouts" / wire / "wire.zst")
    elif rollout:
        _turns(run / "rollouts" / rollout)
    else:
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


def _wire(path: Path) -> None:
    from bridle.gateway.capture import read_capture

    if not path.exists():
        raise ConfigError(
            f"{path} does not exist: run it with --set session.capture=raw to keep what goes over the wire"
        )
    for number, call in enumerate(read_capture(path)):
        cut = "" if call.complete else ", not sent to its end"
        click.echo(
            f"--- {number}: {call.method} {call.target}  {call.status or 'no answer'} in {call.seconds:.3f} s{cut}"
        )
        for side, headers, body in (
            (">", call.request_headers, call.request),
            ("<", call.reply_headers, call.reply),
        ):
            for name, value in headers.items():
                click.echo(f"{side} {name}: {value}")
            click.echo(f"{side} {body.decode(errors='replace')}")


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
        if turn.thread is not None:
            below = "" if turn.thread.depth is None else f", depth {turn.thread.depth}"
            click.echo(f"    thread {turn.thread.thread}, parent {turn.thread.parent or '-'}{below}")
        for note in turn.notes:
            click.echo(f"    {note.what}: {note.detail}")
