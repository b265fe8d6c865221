"""Habits a reviewer would ask for, held by a test: each rule is tried on a planted violation too."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
LIBRARY = sorted((REPOSITORY / "src/bridle").rglob("*.py"))
EVERYTHING = [*LIBRARY, *sorted(REPOSITORY.glob("tests/**/*.py")), *sorted(REPOSITORY.glob("examples/**/*.py"))]

PUBLIC_ALL_THE_SAME = {"_replace", "_exit"}
"""Of named tuples and of `os`."""

Rule = Callable[[ast.Module], Iterator[int]]


def deciding_asserts(tree: ast.Module) -> Iterator[int]:
    """An assert may tell the type checker what is known; `python -O` drops it, so it must not decide anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and not _narrows(node.test):
            yield node.lineno


def _narrows(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.BoolOp(op=ast.And(), values=values):
            return all(map(_narrows, values))
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return False


def classes_per_call(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.ClassDef))


def path_edits(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="path"):
                yield node.lineno


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_ALL_THE_SAME


def reaches(tree: ast.Module) -> Iterator[int]:
    """Uses of private names that were made elsewhere."""
    stored = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    made = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (node.lineno for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in stored | made:
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield from () if of_itself else (node.lineno,)


def found(rule: Rule, files: list[Path]) -> list[str]:
    return [f"{path.relative_to(REPOSITORY)}:{line}" for path in files for line in rule(ast.parse(path.read_text()))]


def test_no_assert_of_the_library_decides_anything() -> None:
    assert found(deciding_asserts, LIBRARY) == []


def test_no_class_of_the_library_is_made_per_call() -> None:
    assert found(classes_per_call, LIBRARY) == []


def test_nothing_edits_the_import_path() -> None:
    assert found(path_edits, EVERYTHING) == []


def test_no_file_reaches_into_the_private_parts_of_another() -> None:
    assert found(reaches, LIBRARY) == []


def test_sessions_of_rollouts_are_made_in_one_public_way() -> None:
    makers = [path.name for path in LIBRARY if path.parent.name == "rollouts" and ".gateway.open(" in path.read_text()]
    assert makers == ["run.py"]


def test_nothing_of_the_library_lives_in_the_examples() -> None:
    """What an example defines is its own: nothing imports from there."""
    others = [path for path in EVERYTHING if path != Path(__file__)]
    assert [path for path in others if "import examples" in path.read_text()] == []


@pytest.mark.parametrize(
    ("rule", "source", "line"),
    [
        (deciding_asserts, "x = 1\nassert x > 0", 2),
        (deciding_asserts, "assert isinstance(x, int) and x", 1),
        (classes_per_call, "def f():\n    class A: ...\n", 2),
        (classes_per_call, "async def f():\n    if x:\n        class A: ...\n", 3),
        (reaches, "gateway._sessions", 1),
        (reaches, "from bridle.x import _y", 1),
        (reaches, "self.gateway._open()", 1),
        (path_edits, "import sys\nsys.path.insert(0, '.')", 2),
    ],
)
def test_each_rule_finds_what_it_is_for(rule: Rule, source: str, line: int) -> None:
    assert list(rule(ast.parse(source))) == [line]


@pytest.mark.parametrize(
    "source", ["assert x is not None", "assert isinstance(x, int)", "assert x is not None and y is not None"]
)
def test_an_assert_may_narrow_a_type(source: str) -> None:
    assert list(deciding_asserts(ast.parse(source))) == []
