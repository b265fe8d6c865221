"""`bridle audit`: the logprobs of a run, recomputed with the same weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import orjson

from bridle.errors import ConfigError
from bridle.exporters.jsonl import JsonlExporter
from bridle.samples.audit import TOLERANCE, audit

VERSION = 0
"""The policy version whose weights lie in a model directory that was never trained further."""


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="The weights; else those the run names.")
@click.option("--version", default=VERSION, show_default=True, help="The policy version these weights are.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--tolerance", default=TOLERANCE, show_default=True, help="Largest |Δ logprob| to accept, in nats.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
def command(run: Path, model: Path | None, version: int, device: str, tolerance: float, as_json: bool) -> None:
    """Score every trained token of RUN again in one pass per sample, and compare with what was captured.

    The audit changes single context tokens too, and fails as insensitive unless each change shows 100 times above the
    error it saw. Exit 0 only when the verdict is ok.
    """
    files = sorted(run.glob("rollouts/*/samples.jsonl"))
    if not files:
        raise ConfigError(f"{run} holds no samples; expected {run}/rollouts/*/samples.jsonl")
    samples = [sample for file in files for sample in JsonlExporter().read(file)]
    from bridle.engines.transformers import LocalModel

    scorer = LocalModel(model or _model_of(run), device).score
    found = audit(samples, {version: scorer}, tolerance)
    (run / "audit.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else "\n".join(found.render()))
    sys.exit(0 if found.ok else 1)


def _model_of(run: Path) -> Path:
    settings = run / "settings.json"
    if not settings.exists():
        raise ConfigError(f"{run} does not say which model it used (no settings.json); give it with --model DIRECTORY")
    return Path(orjson.loads(settings.read_bytes())["model"])
