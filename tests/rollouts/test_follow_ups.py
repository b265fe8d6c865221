"""Several prompts in one rollout: one conversation, one session, one sandbox, one time budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridle.compose import check as check_task
from bridle.config import HarnessChoice, Settings
from bridle.errors import TaskError
from bridle.harnesses.base import Installation, Launch, Outcome
from bridle.harnesses.command import CommandHarness
from bridle.rollouts.records import RolloutRecord
from bridle.samples.check import check
from bridle.sandboxes.base import Sandbox
from bridle.tasks.base import Budgets, Spec
from bridle.testing.world import FIX, World, turns

MORE = ("Now say what it was.", "Thank you. Remove what you do not need.")
HALF = "sed -i 's/a + b/b - a/' calc.py"
WHOLE = "sed -i 's/b - a/a - b/' calc.py"


def logs(record: RolloutRecord) -> list[str]:
    return sorted(path.name for path in Path(record.directory).glob("agent*"))


async def test_a_follow_up_goes_on_where_the_agent_ended_and_extends_its_sample(world: World) -> None:
    world.turns = [*turns(HALF, last="Half of it."), *turns(WHOLE, last="All of it."), {"text": "You are welcome."}]
    record = await world.one(follow_ups=MORE)
    assert (record.cause, record.reward, record.turns, record.samples) == ("finished", 1.0, 5, 1)
    assert logs(record) == ["agent", "agent-2", "agent-3"]
    said = [(Path(record.directory) / name / "stdout").read_text() for name in logs(record)]
    assert said == ["Half of it.\n", "All of it.\n", "You are welcome.\n"]
    report = check(world.directory)
    assert report.ok, report.findings
    assert report.kept_percent == 100.0


async def test_the_first_end_that_is_no_good_one_is_the_last_prompts(world: World) -> None:
    world.resume_argv = ("sh", "-c", f"{' '.join(world.resume_argv)} && exit 3")
    world.turns = [*turns(FIX), {"text": "It was a plus."}]
    record = await world.one(follow_ups=MORE)
    assert (record.cause, record.reward, record.turns) == ("agent_error", 1.0, 3)
    assert logs(record) == ["agent", "agent-2"]


class Recording(CommandHarness):
    launches: list[Launch]
    sandboxes: set[int]

    async def launch(self, sandbox: Sandbox, installation: Installation, launch: Launch) -> Outcome:
        self.launches.append(launch)
        self.sandboxes.add(id(sandbox))
        return await super().launch(sandbox, installation, launch)


async def test_all_prompts_share_sandbox_key_and_time(world: World) -> None:
    Recording.launches, Recording.sandboxes = [], set()
    world.harness = Recording
    world.turns = [*turns(f"{FIX}; sleep 1"), {"text": "It was a plus."}, {"text": "Done."}]
    record = await world.one(follow_ups=MORE, budgets=Budgets(agent_s=15, grade_s=20))
    first, second, third = Recording.launches
    assert record.cause == "finished"
    assert (first.instruction, second.instruction, third.instruction) == (world.task().instruction, *MORE)
    assert [launch.resume for launch in Recording.launches] == [False, True, True]
    assert 14.9 < first.time_budget_s <= 15
    assert second.time_budget_s < 14 <= first.time_budget_s
    assert third.time_budget_s < second.time_budget_s
    assert {launch.key for launch in Recording.launches} == {first.key}
    assert {tuple(launch.base_urls.items()) for launch in Recording.launches} == {tuple(first.base_urls.items())}
    assert len(Recording.sandboxes) == 1


def test_follow_ups_for_an_agent_that_cannot_resume_are_refused_before_anything_starts(world: World) -> None:
    task = world.task(follow_ups=MORE)
    can = r"\(claude_code, codex, .*hermes, command with a resume_argv\)"
    with pytest.raises(TaskError, match=f'task subtract: follow_ups: the harness "mini_swe_agent" cannot .*{can}'):
        check_task(Settings(harness=HarnessChoice("mini_swe_agent")), task)
    with pytest.raises(TaskError, match='"command" cannot'):
        check_task(Settings(), world.task(follow_ups=MORE, harness=Spec("command", {"argv": ["true"]})))
    check_task(Settings(harness=HarnessChoice("codex")), task)
    check_task(Settings(harness=HarnessChoice("mini_swe_agent")), world.task())
