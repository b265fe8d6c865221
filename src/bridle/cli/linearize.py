"""`bridle linearize`: samples from a session log or from a case file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import click
import msgspec
import orjson

from bridle.decoding import decode
from bridle.errors import ConfigError
from bridle.samples import BUILDERS
from bridle.samples.assign import OverLength
from bridle.samples.cases import read_case
from bridle.samples.drop import Kinds
from bridle.samples.linearize import Options, document, linearize
from bridle.sessions.codec import MAGIC, decode as read_log
from bridle.sessions.session import Session, TurnFacts
from bridle.sessions.tree import Tree


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--builder", default="tree", show_default=True, help=f"{', '.join(BUILDERS)}, or your my.module:function."
)
@click.option("--kind", "kinds", multiple=True, metavar="KIND=POLICY", help="train, context or drop (repeatable).")
@click.option("--max-sample-tokens", type=click.IntRange(1), help="Longer samples are treated by --over-length.")
@click.option("--over-length", type=click.Choice(get_args(OverLength)), default="cut", show_default=True)
@click.option("--max-samples", type=click.IntRange(1), help="Keep so many, those in which most trains.")
@click.option("--unused-draws", type=click.Choice(["train", "drop"]), default="train", show_default=True)
@click.option(
    "--counts", type=click.Path(dir_okay=False, path_type=Path), default=Path("build/linearize.json"), show_default=True
)
def command(
    file: Path, counts: Path, kinds: tuple[str, ...], max_sample_tokens: int | None, **chosen: str | int | None
) -> None:
    """Print {"samples": [...], "fidelity": {...}} for FILE, a session log or a case file (JSON).

    What became of the tokens in sum is written to the --counts file too.
    """
    tree, facts, options = _read(file)
    options = msgspec.structs.replace(
        options,
        kinds=decode(dict(kind.partition("=")[::2] for kind in kinds), Kinds, "--kind"),
        max_sample_tokens=max_sample_tokens or options.max_sample_tokens,
        **chosen,
    )
    result = document(linearize(tree, options, facts))
    counts.parent.mkdir(parents=True, exist_ok=True)
    totals = {"file": str(file), **result["fidelity"]["totals"]}
    counts.write_bytes(orjson.dumps(totals, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    click.echo(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY))


def _read(file: Path) -> tuple[Tree, Mapping[int, TurnFacts], Options]:
    data = file.read_bytes()
    if data.startswith(MAGIC):
        session = Session.replay(read_log(data, str(file)))
        return session.tree, session.facts, Options.of(session)
    if not data.lstrip().startswith(b"{"):
        raise ConfigError(f"{file} is neither a session log nor a case file (a JSON object with `turns`)")
    case = read_case(file)
    return case.tree, case.facts, case.options
