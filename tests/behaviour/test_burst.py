"""A worker in a burst: it stops by itself when nothing is left, and not before."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, Backoff, JobStatus, Limit, Next, Onward, job
from onward.errors import SchemaMissing
from onward.observe import events
from support import SOON, Recorder, Run, intercept

LATER = timedelta(hours=1)


@job("ship", internal=True)
async def ship(attempt: Attempt[int]) -> int:
    return attempt.input


@job("charge", continues_to=[ship], limit=Limit("one", concurrency=1))
async def charge(attempt: Attempt[int]) -> Next[int]:
    async with attempt.complete():
        return attempt.continue_with(ship, attempt.input)


@job("report", blocked_by=[charge])
async def report(attempt: Attempt[None]) -> int:
    return sum(attempt.outputs_of(charge))


@job("fragile", backoff=Backoff(initial=LATER))
async def fragile(attempt: Attempt[None]) -> None:
    raise ValueError("not today")


async def burst(app: Onward, **options: Any) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        await app.worker(burst=True, **options).run()


async def test_it_ends_when_everything_is_done_and_not_before(opened: Any) -> None:
    app: Onward = await opened(charge, ship, report, fragile)
    done = [await app.start(charge, n) for n in range(5)]
    waiting = await app.start(report, None, blockers=[charge.with_input(n) for n in range(3)])
    later = await app.start(charge, 7, delay=LATER)
    broken = await app.start(fragile, None)

    await burst(app, concurrency=3)

    assert [(await chain.get()).status for chain in (*done, waiting)] == [JobStatus.COMPLETED] * 6
    assert await waiting.wait() == 3
    assert (await later.get()).status is JobStatus.PENDING
    assert (await broken.get()).current.failures == 1


async def test_it_waits_for_what_others_run_and_takes_what_goes_on_from_there(
    make_app: Callable[..., Onward], recorder: Recorder
) -> None:
    may_go_on = asyncio.Event()

    @job("first", continues_to=[ship])
    async def first(attempt: Attempt[int]) -> Next[int]:
        await may_go_on.wait()
        return attempt.continue_with(ship, attempt.input)

    async with make_app(first, ship) as app, app.worker(jobs=[first]):
        chain = await app.start(first, 1)
        await recorder.next(events.AttemptStarted)
        async with asyncio.TaskGroup() as tasks:
            bursting = tasks.create_task(burst(app))
            await recorder.next(events.WorkerStarted, count=2)
            await asyncio.wait([bursting], timeout=0.6)
            assert not bursting.done()
            may_go_on.set()

        assert await chain.wait(timeout=SOON) == 1


async def test_what_is_paused_does_not_hold_it(opened: Any) -> None:
    app: Onward = await opened(charge, ship)
    chain = await app.start(charge, 1)
    await app.pause(charge)

    await burst(app)

    assert (await chain.get()).status is JobStatus.PENDING


async def test_a_look_that_fails_is_told_and_repeated(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app: Onward = await opened(charge, ship)
    errors = [LookupError("not a trouble of the database's") for _ in range(3)]

    async def look(run: Run, **_: Any) -> Any:
        if errors:
            raise errors.pop()
        return await run()

    intercept(monkeypatch, app.state, "work_left", look)
    chain = await app.start(charge, 1)

    await burst(app)

    assert (await chain.get()).status is JobStatus.COMPLETED
    told = [record.getMessage() for record in caplog.records if "is left to do" in record.getMessage()]
    assert len(told) == 2  # the first and the second time
    assert told[0].endswith("and looks again: not a trouble of the database's")


async def test_without_its_tables_it_ends_and_says_what_to_do(
    opened: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(charge, ship)

    async def look(run: Run, **_: Any) -> Any:
        await remove_tables(app)
        return await run()

    intercept(monkeypatch, app.state, "work_left", look)

    with pytest.raises(BaseExceptionGroup) as raised:
        await burst(app, guardian="thread")

    assert raised.group_contains(SchemaMissing, match="run `onward migrate`")


async def remove_tables(app: Onward) -> None:
    async with app.transaction() as tx:
        if app.state.dialect == "postgres":
            await tx.execute(f'DROP SCHEMA IF EXISTS "{app.state.schema}" CASCADE')
            return
        for (name,) in await tx.fetch("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onward_%'"):
            await tx.execute(f"DROP TABLE {name}")


async def test_a_full_limit_is_waited_for_whoever_has_its_places(
    make_app: Callable[..., Onward], recorder: Recorder
) -> None:
    may_end = asyncio.Event()

    @job("import", limit=Limit("one", concurrency=1))
    async def other(attempt: Attempt[int]) -> None:
        await may_end.wait()

    async with make_app(other, charge, ship) as app, app.worker(jobs=[other]):
        await app.start(other, 1)
        await recorder.next(events.AttemptStarted)
        chain = await app.start(charge, 2)
        async with asyncio.TaskGroup() as tasks:
            bursting = tasks.create_task(burst(app, jobs=[charge, ship]))
            await recorder.next(events.WorkerStarted, count=2)
            await asyncio.wait([bursting], timeout=0.6)
            assert not bursting.done()
            may_end.set()

        assert await chain.wait(timeout=SOON) == 2


async def test_what_cannot_be_taken_under_a_limit_does_not_hold_it(opened: Any) -> None:
    """Paused, scheduled for later, or of a version that nobody here reads."""

    @job("audit", limit=Limit("one", concurrency=1))
    async def audit(attempt: Attempt[int]) -> None: ...

    @job("import", version=2, limit=Limit("one", concurrency=1))
    async def newer(attempt: Attempt[int]) -> None: ...

    @job("import", limit=Limit("one", concurrency=1))
    async def older(attempt: Attempt[int]) -> None: ...

    deploying: Onward = await opened(audit, charge, ship, newer)
    left = [await deploying.start(newer, 1), await deploying.start(charge, 1, delay=LATER)]
    left += [await deploying.start(audit, n) for n in range(2)]
    await deploying.pause(audit)
    app: Onward = await opened(audit, charge, ship, older)

    await burst(app)

    assert [(await chain.get()).status for chain in left] == [JobStatus.PENDING] * 4
