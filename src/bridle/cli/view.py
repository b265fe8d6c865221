"""`bridle view`: what was captured, as one page to look at and as a picture."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from bridle.dashboard.dumps import find
from bridle.dashboard.figure import AXES, Axis
from bridle.dashboard.page import page
from bridle.dashboard.picture import png, svg
from bridle.dashboard.read import read


@click.command()
@click.argument("dumps", nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="view.html", show_default=True)
@click.option("--png", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture too.")
@click.option("--axis", type=click.Choice(AXES), default="tokens", show_default=True, help="Of the picture's turns.")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="Spells the ids; else the run's own.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def command(
    dumps: tuple[str, ...], out: Path, picture: Path | None, axis: Axis, model: Path | None, opens: bool
) -> None:
    """Show DUMPS on one page: runs, rollouts' folders, session logs, files of samples, or globs of them."""
    view = read(find(dumps), model)
    drawn = None if picture is None else png(svg(view.rollouts, axis))
    title = f"Bridle: {dumps[0]}" if len(dumps) == 1 else f"Bridle: {len(view.rollouts)} rollouts"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(view, title), encoding="utf-8")
    told = f"{len(view.rollouts)} rollouts, {sum(len(rollout.turns) for rollout in view.rollouts)} turns: {out}"
    if picture is not None and drawn is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(drawn)
        told += f", {picture}"
    click.echo(told)
    for notice in dict.fromkeys(rollout.notice for rollout in view.rollouts if rollout.notice):
        click.echo(notice, err=True)
    if opens:
        webbrowser.open(out.resolve().as_uri())
