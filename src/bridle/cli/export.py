"""`bridle export`: the samples of a run in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bridle.errors import ConfigError
from bridle.exporters import NAMES
from bridle.exporters.jsonl import JsonlExporter
from bridle.registry import resolve


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--format", "form", default="jsonl", show_default=True, help=f"{', '.join(NAMES)}, or my.module:Class.")
@click.option("--graded", is_flag=True, help="Only samples whose rollout has a valid reward.")
def command(run: Path, target: Path, form: str, graded: bool) -> None:
    """Write all samples of RUN to TARGET."""
    files = sorted(run.glob("rollouts/*/samples.jsonl"))
    if not files:
        raise ConfigError(f"{run} holds no samples; expected {run}/rollouts/*/samples.jsonl")
    exporter: Any = resolve("exporter", NAMES, form)()
    samples = (sample for file in files for sample in JsonlExporter().read(file))
    count = exporter.write((sample for sample in samples if sample.reward_valid or not graded), target)
    click.echo(f"{count} samples of {len(files)} rollouts written to {target}")
