"""A worker whose own task is cancelled, as programs do that run it beside other things: its jobs are given back."""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, JobStatus, LossReason, Onward, job
from onward.observe import events
from support import SOON, Recorder, Run, intercept


async def test_a_worker_that_is_cancelled_gives_its_jobs_back(opened: Any, recorder: Recorder) -> None:
    @job("endless")
    async def endless(attempt: Attempt[None]) -> None:
        await asyncio.Event().wait()

    app: Onward = await opened(endless)
    chains = await app.start_many([endless.with_input(None) for _ in range(5)])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker(concurrency=5).run())
        await recorder.next(events.AttemptStarted, count=5)

        running.cancel()

    found = [(await chain.get()).current for chain in chains]
    assert {(each.status, each.failures) for each in found} == {(JobStatus.PENDING, 0)}


async def test_one_that_is_cancelled_again_while_it_gives_them_back_does_so_all_the_same(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("endless")
    async def endless(attempt: Attempt[None]) -> None:
        await asyncio.Event().wait()

    app: Onward = await opened(endless)
    is_settling, may_settle = asyncio.Event(), asyncio.Event()

    async def late(run: Run, *_: Any, **__: Any) -> Any:
        is_settling.set()
        await may_settle.wait()
        return await run()

    intercept(monkeypatch, app.state, "settle", late)
    chain = await app.start(endless, None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker().run())
        await recorder.next(events.AttemptStarted)
        running.cancel()
        await is_settling.wait()
        running.cancel()
        asyncio.get_running_loop().call_later(0.05, may_settle.set)

    current = (await chain.get()).current
    assert (current.status, current.failures) == (JobStatus.PENDING, 0)


async def test_cancelling_the_program_around_a_worker_that_drains_gives_its_jobs_back(
    opened: Any, recorder: Recorder
) -> None:
    """As a second Ctrl-C, or a time limit around the whole, would."""

    @job("endless")
    async def endless(attempt: Attempt[None]) -> None:
        await asyncio.Event().wait()

    app: Onward = await opened(endless)
    chain = await app.start(endless, None)

    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit, app.worker():
            await recorder.next(events.AttemptStarted)
            limit.reschedule(asyncio.get_running_loop().time() + 0.1)

    current = (await chain.get()).current
    assert (current.status, current.failures) == (JobStatus.PENDING, 0)


async def test_a_handler_in_a_thread_is_told_when_its_worker_is_cancelled(opened: Any, recorder: Recorder) -> None:
    told: list[LossReason | None] = []
    begun = threading.Event()

    @job("threaded")
    def threaded(attempt: Attempt[None]) -> None:
        begun.set()
        waiting = threading.Event()
        for _ in range(int(SOON / timedelta(milliseconds=10))):
            if attempt.cancelled is not None or waiting.wait(0.01):
                break
        told.append(attempt.cancelled)

    app: Onward = await opened(threaded)
    await app.start(threaded, None)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(app.worker().run())
        await asyncio.to_thread(begun.wait, SOON.total_seconds())

        running.cancel()

    assert told == [LossReason.STOPPING]


async def test_when_all_tasks_are_cancelled_at_once_the_jobs_are_given_back(opened: Any, recorder: Recorder) -> None:
    """As `asyncio.run` does when a program ends that has its worker in a task of its own."""

    @job("endless")
    async def endless(attempt: Attempt[None]) -> None:
        await asyncio.Event().wait()

    app: Onward = await opened(endless)
    chains = await app.start_many([endless.with_input(None) for _ in range(5)])
    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.worker(concurrency=5).run())
        await recorder.next(events.AttemptStarted, count=5)

        for task in asyncio.all_tasks() - before:
            task.cancel()

    found = [(await chain.get()).current for chain in chains]
    assert {(each.status, each.failures) for each in found} == {(JobStatus.PENDING, 0)}


async def test_when_all_tasks_are_cancelled_at_once_what_was_being_settled_is_settled(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("once")
    async def once(attempt: Attempt[bool]) -> None:
        if attempt.input:
            await asyncio.Event().wait()

    app: Onward = await opened(once)
    may_settle = asyncio.Event()

    async def late(run: Run, *_: Any, **__: Any) -> Any:
        await may_settle.wait()
        return await run()

    intercept(monkeypatch, app.state, "settle", late)
    brief = await app.start_many([once.with_input(False) for _ in range(2)])
    endless = await app.start_many([once.with_input(True) for _ in range(2)])
    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.worker(concurrency=2).run())
        await recorder.next(events.AttemptStarted, count=4)

        may_settle.set()
        for task in asyncio.all_tasks() - before:
            task.cancel()

    assert {(await chain.get()).status for chain in brief} == {JobStatus.COMPLETED}
    found = [(await chain.get()).current for chain in endless]
    assert {(each.status, each.failures) for each in found} == {(JobStatus.PENDING, 0)}


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("kind", ["async", "threaded"])
async def test_an_app_that_is_closed_before_its_worker_is_no_fault_of_the_jobs(
    kind: str, make_app: Any, recorder: Recorder
) -> None:
    is_closed = threading.Event()

    @job("async")
    async def works(attempt: Attempt[None]) -> None:
        await asyncio.to_thread(is_closed.wait, SOON.total_seconds())
        async with attempt.complete():
            pass

    @job("threaded")
    def works_in_thread(attempt: Attempt[None]) -> None:
        is_closed.wait(SOON.total_seconds())
        with attempt.complete():
            pass

    app, other = make_app(works, works_in_thread), make_app(works, works_in_thread)
    async with other, asyncio.TaskGroup() as tasks:
        await app.open()
        chain = await other.start(works if kind == "async" else works_in_thread, None)
        working = tasks.create_task(app.worker().run())
        await recorder.next(events.AttemptStarted)

        await app.close()
        is_closed.set()
        await recorder.next(events.AttemptFailed)
        working.cancel()
        await asyncio.wait([working])

        current = (await chain.get()).current
        assert (current.status, current.failures) == (JobStatus.PENDING, 0)
