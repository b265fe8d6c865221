"""What this machine has of what Bridle and its agents need. Looks, and changes nothing."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bridle import __version__
from bridle.harnesses import NAMES as HARNESSES
from bridle.registry import resolve
from bridle.sandboxes import NAMES as SANDBOXES, default_sandbox

MINIMUM = (3, 11)
ASK_S = 20


class Fact(msgspec.Struct, frozen=True):
    """`well` None: it is missing, and something else does without it."""

    name: str
    well: bool | None
    detail: str


def facts(cache: Path) -> list[Fact]:
    """`cache`: where agents and models are kept."""
    return [_bridle(), _program("git", needed=True), *_sandboxes(), *_programs(), *_pythons(), *_agents(cache)]


def render(found: list[Fact]) -> list[str]:
    width = max(len(fact.name) for fact in found)
    marks = {True: "ok", False: "NO", None: "-"}
    return [f"{marks[fact.well]:2}  {fact.name:{width}}  {fact.detail}" for fact in found]


def _bridle() -> Fact:
    well = sys.version_info >= MINIMUM and sys.platform == "linux"
    detail = f"{__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Fact("bridle", well, detail if well else f"{detail}; it needs Linux and Python 3.11 or newer")


def _sandboxes() -> Iterator[Fact]:
    for name in SANDBOXES:
        works, why = resolve("sandbox", SANDBOXES, name).available()
        yield Fact(f"sandbox {name}", works or None, why)
    name, why = default_sandbox()
    yield Fact("sandbox by default", True, f"{name}: {why}")


def _programs() -> Iterator[Fact]:
    """npm installs the agents that are npm packages; those that need a Node get one of their own by it."""
    yield _program("npm", needed=False)
    yield _program("node", needed=False)


def _pythons() -> Iterator[Fact]:
    """Some agents need a newer Python than Bridle."""
    for minor in (12, 13):
        yield _program(f"python3.{minor}", needed=False)


def _agents(cache: Path) -> Iterator[Fact]:
    yield Fact("cache", True, str(cache))
    for name in (name for name in HARNESSES if name != "command"):
        versions = sorted(path.name for path in (cache / "harnesses" / name).glob("[!.]*"))
        yield Fact(f"agent {name}", bool(versions) or None, ", ".join(versions) or "not installed yet")


def _program(name: str, *, needed: bool) -> Fact:
    path = shutil.which(name)
    if path is None:
        return Fact(name, False if needed else None, "not on PATH")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=ASK_S)
    said = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode != 0:
        return Fact(name, False if needed else None, f"{path} does not start: {said[0] if said else 'no word'}")
    return Fact(name, True, f"{said[0] if said else ''} ({path})")
