"""How a play is judged, and the line that says it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridle.doctor.faults import Fault
from bridle.doctor.results import Finding, Result, Seen, broken, judged, table, verdict
from bridle.doctor.scenarios import Play
from bridle.rollouts.records import RolloutRecord
from bridle.samples.check import Report
from bridle.samples.fidelity import Fidelity, Totals
from bridle.tasks.base import Spec, Task, Workspace

TASK = Task(id="linear", instruction="Fix it.", workspace=Workspace("."), grader=Spec("command"))


def play(**changes: Any) -> Play:
    usual = Play(
        agent="codex",
        harness="codex",
        scenario="linear",
        fault_name="",
        task=TASK,
        script=Path("linear.yaml"),
        options={},
        kinds=("main",),
        samples=1,
        reward=1.0,
        reasons=(),
        context_length=9,
        depth=None,
        fault=None,
        grace_s=1.0,
    )
    return msgspec.structs.replace(usual, **changes)


def seen(report: Report | None = None, fault_came: bool | None = None, **changes: Any) -> Seen:
    totals = Totals(
        turns=2, samples=1, sampled=9, trained=9, forced=0, untrained={}, echoes={}, forks=0, kinds={"main": 2}
    )
    usual = RolloutRecord(
        id="linear-0",
        task="linear",
        group="linear",
        harness="codex",
        harness_version="1.0",
        status="completed",
        cause="finished",
        reward=1.0,
        turns=2,
        samples=1,
    )
    return Seen(
        msgspec.structs.replace(usual, **changes),
        report or Report(sampled=9, trained=9),
        Fidelity((), totals),
        fault_came,
        2,
        1.0,
    )


def result(what: Seen | None = None, **changes: Any) -> Result:
    return judged(play(**changes), "openai_responses", what or seen())


def finding(*results: Result) -> Finding:
    return Finding(bridle="0", sandbox="local", results=results, missing=(), skipped=())


def test_a_play_where_all_is_as_it_should_be_has_nothing_wrong() -> None:
    assert result().wrong == ()
    assert verdict(finding(result())) == ("agents: 1 live, 1 scenarios, kept 100.0 % of main tokens, 0 doubled, 0 lost")


@pytest.mark.parametrize(
    ("what", "changes", "said"),
    [
        (seen(Report(sampled=9, trained=8, lost=1, findings=["x: 1 tokens lost"])), {}, "x: 1 tokens lost"),
        (seen(Report()), {}, "nothing sampled"),
        (seen(reward=0.0), {}, "reward 0.0, 1.0 expected"),
        (seen(reward=None), {}, "reward None"),
        (seen(status="truncated", cause="time_budget"), {}, "ended as time_budget"),
        (seen(status="failed", cause="engine", reward=None), {}, "ended as engine"),
        (seen(), {"kinds": ("main", "compaction")}, "no turn of kind compaction"),
        (seen(), {"depth": 1}, "sub-agents None deep, 1 expected"),
        (seen(samples=0), {}, "no sample"),
        (seen(fault_came=False), {"fault": Fault("cut")}, "the fault did not come: the agent made 2 model calls"),
    ],
)
def test_what_is_wrong_is_said(what: Seen, changes: dict[str, Any], said: str) -> None:
    found = result(what, **changes)
    assert not found.ok
    assert said in found.wrong[0]
    assert "; fell short: codex linear" in verdict(finding(found))


def test_an_agent_that_gives_up_on_a_fault_is_asked_for_its_tokens_only() -> None:
    assert result(seen(reward=None, status="failed", cause="engine", samples=0, fault_came=True), reward=None).ok


def test_a_play_around_which_something_failed_falls_short() -> None:
    found = finding(result(), broken(play(agent="pi", harness="pi"), "no room on the disk"))
    assert verdict(found).endswith("; fell short: pi linear")
    assert not found.ok


def test_the_percentage_is_never_rounded_up_to_a_hundred() -> None:
    short = result(seen(Report(sampled=100_000, trained=99_999, lost=1, findings=["lost"])))
    assert "kept 99.9 % of main tokens, 0 doubled, 1 lost" in verdict(finding(short))


def test_an_agent_none_of_whose_plays_went_well_is_not_live() -> None:
    found = finding(result(), result(seen(reward=0.0), agent="pi", harness="pi"))
    assert verdict(found).startswith("agents: 1 live, 2 scenarios")
    assert not found.ok
    assert not finding().ok


def test_an_agent_over_several_wires_is_one_agent() -> None:
    found = finding(result(agent="pi", harness="pi"), result(agent="pi_gemini", harness="pi"))
    assert verdict(found).startswith("agents: 1 live, 2 scenarios")


def test_the_table_has_a_row_for_each_agent_and_a_column_for_each_scenario_and_fault() -> None:
    under = result(seen(fault_came=True), fault_name="cut", fault=Fault("cut"))
    ends = result(seen(reward=None, status="failed"), agent="pi", reward=None, fault_name="cut", fault=Fault("cut"))
    lines = table(finding(result(), under, result(seen(reward=0.0), agent="hermes"), ends))
    assert lines == [
        "| agent | version | protocol | linear | cut |",
        "|---|---|---|---|---|",
        "| `codex` | 1.0 | `openai_responses` | ok | ok |",
        "| `hermes` | 1.0 | `openai_responses` | **no** | - |",
        "| `pi` | 1.0 | `openai_responses` | - | ends |",
    ]


def test_the_document_is_plain_values() -> None:
    document = json.loads(json.dumps(finding(result()).document()))
    assert (document["ok"], document["results"][0]["kinds"]) == (True, {"main": 2})
