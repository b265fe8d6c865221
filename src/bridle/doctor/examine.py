"""Plays real agents through scenarios and faults: the parts of a run, and the independent checker over each play."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bridle import __version__
from bridle.compose import cache, make_harness, model, services
from bridle.config import EngineChoice, HarnessChoice, Settings
from bridle.doctor.faults import faulty
from bridle.doctor.results import Finding, Missing, Result, Seen, broken, judged
from bridle.doctor.scenarios import Play, Skipped
from bridle.engines.script import Expect, load
from bridle.errors import BridleError
from bridle.rollouts.records import RolloutRecord
from bridle.rollouts.scheduler import Watcher, run_batch
from bridle.samples.check import check
from bridle.samples.fidelity import Fidelity
from bridle.sandboxes import default_sandbox
from bridle.sessions.records import Limits, SessionOptions
from bridle.tasks.base import Spec

TURNS = 60
"""More than any scenario takes: an agent that goes in circles is stopped."""
Tell = Callable[[str], None]


async def examine(plays: Sequence[Play | Skipped], settings: Settings, out: Path, tell: Tell) -> Finding:
    """Every play in a folder of its own below `out`, `settings.concurrency` of them at a time."""
    model(settings)
    ready = [play for play in plays if isinstance(play, Play)]
    missing = await _install(ready, settings, tell)
    absent = {one.agent for one in missing}
    ready = [play for play in ready if play.agent not in absent]
    places = asyncio.Semaphore(settings.concurrency)

    async def in_turn(play: Play) -> Result:
        async with places:
            try:
                result = await perform(play, settings, out / play.name)
            except BridleError as error:
                result = broken(play, error.message)
        tell(_line(result))
        return result

    async with asyncio.TaskGroup() as running:
        tasks = [running.create_task(in_turn(play), name=play.name) for play in ready]
    return Finding(
        bridle=__version__,
        sandbox=settings.sandbox.name or default_sandbox()[0],
        results=tuple(task.result() for task in tasks),
        missing=tuple(missing),
        skipped=tuple(play for play in plays if isinstance(play, Skipped)),
    )


async def perform(play: Play, settings: Settings, directory: Path) -> Result:
    """One rollout behind a proxy that fails one of its model calls, or none."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    own = settled(play, settings, directory)
    started = time.monotonic()
    async with (
        services(own, [play.task], directory, _quietly) as ready,
        faulty(ready.gateway_url, play.fault) as proxy,
    ):
        behind = dataclasses.replace(ready, agents_url=proxy.url)
        (record,) = await run_batch([play.task], 1, 1, directory, behind, Watcher())
    report = await asyncio.to_thread(check, directory)
    fault_came = proxy.fired if play.fault else None
    seconds = time.monotonic() - started
    seen = Seen(record, report, _fidelity(record), fault_came, proxy.calls, seconds)
    return judged(play, make_harness(Spec(play.harness, play.options)).protocol, seen)


def settled(play: Play, settings: Settings, directory: Path) -> Settings:
    """The settings of one play. Its script lies beside what comes of it, with what is expected of this agent."""
    script = directory / "script.json"
    expect = Expect(samples=play.samples or None, reasons=play.reasons)
    said = msgspec.structs.replace(load(play.script), expect=expect)
    script.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=1))
    engine = {"script": str(script), "score": "fake", "context_length": play.context_length}
    session = SessionOptions(limits=Limits(turns=TURNS))
    return msgspec.structs.replace(
        settings,
        engine=EngineChoice("scripted", engine),
        harness=HarnessChoice(play.harness, play.options),
        gateway=msgspec.structs.replace(settings.gateway, abort_grace_s=play.grace_s),
        session=session,
        data=str(directory),
        n=1,
    )


async def _install(plays: Sequence[Play], settings: Settings, tell: Tell) -> list[Missing]:
    """Each agent once, before any plays: what cannot be had here is said, not fatal."""
    missing = []
    for play in {play.agent: play for play in plays}.values():
        harness = make_harness(Spec(play.harness, play.options))
        try:
            await harness.install(cache(settings) / "harnesses", tell)
        except BridleError as error:
            tell(f"{play.agent}: cannot be installed here: {error.message}")
            missing.append(Missing(play.agent, error.message))
    return missing


def _fidelity(record: RolloutRecord) -> Fidelity | None:
    file = Path(record.directory) / "fidelity.json"
    return msgspec.json.decode(file.read_bytes(), type=Fidelity) if file.exists() else None


def _quietly(line: str) -> None:
    """Of the sandbox, which is the same for every play."""


def _line(result: Result) -> str:
    kinds = ", ".join(f"{turns} {kind}" for kind, turns in result.kinds.items()) or "no turns"
    kinds += f" (depth {result.depth})" if result.depth else ""
    head = f"{result.title}: {'ok' if result.ok else 'FELL SHORT'}"
    tokens = f"kept {result.kept} of {result.due} tokens, {result.doubled} doubled, {result.lost} lost"
    line = f"{head}; {kinds}; {result.samples} samples; {tokens}; {result.seconds:.0f} s"
    return "\n    ".join([line, *result.wrong])
