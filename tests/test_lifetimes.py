from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from bridle.errors import InfrastructureError
from bridle.lifetimes import Supervisor, shielded


async def forever() -> None:
    await asyncio.Event().wait()


async def fails(after_s: float = 0.0, message: str = "boom") -> None:
    if after_s:
        await asyncio.sleep(after_s)
    raise ValueError(message)


async def stubborn(seconds: float) -> None:
    """Ignores being cancelled for a while."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def cancelled_while(task: asyncio.Task[object], started: asyncio.Event) -> None:
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Supervisor


async def test_leaving_a_supervisor_cancels_its_tasks_and_waits_for_their_clean_up() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("yes")

    async with Supervisor("owner") as background:
        task = background.start("work", work())
        await asyncio.sleep(0)
    assert cleaned == ["yes"]
    assert task.cancelled()


async def test_tasks_carry_the_owners_and_their_own_name() -> None:
    async with Supervisor("gateway") as background:
        assert background.start("sweep", forever()).get_name() == "gateway: sweep"


async def test_a_task_may_end_or_be_cancelled_without_disturbing_anybody() -> None:
    async with Supervisor("owner") as background:
        assert await background.start("short", asyncio.sleep(0, "value")) == "value"
        background.start("given up", forever()).cancel()
        await asyncio.sleep(0.01)


async def test_a_failing_task_interrupts_the_body_and_its_own_error_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="boom"):
        async with asyncio.timeout(5), Supervisor("owner") as background:
            background.start("bad", fails())
            await forever()
    assert "owner: bad failed" in caplog.text
    assert current().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_failure_is_raised_when_the_body_ends_before_it_could_be_interrupted() -> None:
    with pytest.raises(ValueError, match="boom"):
        async with Supervisor("owner") as background:
            bad = background.start("bad", fails())
            while not bad.done():
                await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert current().cancelling() == 0


async def test_a_failure_in_the_very_last_step_of_the_body_is_not_lost() -> None:
    with pytest.raises(ValueError, match="boom"):
        async with Supervisor("owner") as background:
            background.start("bad", fails())
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert current().cancelling() == 0


async def test_a_failure_while_stopping_is_raised() -> None:
    async def bad_clean_up() -> None:
        try:
            await forever()
        finally:
            raise ValueError("clean-up")

    with pytest.raises(ValueError, match="clean-up"):
        async with Supervisor("owner") as background:
            background.start("bad", bad_clean_up())
            await asyncio.sleep(0)


async def test_the_bodys_own_error_comes_before_a_tasks_failure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError):
        async with Supervisor("owner") as background:
            background.start("bad", fails())
            try:
                await forever()
            except asyncio.CancelledError:
                raise KeyError("own") from None
    assert "owner: bad failed" in caplog.text


async def test_only_the_first_failure_is_raised_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="first"):
        async with Supervisor("owner") as background:
            background.start("a", fails(message="first"))
            background.start("b", fails(message="second"))
            await forever()
    assert "owner: b failed" in caplog.text


async def test_a_cancellation_from_outside_passes_through_and_stops_the_tasks() -> None:
    started, tasks = asyncio.Event(), []

    async def owner() -> None:
        async with Supervisor("owner") as background:
            tasks.append(background.start("work", forever()))
            started.set()
            await forever()

    await cancelled_while(asyncio.create_task(owner()), started)
    assert tasks[0].cancelled()


async def test_a_cancellation_while_leaving_is_raised_after_the_tasks_have_stopped() -> None:
    leaving, order = asyncio.Event(), []

    async def slow_clean_up() -> None:
        try:
            await forever()
        finally:
            leaving.set()
            await asyncio.sleep(0.05)
            order.append("cleaned")

    async def owner() -> None:
        async with Supervisor("owner") as background:
            background.start("work", slow_clean_up())
            await asyncio.sleep(0)

    await cancelled_while(asyncio.create_task(owner()), leaving)
    assert order == ["cleaned"]


async def test_a_timeout_around_a_supervisor_is_still_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Supervisor("owner") as background:
            background.start("work", forever())
            await forever()


async def test_a_cancellation_from_outside_is_not_hidden_by_a_failure() -> None:
    started = asyncio.Event()

    async def bad_clean_up() -> None:
        try:
            await forever()
        finally:
            raise ValueError("clean-up")

    async def owner() -> None:
        async with Supervisor("owner") as background:
            background.start("bad", bad_clean_up())
            started.set()
            await forever()

    await cancelled_while(asyncio.create_task(owner()), started)


async def test_a_task_that_ignores_its_cancellation_is_named_and_left_after_the_bound() -> None:
    with pytest.raises(InfrastructureError, match=r"not stopped within 0\.02 s of being cancelled: owner: deaf"):
        async with Supervisor("owner", stop_timeout_s=0.02) as background:
            deaf = background.start("deaf", stubborn(0.1))
            await asyncio.sleep(0)
    await deaf


@pytest.mark.filterwarnings("error")
async def test_nothing_starts_in_a_supervisor_that_is_not_running() -> None:
    background = Supervisor("owner")
    with pytest.raises(RuntimeError, match="late cannot start"):
        background.start("late", forever())
    async with background:
        pass
    with pytest.raises(RuntimeError, match="late cannot start"):
        background.start("late", forever())


# shielded


async def test_a_release_gives_its_result_or_its_error() -> None:
    assert await shielded(asyncio.sleep(0, "done"), 1.0, "release") == "done"
    with pytest.raises(ValueError, match="boom"):
        await shielded(fails(), 1.0, "release")


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_caller_finishes_its_release_first_and_is_cancelled_then(cancels: int) -> None:
    started, order = asyncio.Event(), []

    async def release() -> None:
        started.set()
        await asyncio.sleep(0.05)
        order.append("released")

    async def owner() -> None:
        try:
            await shielded(release(), 1.0, "release")
        finally:
            order.append("left")

    task = asyncio.create_task(owner())
    await started.wait()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["released", "left"]


async def test_a_release_that_fails_under_a_cancelled_caller_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    started = asyncio.Event()

    async def release() -> None:
        started.set()
        await fails(0.01)

    await cancelled_while(asyncio.create_task(shielded(release(), 1.0, "stop sandbox 7")), started)
    assert "stop sandbox 7 failed" in caplog.text
    assert "boom" in caplog.text


@pytest.mark.parametrize("release", [forever, lambda: stubborn(0.1)])
async def test_a_release_past_its_time_is_cancelled_and_named(release: Callable[..., object]) -> None:
    with pytest.raises(InfrastructureError, match=r"stop sandbox 7 did not end within 0\.02 s and was cancelled"):
        await shielded(release(), 0.02, "stop sandbox 7")


async def test_a_timeout_around_a_release_waits_for_it_and_is_still_a_timeout() -> None:
    released = []

    async def release() -> None:
        await asyncio.sleep(0.05)
        released.append("yes")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await shielded(release(), 1.0, "release")
    assert released == ["yes"]


def current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "bridle.lifetimes")
