"""The pipeline with real parts: every way a rollout can end, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bridle.errors import GraderError
from bridle.exporters.jsonl import JsonlExporter
from bridle.graders import patch
from bridle.graders.base import Grade
from bridle.harnesses.base import Installation, Launch, Outcome
from bridle.harnesses.command import CommandHarness
from bridle.rollouts import run, stages
from bridle.rollouts.records import STAGES, RolloutRecord
from bridle.rollouts.run import Rollout
from bridle.rollouts.scheduler import Watcher, run_batch
from bridle.samples.check import check
from bridle.samples.sample import Sample
from bridle.sandboxes.base import Sandbox
from bridle.sessions.codec import decode
from bridle.sessions.records import Limits, SessionOptions
from bridle.sessions.session import Session
from bridle.tasks.base import Budgets, Task, Workspace
from bridle.testing.world import FIX, World, turns

REWARD = 0.8125731


def samples_of(record: RolloutRecord) -> list[Sample]:
    return list(JsonlExporter().read(Path(record.directory) / "samples.jsonl"))


def session_of(record: RolloutRecord) -> Session:
    path = Path(record.directory) / "session.log"
    return Session.replay(decode(path.read_bytes(), str(path)))


def nothing_is_left(world: World) -> bool:
    return list(world.sandboxes.glob("*")) == []


# The good ends


async def test_a_fix_is_graded_with_one_and_every_sampled_token_trains(world: World) -> None:
    record = await world.one()
    assert (record.status, record.cause, record.reward, record.reward_valid) == ("completed", "finished", 1.0, True)
    assert tuple(record.stages) == STAGES
    assert record.turns == 2
    assert record.trained_tokens == record.sampled_tokens > 0
    (sample,) = samples_of(record)
    assert (sample.reward, sample.status, sample.cause, sample.task_id) == (1.0, "completed", None, "subtract")
    assert "+    return a - b" in (Path(record.directory) / "patch.diff").read_text()
    assert json.loads((Path(record.directory) / "patch.json").read_bytes())["changed"] == ["calc.py"]
    report = check(world.directory)
    assert report.ok, report.findings
    assert report.kept_percent == 100.0
    assert nothing_is_left(world)


async def test_a_wrong_fix_is_a_zero_not_a_failure(world: World) -> None:
    world.turns = turns("sed -i 's/a + b/a * b/' calc.py")
    record = await world.one()
    assert (record.status, record.cause, record.reward, record.grade_cause) == ("completed", "finished", 0.0, "failed")


async def test_what_an_agent_does_to_the_tests_does_not_count(world: World) -> None:
    world.turns = turns("printf 'print(\"passed\")' > tests/check.py")
    record = await world.one()
    assert record.reward == 0.0
    grade = json.loads((Path(record.directory) / "grade.json").read_bytes())
    assert [left["path"] for left in grade["applied"]["left_out"]] == ["tests/check.py"]


async def test_arguments_an_agent_writes_anew_cost_no_token(world: World) -> None:
    world.argv = (*world.argv, "--sort-arguments")
    record = await world.one()
    assert (record.reward, record.samples) == (1.0, 1)
    assert check(world.directory).kept_percent == 100.0


# Ends the agent caused: graded as they stand


async def test_an_agent_that_exits_with_an_error_is_graded_as_it_stands(world: World) -> None:
    world.argv = ("sh", "-c", f"{' '.join(world.argv)} && exit 3")
    record = await world.one()
    assert (record.status, record.cause, record.reward) == ("completed", "agent_error", 1.0)
    assert "exit code 3" in record.detail


@pytest.mark.slow
async def test_an_agent_out_of_time_is_truncated_and_graded_as_it_stands(world: World) -> None:
    world.turns = turns(FIX, "sleep 60")
    record = await world.one(budgets=Budgets(agent_s=2, grade_s=20))
    assert (record.status, record.cause, record.reward) == ("truncated", "time_budget", 1.0)
    assert {sample.status for sample in samples_of(record)} == {"truncated"}
    sealed = session_of(record).sealed
    assert sealed is not None
    assert sealed.cause == "time_budget"


async def test_a_killed_agent_is_graded_as_it_stands(world: World) -> None:
    world.turns = turns(FIX, "kill -9 $PPID")
    record = await world.one()
    assert (record.status, record.cause, record.reward) == ("truncated", "killed", 1.0)


async def test_an_agent_at_its_turn_limit_is_truncated_and_graded_as_it_stands(world: World) -> None:
    world.turns = turns(FIX, "true", "true")
    world.session = SessionOptions(limits=Limits(turns=2))
    record = await world.one()
    assert (record.status, record.cause, record.reward, record.turns) == ("truncated", "turn_limit", 1.0, 2)
    assert record.detail == "refused a model call at its limit of 2 turns"
    assert session_of(record).refused == "turns"


async def test_an_agent_that_ends_by_itself_on_its_last_allowed_turn_has_finished(world: World) -> None:
    world.session = SessionOptions(limits=Limits(turns=2))
    record = await world.one()
    assert (record.status, record.cause, record.reward, record.turns) == ("completed", "finished", 1.0, 2)


async def test_turns_of_a_failing_engine_are_not_the_agents(world: World) -> None:
    fails_twice = {"error": "busy", "error_times": 6}  # the gateway itself tries a call three times
    world.turns = [{**turns(FIX)[0], **fails_twice}, *turns(FIX)[1:]]
    world.argv = ("sh", "-c", f"cat >/tmp/i; for n in 1 2 3; do {' '.join(world.argv)} </tmp/i && exit; done; exit 3")
    world.session = SessionOptions(limits=Limits(turns=2))
    record = await world.one()
    assert (record.cause, record.reward, record.turns) == ("finished", 1.0, 4)


@pytest.mark.slow
async def test_grading_that_takes_too_long_is_a_zero(world: World) -> None:
    world.turns = turns("printf 'import time\\ntime.sleep(60)\\n' > calc.py")
    record = await world.one(budgets=Budgets(agent_s=20, grade_s=1))
    assert (record.cause, record.reward, record.grade_cause) == ("finished", 0.0, "grade_timeout")


async def test_work_that_can_be_no_patch_is_a_zero(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "CONTENT_BYTES", 1000)
    world.turns = turns(FIX, "seq 1000 > large.txt")
    record = await world.one()
    assert (record.cause, record.reward, record.grade_cause) == ("finished", 0.0, "patch_refused")
    assert "grade" not in record.stages


# Ends that were done to the agent: no grade, a cause, and everything captured up to there


async def run_of_failures(world: World, **changes: Any) -> RolloutRecord:
    record = await world.one(**changes)
    assert (record.reward, record.reward_valid) == (None, False)
    assert record.stages, "the time it took is reported"
    assert nothing_is_left(world)
    saved = json.loads((Path(record.directory) / "rollout.json").read_bytes())
    assert (saved["cause"], saved["status"]) == (record.cause, record.status)
    return record


async def test_a_workspace_that_is_gone_fails_the_rollout(world: World) -> None:
    record = await run_of_failures(world, workspace=Workspace(str(world.directory / "gone")))
    assert record.status == "failed"
    assert record.detail.startswith("prepare: ")


async def test_a_setup_command_that_fails_is_named(world: World) -> None:
    record = await run_of_failures(world, setup=("echo no luck >&2; exit 4",))
    assert (record.status, record.cause, record.retryable) == ("failed", "sandbox", True)
    assert "no luck" in record.detail
    assert "exit 4" in record.detail


async def test_an_agent_that_is_not_there_was_never_started(world: World) -> None:
    world.argv = ("no-such-agent",)
    record = await run_of_failures(world)
    assert (record.status, record.cause) == ("failed", "never_started")
    assert "no-such-agent" in record.detail


async def test_an_agent_that_never_calls_the_model_has_no_grade(world: World) -> None:
    world.argv = ("sh", "-c", FIX)
    record = await run_of_failures(world)
    assert (record.status, record.cause, record.retryable) == ("failed", "never_called_model", True)
    assert "grade" not in record.stages


async def test_an_engine_that_answers_nothing_is_not_the_policys_fault(world: World) -> None:
    world.turns = [{"error": "out of memory"}]
    record = await run_of_failures(world)
    assert (record.status, record.cause, record.retryable, record.turns) == ("failed", "engine", True, 1)


async def test_an_engine_that_fails_at_last_keeps_what_was_sampled_before(world: World) -> None:
    world.turns = [*turns(FIX)[:1], {"error": "out of memory"}]
    record = await run_of_failures(world)
    assert (record.cause, record.turns, record.samples) == ("engine", 2, 1)
    (sample,) = samples_of(record)
    assert (sample.reward, sample.reward_valid, sample.cause, sample.status) == (None, False, "engine", "failed")
    assert "return a - b" in (Path(record.directory) / "patch.diff").read_text()
    assert session_of(record).sealed is not None


class Broken:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def grade(self, sandbox: Sandbox, task: Task) -> Grade:
        raise self.error


@pytest.mark.parametrize(
    "error", [GraderError("no compiler"), KeyError("no compiler")], ids=lambda error: type(error).__name__
)
async def test_a_grader_that_crashes_gives_no_grade(world: World, error: Exception) -> None:
    world.grader = lambda task: Broken(error)
    record = await run_of_failures(world)
    assert (record.status, record.cause) == ("failed", "grader")
    assert "no compiler" in record.detail
    assert record.trained_tokens > 0
    assert samples_of(record)[0].cause == "grader"


async def test_a_rollout_that_fails_leaves_its_group_alone(world: World) -> None:
    good, bad = world.task(), world.task(id="bad", setup=("false",))
    records = await world.run(bad, good)
    assert [record.reward for record in records] == [None, 1.0]


# Time


class Stuck(CommandHarness):
    """A launch that never returns, and swallows so many cancellations."""

    swallowed = 0

    async def launch(self, sandbox: Sandbox, installation: Installation, launch: Launch) -> Outcome:
        for _ in range(self.swallowed):
            with contextlib.suppress(asyncio.CancelledError):
                await self.never()
        await self.never()
        raise AssertionError

    async def never(self) -> None:
        await asyncio.Event().wait()


class StuckOnce(Stuck):
    swallowed = 1


class StuckForMany(Stuck):
    swallowed = stages.CANCELS + 5


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SLACK_S", 0.3)
    monkeypatch.setattr(stages, "UNWIND_S", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("harness", [Stuck, StuckOnce], ids=lambda kind: kind.__name__)
async def test_a_stage_that_never_returns_ends_by_wall_clock_and_names_what_was_pending(
    world: World, harness: type[CommandHarness]
) -> None:
    world.harness = harness
    record = await run_of_failures(world, budgets=Budgets(agent_s=0.5))
    assert (record.status, record.cause, record.retryable) == ("aborted", "wall_clock", True)
    assert record.detail.startswith("run: not done within")
    assert "Stuck.never" in record.detail
    assert record.stages["run"] < 5
    assert session_of(record).sealed is not None


@pytest.mark.usefixtures("impatient")
async def test_a_deadline_of_ones_own_covers_every_stage_and_what_was_captured_is_delivered(world: World) -> None:
    world.turns = turns(FIX, "sleep 60")
    record = await run_of_failures(world, budgets=Budgets(agent_s=500, deadline_s=3))
    assert (record.status, record.cause) == ("aborted", "wall_clock")
    assert record.detail.startswith("run: the rollout's deadline of 3 s has passed; pending: Attempt.run")
    assert sum(record.stages.values()) < 6
    assert (record.turns, record.samples) == (2, 1)
    assert session_of(record).sealed is not None


async def test_the_deadline_is_by_default_all_stages_and_a_margin(world: World) -> None:
    async with world.services() as services:
        made = [Rollout(world.task(budgets=budgets), "r", world.directory, services) for budgets in BUDGETS]
    whole = sum(made[0].stages.budgets.values()) + stages.MARGIN_S
    assert [rollout.stages.deadline_s for rollout in made] == [whole, 77.0]


BUDGETS = (Budgets(), Budgets(deadline_s=77))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("deadline_s", "reserve_s", "seconds"), [(0.4, 0.6, 1.0), (1.2, 0.2, 1.2)])
async def test_one_clock_runs_through_the_conclusion_and_its_reserve_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch, deadline_s: float, reserve_s: float, seconds: float
) -> None:
    monkeypatch.setattr(stages, "RESERVE_S", reserve_s)
    async with world.services() as services:
        budgets = Budgets(deadline_s=deadline_s)
        task = world.task(budgets=budgets, workspace=Workspace(str(world.directory / "gone")))
        rollout = Rollout(task, "r", world.directory / "rollouts" / "r", services)
        monkeypatch.setattr(rollout, "_build_and_deliver", asyncio.Event().wait)
        if deadline_s < reserve_s:
            monkeypatch.setattr(run.Attempt, "run", lambda self: asyncio.Event().wait())
        started = time.monotonic()
        await rollout.run()
    assert seconds <= time.monotonic() - started < seconds + 0.5


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
async def test_a_group_goes_on_without_a_rollout_that_cannot_be_ended(world: World) -> None:
    world.harness = StuckForMany
    async with world.services() as services:
        rollout = Rollout(world.task(budgets=Budgets(agent_s=0.2)), "r", world.directory / "rollouts" / "r", services)
        record = await asyncio.wait_for(rollout.run(), 20)
        assert (record.status, record.cause) == ("aborted", "wall_clock")
        gc.collect()
        (orphan,) = [task for task in asyncio.all_tasks() if task.get_name() == "rollout r"]
        while not orphan.done():
            orphan.cancel()
            await asyncio.sleep(0.01)
        assert rollout.record() == record
        assert nothing_is_left(world)


# Cancellation


@pytest.mark.slow
async def test_a_cancelled_rollout_releases_everything_and_delivers_what_it_has(world: World) -> None:
    world.turns = turns(FIX, "sleep 61")
    running = asyncio.Event()

    class Started(Watcher):
        def stage(self, rollout: Rollout) -> None:
            if rollout.stage == "run":
                asyncio.get_running_loop().call_later(1.5, running.set)

    batch = asyncio.create_task(world.run(watcher=Started()))
    await running.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert nothing_is_left(world)
    assert b"sleep\x0061" not in command_lines()
    saved = msgspec.json.decode((world.directory / "rollouts/subtract-0/rollout.json").read_bytes(), type=RolloutRecord)
    assert (saved.status, saved.cause, saved.reward) == ("aborted", "cancelled", None)
    assert saved.turns >= 1
    assert session_of(saved).sealed is not None


def command_lines() -> bytes:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(lines)


# Groups


@pytest.mark.slow
async def test_no_more_rollouts_run_at_once_than_asked_for(world: World) -> None:
    under_way, most = set(), []

    class Counting(Watcher):
        def stage(self, rollout: Rollout) -> None:
            under_way.add(rollout.id)
            most.append(len(under_way))

        def ended(self, record: RolloutRecord) -> None:
            under_way.discard(record.id)

    await world.run(n=3, concurrency=2, watcher=Counting())
    assert max(most) == 2


class ByRollout:
    """1, 0 and no grade in turn."""

    def __init__(self, rewards: Sequence[float | None]) -> None:
        self.rewards = list(rewards)

    async def grade(self, sandbox: Sandbox, task: Task) -> Grade:
        reward = self.rewards.pop(0)
        if reward is None:
            raise GraderError("no luck")
        return Grade(reward=reward, cause="scored")


@pytest.mark.slow
async def test_the_advantages_of_a_group_are_in_its_samples(world: World) -> None:
    grader = ByRollout([1.0, None, 0.0])
    world.grader = lambda task: grader
    records = await world.run(n=3, concurrency=1)
    advantages = [samples_of(record)[0].advantage for record in records]
    half = 0.5 / np.std([1.0, 0.0], ddof=1)
    assert advantages == [pytest.approx(half), None, pytest.approx(-half)]


@pytest.mark.slow
async def test_a_group_with_one_usable_rollout_has_no_advantages(world: World) -> None:
    grader = ByRollout([1.0, None])
    world.grader = lambda task: grader
    records = await world.run(n=2, concurrency=1)
    assert [samples_of(record)[0].advantage for record in records] == [None, None]


@pytest.mark.slow
async def test_the_first_prompts_of_a_group_are_the_same_ids(world: World) -> None:
    world.turns = turns("pwd; env | sort | grep -v OPENAI_API_KEY; " + FIX)
    records = await world.run(n=2)
    first, second = (samples_of(record)[0] for record in records)
    assert first.prompt_len == second.prompt_len > 0
    assert np.array_equal(first.tokens[: first.prompt_len], second.tokens[: second.prompt_len])
    assert not np.array_equal(first.tokens, second.tokens)


# What no agent may do or learn

LINGER = """cat > /tmp/linger.py <<'END'
import json, os, time, urllib.request
for n in range(1000):
    open('late.txt', 'a').write('late')
    open('calc.py', 'a').write('syntax error')
    body = {'model': os.environ['OPENAI_MODEL'], 'messages': [{'role': 'user', 'content': f'late {n}'}]}
    request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', json.dumps(body).encode(),
        {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'content-type': 'application/json'})
    try: urllib.request.urlopen(request, timeout=5).read()
    except OSError: pass
    time.sleep(0.05)
