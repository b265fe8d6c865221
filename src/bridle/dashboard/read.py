"""Dumps to views: the files of a rollout read, and the vocabulary that spells its ids found.

What a rollout delivered (its samples and fidelity record) is shown as it is; of a bare session log they are made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import orjson

from bridle.dashboard.dumps import Dump
from bridle.dashboard.lanes import laned
from bridle.dashboard.view import Known, Parts, RolloutView, from_samples, from_session
from bridle.errors import ConfigError, LogCorrupt
from bridle.samples.fidelity import Fidelity
from bridle.samples.linearize import Options, linearize
from bridle.samples.sample import Sample
from bridle.sessions.codec import decode
from bridle.sessions.session import Session
from bridle.tokens import Vocabulary

T = TypeVar("T")


class View(msgspec.Struct, frozen=True, eq=False):
    """What one page shows. `vocabularies`: those that its rollouts name by place."""

    rollouts: tuple[RolloutView, ...]
    vocabularies: tuple[Vocabulary, ...]


def read(dumps: Iterable[Dump], model: Path | None = None) -> View:
    """`model`: where the vocabulary is taken from; None takes that of each run's settings.

    Raises LogCorrupt for a file that does not check, ConfigError for a model that cannot be read."""
    spellers = Spellers(model)
    rollouts = [rollout for dump in dumps for rollout in _rollouts(dump, spellers)]
    return View(tuple(rollouts), tuple(spellers.found))


class Spellers:
    """Vocabularies by model directory, each loaded once. `found`: those in use, in the order rollouts name them."""

    def __init__(self, model: Path | None) -> None:
        self.model = model
        self.found: list[Vocabulary] = []
        self._loaded: dict[Path, Vocabulary] = {}

    def of(self, dump: Dump, fingerprint: str) -> tuple[int, str]:
        """-> its place in `found` (-1: none), and what people are told where it is none."""
        directory = self.model or _model_of(dump)
        if directory is None:
            return -1, "ids only: no settings.json says which model this was; give it with --model"
        if not (directory / "tokenizer.json").exists() and self.model is None:
            return -1, f"ids only: {directory} holds no tokenizer.json (any more); give the model with --model"
        if directory not in self._loaded:
            self._loaded[directory] = Vocabulary.load(directory)
        vocabulary = self._loaded[directory]
        if fingerprint and not fingerprint.startswith(vocabulary.fingerprint):
            return -1, f"ids only: the tokenizer of {directory} is not the one this was captured with"
        if vocabulary not in self.found:
            self.found.append(vocabulary)
        return self.found.index(vocabulary), ""


def _model_of(dump: Dump) -> Path | None:
    if dump.run is None or not (dump.run / "settings.json").exists():
        return None
    return Path(orjson.loads((dump.run / "settings.json").read_bytes())["model"])


def _rollouts(dump: Dump, spellers: Spellers) -> Iterable[RolloutView]:
    if dump.log is not None:
        yield _from_log(dump, dump.log, spellers)
    elif dump.samples is not None:
        by_rollout: dict[str, list[Sample]] = {}
        for sample in _samples(dump.samples):
            by_rollout.setdefault(sample.rollout_id, []).append(sample)
        for samples in by_rollout.values():
            yield _view(dump, from_samples(samples), samples, _known(dump, samples[0].rollout_id, samples), spellers)


def _from_log(dump: Dump, log: Path, spellers: Spellers) -> RolloutView:
    records = list(decode(log.read_bytes(), str(log)))
    session = Session.replay(records)
    fidelity = None if dump.folder is None else _stored(dump.folder / "fidelity.json", Fidelity)
    if fidelity is None or dump.samples is None:
        result = linearize(session.tree, Options.of(session), session.facts)
        fidelity, samples = result.fidelity, list(result.samples)
    else:
        samples = list(_samples(dump.samples))
    if len(fidelity.turns) != len(session.tree.turns):
        raise LogCorrupt(
            f"{dump.place}: fidelity.json tells of {len(fidelity.turns)} turns, session.log of "
            f"{len(session.tree.turns)}; to see what the log alone says, name a copy of it"
        )
    parts = from_session(session.tree, fidelity, samples, records)
    opened = session.opened
    assert opened is not None
    return _view(dump, parts, samples, _known(dump, session.id, samples), spellers, opened.renderer)


def _view(
    dump: Dump, parts: Parts, samples: Sequence[Sample], known: Known, spellers: Spellers, fingerprint: str = ""
) -> RolloutView:
    vocabulary, notice = spellers.of(dump, fingerprint)
    turns, lanes = laned(parts.turns, by_sample=not parts.timed)
    return RolloutView(
        known=known,
        run=dump.run.name if dump.run is not None else "",
        source=str(dump.place),
        nodes=parts.nodes,
        turns=turns,
        tokens=parts.tokens,
        timed=parts.timed,
        context=sum(len(s.tokens) - sum(turn.end - turn.start for turn in s.turns) for s in samples),
        samples=len(samples),
        lanes=lanes,
        advantage=samples[0].advantage if samples else None,
        vocabulary=vocabulary,
        notice=notice,
    )


def _known(dump: Dump, name: str, samples: Sequence[Sample]) -> Known:
    known = None if dump.folder is None else _stored(dump.folder / "rollout.json", Known)
    if known is not None:
        return known
    if not samples:
        return Known(name or dump.place.name)
    first = samples[0]
    return Known(
        id=name or dump.place.name,
        task=first.task_id,
        group=first.group_id,
        status=first.status,
        cause=first.cause or "",
        reward=first.reward,
        reward_valid=first.reward_valid,
    )


def _stored(path: Path, kind: type[T]) -> T | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise LogCorrupt(f"{path} is not what a rollout leaves there: {error}") from error


def _samples(path: Path) -> Iterable[Sample]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Sample.from_dict(orjson.loads(line))
            except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
                raise ConfigError(f"{path}:{number} is not a sample of schema version 1: {error}") from error
