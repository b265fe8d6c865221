"""What a path names: a run, a rollout's folder, a session log or a file of samples; and the rollouts in it."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bridle.errors import ConfigError
from bridle.sessions.codec import MAGIC

EXPECTED = (
    "expected a run (a folder with rollouts/), a rollout's folder (with session.log or samples.jsonl), "
    "a session log or a file of samples (.jsonl)"
)


class Dump(msgspec.Struct, frozen=True):
    """One place rollouts are read from. `log`, `samples`: its files, None where there is none. `folder`: a rollout's
    own, with what else is known of it; None for a file that was given alone."""

    log: Path | None = None
    samples: Path | None = None
    folder: Path | None = None

    @property
    def place(self) -> Path:
        found = self.folder or self.log or self.samples
        assert found is not None
        return found

    @property
    def run(self) -> Path | None:
        """The folder of the run it belongs to, where it lies in one."""
        if self.folder is not None and self.folder.parent.name == "rollouts":
            return self.folder.parent.parent
        return None


def find(named: Iterable[str]) -> list[Dump]:
    """`named`: paths and globs ("**" for any depth). Of a glob, what is no dump is left out. Each is read once.

    Raises ConfigError for one that leads to nothing."""
    found: dict[Path, Dump] = {}
    for name in named:
        for dump in _named(name):
            found.setdefault(dump.place.resolve(), dump)
    return list(found.values())


def _named(name: str) -> list[Dump]:
    if Path(name).exists():
        dumps = dumps_in(Path(name))
        if not dumps:
            raise ConfigError(f"nothing to show in {name}: {EXPECTED}")
        return dumps
    if not glob.has_magic(name):
        raise ConfigError(f"{name} does not exist; {EXPECTED}, or a glob of such")
    matches = sorted(glob.glob(name, recursive=True))
    dumps = [dump for match in matches for dump in dumps_in(Path(match))]
    if not dumps:
        raise ConfigError(f"the glob {name} matches {len(matches)} paths, none of which is a dump; {EXPECTED}")
    return dumps


def dumps_in(path: Path) -> list[Dump]:
    if path.is_dir():
        folders = sorted(path.glob("rollouts/*")) if (path / "rollouts").is_dir() else [path]
        return [dump for folder in folders if (dump := _folder(folder)) is not None]
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return [_folder(path.parent) or Dump(log=path)] if path.name == "session.log" else [Dump(log=path)]
    return [Dump(samples=path)] if path.suffix == ".jsonl" and path.name != "journal.jsonl" else []


def _folder(folder: Path) -> Dump | None:
    log, samples = folder / "session.log", folder / "samples.jsonl"
    if not log.exists() and not samples.exists():
        return None
    return Dump(log if log.exists() else None, samples if samples.exists() else None, folder)
