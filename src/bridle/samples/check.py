"""The independent checker: what an engine says it sampled, against what the samples of a run say.

Shares no code with what builds samples, readers of files included, and imports nothing of Bridle but an error class. An
engine's journal knows nothing of trees or branches, so what both agree on is so. Every percentage shown to people comes
from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from bridle.errors import LogCorrupt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

FINDINGS_SHOWN = 20


@dataclass(frozen=True)
class Generation:
    """A line of the journal. `logprobs` None: the engine scored nothing. `kind` None: no script told the true one."""

    rid: str
    prompt: Ids
    output: Ids
    logprobs: Floats | None
    kind: str | None
    aborted: bool
    forced: bool


@dataclass(frozen=True)
class Row:
    """A sample as written. `explained`: positions that belong to a draw it lists and the journal knows."""

    name: str
    tokens: Ids
    mask: Flags
    logprobs: Floats
    turns: list[tuple[int, int, str, str]]
    explained: Flags


@dataclass(frozen=True)
class Place:
    row: Row
    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Run:
    """`turns`: the fidelity records by turn id, which is the engine's request id. `samples`: rows by session."""

    rows: list[Row]
    turns: Mapping[str, Mapping[str, Any]]
    samples: Mapping[str, int]
    places: Mapping[str, list[Place]]


@dataclass
class Report:
    """In tokens, but for `generations`, `kinds_wrong` (turns) and `samples` (rows by session).

    kept: trained, or forced and in place. untrained: by reason, forced ones not among them. excused: untrained under a
    reason that is permitted. lost: neither kept nor under a reason. altered: listed, but another id stands there.
    displaced: listed behind other ids than it was sampled behind. doubled: accounted for again. misplaced: mask 1 where
    nothing was sampled. sampled = kept + untrained + lost + altered + displaced."""

    generations: int = 0
    sampled: int = 0
    trained: int = 0
    forced: int = 0
    untrained: dict[str, int] = field(default_factory=dict)
    excused: int = 0
    lost: int = 0
    altered: int = 0
    displaced: int = 0
    doubled: int = 0
    misplaced: int = 0
    logprob_mismatches: int = 0
    kinds_wrong: int = 0
    not_permitted: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    expected_samples: int | None = None
    findings: list[str] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return self.trained + self.forced

    @property
    def kept_percent(self) -> float | None:
        """Of what was to be kept: all sampled tokens but the excused ones. None when that is nothing."""
        due = self.sampled - self.excused
        return 100.0 * self.kept / due if due else None

    @property
    def wrong_sample_counts(self) -> dict[str, int]:
        if self.expected_samples is None:
            return {}
        return {session: count for session, count in self.samples.items() if count != self.expected_samples}

    @property
    def ok(self) -> bool:
        wrong = (self.lost, self.altered, self.displaced, self.doubled, self.misplaced, self.logprob_mismatches)
        return not (
            self.sampled == 0 or any(wrong) or self.kinds_wrong or self.not_permitted or self.wrong_sample_counts
        )

    def find(self, finding: str) -> None:
        self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "kept": self.kept,
            "kept_percent": self.kept_percent,
            "wrong_sample_counts": self.wrong_sample_counts,
            "ok": self.ok,
        }


def check(directory: Path) -> Report:
    """`directory` holds `journal.jsonl` and `rollouts/*/samples.jsonl` with `fidelity.json` beside them.

    Raises LogCorrupt with file and line for what cannot be read."""
    journal = directory / "journal.jsonl"
    run = read_run(directory / "rollouts")
    expect = read_expectation(journal)
    report = Report(samples=dict(run.samples), expected_samples=expect.get("samples"))
    for generation in read_journal(journal):
        _judge(generation, run, expect.get("reasons"), report)
    for row in run.rows:
        _check_unmasked(row, report)
    if strays := [row for row in run.rows if (row.mask & ~row.explained).any()]:
        _judge_strays(strays, journal, report)
    for session, count in report.wrong_sample_counts.items():
        report.find(f"{session}: {count} samples, {report.expected_samples} expected")
    return report


