"""What a rollout leaves in its folder; the session log lies there already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bridle.exporters.jsonl import JsonlExporter
from bridle.graders.base import Grade
from bridle.graders.patch import Patch
from bridle.rollouts.endings import Status
from bridle.rollouts.records import RolloutRecord
from bridle.samples.credit import Graded, Rule, credited
from bridle.samples.fidelity import Fidelity
from bridle.samples.reduce import Reducer, reduced
from bridle.samples.sample import Sample
from bridle.tasks.base import Task


def build(
    samples: Sequence[Sample], fidelity: Fidelity, grade: Graded, rule: Rule, reduce: Reducer | None
) -> tuple[list[Sample], Fidelity]:
    """What the rollout hands on, each with what it is worth. Raises ReducerFailed, CreditFailed or GraderError."""
    if reduce is not None:
        samples, fidelity = reduced(samples, fidelity, reduce)
    return credited(samples, fidelity, grade, rule), fidelity


def concluded(
    samples: Sequence[Sample], task: Task, rollout_id: str, status: Status, grade: Graded, advantage: float | None
) -> list[Sample]:
    """The samples with whose they are and how the rollout ended. One that was cut stays so."""
    return [
        msgspec.structs.replace(
            sample,
            task_id=task.id,
            group_id=task.id,
            rollout_id=rollout_id,
            status=sample.status if status == "completed" else status,
            cause=grade.cause,
            advantage=advantage,
        )
        for sample in samples
    ]


def keep_patch(directory: Path, patch: Patch) -> None:
    """The patch as git takes it, and beside it what it changes and what is not in it."""
    (directory / "patch.diff").write_bytes(patch.data)
    facts = msgspec.structs.asdict(patch)
    del facts["data"]
    _write_json(directory / "patch.json", facts)


def deliver(
    directory: Path, samples: Sequence[Sample], fidelity: Fidelity | None, grade: Grade | None, record: RolloutRecord
) -> None:
    """The record comes last: where it lies, the rest lies too."""
    if fidelity is not None:
        JsonlExporter().write(samples, directory / "samples.jsonl")
        _write_json(directory / "fidelity.json", fidelity)
    if grade is not None:
        _write_json(directory / "grade.json", grade)
    _write_json(directory / "rollout.json", record.summary())


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    partial.replace(path)