END
"""


async def test_what_an_agent_leaves_running_is_dead_before_its_work_is_taken(world: World) -> None:
    after = "while kill -0 $PPID; do sleep 0.01; done"
    world.turns = turns(FIX, f"{LINGER}(setsid sleep 62 & {after}; exec python3 /tmp/linger.py) >/dev/null 2>&1 &")
    record = await world.one()
    assert (record.cause, record.reward, record.turns) == ("finished", 1.0, 3)
    assert b"sleep\x0062" not in command_lines()
    assert b"linger" not in command_lines()
    assert "late" not in (Path(record.directory) / "patch.diff").read_text()


async def test_the_session_is_sealed_before_grading(world: World) -> None:
    sealed = []

    class Looking:
        async def grade(self, sandbox: Sandbox, task: Task) -> Grade:
            sealed.append((await services.gateway.show("subtract-0"))["sealed"])
            return Grade(reward=1.0, cause="scored")

    world.grader = lambda task: Looking()
    async with world.services() as services:
        await run_batch([world.task()], 1, 1, world.directory, services, Watcher())
    assert sealed == ["finished"]


async def test_the_reward_is_in_no_sandbox(world: World) -> None:
    looked_at, seen = [], []

    def watched(sandbox: Any) -> Any:
        stop = sandbox.stop

        async def look_and_stop() -> None:
            looked_at.append(sandbox.root.exists())
            seen.extend(files_with(sandbox.root, f"{REWARD}".encode()))
            await stop()

        sandbox.stop = look_and_stop
        return sandbox

    grader = ByRollout([REWARD])
    world.grader = lambda task: grader
    world.make_sandbox = watched
    record = await world.one()
    assert record.reward == REWARD
    assert looked_at[:2] == [True, True], "the agent's and the grader's sandbox, before they were removed"
    assert seen == []


async def test_the_key_is_on_no_command_line_and_in_no_file(world: World) -> None:
    keys, words, shown = [], [], []

    class Looking(CommandHarness):
        async def launch(self, sandbox: Any, installation: Installation, launch: Launch) -> Outcome:
            spawn = sandbox.spawn

            async def look_and_spawn(argv: Sequence[str], **options: Any) -> Any:
                words.extend(argv)
                process = await spawn(argv, **options)
                shown.append(command_lines())
                return process

            sandbox.spawn = look_and_spawn
            keys.append(launch.key)
            return await super().launch(sandbox, installation, launch)

    world.harness = Looking
    world.turns = turns("cat /proc/*/cmdline | tr '\\0' ' '; " + FIX)
    record = await world.one()
    (key,) = keys
    assert len(key) > 20
    assert len(words) > 3
    assert not any(key in word for word in words)
    assert len(shown) == 1
    assert key.encode() not in shown[0]
    tokens = world.renderer.vocabulary.decode(samples_of(record)[0].tokens.tolist())
    assert "agent.py" in tokens, "the agent saw its own command line"
    assert key not in tokens
    assert files_with(world.directory, key.encode()) == []


def files_with(folder: Path, text: bytes) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


# Named requirements


async def test_making_a_rollout_starts_nothing(world: World) -> None:
    async with world.services() as services:
        rollout = Rollout(world.task(), "r", world.directory / "rollouts" / "r", services)
        await asyncio.sleep(0)
        assert not rollout.directory.exists()
        assert not world.sandboxes.exists()
        assert rollout.record().cause == "cancelled"
        assert rollout.record().stages == {}


INSTRUCTION = "Fix *it*.\n\n  `a` \"b\" 'c' $HOME {model} \\n é  \n"
READS = {
    "stdin": ("python3", "{agent}"),
    "file": ("sh", "-c", "exec python3 {agent} < {instruction_file}"),
    "argument": ("sh", "-c", 'printf %s "$1" | python3 {agent}', "sh", "{instruction}"),
}


@pytest.mark.slow
async def test_the_instruction_is_the_same_whichever_way_an_agent_reads_it(world: World) -> None:
    agent, prompts = world.argv[1], []
    for name, argv in READS.items():
        world.argv = tuple(word.replace("{agent}", agent) for word in argv)
        world.directory = world.directory.parent / name
        (record,) = await world.run(world.task(instruction=INSTRUCTION))
        (sample,) = samples_of(record)
        prompts.append(sample.tokens[: sample.prompt_len].tolist())
    assert prompts[0] == prompts[1] == prompts[2]
    assert INSTRUCTION.strip() in world.renderer.vocabulary.decode(prompts[0])
