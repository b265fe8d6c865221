from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridle.errors import TaskError
from bridle.tasks.base import PROTECTED, Budgets, Spec, Workspace
from bridle.tasks.jsonl import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    (tmp_path / "script.yaml").write_text("threads: []\n")
    return tmp_path


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "one", "instruction": "do", "workspace": {"path": "repo"}, "grader": {"name": "command"}, **changes}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in row().items() if name != key}


def written(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


def test_a_task_is_read_with_its_paths_made_absolute(folder: Path) -> None:
    (task,) = load(written(folder / "tasks.jsonl", row(script="script.yaml", budgets={"agent_s": 5})))
    assert task.workspace == Workspace(str(folder / "repo"))
    assert task.script == str(folder / "script.yaml")
    assert task.budgets == Budgets(agent_s=5.0)
    assert task.protected == PROTECTED
    assert (task.grader, task.harness) == (Spec("command"), None)


def test_every_format_gives_the_same_tasks(folder: Path) -> None:
    rows = [row(), row(id="two", harness={"name": "command", "options": {"argv": ["x"]}}, metadata={"k": [1]})]
    lines = load(written(folder / "a.jsonl", *rows))
    (folder / "a.json").write_text(json.dumps(rows, indent=1))
    (folder / "a.yaml").write_text(yaml.safe_dump(rows))
    assert load(folder / "a.json") == load(folder / "a.yaml") == lines
    (folder / "one.yml").write_text(yaml.safe_dump(rows[0]))
    assert load(folder / "one.yml") == lines[:1]


def test_a_folder_stands_for_the_task_file_in_it(folder: Path) -> None:
    written(folder / "tasks.jsonl", row())
    assert [task.id for task in load(folder)] == ["one"]
    (folder / "tasks.yaml").write_text("[]")
    with pytest.raises(TaskError, match=r"exactly one of tasks\.jsonl.* found tasks\.jsonl, tasks\.yaml"):
        load(folder)


def test_blank_lines_are_no_tasks_and_line_separators_in_texts_are_no_lines(folder: Path) -> None:
    file = folder / "tasks.jsonl"
    line = json.dumps(row(instruction="a\u2028b\x85c"), ensure_ascii=False)
    file.write_text(f"\n{line}\r\n\n", encoding="utf-8")
    assert load(file)[0].instruction == "a\u2028b\x85c"


BROKEN: dict[str, tuple[Any, str]] = {
    "a misspelt key": (
        row(instructions="x"),
        r':2: instructions: unknown key "instructions": did you mean "instruction"\? There are: budgets, follow_ups',
    ),
    "a misspelt key inside": (
        row(budgets={"agents_s": 3}),
        r':2: budgets\.agents_s: unknown key "agents_s": did you mean "agent_s"\?',
    ),
    "a foreign key": (
        row(grader={"name": "x", "qqq": 1}),
        r':2: grader\.qqq: unknown key "qqq": There are: name, options',
    ),
    "a missing key": (without("id"), r":2: id: missing, and required. There are: id, instruction, workspace, grader"),
    "a missing key inside": (row(grader={}), r":2: grader\.name: missing, and required. There are: name, options"),
    "a wrong type": (row(budgets={"agent_s": "x"}), r":2: budgets\.agent_s: expected `float`, got `str`"),
    "a wrong type in a list": (row(protected=["a", 3]), r":2: protected\[1\]: expected `str`, got `int`"),
    "text instead of a spec": (row(grader="command"), r":2: grader: expected `object`, got `str`"),
    "a wrong choice": (
        row(workspace={"path": "repo", "history": "old"}),
        r":2: workspace\.history: expected one of fresh, kept, none, got 'old'",
    ),
    "a value out of range": (row(budgets={"agent_s": 0}), r":2: budgets: agent_s: expected seconds above 0"),
    "an unfit id": (row(id="a/b"), r":2: id: expected letters"),
    "an empty instruction": (row(instruction=""), r":2: instruction: expected what the agent shall do"),
    "no workspace": (row(workspace={"path": "nowhere"}), r":2: workspace\.path: expected a folder, there is none at /"),
    "a file as workspace": (row(workspace={"path": "script.yaml"}), r":2: workspace\.path: expected a folder"),
    "no script": (row(script="nowhere.yaml"), r":2: script: expected a file, there is none at /"),
    "no object": ([1, 2], r":2: expected one task as an object of keys, got list"),
    "a repeated id": (row(id="first"), r':2: id: "first" is taken by the task at .*tasks\.jsonl:1'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_names_file_line_key_and_what_was_expected(name: str, folder: Path) -> None:
    broken, message = BROKEN[name]
    file = written(folder / "tasks.jsonl", row(id="first"), broken)
    with pytest.raises(TaskError, match=f"^{file}{message}"):
        load(file)


def test_a_line_that_is_no_json_is_named(folder: Path) -> None:
    file = written(folder / "tasks.jsonl", row())
    file.write_text(file.read_text() + '{"id": "two",}\n')
    with pytest.raises(TaskError, match=r"tasks\.jsonl:2: not JSON: .* column"):
        load(file)


def test_files_that_hold_no_tasks_are_refused(folder: Path) -> None:
    for name, text, message in (
        ("a.jsonl", "\n", "no task in it; expected at least one"),
        ("a.json", "[]", "no task in it"),
        ("a.json", "{", "not JSON: .* at line 1"),
        ("a.yaml", "a: [", "not YAML: .* line"),
        ("a.yaml", "", "task 1: expected one task as an object"),
        ("a.txt", "x", r'expected a file that ends in \.jsonl, .* got "\.txt"'),
    ):
        (folder / name).write_text(text)
        with pytest.raises(TaskError, match=message):
            load(folder / name)
    (folder / "a.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(TaskError, match="expected UTF-8"):
        load(folder / "a.jsonl")
    with pytest.raises(TaskError, match="no such task file"):
        load(folder / "nowhere.jsonl")
    with pytest.raises(TaskError, match="found none"):
        load(folder / "repo")
