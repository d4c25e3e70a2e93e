"""What workers count of themselves, and what `app.stats()` makes of it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, Backoff, Next, Onward, Permanent, job
from onward.errors import ConfigurationError
from onward.observe import events
from onward.operating import Stats, TypeStats
from onward.state.command import Steps
from onward.state.driver import Connection
from onward.state.figures import Figure
from support import SOON, Recorder


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


async def test_the_figures_agree_with_the_tables_once_the_worker_has_stopped(
    make_app: Callable[..., Onward], recorder: Recorder, scale: Callable[[int], int]
) -> None:
    count = scale(10_000)
    app = make_app(charge, ship, observers=[recorder])
    failed, retried = len(range(0, count, 15)), len(range(0, count, 10))
    async with app:
        async with app.worker(concurrency=50, backoff=Backoff(timedelta(0)), grace=SOON):
            await app.start_many([charge.with_input(n) for n in range(count)])
            async with asyncio.timeout(300):
                while len(recorder.of(events.AttemptEnded)) < count + retried + count - failed:
                    await asyncio.sleep(0.05)
        stats = await tended(app)

    charged = {"started": count, "completed": count - failed, "failed": failed, "retried": retried}
    shipped = {"started": count - failed, "completed": count - failed, "failed": 0, "retried": 0}
    assert counted(stats.types["charge"]) == charged
    assert counted(stats.types["ship"]) == shipped
    assert counted(stats.total) == {name: charged[name] + shipped[name] for name in charged}
    assert stats.types["charge"].failed == failed == stats.total.failed
    assert [len(one.minutes) for one in (stats.total, *stats.types.values())] == [60, 60, 60]
    wait = stats.types["charge"].wait
    assert wait is not None
    assert timedelta(0) < wait.p50 <= wait.p95 <= wait.p99 < timedelta(minutes=5)


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
