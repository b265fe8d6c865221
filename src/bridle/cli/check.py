"""`bridle check`: the independent checker's word on a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bridle.samples.check import check, render


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(run: Path, as_json: bool) -> None:
    """Compare the samples of RUN with its engine's journal; exit 1 when they disagree."""
    report = check(run)
    click.echo(json.dumps(report.to_dict(), indent=1) if as_json else "\n".join(render(report)))
    sys.exit(0 if report.ok else 1)
