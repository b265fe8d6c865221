"""Import direction, purity, heavy imports, cycles, names and sizes, read from the source; nothing here is imported.

Every rule is run over the package and over small trees with one planted violation: a rule that cannot fail is a defect.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import bridle

SOURCE = Path(bridle.__file__).parent

# What a family (or a module named apart) may import: itself, what its row lists, and what those may import in turn.
# `errors`, `registry` and `decoding` are open to all. `lifetimes` is for what opens things, so from the drivers on.
# A module named apart may import its own row alone, not the rest of its family, so that who imports it gets no more.
FOUNDATION = ("errors", "messages", "tokens", "extras", "registry", "decoding", "lifetimes", "http")
OPEN = {"errors", "registry", "decoding"}
ROWS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FOUNDATION, ()),
    "protocols": ("messages",),
    "rendering": ("messages", "tokens"),
    "sessions": ("messages", "tokens", "extras"),
    "samples": ("sessions", "tokens"),
    "engines": ("messages", "tokens", "extras", "http", "lifetimes"),
    "sandboxes": ("lifetimes", "http"),
    "exporters": ("samples", "sessions"),
    "gateway.client": ("http", "sessions"),
    # What a prompt is made of and what a stop text cuts: pure, and what `verify` plays conversations with.
    "gateway.prompt": ("rendering", "sessions"),
    "gateway.stops": ("rendering",),
    # `samples`: finishing a session answers with its samples and fidelity record.
    "gateway": ("protocols", "rendering", "sessions", "engines", "samples", "lifetimes"),
    "verify": ("gateway.prompt", "gateway.stops", "samples", "engines"),
    "harnesses": ("messages", "sandboxes"),
    "tasks": ("messages",),
    "graders": ("sandboxes", "tasks"),
    "rollouts.client": ("http", "samples"),
    "rollouts": ("gateway.client", "harnesses", "tasks", "graders", "samples", "exporters"),
    "cluster": ("rollouts",),
    "trainers": ("rollouts.client", "samples"),
    "dashboard": ("rollouts.client", "sessions", "samples"),
}
ROWS["config"] = tuple(ROWS)
ROWS["compose"] = tuple(ROWS)
ROWS["doctor"] = tuple(ROWS)
ROWS["cli"] = tuple(ROWS)
ROWS["testing"] = tuple(ROWS)

PURE = {"errors", "messages", "tokens", "extras", "protocols", "rendering", "sessions", "samples"}
IMPURE = {
    *(
        "asyncio",
        "concurrent",
        "threading",
        "subprocess",
        "socket",
        "socketserver",
        "select",
        "selectors",
        "ssl",
        "time",
    ),
    *("http", "urllib3", "requests", "httpx", "httpx2", "aiohttp", "uvicorn", "uvloop", "starlette", "websockets"),
    *("anthropic", "openai"),
}
HEAVY = {"torch", "transformers", "ray", "e2b", "trl", "verl", "slime", "vllm", "sglang"}
VAGUE = {"utils", "util", "common", "core", "helpers", "helper", "manager", "managers", "v2", "legacy"}
LONGEST = 500
"""Lines of a source file."""


@dataclass(frozen=True)
class Import:
    """`target`: the dotted name as imported. `lazy`: inside a function. `typing_only`: under `if TYPE_CHECKING`."""

    target: str
    line: int
    lazy: bool
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """`name` is dotted and without the package's own: "gateway.client", "gateway" for the family's __init__."""

    name: str
    path: Path
    imports: tuple[Import, ...]


@dataclass(frozen=True)
class Package:
    root: Path
    modules: dict[str, Module]

    def internal(self, module: Module) -> Iterator[tuple[Import, str]]:
        """Imports of the package's own modules, each with the name of the module that it loads."""
        for found in module.imports:
            parts = found.target.split(".")
            if parts[0] == self.root.name:
                name = ".".join(parts[1:])
                yield found, name if name in self.modules else ".".join(parts[1:-1])


def read(root: Path) -> Package:
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        package = (root.name, *parts[:-1])
        modules[name] = Module(name, path, tuple(imports(ast.parse(path.read_text()), package)))
    return Package(root, modules)


