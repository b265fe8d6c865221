"""What agents are played through: scenarios, faults, and which agent can play which. A table of data, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bridle.decoding import decode
from bridle.doctor.faults import Fault
from bridle.errors import ConfigError
from bridle.messages import Kind
from bridle.registry import unknown
from bridle.tasks import jsonl
from bridle.tasks.base import Task

DEFAULT_SCENARIO = "linear"
"""Played when none is named, and under every fault."""
GRACE_S = 1.0


class Player(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A harness, under a name of its own where the same agent is played with several options (over other wires).
    `scenarios`: it is for these alone, and for no fault but `faults`; empty: for all."""

    harness: str = ""
    options: dict[str, Any] = {}
    scenarios: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one agent plays a scenario, where it differs. `options`: of its harness. `samples` 0: at least one. `depth`:
    how deep its sub-agents go, where its headers say. `fault_call`: which of its model calls a fault meets."""

    options: dict[str, Any] = {}
    script: str = ""
    samples: int | None = None
    context_length: int | None = None
    ends: bool = False
    """It gives up there, so that nothing is asked of its work."""
    kinds: tuple[Kind, ...] | None = None
    depth: int | None = None
    fault_call: int | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kinds`: those of its turns, each seen at least once. `samples` 0: at least one. `reasons`: permitted for tokens
    that do not train. `cannot`: agents that cannot play it, and why; one in neither mapping has not been tried."""

    what: str
    agents: dict[str, Part]
    cannot: dict[str, str] = {}
    kinds: tuple[Kind, ...] = ("main",)
    samples: int = 1
    reward: float = 1.0
    reasons: tuple[str, ...] = ("kind",)
    context_length: int = 131072


class FaultCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ends`: agents that give up on it, so that nothing is asked of their work. `agents`: what they need for it."""

    what: str
    fault: Fault
    agents: dict[str, Part] = {}
    ends: tuple[str, ...] = ()
    cannot: dict[str, str] = {}
    grace_s: float = GRACE_S
    """How long the gateway lets a draw go on for a retry to join (`gateway.abort_grace_s`)."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agents: dict[str, Player]
    scenarios: dict[str, Scenario]
    faults: dict[str, FaultCase]


class Play(msgspec.Struct, frozen=True):
    """One agent through one scenario, with at most one fault. Ready to run: nothing is looked up any more."""

    agent: str
    harness: str
    scenario: str
    fault_name: str
    task: Task
    script: Path
    options: dict[str, Any]
    kinds: tuple[Kind, ...]
    samples: int
    reward: float | None
    reasons: tuple[str, ...]
    context_length: int
    depth: int | None
    fault: Fault | None
    grace_s: float

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.agent, self.scenario, self.fault_name)))


class Skipped(msgspec.Struct, frozen=True):
    """A play that cannot be, and why."""

    agent: str
    scenario: str
    fault: str
    why: str


class Stage:
    """A folder with scenarios.yaml, tasks.jsonl (a task for each scenario, of the same name) and their scripts."""

    def __init__(self, folder: Path) -> None:
        file = folder / "scenarios.yaml"
        try:
            document = yaml.safe_load(file.read_text())
        except OSError as error:
            raise ConfigError(
                f"cannot read {file}: {error.strerror}; name the scenarios' folder (examples/live of Bridle's source)"
            ) from error
        self.folder = folder
        self.table = decode(document, Table, str(file))
        self.tasks = {task.id: task for task in jsonl.load(folder)}

    def plays(self, agents: Sequence[str], scenarios: Sequence[str], faults: Sequence[str]) -> Iterator[Play | Skipped]:
        """`agents` empty: all. Each scenario without a fault, then the default one under each fault."""
        table = self.table
        for agent in _chosen("agent", agents or ["all"], table.agents):
            player = table.agents[agent]
            own = player.scenarios
            for scenario in _chosen("scenario", scenarios, table.scenarios):
                if not own or scenario in own:
                    yield self._play(agent, scenario, "")
            for fault in _chosen("fault", faults, table.faults):
                if not own or fault in player.faults:
                    yield self._play(agent, DEFAULT_SCENARIO, fault)

    def _play(self, agent: str, scenario: str, fault: str) -> Play | Skipped:
        given = self.table.scenarios[scenario]
        case = self.table.faults[fault] if fault else None
        if why := self._obstacle(agent, given, case):
            return Skipped(agent, scenario, fault, why)
        player, part = self.table.agents[agent], given.agents[agent]
        more = case.agents.get(agent, Part()) if case else Part()
        task = self.tasks[scenario]
        return Play(
            agent=agent,
            harness=player.harness or agent,
            scenario=scenario,
            fault_name=fault,
            task=task,
            script=self.folder / part.script if part.script else Path(task.script or ""),
            options={**player.options, **part.options, **more.options},
            kinds=given.kinds if part.kinds is None else part.kinds,
            samples=0 if case else given.samples if part.samples is None else part.samples,
            reward=None if part.ends or (case and agent in case.ends) else given.reward,
            reasons=(*given.reasons, "undelivered") if case else given.reasons,
            context_length=part.context_length or given.context_length,
            depth=part.depth,
            fault=_aimed(case.fault, part) if case else None,
            grace_s=case.grace_s if case else GRACE_S,
        )

    def _obstacle(self, agent: str, scenario: Scenario, case: FaultCase | None) -> str:
        if agent in scenario.cannot:
            return scenario.cannot[agent]
        if agent not in scenario.agents:
            return "not tried yet"
        if case is None:
            return ""
        return case.cannot.get(agent, "")


def _aimed(fault: Fault, part: Part) -> Fault:
    return fault if part.fault_call is None else msgspec.structs.replace(fault, call=part.fault_call)


def _chosen(what: str, names: Sequence[str], known: dict[str, Any]) -> list[str]:
    if list(names) == ["all"]:
        return list(known)
    for name in names:
        if name not in known:
            raise ConfigError(unknown(what, name, [*known, "all"]))
    return list(names)
