"""A run of rollouts as `bridle run` makes it: tasks from files, parts from settings, what came of it in a folder."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from bridle.cli.report import progress, summarize
from bridle.compose import model, services
from bridle.config import Settings
from bridle.errors import ConfigError
from bridle.rollouts.records import RolloutRecord, totals
from bridle.rollouts.scheduler import run_batch
from bridle.samples.check import Report, check
from bridle.tasks import jsonl
from bridle.tasks.base import Task

INTERRUPTED = 130
"""Exit code, as a shell gives it to what Ctrl-C ended."""


def run(settings: Settings, tasks: list[Task], directory: Path, as_json: bool) -> list[RolloutRecord]:
    if (directory / "rollouts").exists():
        raise ConfigError(f"{directory} holds a run already; choose another --out")
    records = _records(settings, tasks, directory)
    report = check(directory) if (directory / "journal.jsonl").exists() else None
    document = json.dumps(_document(records, report, directory), indent=1)
    (directory / "run.json").write_text(document + "\n")
    if as_json:
        click.echo(document)
    else:
        summarize(records, report, directory)
    return records


def select(files: Sequence[Path], only: Sequence[str]) -> list[Task]:
    """The tasks of all files, or those of them that are named."""
    tasks = [task for file in files for task in jsonl.load(file)]
    known = {task.id: task for task in tasks}
    if len(known) != len(tasks):
        raise ConfigError("two of the files hold a task of the same id; run them apart")
    if missing := [name for name in only if name not in known]:
        raise ConfigError(f"no task {', '.join(missing)}; there are: {', '.join(known)}")
    return [task for task in tasks if not only or task.id in only]


def new_directory(data: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = {path.name for path in data.glob("runs/*")}
    names = (stamp if not count else f"{stamp}-{count}" for count in range(1000))
    return data / "runs" / next(name for name in names if name not in taken)


def _records(settings: Settings, tasks: list[Task], directory: Path) -> list[RolloutRecord]:
    try:
        return asyncio.run(_batch(settings, tasks, directory))
    except (KeyboardInterrupt, asyncio.CancelledError):
        captured = any(directory.glob("rollouts/*/rollout.json"))
        hint = f"what was captured lies in {directory}: bridle show {directory}" if captured else "nothing was captured"
        click.echo(f"interrupted; {hint}", err=True)
        sys.exit(INTERRUPTED)


async def _batch(settings: Settings, tasks: list[Task], directory: Path) -> list[RolloutRecord]:
    batch = asyncio.current_task()
    assert batch is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, batch.cancel)
    with progress(len(tasks) * settings.n) as watcher:
        async with services(settings, tasks, directory, watcher.note) as ready:
            used = msgspec.structs.replace(settings, model=str(model(settings).absolute()))
            (directory / "settings.json").write_bytes(msgspec.json.format(msgspec.json.encode(used), indent=1) + b"\n")
            return await run_batch(tasks, settings.n, settings.concurrency, directory, ready, watcher)


def _document(records: list[RolloutRecord], report: Report | None, directory: Path) -> dict[str, Any]:
    return {
        "rollouts": [record.summary() for record in records],
        "totals": totals(records),
        "check": report.to_dict() if report else None,
        "directory": str(directory),
    }
