"""Tasks from a file: one JSON object per line (.jsonl), or one mapping or a list of them (.json, .yaml, .yml).

Every error names the file, the line (the task's number in .json and .yaml), the key, and what was expected there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from bridle.decoding import decode
from bridle.errors import TaskError
from bridle.tasks.base import Task

_FORMATS = (".jsonl", ".json", ".yaml", ".yml")
_FOLDER_FILES = tuple(f"tasks{suffix}" for suffix in _FORMATS)


def load(path: Path) -> list[Task]:
    """`path`: a task file, or a folder that holds tasks.jsonl (or .json, .yaml, .yml). At least one task, ids unique.

    `workspace.path` and `script` are taken relative to the file. Raises TaskError.
    """
    file = _task_file(path)
    tasks: list[Task] = []
    places: dict[str, str] = {}
    for place, row in _rows(file):
        task = _task(row, place, file.parent.resolve())
        if task.id in places:
            raise TaskError(f'{place}: id: "{task.id}" is taken by the task at {places[task.id]}; ids must differ')
        places[task.id] = place
        tasks.append(task)
    if not tasks:
        raise TaskError(f"{file}: no task in it; expected at least one")
    return tasks


def _task_file(path: Path) -> Path:
    if path.is_dir():
        held = [path / name for name in _FOLDER_FILES if (path / name).is_file()]
        if len(held) != 1:
            found = ", ".join(file.name for file in held) or "none"
            raise TaskError(f"{path}: expected exactly one of {', '.join(_FOLDER_FILES)} in this folder, found {found}")
        return held[0]
    if not path.is_file():
        raise TaskError(f"{path}: there is no such task file or folder")
    if path.suffix not in _FORMATS:
        raise TaskError(f'{path}: expected a file that ends in {", ".join(_FORMATS)}, got "{path.suffix}"')
    return path


def _rows(file: Path) -> Iterator[tuple[str, object]]:
    """-> (where, the mapping as read) of every task."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: expected UTF-8 text: {error}") from error
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{file}:{number}", _json(line, f"{file}:{number}")
        return
    held = _json(text, str(file)) if file.suffix == ".json" else _yaml(text, file)
    for number, row in enumerate(held if isinstance(held, list) else [held], start=1):
        yield f"{file}: task {number}", row


def _json(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{place}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error


def _yaml(text: str, file: Path) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TaskError(f"{file}: not YAML: {' '.join(str(error).split())}") from error


def _task(row: object, place: str, folder: Path) -> Task:
    if not isinstance(row, dict):
        raise TaskError(f"{place}: expected one task as an object of keys, got {type(row).__name__}")
    task = decode(row, Task, place, TaskError)
    workspace = _existing(folder, task.workspace.path, f"{place}: workspace.path", folder_wanted=True)
    script = None
    if task.script is not None:
        script = _existing(folder, task.script, f"{place}: script", folder_wanted=False)
    return msgspec.structs.replace(
        task, workspace=msgspec.structs.replace(task.workspace, path=workspace), script=script
    )


def _existing(folder: Path, given: str, place: str, *, folder_wanted: bool) -> str:
    path = (folder / given).resolve()
    if not (path.is_dir() if folder_wanted else path.is_file()):
        raise TaskError(f"{place}: expected a {'folder' if folder_wanted else 'file'}, there is none at {path}")
    return str(path)
