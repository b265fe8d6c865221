"""`bridle run`: tasks in, graded samples out."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bridle.engines import NAMES as ENGINES
from bridle.harnesses import NAMES as HARNESSES


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-n", type=int, help="Rollouts per task (the group size).")
@click.option("--harness", help=f"The agent: {', '.join(HARNESSES)}, or my.module:Class.")
@click.option("--engine", help=f"What samples tokens: {', '.join(ENGINES)}, or my.module:Class.")
@click.option("--model", help="A model directory; without one a tiny model is made.")
@click.option("--task", "only", multiple=True, help="Only this task (repeatable).")
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="Settings as TOML, YAML or JSON.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, such as gateway.port=8000.")
@click.option("--script", type=click.Path(exists=True, path_type=Path), help="Answers to put into the engine.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the run is kept (default: a new folder in data).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def command(
    files: tuple[Path, ...],
    n: int | None,
    harness: str | None,
    engine: str | None,
    model: str | None,
    only: tuple[str, ...],
    config: Path | None,
    overrides: tuple[str, ...],
    script: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run every task in FILES (task files or folders that hold one).

    Exit code 0: every rollout ended with a grade. 1: some did not. 2: something given cannot be used.
    """
    from bridle.cli import batch
    from bridle.config import load

    flags = {"n": n, "harness.name": harness, "engine.name": engine, "model": model}
    flags["engine.options.script"] = str(script) if script else None
    settings = load(config, overrides, flags)
    records = batch.run(settings, batch.select(files, only), out or batch.new_directory(Path(settings.data)), as_json)
    sys.exit(0 if all(record.graded and record.status != "failed" for record in records) else 1)