def imports(tree: ast.AST, package: tuple[str, ...], lazy: bool = False, typing_only: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(f"{origin}.{alias.name}", node.lineno, lazy, typing_only) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.body:
                yield from imports(ast.Module([inner], []), package, lazy, True)
            yield from imports(ast.Module(node.orelse, []), package, lazy, typing_only)
        else:
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, package, inside, typing_only)


def row_of(name: str) -> str:
    """-> the row a module belongs to: its own, if it is named apart, else its family's."""
    return name if name in ROWS else name.partition(".")[0]


def reachable(row: str) -> set[str]:
    found, waiting = {row, *OPEN}, [row]
    while waiting:
        for other in ROWS[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


# The rules: each -> one line per violation


def direction(package: Package) -> list[str]:
    wrong = []
    for module in package.modules.values():
        row = row_of(module.name)
        if module.name and row not in ROWS:
            wrong.append(f"{module.name}: the family {row!r} has no row in tests/test_layers.py")
            continue
        for found, name in package.internal(module):
            target = row_of(name)
            if name and target not in (reachable(row) if module.name else ()) and name.partition(".")[0] != row:
                wrong.append(f"{module.name or '__init__'}:{found.line} imports {name}")
    return wrong


def apart(package: Package) -> list[str]:
    """A module named apart is loaded together with its family's __init__, which must therefore load nothing."""
    families = {row.partition(".")[0] for row in ROWS if "." in row}
    inits = [package.modules[family] for family in families if family in package.modules]
    return [
        f"{init.name}/__init__:{found.line} imports {name}" for init in inits for found, name in package.internal(init)
    ]


def purity(package: Package) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for module in package.modules.values()
        if module.name.partition(".")[0] in PURE
        for found in module.imports
        if found.target.partition(".")[0] in IMPURE or found.target.startswith("urllib.request")
    ]


def heavy(package: Package) -> list[str]:
    """A heavy package is imported in one file; a file that loads one when it is loaded is itself imported lazily."""
    users: dict[str, set[str]] = {}
    for module in package.modules.values():
        for found in module.imports:
            if (top := found.target.partition(".")[0]) in HEAVY:
                users.setdefault(top, set()).add(module.name)
    wrong = [f"{top} is imported in {', '.join(sorted(names))}" for top, names in users.items() if len(names) > 1]
    loaded_with = heavy_when_loaded(package)
    for module in package.modules.values():
        for found, name in package.internal(module):
            if name in loaded_with and not found.lazy and not found.typing_only:
                wrong.append(f"{module.name}:{found.line} loads {name}, which loads a heavy package")
    return wrong


def heavy_when_loaded(package: Package) -> set[str]:
    return {
        module.name
        for module in package.modules.values()
        for found in module.imports
        if found.target.partition(".")[0] in HEAVY and not found.lazy and not found.typing_only
    }


def cycles(package: Package) -> list[str]:
    graph = {
        module.name: {name for _, name in package.internal(module) if name and name != module.name}
        for module in package.modules.values()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def only_testing_imports_testing(package: Package) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {name}"
        for module in package.modules.values()
        for found, name in package.internal(module)
        if name.partition(".")[0] == "testing" and module.name.partition(".")[0] != "testing"
    ]


def independent_checker(package: Package) -> list[str]:
    """The checker shares no code with what it checks."""
    checker = package.modules.get("samples.check")
    found = package.internal(checker) if checker else ()
    return [f"samples.check:{found.line} imports {name}" for found, name in found if name != "errors"]


def dynamic_imports(package: Package) -> list[str]:
    """The registry imports by name, and the command line its verbs; elsewhere it would pass every rule here unseen."""
    return [
        f"{module.name} imports by name"
        for module in package.modules.values()
        if module.name not in ("registry", "cli.main")
        and any(word in module.path.read_text() for word in ("import_module(", "__import__("))
    ]


def names(package: Package) -> list[str]:
    paths = [path.relative_to(package.root) for path in package.root.rglob("*") if "__pycache__" not in path.parts]
    return [f"{path} says nothing of what it is" for path in paths if VAGUE & set(path.stem.lower().split("_"))]


def sizes(package: Package) -> list[str]:
    lengths = {module.path: len(module.path.read_text().splitlines()) for module in package.modules.values()}
    return [f"{path.relative_to(package.root)} has {n} lines" for path, n in lengths.items() if n > LONGEST]