def render(report: Report) -> list[str]:
    """Lines for people."""
    percent = "nothing was to be kept" if report.kept_percent is None else f"{report.kept_percent:.1f} %"
    lines = [
        f"sampled {report.sampled} tokens in {report.generations} generations, "
        f"{sum(report.samples.values())} samples of {len(report.samples)} sessions",
        f"kept {report.kept} of {report.sampled - report.excused} ({percent}): {report.trained} trained, "
        f"{report.forced} forced",
        f"untrained: {_counts(report.untrained)}",
        f"doubled {report.doubled}, lost {report.lost}, altered {report.altered}, displaced {report.displaced}, "
        f"misplaced {report.misplaced}, logprobs wrong {report.logprob_mismatches}, kinds wrong {report.kinds_wrong}",
    ]
    if report.expected_samples is not None:
        wrong = len(report.wrong_sample_counts)
        lines.append(f"samples per session: {report.expected_samples} expected, {wrong} sessions differ")
    if report.not_permitted:
        lines.append(f"reasons the script does not permit: {_counts(report.not_permitted)}")
    lines += [f"  {finding}" for finding in report.findings[:FINDINGS_SHOWN]]
    if len(report.findings) > FINDINGS_SHOWN:
        lines.append(f"  and {len(report.findings) - FINDINGS_SHOWN} more")
    return [*lines, f"check: {'ok' if report.ok else 'FAILED'}"]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _judge(generation: Generation, run: Run, permitted: Collection[str] | None, report: Report) -> None:
    """Every token of one generation comes to exactly one end."""
    turn = run.turns.get(generation.rid, {})
    places = run.places.get(generation.rid, [])
    forced = generation.forced and turn.get("reason") == "forced"
    times = np.zeros(len(generation.output), np.int64)
    right, altered, displaced = (np.zeros(len(generation.output), bool) for _ in range(3))
    for place in places:
        n = min(place.end - place.start, len(generation.output))
        here = slice(place.start, place.start + n)
        place.row.explained[here] = True
        accounted = place.row.mask[here] | forced
        same = place.row.tokens[here] == generation.output[:n]
        times[:n] += accounted
        if _stands_behind(place.row, place.start, generation.prompt):
            right[:n] |= accounted & same
            altered[:n] |= ~same
        else:
            displaced[:n] = True
        _check_logprobs(generation, place, right[:n] & place.row.mask[here], report)
    altered &= ~right
    displaced &= ~right & ~altered
    _tally(generation, report, times, altered, displaced)
    kept = int(np.count_nonzero(right))
    report.forced += kept if forced else 0
    report.trained += 0 if forced else kept
    open_ends = len(right) - int(np.count_nonzero(right | altered | displaced))
    _explain(generation, turn, open_ends, permitted, report)
    _check_kinds(generation, turn, places, report)


def _stands_behind(row: Row, start: int, prompt: Ids) -> bool:
    return np.array_equal(row.tokens[:start], prompt)


def _tally(
    generation: Generation, report: Report, times: npt.NDArray[np.int64], altered: Flags, displaced: Flags
) -> None:
    again = int(np.maximum(times - 1, 0).sum())
    changed = int(np.count_nonzero(altered))
    elsewhere = int(np.count_nonzero(displaced))
    report.generations += 1
    report.sampled += len(generation.output)
    report.doubled += again
    report.altered += changed
    report.displaced += elsewhere
    for what, count in (("doubled", again), ("altered", changed), ("displaced", elsewhere)):
        if count:
            report.find(f"{generation.rid}: {count} of {len(generation.output)} tokens {what}")


def _explain(
    generation: Generation, turn: Mapping[str, Any], tokens: int, permitted: Collection[str] | None, report: Report
) -> None:
    """Tokens in no sample: under the reasons the fidelity record gives, else lost. Forced ones must be in a sample."""
    for reason, most in turn.get("untrained", {}).items():
        if reason != "forced":
            tokens -= _under(reason, min(tokens, most), generation, permitted, report)
    # An aborted generation may have gone on after the last token that was recorded.
    if turn.get("reason") not in (None, "forced"):
        tokens -= _under(turn["reason"], tokens, generation, permitted, report)
    if tokens:
        report.lost += tokens
        report.find(f"{generation.rid}: {tokens} of {len(generation.output)} tokens lost")


def _under(reason: str, tokens: int, generation: Generation, permitted: Collection[str] | None, report: Report) -> int:
    if tokens:
        report.untrained[reason] = report.untrained.get(reason, 0) + tokens
        if permitted is None or reason in permitted or (generation.aborted and reason == "undelivered"):
            report.excused += tokens
        else:
            report.not_permitted[reason] = report.not_permitted.get(reason, 0) + tokens
            report.find(f"{generation.rid}: {tokens} tokens under {reason}, which the script does not permit")
    return tokens


def _check_logprobs(generation: Generation, place: Place, trained: Flags, report: Report) -> None:
    given = place.row.logprobs[place.start : place.start + len(trained)]
    wrong = trained
    if generation.logprobs is not None:
        wrong = trained & (given != generation.logprobs[: len(trained)])
    if wrong.any():
        report.logprob_mismatches += int(np.count_nonzero(wrong))
        report.find(f"{generation.rid}: {np.count_nonzero(wrong)} logprobs in {place.row.name} are not the engine's")


def _check_kinds(generation: Generation, turn: Mapping[str, Any], places: Sequence[Place], report: Report) -> None:
    said = {place.kind for place in places} | ({turn["kind"]} if turn else set())
    if generation.kind is not None and said - {generation.kind}:
        report.kinds_wrong += 1
        report.find(f"{generation.rid}: kind {', '.join(sorted(said))}, truly {generation.kind}")


