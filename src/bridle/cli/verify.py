"""`bridle verify`: is a model faithful here?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--calls", default="auto", show_default=True, help="The form of tool calls, by name; none has none.")
@click.option("--seed", default=0, show_default=True, help="Of the conversations.")
@click.option("--short", is_flag=True, help="The look that a gateway takes at every start.")
@click.option("--weights/--no-weights", default=True, help="Audit the logprobs of weights that lie there (default).")
@click.option("--device", default="cpu", show_default=True, help="Where the weights are run.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of a table.")
def command(
    directory: Path,
    calls: str,
    seed: int,
    short: bool,
    weights: bool,
    device: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Play conversations over the tokenizer and template in DIRECTORY, and prove each property or refute it.

    Exit code 0: faithful. 1: it would not be; the table shows the first counterexample. 2: it cannot be loaded.
    """
    from bridle.cli.verify_table import show
    from bridle.rendering.template import load_renderer
    from bridle.verify.verify import verify
    from bridle.verify.weights import audited, has_weights

    renderer = load_renderer(directory, calls)
    report = verify(renderer, directory, seed=seed, short=short)
    if weights and not short and has_weights(directory):
        report = audited(report, renderer, directory, seed, device)
    document = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(document + "\n")
    if as_json:
        click.echo(document)
    else:
        show(report)
    sys.exit(0 if report.ok else 1)