Rule = Callable[[Package], list[str]]
RULES: tuple[Rule, ...] = (
    *(
        direction,
        apart,
        purity,
        heavy,
        cycles,
        only_testing_imports_testing,
        independent_checker,
        dynamic_imports,
        names,
        sizes,
    ),
)


def undeclared_and_unused(package: Package, pyproject: str) -> tuple[set[str], set[str]]:
    """-> packages that are imported but not declared, and those declared (tests' aside) but never imported."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    chosen = [line for name, lines in extras.items() if name != "test" for line in lines]
    wanted = [*project["dependencies"], *chosen]
    declared = {plain(re.split(r"[\[<>=]", line)[0]) for line in wanted}
    tops = {found.target.partition(".")[0] for module in package.modules.values() for found in module.imports}
    providers = importlib.metadata.packages_distributions()
    used = {
        frozenset(plain(name) for name in providers.get(top, [top]))
        for top in tops - sys.stdlib_module_names - {package.root.name}
    }
    undeclared = {min(names) for names in used if not names & declared}
    return undeclared, declared - {name for names in used for name in names}


def plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def named(rule: object) -> str | None:
    return rule.__name__ if callable(rule) else None


# The package, and trees with planted violations


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert rule(read(SOURCE)) == []


def test_every_family_of_the_package_has_a_row() -> None:
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= set(ROWS)


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    pyproject = (SOURCE.parent.parent / "pyproject.toml").read_text()
    assert undeclared_and_unused(read(SOURCE), pyproject) == (set(), set())


def test_heavy_packages_are_not_loaded_by_importing_everything_else() -> None:
    package = read(SOURCE)
    light = [f"{SOURCE.name}.{name}" for name in package.modules if name and name not in heavy_when_loaded(package)]
    code = (
        "import importlib, json, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


CLEAN = {
    "__init__.py": "__version__ = '1'\n",
    "errors.py": "import logging\n",
    "messages.py": "import msgspec\n",
    "http.py": "import aiohttp\nfrom bridle.errors import BridleError\n",
    "lifetimes.py": "import asyncio\n",
    "registry.py": "import importlib\nimportlib.import_module('x')\n",
    "sessions/__init__.py": "",
    "sessions/tree.py": "from bridle.messages import Message\nimport urllib.parse\n",
    "samples/__init__.py": "",
    "samples/check.py": "import json\nfrom bridle.errors import LogCorrupt\n",
    "samples/linearize.py": "from bridle.sessions.tree import Tree\nfrom bridle.messages import Message\n",
    "engines/__init__.py": "NAMES = {'transformers': 'bridle.engines.transformers:Engine'}\n",
    "engines/transformers.py": "import torch\nfrom bridle.errors import EngineError\n",
    "engines/score.py": "def f():\n    from bridle.engines.transformers import Engine\n",
    "gateway/__init__.py": "",
    "gateway/app.py": "import asyncio\nfrom bridle.sessions import tree\nfrom bridle.gateway import client\n",
    "gateway/client.py": "from bridle.http import Client\n",
    "rollouts/run.py": "from bridle.gateway.client import Gateway\nfrom bridle import __version__\n",
    "testing/engines.py": "from bridle.engines.score import f\n",
    "cli/main.py": "from bridle.rollouts.run import run\nfrom bridle.gateway.app import app\n",
}

PLANTED = [
    (direction, "sessions/tree.py", "from bridle.http import Client", "sessions.tree:1 imports http"),
    (direction, "sessions/tree.py", "from bridle import http", "sessions.tree:1 imports http"),
    (direction, "sessions/tree.py", "import bridle.samples.linearize", "sessions.tree:1 imports samples.linearize"),
    (
        direction,
        "sessions/tree.py",
        "def f():\n    from ..engines import score",
        "sessions.tree:2 imports engines.score",
    ),
    (direction, "engines/score.py", "from bridle.gateway.app import app", "engines.score:1 imports gateway.app"),
    (direction, "rollouts/run.py", "from bridle.gateway.app import app", "rollouts.run:1 imports gateway.app"),
    (direction, "rollouts/run.py", "from bridle.gateway import app", "rollouts.run:1 imports gateway.app"),
    (direction, "rollouts/run.py", "from bridle.engines import score", "rollouts.run:1 imports engines.score"),
    (direction, "gateway/client.py", "from bridle.gateway.app import app", "gateway.client:1 imports gateway.app"),
    (direction, "sandboxes/local.py", "from bridle.messages import Tool", "sandboxes.local:1 imports messages"),
    (direction, "messages.py", "from bridle.sessions.tree import Tree", "messages:1 imports sessions.tree"),
    (direction, "__init__.py", "from bridle.messages import Message", "__init__:1 imports messages"),
    (direction, "stuff/x.py", "", "stuff.x: the family 'stuff' has no row"),
    (
        direction,
        "sessions/tree.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bridle.http import Client",
        "sessions.tree:3 imports http",
    ),
    (apart, "gateway/__init__.py", "from bridle.gateway.app import app", "gateway/__init__:1 imports gateway.app"),
    (purity, "sessions/tree.py", "import asyncio", "sessions.tree:1 imports asyncio"),
    (
        purity,
        "samples/linearize.py",
        "def f():\n    from time import monotonic",
        "samples.linearize:2 imports time.monotonic",
    ),
    (purity, "protocols/x.py", "import aiohttp.web", "protocols.x:1 imports aiohttp.web"),
    (purity, "rendering/x.py", "from urllib import request", "rendering.x:1 imports urllib.request"),
    (purity, "messages.py", "import socket", "messages:1 imports socket"),
    (heavy, "samples/audit.py", "import torch", "torch is imported in engines.transformers, samples.audit"),
    (
        heavy,
        "gateway/app.py",
        "def f():\n    import torch.nn",
        "torch is imported in engines.transformers, gateway.app",
    ),
    (
        heavy,
        "gateway/app.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "torch is imported in engines.transformers, gateway.app",
    ),
    (
        heavy,
        "engines/score.py",
        "from bridle.engines.transformers import Engine",
        "engines.score:1 loads engines.transformers",
    ),
    (heavy, "engines/score.py", "class A:\n    from bridle.engines import transformers", "engines.score:2 loads"),
    (cycles, "messages.py", "def f():\n    from bridle.sessions.tree import Tree", "messages"),
    (cycles, "errors.py", "from bridle.http import Client", "http"),
    (
        only_testing_imports_testing,
        "cli/main.py",
        "from bridle.testing.engines import Fake",
        "cli.main:1 imports testing.engines",
    ),
    (independent_checker, "samples/check.py", "from bridle.samples.linearize import x", "samples.check:1 imports"),
    (independent_checker, "samples/check.py", "def f():\n    import bridle.sessions.tree", "samples.check:2 imports"),
    (
        dynamic_imports,
        "engines/score.py",
        "import importlib\nimportlib.import_module('torch')",
        "engines.score imports by name",
    ),
    (names, "gateway/utils.py", "", "gateway/utils.py"),
    (names, "core/x.py", "", "core says nothing"),
    (names, "gateway/session_manager.py", "", "gateway/session_manager.py"),
    (names, "gateway/v2/app.py", "", "gateway/v2 says"),
    (sizes, "gateway/app.py", "x = 1\n" * 501, "gateway/app.py has 501 lines"),
]


def plant(where: Path, files: dict[str, str]) -> Package:
    root = where / "bridle"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return read(root)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_a_clean_tree_keeps_the_rule(rule: Rule, tmp_path: Path) -> None:
    assert rule(plant(tmp_path, CLEAN)) == []


def test_an_undeclared_and_an_unused_package_are_found(tmp_path: Path) -> None:
    pyproject = """[project]
        dependencies = ["aiohttp>=3,<4", "msgspec[yaml]<1", "pyyaml>=6"]
        optional-dependencies = {local = ["torch>=2"], fast = []}"""
    assert undeclared_and_unused(plant(tmp_path, CLEAN), pyproject) == (set(), {"pyyaml"})
    tree = plant(tmp_path, {"gateway/app.py": "import yaml\nimport orjson\nimport os.path"})
    assert undeclared_and_unused(tree, pyproject) == ({"orjson"}, set())


@pytest.mark.parametrize(("rule", "file", "text", "said"), PLANTED, ids=named)
def test_a_planted_violation_breaks_the_rule(rule: Rule, file: str, text: str, said: str, tmp_path: Path) -> None:
    found = rule(plant(tmp_path, {**CLEAN, file: text}))
    assert len(found) == 1, found
    assert said in found[0]


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, *_ in PLANTED} == set(RULES)
