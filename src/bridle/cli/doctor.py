"""`bridle doctor`: what works on this machine, and which agents play their scenarios."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from bridle.config import Settings

LIVE = Path("examples/live")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--agents", is_flag=True, help="Play agents through scenarios: those of NAMES, or all.")
@click.option("--scenario", "scenarios", multiple=True, help="Play this one, or `all` (repeatable; default: linear).")
@click.option("--fault", "faults", multiple=True, help="Play linear under this fault too, or `all` (repeatable).")
@click.option("--live", type=click.Path(path_type=Path), default=LIVE, show_default=True, help="The scenarios' folder.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/agents"), show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, such as sandbox.name=local.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def command(
    names: tuple[str, ...],
    agents: bool,
    scenarios: tuple[str, ...],
    faults: tuple[str, ...],
    live: Path,
    out: Path,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check this machine; with --agents, run real agents live and check every token they were given.

    What comes of them is kept in OUT, a folder for each play, and in OUT.json."""
    from bridle.config import load

    settings = load(None, overrides, {})
    if not agents:
        if names or scenarios or faults:
            raise click.UsageError("agents, scenarios and faults are for --agents: bridle doctor --agents claude_code")
        _machine(settings, as_json)
        return
    from bridle.doctor.examine import examine
    from bridle.doctor.results import table, verdict
    from bridle.doctor.scenarios import DEFAULT_SCENARIO, Stage

    plays = list(Stage(live).plays(names, scenarios or (DEFAULT_SCENARIO,), faults))
    finding = asyncio.run(examine(plays, settings, out, lambda line: click.echo(line, err=True)))
    document = json.dumps(finding.document(), indent=1)
    out.with_suffix(".json").write_text(document + "\n")
    click.echo(document if as_json else "\n".join([*table(finding), "", verdict(finding)]))
    sys.exit(0 if finding.ok else 1)


def _machine(settings: Settings, as_json: bool) -> None:
    from bridle.compose import cache
    from bridle.doctor.machine import facts, render

    found = facts(cache(settings))
    click.echo(json.dumps(msgspec.to_builtins(found), indent=1) if as_json else "\n".join(render(found)))
    sys.exit(1 if any(fact.well is False for fact in found) else 0)
