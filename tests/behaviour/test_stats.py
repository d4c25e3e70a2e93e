"""What workers count of themselves, and what `app.stats()` makes of it."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from onward import Attempt, Backoff, Next, Onward, Permanent, job
from onward.errors import ConfigurationError
from onward.observe import events
from onward.observe.prometheus import PrometheusObserver
from onward.operating import Stats, TypeStats
from onward.state.command import Steps
from onward.state.driver import Connection
from onward.state.figures import Figure
from support import SOON, Recorder, scraped


@job("ship", internal=True)
def ship(attempt: Attempt[int]) -> int:
    return attempt.input


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[int]) -> Next[int]:
    if attempt.input % 10 == 0 and attempt.number == 1:
        raise ValueError("once more")
    if attempt.input % 15 == 0:
        raise Permanent("never")
    async with attempt.complete():
        return attempt.continue_with(ship, attempt.input)


@job("mail")
async def mail(attempt: Attempt[int]) -> int:
    return attempt.input


def counted(of: TypeStats) -> dict[str, int]:
    return {
        name: sum(getattr(minute, name) for minute in of.minutes)
        for name in ("started", "completed", "failed", "retried")
    }


async def tended(app: Onward) -> Stats:
    """Once starts are counted, which takes a second until their time is over."""
    async with app.driver.connection() as connection:
        await connection.fetch(f"UPDATE {table(app, 'figure_turn')} SET next_at = 0", {})
        await asyncio.sleep(1.1)
        await connection.run(app.state.figures.tend())
    return await app.stats()


def table(app: Onward, name: str) -> str:
    state: Any = app.state
    return f'"{state.schema}".{name}' if app.state.dialect == "postgres" else f"{state.prefix}{name}"


async def test_the_figures_agree_with_the_tables_once_the_workers_have_stopped(
    make_app: Callable[..., Onward], recorder: Recorder, scale: Callable[[int], int]
) -> None:
    count, registry = scale(10_000), CollectorRegistry()
    app = make_app(charge, ship, mail, observers=[recorder, PrometheusObserver(registry)])
    failed, retried = len(range(0, count, 15)), len(range(0, count, 10))
    worker = {"concurrency": 25, "backoff": Backoff(timedelta(0)), "grace": SOON}
    async with app:
        async with app.worker(**worker), app.worker(**worker):
            await app.start_many([charge.with_input(n) for n in range(count)])
            await app.start_many([mail.with_input(n) for n in range(count // 10)])
            async with asyncio.timeout(300):
                while len(recorder.of(events.AttemptEnded)) < count + retried + count - failed + count // 10:
                    await asyncio.sleep(0.05)
        stats = await tended(app)
        stored = await in_the_table(app)

    assert {name: counted(one) for name, one in stats.types.items()} == stored
    assert counted(stats.total) == {name: sum(one[name] for one in stored.values()) for name in stored["mail"]}
    assert stored["charge"] == {"started": count, "completed": count - failed, "failed": failed, "retried": retried}
    assert [len(one.minutes) for one in (stats.total, *stats.types.values())] == [60] * 4
    for name, one in stored.items():
        assert stats.types[name].failed == one["failed"]
        assert told_by_prometheus(registry, name) == one
        spread = stats.types[name].wait
        assert spread is not None
        assert timedelta(0) < spread.p50 <= spread.p95 <= spread.p99 < timedelta(minutes=5)


async def in_the_table(app: Onward) -> dict[str, dict[str, int]]:
    """What the rows of jobs say, by type."""
    async with app.driver.connection() as connection:
        rows = await connection.fetch(
            "SELECT type_name, count(*), sum(CASE status WHEN 'completed' THEN 1 ELSE 0 END), "
            "sum(CASE status WHEN 'failed' THEN 1 ELSE 0 END), sum(attempt - 1) "
            f"FROM {table(app, 'job')} GROUP BY type_name",
            {},
        )
    names = ("started", "completed", "failed", "retried")
    return {row[0]: dict(zip(names, map(int, row[1:]), strict=True)) for row in rows}


def told_by_prometheus(registry: CollectorRegistry, name: str) -> dict[str, int]:
    told = scraped(registry)
    completed, failed, retried = (
        int(told.get(key, 0))
        for key in (
            ("onward_jobs_ended_total", name, "completed"),
            ("onward_jobs_ended_total", name, "failed"),
            ("onward_retries_total", name),
        )
    )
    attempts = completed + failed + retried
    assert told["onward_job_run_seconds_count", name] == told["onward_job_wait_seconds_count", name] == attempts
    return {"started": completed + failed, "completed": completed, "failed": failed, "retried": retried}


async def test_of_what_is_not_there_nothing_is_told(opened: Any) -> None:
    app: Onward = await opened(charge, ship)
    await app.pause(ship)

    stats = await app.stats(more_than=5)
    await app.start_many([charge.with_input(n) for n in range(9)])
    more = await app.stats(more_than=5)

    assert list(stats.types) == ["charge", "ship"]
    assert (stats.total.pending, stats.total.oldest, stats.total.wait, stats.more_than) == (0, None, None, 5)
    assert [one.paused for one in stats.types.values()] == [False, True]
    assert more.total.pending == more.types["charge"].pending == 5
    with pytest.raises(ConfigurationError, match="more_than"):
        await app.stats(more_than=0)
    with pytest.raises(ConfigurationError, match="more_than"):
        await app.stats(more_than=2**63)


async def test_the_oldest_is_found_behind_any_number_of_priorities(opened: Any) -> None:
    app: Onward = await opened(mail)
    await app.start_many([mail.with_input(n, priority=n) for n in range(150)])
    day = "interval '1 day'" if app.state.dialect == "postgres" else "86400000000"
    jobs = table(app, "job")
    async with app.driver.connection() as connection:
        await connection.fetch(
            f"UPDATE {jobs} SET scheduled_at = scheduled_at - {day} WHERE rank = (SELECT max(rank) FROM {jobs})", {}
        )

    oldest = (await app.stats()).types["mail"].oldest

    assert oldest is not None
    assert oldest > timedelta(hours=23)


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_figures_that_cannot_be_written_hold_nobody_up_and_are_written_later(
    running: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.figures._WRITE_EVERY", 0.02)
    app: Onward = await running(mail)
    record = app.state.figures.record
    is_away = True

    def broken(writer: str, figures: list[Figure]) -> Any:
        return record(writer, figures) if not is_away else record(writer, figures).then(_fail)

    monkeypatch.setattr(app.state.figures, "record", broken)
    count = 0
    async with asyncio.timeout(SOON.total_seconds()):
        while len({event.doing for event in recorder.of(events.StateError)}) < 2:  # with outcomes, and alone
            count += 1
            await (await app.start(mail, count)).wait()
            await asyncio.sleep(0.03 * (count % 2))
    is_away = False

    async with asyncio.timeout(SOON.total_seconds()):
        while counted((await app.stats()).total)["completed"] < count:
            await asyncio.sleep(0.02)
    assert {event.doing for event in recorder.of(events.StateError)} == {"settle", "write figures"}


def _fail(now: float) -> float:
    raise OSError("away")


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_worker_that_ends_writes_its_figures_although_the_pool_is_lent(
    make_app: Callable[..., Onward], recorder: Recorder
) -> None:
    @job("refund")
    async def refund(attempt: Attempt[int]) -> int:
        async with attempt.complete():  # so that no connection is made to settle
            return attempt.input

    async with make_app(refund, pool_size=1) as app:
        await app.start(refund, 1)
        async with AsyncExitStack() as lent, app.worker():
            async with asyncio.timeout(SOON.total_seconds()):
                while not recorder.of(events.AttemptEnded):
                    await asyncio.sleep(0.01)
            await lent.enter_async_context(app.driver.connection())
        stats = await app.stats()
    assert counted(stats.total)["completed"] == 1
    assert not recorder.of(events.StateError)


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_commit_of_unknown_outcome_is_counted_once(
    running: Any, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr("onward.worker.figures._WRITE_EVERY", 0.01)
    app: Onward = await running(mail)
    lost: list[int] = []
    run = type(app.state.figures).record

    def written_but_unheard(self: Any, writer: str, figures: list[Figure]) -> Any:
        command = run(self, writer, figures)
        if len(lost) >= 3:
            return command

        async def both(connection: Connection) -> float:
            await connection.run(command)
            if connection.in_transaction:
                await connection.commit()
                await connection.begin()
            lost.append(1)
            raise OSError("the answer was lost")

        return Steps(both)

    monkeypatch.setattr(type(app.state.figures), "record", written_but_unheard)
    for n in range(30):
        await (await app.start(mail, n)).wait(timeout=SOON)

    async with asyncio.timeout(SOON.total_seconds()):
        while counted((await app.stats()).total)["completed"] < 30:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)
    assert len(lost) == 3
    assert counted((await app.stats()).total)["completed"] == 30
