"""The table of live scenarios: whole, readable, and about the agents there are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bridle.compose import make_harness
from bridle.doctor.scenarios import Play, Skipped, Stage
from bridle.engines.script import load
from bridle.errors import ConfigError
from bridle.harnesses import NAMES
from bridle.registry import resolve
from bridle.tasks.base import Spec

REPOSITORY = Path(__file__).parents[2]
LIVE = REPOSITORY / "examples/live"
AGENTS = [name for name in NAMES if name != "command"]


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(LIVE)


@pytest.fixture(scope="module")
def everything(stage: Stage) -> list[Play | Skipped]:
    return list(stage.plays([], ["all"], ["all"]))


def test_every_agent_of_the_harness_table_is_played(stage: Stage) -> None:
    assert {player.harness or name for name, player in stage.table.agents.items()} == set(AGENTS)


def test_every_scenario_has_a_task_and_every_agent_a_part_or_a_reason(stage: Stage) -> None:
    assert set(stage.table.scenarios) == set(stage.tasks)
    for name, scenario in stage.table.scenarios.items():
        players = {agent for agent, player in stage.table.agents.items() if name in (player.scenarios or [name])}
        assert set(scenario.agents) | set(scenario.cannot) == players, name
        assert not set(scenario.agents) & set(scenario.cannot), name


def test_faults_name_agents_that_there_are(stage: Stage) -> None:
    for case in stage.table.faults.values():
        assert {*case.agents, *case.ends, *case.cannot} <= set(stage.table.agents)


def test_options_are_those_of_the_harness_and_scripts_can_be_read(everything: list[Play | Skipped]) -> None:
    for play in everything:
        if isinstance(play, Play):
            make_harness(Spec(play.harness, play.options))
            assert load(play.script).threads


def test_each_scenario_is_played_as_it_is_and_the_first_one_under_every_fault(stage: Stage) -> None:
    plays = list(stage.plays(["codex"], ["linear", "subagent"], ["cut", "500"]))
    assert [play.name for play in plays if isinstance(play, Play)] == [
        "codex-linear",
        "codex-subagent",
        "codex-linear-cut",
        "codex-linear-500",
    ]


def test_an_agent_over_another_wire_plays_what_it_is_there_for(stage: Stage) -> None:
    def names(agent: str) -> set[str]:
        return {play.name for play in stage.plays([agent], ["all"], ["all"]) if isinstance(play, Play)}

    assert names("codex_openai") == {"codex_openai-compaction"}
    assert {"codex_websocket-subagent", "codex_websocket-linear-reset"} < names("codex_websocket")
    assert not {"codex_websocket-mcp", "codex_websocket-linear-stall"} & names("codex_websocket")


def test_what_cannot_be_played_is_said_with_the_reason(stage: Stage) -> None:
    (skipped,) = stage.plays(["pi"], ["subagent"], [])
    assert skipped == Skipped("pi", "subagent", "", "has no sub-agents")


def test_under_a_fault_nothing_is_asked_of_the_number_of_samples_and_aborted_draws_are_permitted(stage: Stage) -> None:
    plain, under = stage.plays(["codex"], ["linear"], ["cut"])
    assert isinstance(plain, Play)
    assert isinstance(under, Play)
    assert (plain.samples, under.samples) == (1, 0)
    assert set(under.reasons) - set(plain.reasons) == {"undelivered"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((["codx"], ["linear"], []), 'unknown agent "codx": did you mean "codex"?'),
        ((["codex"], ["lineal"], []), 'unknown scenario "lineal": did you mean "linear"?'),
        ((["codex"], [], ["cutt"]), 'unknown fault "cutt": did you mean "cut"?'),
    ],
)
def test_an_unknown_name_is_refused_with_what_was_meant(stage: Stage, given: tuple[list[str], ...], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        list(stage.plays(*given))


def test_a_folder_without_a_table_and_a_table_with_an_unknown_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the scenarios' folder"):
        Stage(tmp_path)
    shutil.copytree(LIVE, tmp_path / "live")
    table = (tmp_path / "live/scenarios.yaml").read_text()
    (tmp_path / "live/scenarios.yaml").write_text(table.replace("after_bytes", "after_byte", 1))
    with pytest.raises(ConfigError, match='did you mean "after_bytes"'):
        Stage(tmp_path / "live")


def test_the_page_of_agents_shows_those_there_are_in_the_versions_they_are_pinned_to(stage: Stage) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| `(\w+)` \|", (REPOSITORY / "docs/agents.md").read_text(), re.MULTILINE)
    players = {name: Spec(player.harness or name, player.options) for name, player in stage.table.agents.items()}
    pinned = {name: resolve("harness", NAMES, spec.name).default_version for name, spec in players.items()}
    assert {name: version for name, version, _ in rows} == pinned
    assert {name: protocol for name, _, protocol in rows} == {
        name: make_harness(spec).protocol for name, spec in players.items()
    }


def test_the_page_of_agents_says_with_which_version_of_bridle_they_were_played() -> None:
    from bridle import __version__

    assert f"Bridle {__version__}" in (REPOSITORY / "docs/agents.md").read_text()
