"""`bridle serve`: parts of Bridle as servers."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from bridle.config import Settings


@click.group()
def command() -> None:
    """Serve a part of Bridle over HTTP."""


@command.command()
@click.option("--engine", help="What samples tokens: scripted, transformers, or my.module:Class.")
@click.option("--model", help="A model directory; without one a tiny model is made.")
@click.option("--script", type=click.Path(exists=True, path_type=Path), help="Answers to put into the engine.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.")
@click.option("--control-token", help="Of the control routes; process lists show it, BRIDLE_CONTROL_TOKEN they do not.")
@click.option("--data", help="Where session logs are kept.")
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="Settings as TOML, YAML or JSON.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, for example gateway.ping_s=5.")
def gateway(
    engine: str | None,
    model: str | None,
    script: Path | None,
    host: str | None,
    port: int | None,
    control_token: str | None,
    data: str | None,
    config: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Serve a gateway until interrupted."""
    from bridle.config import load

    flags = {"engine.name": engine, "model": model, "gateway.host": host, "gateway.port": port, "data": data}
    flags |= {"engine.options.script": str(script) if script else None}
    settings = load(config, overrides, flags)
    asyncio.run(_serve(settings, control_token or os.environ.get("BRIDLE_CONTROL_TOKEN") or secrets.token_hex(24)))


async def _serve(settings: Settings, token: str) -> None:
    from bridle.compose import make_engine, make_renderer
    from bridle.gateway.server import serve

    renderer = make_renderer(settings, lambda line: click.echo(line, err=True))
    data = Path(settings.data)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(make_engine(settings, renderer, None, data / "journal.jsonl"))
        gateway = await stack.enter_async_context(serve(settings.gateway, renderer, engine, data, token))
        click.echo(msgspec.json.encode({"url": gateway.url, "control_token": token, "model": settings.gateway.model}))
        await stop.wait()