def _check_unmasked(row: Row, report: Report) -> None:
    wrong = int(np.count_nonzero(row.logprobs[~row.mask]))
    if wrong:
        report.logprob_mismatches += wrong
        report.find(f"{row.name}: {wrong} tokens that do not train have a logprob")


def _judge_strays(rows: Sequence[Row], journal: Path, report: Report) -> None:
    """Mask 1 outside every listed draw: trained once more where it was sampled all the same, else misplaced."""
    strays = {row.name: row.mask & ~row.explained for row in rows}
    for generation in read_journal(journal):
        for row in rows:
            start = len(generation.prompt)
            region = slice(start, start + len(generation.output))
            if strays[row.name][region].any() and _stands_behind(row, start, generation.prompt):
                same = row.tokens[region] == generation.output[: len(row.tokens) - start]
                again = strays[row.name][region] & same
                report.doubled += int(np.count_nonzero(again))
                strays[row.name][region] &= ~again
                report.find(f"{row.name}: {np.count_nonzero(again)} tokens of {generation.rid} train there too")
    for name, stray in strays.items():
        if stray.any():
            report.misplaced += int(np.count_nonzero(stray))
            report.find(f"{name}: {np.count_nonzero(stray)} tokens train that nobody sampled there")


def read_journal(path: Path) -> Iterator[Generation]:
    """A prompt is a list of ids, or {"base", "keep", "add"}: the first ids of an earlier line's prompt and output, then
    some more. A line that keeps all of its base is the last to name it."""
    held: dict[str, Ids] = {}
    for number, line in _lines(path):
        if number > 1:
            with _Reading(path, number):
                generation = _generation(orjson.loads(line), held)
            held[generation.rid] = np.concatenate([generation.prompt, generation.output])
            yield generation


def _generation(fields: Mapping[str, Any], held: dict[str, Ids]) -> Generation:
    prompt, logprobs = fields["prompt"], fields["logprobs"]
    output = np.array(fields["output"], np.int32)
    if isinstance(prompt, dict):
        base = held[prompt["base"]]
        if prompt["keep"] == len(base):
            del held[prompt["base"]]
        prompt = np.concatenate([base[: prompt["keep"]], np.array(prompt["add"], np.int32)])
    return Generation(
        rid=fields["rid"],
        prompt=np.array(prompt, np.int32),
        output=output,
        logprobs=None if logprobs is None else np.array(logprobs, np.float32),
        kind=fields["kind"],
        aborted=fields["aborted"],
        forced=fields["forced"],
    )


def read_expectation(path: Path) -> Mapping[str, Any]:
    """What the script says of one session, empty without a script."""
    for number, line in _lines(path):
        with _Reading(path, number):
            header = orjson.loads(line)
            if header["journal"] != 1:
                raise ValueError(f"journal version {header['journal']}; this checker reads version 1")
            return ((header["script"] or {}).get("expect")) or {}
    raise LogCorrupt(f"{path} is empty; expected a journal's header line")


def read_run(rollouts: Path) -> Run:
    rows: list[Row] = []
    turns: dict[str, Mapping[str, Any]] = {}
    samples: dict[str, int] = {}
    for fidelity in sorted(rollouts.glob("*/fidelity.json")):
        with _Reading(fidelity, 1):
            records = orjson.loads(fidelity.read_bytes())["turns"]
            turns |= {record["turn_id"]: record for record in records}
        found = list(_read_rows(fidelity.with_name("samples.jsonl"), fidelity.parent.name))
        rows += found
        if records:
            samples[fidelity.parent.name] = len(found)
    places: dict[str, list[Place]] = {}
    for row in rows:
        for start, end, turn_id, kind in row.turns:
            places.setdefault(turn_id, []).append(Place(row, start, end, kind))
    return Run(rows, turns, samples, places)


def _read_rows(path: Path, session: str) -> Iterator[Row]:
    for number, line in _lines(path):
        with _Reading(path, number):
            fields = orjson.loads(line)
            row = Row(
                name=f"{session}:{number}",
                tokens=np.array(fields["tokens"], np.int32),
                mask=np.array(fields["loss_mask"], bool),
                logprobs=np.array(fields["logprobs"], np.float32),
                turns=[(start, end, turn_id, kind) for start, end, turn_id, kind, *_ in fields["turns"]],
                explained=np.zeros(len(fields["tokens"]), bool),
            )
            if not len(row.tokens) == len(row.mask) == len(row.logprobs):
                raise ValueError("tokens, loss_mask and logprobs differ in length")
        yield row


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines with their numbers. A last one without its newline is what a killed writer leaves, and is not one."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield number, line
    except FileNotFoundError as error:
        raise LogCorrupt(
            f"{path} does not exist; a run to check has journal.jsonl and rollouts/*/samples.jsonl"
        ) from error


class _Reading:
    """Names file and line of what cannot be read."""

    def __init__(self, path: Path, number: int) -> None:
        self.place = f"{path}:{number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError):
            raise LogCorrupt(f"{self.place} cannot be read: {error!r}") from error
