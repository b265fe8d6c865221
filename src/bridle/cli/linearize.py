"""`bridle linearize`: samples from a session log or from a case file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
import orjson

from bridle.errors import ConfigError
from bridle.messages import KINDS
from bridle.samples.cases import read_case
from bridle.samples.linearize import Options, document, linearize
from bridle.sessions.codec import MAGIC, decode
from bridle.sessions.session import Session, TurnFacts
from bridle.sessions.tree import Tree


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--train", multiple=True, type=click.Choice(KINDS), help="A kind that trains (repeatable).")
@click.option("--max-sample-tokens", type=click.IntRange(1), help="Cut longer samples there.")
@click.option("--unused-draws", type=click.Choice(["train", "drop"]), default="train", show_default=True)
@click.option(
    "--counts", type=click.Path(dir_okay=False, path_type=Path), default=Path("build/linearize.json"), show_default=True
)
def command(file: Path, train: tuple[str, ...], max_sample_tokens: int | None, unused_draws: str, counts: Path) -> None:
    """Print {"samples": [...], "fidelity": {...}} for FILE, a session log or a case file (JSON).

    What became of the tokens in sum is written to the --counts file too.
    """
    tree, facts, options = _read(file)
    options = msgspec.structs.replace(
        options,
        train=train or options.train,
        max_sample_tokens=max_sample_tokens or options.max_sample_tokens,
        unused_draws=unused_draws,
    )
    result = document(linearize(tree, options, facts))
    counts.parent.mkdir(parents=True, exist_ok=True)
    totals = {"file": str(file), **result["fidelity"]["totals"]}
    counts.write_bytes(orjson.dumps(totals, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    click.echo(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY))


def _read(file: Path) -> tuple[Tree, Mapping[int, TurnFacts], Options]:
    data = file.read_bytes()
    if data.startswith(MAGIC):
        session = Session.replay(decode(data, str(file)))
        return session.tree, session.facts, Options.of(session)
    if not data.lstrip().startswith(b"{"):
        raise ConfigError(f"{file} is neither a session log nor a case file (a JSON object with `turns`)")
    case = read_case(file)
    return case.tree, case.facts, case.options
