"""Schedules with workers: every tick once, at its time, whatever stumbles meanwhile."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from onward import Attempt, JobType, Limit, Onward, Schedule, StoredSchedule, job
from onward.client.checking import check_stored
from onward.errors import ConfigurationError, DefinitionError, ScheduleNotFound, TransactionError
from onward.observe import events
from onward.state.driver import transaction
from onward.state.schedules import Move
from support import SOON, Recorder, Run, intercept

MONTH, SECOND, OFTEN = timedelta(days=28), timedelta(seconds=1), timedelta(milliseconds=100)


@job("note")
async def note(attempt: Attempt[str]) -> str:
    return attempt.input


def spell(tick: datetime) -> str:
    return tick.astimezone(UTC).isoformat()


def often(name: str = "often", input: Any = spell, every: timedelta = OFTEN, **options: Any) -> Schedule[Any]:
    return Schedule(name, note, input, every=every, **options)


async def stored(app: Onward, name: str = "often") -> StoredSchedule:
    """The schedule, once a worker has stored it."""
    while not (found := [one for one in await app.schedules.list() if one.name == name]):
        await asyncio.sleep(0.01)
    return found[0]


async def set_back(app: Onward, by: timedelta, name: str = "often") -> None:
    """As if nothing had been done for so long: the row says that a tick of then is the next one."""
    found = await app.store.read(app.state.schedules.find([name]))
    row = found.rows[0]
    assert row.next_at is not None
    back = app.state.schedules.change(row, changed=row.changed, next_at=row.next_at - by)
    async with app.driver.connection() as connection:
        assert await connection.run(back)


async def inputs(app: Onward) -> list[str]:
    return sorted([found.input async for found in app.jobs(types=[note])])


# -- ticks


async def test_every_tick_starts_a_chain_with_what_is_made_of_it(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(note, schedules=[often(missed="all")])

    await recorder.next(events.ChainCompleted, count=10)

    ticked = recorder.of(events.ScheduleTicked)
    assert [(event.schedule, event.type_name) for event in ticked][:1] == [("often", "note")]
    ticks = [event.tick for event in ticked]
    assert [later - earlier for earlier, later in pairwise(ticks)] == [OFTEN] * (len(ticks) - 1)
    chain = await app.find_chain(ticked[0].chain_id)
    assert chain is not None
    assert (chain.current.input, chain.current.origin_id) == (spell(ticks[0]), None)
    assert {event.chain_id for event in ticked[:10]} <= {e.chain_id for e in recorder.of(events.ChainStarted)}


async def test_chains_that_wait_in_line_are_not_taken_for_stranded(opened: Any, recorder: Recorder) -> None:
    approve = JobType("approve", input=int, output=int)
    line = Schedule("line", approve, 1, every=OFTEN, overlap="queue")
    app: Onward = await opened(approve, note, schedules=[line])
    async with app.worker():
        await recorder.next(events.ScheduleTicked, count=3)

    verdict = await check_stored(app.registry, app.store)

    assert (verdict.checked >= 3, verdict.stranded) == (True, [])


async def test_any_worker_of_the_app_starts_what_others_run(opened: Any, recorder: Recorder) -> None:
    @job("other")
    async def other(attempt: Attempt[None]) -> None:
        return

    app: Onward = await opened(note, other, schedules=[often()])
    async with app.worker(jobs=[other]):
        await recorder.next(events.ScheduleTicked, count=3)

    assert not recorder.of(events.AttemptStarted)


async def test_several_workers_and_apps_start_each_tick_once(
    make_app: Callable[..., Onward], recorder: Recorder
) -> None:
    schedules = [often(name, lambda tick, name=name: f"{name} {spell(tick)}") for name in ("a", "b")]
    apps = [make_app(note, schedules=schedules) for _ in range(3)]
    async with apps[0], apps[1], apps[2]:
        async with apps[0].worker(), apps[0].worker(), apps[1].worker(), apps[2].worker():
            await recorder.next(events.ScheduleTicked, count=40)
        found = await inputs(apps[0])

    ticked = [f"{event.schedule} {spell(event.tick)}" for event in recorder.of(events.ScheduleTicked)]
    assert len(found) == len(set(found))
    assert len(ticked) == len(set(ticked))
    assert set(ticked) <= set(found)


async def test_a_type_may_have_its_own(running: Any, recorder: Recorder) -> None:
    @job("own", schedule=Schedule(input="x", every=OFTEN))
    async def own(attempt: Attempt[str]) -> str:
        return attempt.input

    app: Onward = await running(own)
    await recorder.next(events.ScheduleTicked)

    found = await stored(app, "own")
    assert (found.type_name, found.every, found.input, found.is_declared) == ("own", OFTEN, "x", True)


async def test_the_name_of_one_may_be_of_a_kind_of_text_of_the_applications_own(opened: Any) -> None:
    class Name(str):
        __slots__ = ()

    app: Onward = await opened(note, schedules=[often("nightly")])

    await app.schedules.pause(Name("nightly"))

    assert [(one.name, one.paused_at is not None) for one in await app.schedules.list()] == [("nightly", True)]


async def test_types_registered_later_bring_theirs(opened: Any, recorder: Recorder) -> None:
    @job("own", schedule=Schedule(input="x", every=OFTEN))
    async def own(attempt: Attempt[str]) -> str:
        return attempt.input

    app: Onward = await opened(note)
    app.register(own)
    async with app.worker():
        await recorder.next(events.ScheduleTicked)


async def test_types_whose_schedule_is_refused_are_not_registered() -> None:
    @job("own", schedule=Schedule(input="not a number", every=OFTEN))
    async def own(attempt: Attempt[int]) -> None: ...

    app = Onward("memory://", jobs=[note], schedules=[often()])
    with pytest.raises(DefinitionError, match="own"):
        app.register(own)

    assert [*app.registry] == ["note"]


@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("once", 1), ("all", 3)])
async def test_what_was_missed_while_nobody_worked(opened: Any, recorder: Recorder, missed: str, expected: int) -> None:
    app: Onward = await opened(note, schedules=[often(every=MONTH, missed=missed)])
    await app.schedules.resume("often")
    await set_back(app, 3 * MONTH)
    async with app.worker():
        while (await stored(app)).next_at < datetime.now(UTC):  # type: ignore[operator]
            await asyncio.sleep(0.01)
        found = await stored(app)

    assert len(await inputs(app)) == expected
    assert found.skipped == 3 - expected
    assert (found.last_chain_id is None) == (expected == 0)
    assert sum(event.count for event in recorder.of(events.ScheduleSkipped)) == 3 - expected


async def test_while_the_last_chain_runs_ticks_are_skipped_or_wait(running: Any, recorder: Recorder) -> None:
    gate = asyncio.Event()

    @job("slow")
    async def slow(attempt: Attempt[str]) -> str:
        await gate.wait()
        return attempt.input

    at_a_time: dict[str, int] = {}

    @job("line", max_attempts=1)
    async def line(attempt: Attempt[str]) -> str:
        at_a_time["now"] = at_a_time.get("now", 0) + 1
        at_a_time["most"] = max(at_a_time["now"], at_a_time.get("most", 0))
        await gate.wait()
        at_a_time["now"] -= 1
        raise ValueError("the next runs all the same")

    skip = Schedule("skip", slow, spell, every=OFTEN, overlap="skip")
    queue = Schedule("queue", line, spell, every=OFTEN, overlap="queue")
    app: Onward = await running(slow, line, schedules=[skip, queue])
    while (await stored(app, "queue")).last_chain_id is None or (await stored(app, "skip")).skipped < 3:
        await asyncio.sleep(0.05)
    waiting = [one async for one in app.jobs(types=[line])]
    running_ones = [one async for one in app.jobs(types=[slow])]
    gate.set()
    await recorder.next(events.ChainFailed, count=3)

    assert len(running_ones) == 1
    assert len(waiting) >= 3
    assert [one.status for one in waiting][-1] == "running"
    assert {one.status for one in waiting[:-1]} == {"blocked"}
    assert at_a_time["most"] == 1


async def test_jitter_delays_the_chain_and_not_the_schedule(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(note, schedules=[often(jitter=MONTH)])
    async with app.worker():
        await recorder.next(events.ScheduleTicked, count=3)

    found = [one async for one in app.jobs()]
    assert all(one.status == "pending" for one in found)
    assert len({one.scheduled_at for one in found}) == len(found)


async def test_a_schedule_that_is_over_starts_nothing_more(running: Any, recorder: Recorder) -> None:
    end = datetime.now(UTC) + timedelta(seconds=1)
    app: Onward = await running(note, schedules=[often(end=end)])

    while (await stored(app)).next_at is not None:
        await asyncio.sleep(0.02)

    assert all(event.tick <= end for event in recorder.of(events.ScheduleTicked))


# -- people


async def test_it_is_paused_resumed_and_listed(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(note, schedules=[often(), often("rare", "x", MONTH, priority=3)])
    await recorder.next(events.ScheduleTicked)

    await app.schedules.pause("often")
    ticks = len(recorder.of(events.ScheduleTicked))
    found = await stored(app)
    await asyncio.sleep(0.5)
    while_paused = len(recorder.of(events.ScheduleTicked)) - ticks
    await app.schedules.resume("often")
    await recorder.next(events.ScheduleTicked, count=ticks + while_paused + 3)

    assert while_paused <= 1, "one may just have been committed, its event on the way"
    assert found.paused_at is not None
    assert (await stored(app)).paused_at is None
    rare = await stored(app, "rare")
    assert (rare.priority, rare.input, rare.every, rare.last_tick) == (3, "x", MONTH, None)
    assert rare.next_at is not None


async def test_it_is_run_at_once_and_goes_on_as_it_would_have(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(note, schedules=[often(every=MONTH, jitter=MONTH)])
    await app.schedules.resume("often")
    before = await stored(app)

    chain = await app.schedules.run("often")

    ran = datetime.fromisoformat(await chain.wait(timeout=SOON))
    assert abs(datetime.now(UTC) - ran) < SOON
    assert (await stored(app)).next_at == before.next_at


async def test_what_is_done_in_a_transaction_is_done_with_it(opened: Any) -> None:
    app: Onward = await opened(note, schedules=[often(every=MONTH)])
    with pytest.raises(ZeroDivisionError):
        async with app.transaction() as tx:
            await app.schedules.pause("often", tx=tx)
            await app.schedules.change("often", cron="0 0 * * *", tx=tx)
            await app.schedules.run("often", tx=tx)
            assert [(one.paused_at is None, one.cron) for one in await app.schedules.list(tx=tx)] == [
                (False, "0 0 * * *")
            ]
            raise ZeroDivisionError

    assert list(await app.schedules.list()) == []
    assert await inputs(app) == []
    async with app.transaction() as tx:
        with pytest.raises(TransactionError):
            await app.schedules.pause("often")


async def test_a_change_at_run_time_takes_effect_at_once_and_is_taken_back(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(note, schedules=[often(every=MONTH, tz="Europe/Oslo")])
    await app.schedules.resume("often")

    await app.schedules.change("often", every=OFTEN)
    await recorder.next(events.ScheduleTicked, count=3)
    changed = await stored(app)
    await app.schedules.change("often", cron="0 3 * * *")
    cron = await stored(app)
    await app.schedules.reset("often")
    back = await stored(app)

    assert (changed.every, changed.is_changed) == (OFTEN, True)
    assert (cron.cron, cron.every, cron.tz) == ("0 3 * * *", None, "Europe/Oslo")
    assert (back.every, back.is_changed) == (MONTH, False)


async def test_what_a_change_does_not_say_stays_as_it_was_changed_before(opened: Any) -> None:
    app: Onward = await opened(note, schedules=[often()])

    await app.schedules.change("often", cron="30 4 * * *")
    await app.schedules.change("often", tz="Europe/Oslo")
    both = await stored(app)
    await app.schedules.change("often", every=SECOND)
    again = await stored(app)

    assert (both.cron, both.every, both.tz) == ("30 4 * * *", None, "Europe/Oslo")
    assert (again.cron, again.every, again.tz) == (None, SECOND, "Europe/Oslo")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"every": timedelta(0), "tz": "Asia/Tokyo"}, "every=0:00:00 is too short"),
        ({"cron": "", "tz": "Asia/Tokyo"}, "cron='': wrong number of fields"),
        ({"every": SECOND, "cron": ""}, "give cron= or every=, and not both"),
        ({"tz": ""}, "tz='': use a name such as"),
    ],
)
async def test_a_change_to_nothing_is_refused_and_not_passed_over(
    opened: Any, change: dict[str, Any], complaint: str
) -> None:
    app: Onward = await opened(note, schedules=[often(every=MONTH)])

    with pytest.raises(ConfigurationError, match=complaint):
        await app.schedules.change("often", **change)

    assert list(await app.schedules.list()) == []


async def test_a_change_in_another_process_is_heard(make_app: Callable[..., Onward], recorder: Recorder) -> None:
    app, other = make_app(note, schedules=[often(every=MONTH)]), make_app(note)
    async with app, other, app.worker():
        while not await other.schedules.list():
            await asyncio.sleep(0.01)
        await other.schedules.change("often", every=OFTEN)
        await recorder.next(events.ScheduleTicked)


async def test_a_change_in_the_code_takes_effect_at_once_and_old_code_stops(
    make_app: Callable[..., Onward], recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make_app(note, schedules=[often(input="old")]), make_app(note, schedules=[often(input="new")])
    async with old, new, old.worker():
        await recorder.next(events.ScheduleTicked, count=2)
        await old.schedules.change("often", every=2 * OFTEN)
        async with new.worker():
            while (await stored(old)).input != "new":
                await asyncio.sleep(0.01)
            assert not (await stored(old)).is_changed
            since = len(await inputs(old))
            await recorder.next(events.ScheduleTicked, count=since + 5)

    async with old, old.worker():
        while not caplog.messages:
            await asyncio.sleep(0.01)
        newest = [one.input async for one in old.jobs(limit=5)]
    assert newest[:5] == ["new"] * 5
    assert "schedule 'often' is declared otherwise by newer code" in caplog.text


async def test_what_no_live_code_declares_is_shown_and_starts_nothing(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    monkeypatch.setattr("onward.lifecycle.schedules._GONE_AFTER", timedelta(milliseconds=300))
    app, without = make_app(note, schedules=[often()]), make_app(note)
    async with app, without:
        async with app.worker():
            await recorder.next(events.ScheduleTicked)
            assert (await stored(app)).is_declared
        started = await inputs(app)
        async with without.worker():
            while (await stored(without)).is_declared:
                await asyncio.sleep(0.02)
            assert await inputs(without) == started
        await without.schedules.forget("often")
        assert list(await app.schedules.list()) == []


async def test_a_name_that_does_not_exist_is_refused(opened: Any) -> None:
    app: Onward = await opened(note, schedules=[often()])
    calls = (app.schedules.pause, app.schedules.resume, app.schedules.run, app.schedules.reset, app.schedules.forget)
    for call in calls:
        with pytest.raises(ScheduleNotFound, match="no schedule 'oftn'; did you mean 'often'"):
            await call("oftn")
    for wrong in ({}, {"cron": "x"}, {"tz": "Mars"}, {"cron": "* * * * *", "every": OFTEN}, {"every": timedelta(0)}):
        with pytest.raises(ConfigurationError):
            await app.schedules.change("often", **wrong)
    for strange in (None, 7, "", "a\0b"):
        with pytest.raises(ConfigurationError):
            await app.schedules.pause(strange)  # type: ignore[arg-type]


def test_the_same_without_an_event_loop(make_app: Callable[..., Onward]) -> None:
    app = make_app(note, schedules=[often("rare", "x", MONTH)])
    with app.sync as client:
        client.schedules.pause("rare")
        paused = client.schedules.list()[0]
        client.schedules.resume("rare")
        client.schedules.change("rare", cron="0 3 * * *", tz="Europe/Oslo")
        changed = client.schedules.list()[0]
        client.schedules.reset("rare")
        with client.transaction() as tx:
            chain = client.schedules.run("rare", tx=tx)
        found = client.find_job(chain.id)
        client.schedules.forget("rare")

        assert paused.paused_at is not None
        assert (changed.cron, changed.tz, changed.paused_at) == ("0 3 * * *", "Europe/Oslo", None)
        assert found is not None
        assert found.input == "x"
        assert client.schedules.list() == []


# -- troubles


async def test_an_input_that_cannot_be_made_is_shown_tried_again_and_holds_up_nothing(
    running: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.schedules._TRY_AGAIN", 0.05)
    is_broken = True

    def broken(tick: datetime) -> str:
        if is_broken:
            raise ValueError("no report today")
        return "mended"

    wrong: Any = lambda tick: 7  # noqa: E731
    app: Onward = await running(note, schedules=[often(), often("broken", broken), often("wrong", wrong)])
    await recorder.next(events.ScheduleFailed, count=6)
    await recorder.next(events.ScheduleTicked, count=5)
    shown = {one.name: one.error for one in await app.schedules.list()}
    is_broken = False
    while (await stored(app, "broken")).error is not None:
        await asyncio.sleep(0.02)

    assert shown["often"] is None
    assert shown["broken"] == "ValueError: no report today"
    assert "PayloadError" in (shown["wrong"] or "")
    assert (await stored(app, "broken")).last_chain_id is not None


def lost_answer(app: Onward) -> Exception:
    if app.state.dialect == "postgres":
        return ConnectionResetError("the answer was lost")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


async def test_a_refused_start_holds_up_no_other_schedule(
    running: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(note, schedules=[often("good", "good"), often("bad", "bad")])

    async def start(run: Run, jobs: Any, **_: Any) -> Any:
        if any("bad" in one.input for one in jobs):
            raise ConfigurationError("refused")
        return await run()

    intercept(monkeypatch, app.state, "start", start)
    before = len([event for event in recorder.of(events.ScheduleTicked) if event.schedule == "good"])
    await recorder.next(events.ScheduleFailed)
    while len([event for event in recorder.of(events.ScheduleTicked) if event.schedule == "good"]) < before + 3:
        await asyncio.sleep(0.02)

    assert (await stored(app, "bad")).error == "ConfigurationError: refused"


async def test_a_commit_whose_answer_was_lost_is_told_and_not_done_again(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(note, schedules=[often(every=MONTH)])
    await app.schedules.resume("often")
    await set_back(app, MONTH)
    lost: list[bool] = []

    @asynccontextmanager
    async def losing(connection: Any) -> AsyncIterator[None]:
        async with transaction(connection):
            yield
        if not lost:
            lost.append(True)
            raise lost_answer(app)

    monkeypatch.setattr("onward.worker.schedules.transaction", losing)
    async with app.worker(poll=timedelta(minutes=10)):
        await recorder.next(events.ChainCompleted)
        await recorder.next(events.ScheduleTicked)

    assert lost
    assert len(recorder.of(events.ScheduleTicked)) == len(recorder.of(events.ChainStarted)) == 1
    assert len(await inputs(app)) == 1


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_row_that_somebody_has_locked_holds_up_no_other(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(note, schedules=[often("free"), often("held")])
    await recorder.next(events.ScheduleTicked, count=4)
    async with app.transaction() as tx:
        await app.schedules.resume("held", tx=tx)
        await asyncio.sleep(0.1)
        ticked = len(recorder.of(events.ScheduleTicked))
        await recorder.next(events.ScheduleTicked, count=ticked + 5)
        meanwhile = recorder.of(events.ScheduleTicked)[ticked:]
    while recorder.of(events.ScheduleTicked)[-1].schedule != "held":
        await asyncio.sleep(0.02)

    assert {event.schedule for event in meanwhile} == {"free"}


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_more_rows_locked_than_are_looked_at_hold_up_no_other(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.schedules._AT_MOST", 2)
    names = ["held a", "held b", "free"]
    app: Onward = await opened(note, schedules=[often(name, every=MONTH) for name in names])
    for name, late in zip(names, (2, 2, 1), strict=True):
        await app.schedules.resume(name)
        await set_back(app, late * MONTH, name)
    async with app.worker():
        async with app.transaction() as tx:
            for name in names[:2]:
                await app.schedules.resume(name, tx=tx)
            first = await recorder.next(events.ScheduleTicked)
        await recorder.next(events.ScheduleTicked, count=3)

    assert first.schedule == "free"
    assert {event.schedule for event in recorder.of(events.ScheduleTicked)} == set(names)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_chain_that_somebody_has_locked_holds_up_only_who_waits_for_it(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(note, schedules=[often("free"), often("queued", every=SECOND, overlap="queue")])
    async with app.worker():
        await app.pause(note)
        await recorder.next(events.ScheduleTicked, count=1)
        while (chain := (await stored(app, "queued")).last_chain_id) is None:
            await asyncio.sleep(0.02)
        async with app.complete(chain) as completion:
            await asyncio.sleep(1.2)  # there is a tick that has to wait for this one
            ticked = len(recorder.of(events.ScheduleTicked))
            await recorder.next(events.ScheduleTicked, count=ticked + 5)
            meanwhile = recorder.of(events.ScheduleTicked)[ticked:]
            await completion.done("done")
        while (await stored(app, "queued")).last_chain_id == chain:
            await asyncio.sleep(0.02)

    assert {event.schedule for event in meanwhile} == {"free"}


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_locked_row_whose_input_cannot_be_made_holds_up_no_other(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.schedules._TRY_AGAIN", 0.05)

    def wrong(tick: datetime) -> str:
        raise ValueError(f"not at {tick}")

    app: Onward = await opened(note, schedules=[often("free"), often("wrong", wrong)])
    await app.schedules.resume("wrong")
    async with app.worker(), app.transaction() as tx:
        await app.schedules.resume("wrong", tx=tx)
        failed = len(recorder.of(events.ScheduleFailed))
        await recorder.next(events.ScheduleFailed, count=failed + 2)
        ticked = len(recorder.of(events.ScheduleTicked))
        await recorder.next(events.ScheduleTicked, count=ticked + 5)

    assert not recorder.of(events.StateError)


async def test_an_input_that_raises_a_cancellation_ends_nothing(running: Any, recorder: Recorder) -> None:
    def cancelled(tick: datetime) -> str:
        raise asyncio.CancelledError

    app: Onward = await running(note, schedules=[often("broken", cancelled), often()])
    await recorder.next(events.ScheduleFailed)
    await recorder.next(events.ScheduleTicked, count=2)

    assert "CancelledError" in str((await stored(app, "broken")).error)


@pytest.mark.parametrize("wrong", [asyncio.CancelledError, SystemExit])
async def test_a_limits_key_that_wants_to_end_the_program_ends_nothing(
    running: Any, recorder: Recorder, wrong: type[BaseException]
) -> None:
    def key(input: str) -> str:
        raise wrong

    @job("limited", limit=Limit(concurrency=1, key=key))
    async def limited(attempt: Attempt[str]) -> None: ...

    broken = Schedule("broken", limited, "input", every=OFTEN)
    app: Onward = await running(note, limited, schedules=[broken, often()])
    await recorder.next(events.ScheduleFailed)
    await recorder.next(events.ScheduleTicked, count=2)

    assert "StartRefused: 'limited': the key= of its limit 'limited' raised" in str((await stored(app, "broken")).error)


async def test_an_app_that_is_opened_again_declares_at_once(
    make_app: Callable[..., Onward], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.schedules.REFRESH", timedelta(hours=1))
    app = make_app(note, schedules=[often()])
    async with app, app.worker():
        await recorder.next(events.ScheduleTicked)
    async with app:
        for one in await app.schedules.list():  # in memory there is none any more
            await app.schedules.forget(one.name)
        ticked = len(recorder.of(events.ScheduleTicked))
        async with app.worker():
            await recorder.next(events.ScheduleTicked, count=ticked + 1)


async def test_a_schedule_from_when_the_clock_was_ahead_begins_anew_when_it_is_reset(
    opened: Any, recorder: Recorder
) -> None:
    app: Onward = await opened(note, schedules=[often(every=SECOND)])
    await app.schedules.resume("often")
    row = (await app.store.read(app.state.schedules.find(["often"]))).rows[0]
    assert row.next_at is not None
    later = row.next_at + 13 * MONTH
    ahead = Move(
        name="often",
        fingerprint=row.fingerprint,
        changed=None,
        tick=row.next_at,
        next_at=later + SECOND,
        last_tick=later,
    )
    async with app.driver.connection() as connection:
        assert await connection.run(app.state.schedules.move([ahead]))
    await app.schedules.reset("often")

    next_at = (await stored(app)).next_at
    assert next_at is not None
    assert next_at < later


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("by", ["a lock on its row", "an uncommitted change", "an uncommitted schedule"])
async def test_a_declaration_that_somebody_keeps_waiting_holds_up_no_other_schedule(
    make_app: Callable[..., Onward], recorder: Recorder, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    schedules = [often("a", every=MONTH / 2), often("b"), often("c")]
    before, app = make_app(note, schedules=[often("a", every=MONTH)], observers=[]), make_app(note, schedules=schedules)
    async with before, app:
        if by != "an uncommitted schedule":
            await before.schedules.resume("a")
        async with AsyncExitStack() as working:
            async with before.transaction() as tx:
                if by == "a lock on its row":
                    await tx.execute(f"SELECT FROM {before.state.schema}.schedule WHERE name = 'a' FOR UPDATE")
                else:
                    await before.schedules.change("a", every=2 * MONTH, tx=tx)
                await working.enter_async_context(app.worker())
                for name in ("b", "c"):
                    await ticked(recorder, name)
                assert [one.every for one in await app.schedules.list() if one.name == "a"] in ([], [MONTH])

            while (await stored(app, "a")).every != MONTH / 2:
                await asyncio.sleep(0.01)

    told = [record.args for record in caplog.records if "is kept waiting" in record.getMessage()]
    assert told == [(["a"],)]


async def test_a_declaration_that_a_tick_has_overtaken_is_made_again_at_once(
    make_app: Callable[..., Onward], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, app = make_app(note, schedules=[often(every=MONTH)], observers=[]), make_app(note, schedules=[often()])
    declared: list[int] = []

    async def overtaken(run: Run, said: Any, **options: Any) -> Any:
        declared.append(len(said))
        if len(declared) == 1:
            await set_back(before, SECOND)
        return await run()

    async with before, app:
        await before.schedules.resume("often")
        intercept(monkeypatch, app.state.schedules, "declare", overtaken)  # type: ignore[arg-type]
        async with app.worker():
            await ticked(recorder, "often")

    assert declared == [1, 1]


async def ticked(recorder: Recorder, name: str) -> None:
    """Wait until a schedule has ticked."""
    async with asyncio.timeout(5.0):
        while not [event for event in recorder.of(events.ScheduleTicked) if event.schedule == name]:
            await asyncio.sleep(0.01)
