"""`python -m bridle.testing.verify_models`: every model family there is a template of, over a trained vocabulary, and
current ones over a real vocabulary of 130,000 tokens with the requests of a real agent.

The last line counts: verified, refused with a reason, and silent, that is with a difference nobody declared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import orjson

from bridle.errors import BridleError, ConfigError
from bridle.messages import ModelRequest
from bridle.protocols.anthropic import Anthropic
from bridle.rendering.template import load_renderer
from bridle.testing.families import FAMILIES, family_of, make_model, templates
from bridle.testing.tekken import make_tekken
from bridle.verify.report import Report, told
from bridle.verify.verify import Recorded, verify

REAL = ("qwen3_5_think", "qwen3_8")
"""Templates that are tried over the real vocabulary too."""

OWN_TEMPLATES = Path("tests/rendering/templates")
"""Templates that no package ships: `family-name.jinja`, where there are some."""

REFUSED = frozenset({"deepseek_r1_distill"})
"""Models that are expected to be refused. Its template writes calls only where the content is none, and drops them
where it is an empty text."""

Outcome = Literal["verified", "refused", "silent"]


class Model(msgspec.Struct, frozen=True):
    """`real`: over the real vocabulary, with an agent's requests."""

    name: str
    template: Path
    real: bool = False


class Result(msgspec.Struct, frozen=True):
    """`reason`: why it was refused, or what was not declared. `report`: None for one that could not be loaded."""

    name: str
    outcome: Outcome
    reason: str
    seconds: float
    report: dict[str, Any] | None


def models(own: Path = OWN_TEMPLATES) -> list[Model]:
    found = {**templates(), **{file.stem: file for file in sorted(own.glob("*.jinja")) if family_of(file.stem)}}
    real = [Model(f"{name} over Tekken, with Claude Code's requests", found[name], real=True) for name in REAL]
    return [*(Model(name, file) for name, file in found.items()), *real]


def verify_model(model: Model, directory: Path, seed: int = 0, short: bool = False) -> Result:
    """`directory`: where the model is made."""
    started = time.monotonic()
    family = family_of(model.template.stem)
    source = model.template.read_text()
    report: Report | None = None
    try:
        if model.real:
            make_tekken(directory, FAMILIES[family], source)
        else:
            make_model(directory, family, source)
        recorded = [claude_code()] if model.real else []
        report = verify(load_renderer(directory), directory, seed=seed, short=short, recorded=recorded)
    except BridleError as error:
        return Result(model.name, "refused", error.message, _since(started), None)
    document = {**report.to_dict(), "model": model.name}
    if not report.ok:
        return Result(model.name, "refused", report.reason(), _since(started), document)
    undeclared = "; ".join(
        f"{row.property}: {told(row.first_difference)}"
        for row in report.rows
        if row.undeclared and row.first_difference is not None
    )
    return Result(model.name, "silent" if undeclared else "verified", undeclared, _since(started), document)


def claude_code() -> Recorded:
    """The calls of Claude Code on a small bug, as they went over the wire, long texts cut."""
    document = orjson.loads((resources.files("bridle.testing") / "recorded/claude_code.json").read_bytes())
    shared = {"system": document["system"], "tools": document["tools"]}
    return Recorded(
        "Claude Code", document["session"], list(_requests(document["requests"], shared, document["target"]))
    )


def _requests(bodies: Sequence[dict[str, Any]], shared: dict[str, Any], target: str) -> Iterator[ModelRequest]:
    protocol = Anthropic()
    for body in bodies:
        yield protocol.parse(orjson.dumps({**body, **shared}), {}, target)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)


def line(result: Result) -> str:
    report = result.report or {}
    facts = report.get("facts", {})
    history = "" if not report else "extended" if facts["extendable"] else "forks"
    calls = "" if not report else "calls" if report["spelling"] else "no calls"
    checks = sum(row["checked"] for row in report.get("rows", ()))
    told = f"  {result.reason[:160]}" if result.reason else ""
    return f"{result.name:48} {result.outcome:9} {history:9} {calls:9} {checks:6} checks {result.seconds:6.1f} s{told}"


def verdict(results: Sequence[Result]) -> str:
    counts = {
        outcome: sum(result.outcome == outcome for result in results) for outcome in ("verified", "refused", "silent")
    }
    return (
        f"models: {counts['verified']} verified, {counts['refused']} refused with a reason, {counts['silent']} silent"
    )


def unexpected(results: Sequence[Result]) -> list[Result]:
    """Those that are not verified and should be."""
    return [one for one in results if one.outcome == "silent" or (one.outcome == "refused" and one.name not in REFUSED)]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=0, show_default=True)
@click.option("--short", is_flag=True, help="The look that a gateway takes at every start.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("build/verify-models.json"))
def main(names: tuple[str, ...], seed: int, short: bool, out: Path) -> None:
    """Verify the models of NAMES (beginnings), or all."""
    chosen = [model for model in models() if not names or model.name.startswith(names)]
    if not chosen:
        raise ConfigError(f"no model begins with {', '.join(names)}")
    results = []
    for model in chosen:
        with tempfile.TemporaryDirectory() as directory:
            results.append(verify_model(model, Path(directory), seed, short))
        click.echo(line(results[-1]))
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {"models": msgspec.to_builtins(results), "verdict": verdict(results)}
    out.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    for result in unexpected(results):
        click.echo(f"{result.name} was to be verified and is {result.outcome}: {result.reason}")
    click.echo(verdict(results))
    sys.exit(1 if unexpected(results) else 0)


if __name__ == "__main__":
    main()
