"""Hints: other apps and processes notice at once what would otherwise wait for the poll."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from contextvars import Context
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from onward import Attempt, Onward, RunningJob, WaitTimeout, job
from onward.errors import TransactionUnsuitable
from onward.notify.contract import Changed, Hint, HintKind, ignore
from onward.notify.encoding import read_payload
from onward.notify.memory import MemoryNotify, NoNotify
from onward.observe import events
from onward.worker.source import JobSource
from support import SOON, Recorder, Run, intercept

NEVER = {"poll": timedelta(hours=1)}
"""With this, only a hint, or the change counter, can wake an idle worker in time."""


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


async def test_an_idle_worker_of_another_app_is_woken(running: Any, opened: Any, recorder: Recorder) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)
    await (await client.start(double, 1)).wait(timeout=SOON)

    for n in range(5):
        chain = await client.start(double, n)
        assert await chain.wait(timeout=SOON) == 2 * n


async def test_a_hint_that_comes_while_a_look_is_being_answered_is_not_lost(
    running: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was full and has just got room: what it asked before the job was there does not count."""
    may_end, looked, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @job("held")
    async def held(attempt: Attempt[int]) -> int:
        await may_end.wait()
        return attempt.input

    app: Onward = await running(held, worker={**NEVER, "concurrency": 1})
    client: Onward = await opened(held)
    first = await client.start(held, 1)
    while not isinstance(await client.find_job(first.id), RunningJob):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # it waits for its slot

    async def slow_take(run: Run, **_: Any) -> Any:
        taken = await run()
        if not looked.is_set():
            assert not taken
            looked.set()
            await answered.wait()
        return taken

    intercept(monkeypatch, app.state, "take", slow_take)
    may_end.set()
    async with asyncio.timeout(SOON.total_seconds()):
        await looked.wait()
    second = await client.start(held, 2)
    await asyncio.sleep(0.2)  # its hint has come
    answered.set()

    assert await second.wait(timeout=SOON) == 2


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("delay", [timedelta(0), timedelta(milliseconds=300)])
async def test_a_job_that_was_locked_when_it_was_announced_is_taken_soon_after_the_lock(
    running: Any, opened: Any, delay: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells when a lock ends without a change; only there can one row be locked."""
    looks = count_looks(monkeypatch)
    app: Onward = await running(double, worker=NEVER)
    await quiet(looks)
    client: Onward = await opened(double)
    is_locked = asyncio.Event()

    async def take(run: Run, **_: Any) -> Any:
        await is_locked.wait()  # else it may be faster than the lock
        return await run()

    intercept(monkeypatch, app.state, "take", take)
    async with client.transaction() as tx:
        chain = await client.start(double, 2, delay=delay, tx=tx)
    async with client.complete(chain):
        is_locked.set()
        await asyncio.sleep(1.0)  # it has been announced, or due, and passed over

    assert await chain.wait(timeout=SOON) == 4
    assert app.is_open


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_job_that_was_locked_is_not_forgotten_for_others_that_are_announced(running: Any, opened: Any) -> None:
    """A take that brings what it was told of says nothing of what an earlier one had to leave."""
    client: Onward = await opened(double)
    chain = await client.start(double, 2)

    async def others() -> None:
        await running(double, worker=NEVER)
        for n in range(20):
            assert await (await client.start(double, n)).wait(timeout=SOON) == 2 * n

    async with client.complete(chain), asyncio.TaskGroup() as tasks:
        tasks.create_task(others(), context=Context())

    assert await chain.wait(timeout=SOON) == 4


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_jammed_worker_leaves_what_it_is_told_of_to_others(
    running: Any, opened: Any, recorder: Recorder
) -> None:
    """One handler has the only connection of its pool, seven wait for it, two of ten slots are free."""
    release = asyncio.Event()

    @job("slow")
    async def slow(attempt: Attempt[int]) -> int:
        async with attempt.complete():
            await release.wait()
            return attempt.input

    jammed: Onward = await running(slow, double, worker={**NEVER, "name": "jammed"}, pool_size=1)
    client: Onward = await opened(slow, double)
    await client.start_many([slow.with_input(n) for n in range(8)])
    await recorder.next(events.AttemptStarted, count=8)
    idle: Onward = await running(slow, double, worker={**NEVER, "name": "idle"})
    async with asyncio.timeout(SOON.total_seconds()):
        while not (knows_another(jammed) and knows_another(idle)):  # until then each takes everything for its own
            await asyncio.sleep(0.01)

    try:
        for n in range(5):
            assert await (await client.start(double, n)).wait(timeout=SOON) == 2 * n
    finally:
        release.set()
    done = [event.worker for event in recorder.of(events.AttemptStarted) if event.type_name == "double"]
    assert {name.rpartition("-")[0] for name in done} == {"idle"}


def knows_another(app: Onward) -> bool:
    return bool(app._notify._sharing._others)  # type: ignore[attr-defined]


async def test_a_start_on_a_bare_connection_is_noticed_after_its_commit(running: Any, opened: Any, target: str) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)

    async with bare_transaction(target) as connection:
        chain = await client.start(double, 4, tx=connection)

    assert await chain.wait(timeout=SOON) == 8


@asynccontextmanager
async def bare_transaction(target: str) -> AsyncIterator[Any]:
    """A transaction that the application began on a connection of its own."""
    if target.startswith("postgres"):
        connection = await asyncpg.connect(target)
        async with connection.transaction():
            yield connection
        await connection.close()
    else:
        with closing(sqlite3.connect(target.removeprefix("sqlite:///"), isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            yield raw
            raw.execute("COMMIT")


async def test_a_scheduled_start_is_noticed_though_the_worker_slept_before(running: Any, opened: Any) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)
    await asyncio.sleep(0.05)

    chain = await client.start(double, 3, delay=timedelta(milliseconds=200))

    assert await chain.wait(timeout=SOON) == 6


async def test_without_hints_everything_still_works_later(opened: Any) -> None:
    worker_app: Onward = await opened(double, notify=NoNotify())
    client: Onward = await opened(double, notify=NoNotify())
    async with worker_app.worker(poll=timedelta(milliseconds=100)):
        chain = await client.start(double, 1)

        assert await chain.wait(timeout=SOON) == 2


async def test_half_of_the_transactions_roll_back_and_leave_no_hint_no_event_and_wake_nobody(
    running: Any, opened: Any, recorder: Recorder, target: str, scale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, hints = count_looks(monkeypatch), list[Hint]()
    # What a worker writes beside jobs is a commit as well, and of a file's commits nobody is told what they were.
    monkeypatch.setattr("onward.worker.figures._WRITE_EVERY", 3600.0)
    monkeypatch.setattr("onward.worker.figures._FIRST_LOOK", (3600.0, 3600.0))
    app: Onward = await running(double, worker=NEVER, retention=None)
    client: Onward = await opened(double)
    await (await client.start(double, 0)).wait(timeout=SOON)
    async with AsyncExitStack() as stack:
        if target.startswith("postgres"):
            await stack.enter_async_context(eavesdropping(target, app, hints))
        await quiet(looks)
        before, events_before = len(looks), len(recorder.events)

        for n in range(scale(1000)):
            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as tx:
                    await client.start(double, n, tx=tx)
                    raise ZeroDivisionError
        await quiet(looks)
        assert (len(looks) - before, recorder.events[events_before:], hints) == (0, [], [])

        for n in range(scale(1000)):
            async with client.transaction() as tx:
                await client.start(double, n, tx=tx)
            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as tx:
                    await client.start(double, n, tx=tx)
                    raise ZeroDivisionError
        await recorder.next(events.ChainCompleted, count=1 + scale(1000))
        if target.startswith("postgres"):
            async with asyncio.timeout(SOON.total_seconds()):  # the last may tell of a job found without it
                while sum(hint.count for hint in hints if hint.kind is HintKind.READY) < scale(1000):
                    await asyncio.sleep(0.01)

    assert len(recorder.of(events.ChainStarted)) == len(recorder.of(events.AttemptStarted)) == 1 + scale(1000)
    if target.startswith("postgres"):
        assert sum(hint.count for hint in hints if hint.kind is HintKind.READY) == scale(1000)


@pytest.fixture(params=["asyncpg", "psycopg"])
def postgres_target(request: pytest.FixtureRequest, postgres_dsn: str) -> str:
    return postgres_dsn.replace("postgresql", f"postgresql+{request.param}", 1)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_the_hints_of_a_transaction_leave_with_its_commit(
    opened: Any, recorder: Recorder, postgres_target: str, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(double, target=postgres_target)
    hints, announced = list[Hint](), list[Hint]()

    async def announce(given: Any) -> None:
        announced.extend(given)

    monkeypatch.setattr(app._notify, "announce", announce)
    async with eavesdropping(postgres_dsn, app, hints):
        async with app.transaction() as tx:
            async with tx.savepoint():
                await app.start(double, 1, tx=tx)
            with pytest.raises(ZeroDivisionError):
                async with tx.savepoint():
                    await app.start(double, 2, tx=tx)
                    raise ZeroDivisionError
            await app.start(double, 3, tx=tx)
        async with asyncio.timeout(SOON.total_seconds()):
            while not hints:
                await asyncio.sleep(0.01)

    assert [(hint.kind, hint.key, hint.count) for hint in hints] == [(HintKind.READY, "double", 2)]
    assert announced == []
    assert [event.count for event in recorder.of(events.HintsSent)] == [1]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_commit_that_fails_takes_no_hints_of_others_with_it_and_leaves_none_of_its_own(
    opened: Any, postgres_target: str, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(double, target=postgres_target)
    announced = list[Hint]()

    async def announce(given: Any) -> None:
        announced.extend(given)

    monkeypatch.setattr(app._notify, "announce", announce)
    other = Hint(HintKind.ENDED, "another's")
    with pytest.raises(TransactionUnsuitable, match="an earlier statement in it had failed"):
        async with app.transaction() as tx:
            await app.start(double, 1, tx=tx)
            with suppress(Exception):
                await tx.execute("INSERT INTO no_such_table VALUES (1)")
            app._announcer.post([other])  # it waits for nobody, and is taken along

    async with asyncio.timeout(SOON.total_seconds()):
        while not announced:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert announced == [other]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_commit_that_takes_its_time_delays_no_hints_of_others(
    opened: Any, postgres_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(double, target=postgres_target)
    loop, announced = asyncio.get_running_loop(), dict[str, float]()
    other = Hint(HintKind.ENDED, "another's")

    async def announce(given: Any) -> None:
        announced.update({hint.key: loop.time() for hint in given})

    monkeypatch.setattr(app._notify, "announce", announce)
    async with app.transaction() as tx:
        for statement in SLOW_COMMIT:
            await tx.execute(statement)
        await app.start(double, 1, tx=tx)
        app._announcer.post([other])
        began = loop.time()
    assert loop.time() - began > 1.0
    assert announced[other.key] - began < 0.5


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_what_a_statement_has_the_server_forget_fails_no_commit_that_carries_hints(
    opened: Any, postgres_target: str
) -> None:
    app: Onward = await opened(double, target=postgres_target)
    async with app.transaction() as tx:
        chain = await app.start(double, 1, tx=tx)
        await tx.execute("DEALLOCATE ALL")
    assert await app.find_chain(chain.id)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_after_a_commit_with_hints_has_failed_others_go_without_for_a_while(opened: Any, target: str) -> None:
    app: Onward = await opened(double)
    hint = Hint(HintKind.READY, "double")
    carried = app._announcer.carry([hint])
    assert carried is not None

    app._announcer.take_back(carried)

    await asyncio.sleep(0.05)
    assert app._announcer.carry([hint]) is None


SLOW_COMMIT = (
    "CREATE TEMPORARY TABLE checked (n integer) ON COMMIT DROP",
    "CREATE FUNCTION pg_temp.check_slowly() RETURNS trigger LANGUAGE plpgsql"
    " AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'",
    "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    " EXECUTE FUNCTION pg_temp.check_slowly()",
    "INSERT INTO checked VALUES (1)",
)


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever a worker looks for jobs."""
    looks: list[int] = []
    fill = JobSource.fill

    async def counted(source: JobSource, free: int) -> Any:
        looks.append(free)
        return await fill(source, free)

    monkeypatch.setattr(JobSource, "fill", counted)
    return looks


async def quiet(looks: list[int]) -> None:
    """Wait until the workers sleep; they look once more when their hints are up, which takes a busy machine a while."""
    seen = -1
    while seen != len(looks):
        seen = len(looks)
        await asyncio.sleep(0.8)


@asynccontextmanager
async def eavesdropping(target: str, app: Onward, hints: list[Hint]) -> AsyncIterator[None]:
    """Collect every hint on the app's channel."""

    def heard(_connection: Any, _process: int, _channel: str, payload: str) -> None:
        heading, news = read_payload(payload)
        if heading.startswith("#"):
            hints.extend(news)

    connection = await asyncpg.connect(target)
    command = app._notify.command([])
    assert command is not None
    await connection.add_listener(str(command.parameters["channel"]), heard)
    yield
    await connection.close()


@pytest.mark.parametrize("whose", ["ours", "bare"])
async def test_a_commit_that_comes_late_is_not_missed(
    running: Any, opened: Any, recorder: Recorder, target: str, whose: str
) -> None:
    await running(double, worker=NEVER)
    client: Onward = await opened(double)

    async with client.transaction() if whose == "ours" else bare_transaction(target) as tx:
        chain = await client.start(double, 4, tx=tx)
        await asyncio.sleep(2)  # a hint that had left at once would be forgotten by now
        assert not recorder.of(events.AttemptStarted)

    assert await chain.wait(timeout=SOON) == 8


async def test_a_blocker_that_was_locked_when_a_worker_looked_is_taken_after_the_commit(
    running: Any, opened: Any
) -> None:
    @job("after", blocked_by=[double])
    async def after(attempt: Attempt[int]) -> list[int]:
        return attempt.outputs_of(double)

    client: Onward = await opened(double, after)
    first = await client.start(double, 4)
    async with client.transaction() as tx:
        second = await client.start(after, 1, blockers=[first], tx=tx)  # locks the first
        await running(double, after, worker=NEVER)
        await asyncio.sleep(0.5)  # the worker has looked, and sleeps

    assert await second.wait(timeout=SOON) == [8]


async def test_one_who_waits_for_a_chain_does_not_make_workers_look(
    running: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    client: Onward = await opened(double)
    chain = await client.start(double, 1, delay=timedelta(hours=1))
    await running(double, worker=NEVER)
    await quiet(looks)
    before = len(looks)

    with pytest.raises(WaitTimeout):
        await chain.wait(timeout=timedelta(seconds=1.5))

    assert len(looks) == before


async def test_what_was_left_to_a_worker_that_stops_is_taken_by_another(running: Any, opened: Any) -> None:
    app: Onward = await running(double, worker=NEVER)
    client: Onward = await opened(double)

    chains = []
    for n in range(20):
        async with app.worker(**NEVER):
            chains.append(await client.start(double, n))  # the hint may be for the one that stops now

    for n, chain in enumerate(chains):
        assert await chain.wait(timeout=SOON) == 2 * n


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_a_process_that_vanished_is_not_waited_for_long(postgres_dsn: str, running: Any) -> None:
    app: Onward = await running(double, worker=NEVER)
    command = app._notify.command([])
    assert command is not None
    async with AsyncExitStack() as stack:
        for _ in range(5):  # together they can do so much that hardly a hint is for anybody else
            ghost = await asyncpg.connect(postgres_dsn)
            stack.push_async_callback(ghost.close)
            await ghost.execute("SELECT pg_notify($1, $2)", command.parameters["channel"], "@\na1000:double")
        async with asyncio.timeout(SOON.total_seconds()):
            while len(app._notify._sharing._others) < 5:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)

        chains = [await app.start(double, n) for n in range(10)]

        for n, chain in enumerate(chains):
            assert await chain.wait(timeout=SOON) == 2 * n


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_those_who_cannot_listen_wake_workers_that_can(pgbouncer_dsn: str, running: Any, opened: Any) -> None:
    await running(double, worker=NEVER)
    pooled: Onward = await opened(double, target=pgbouncer_dsn, pgbouncer=True)

    for n in range(5):
        assert await (await pooled.start(double, n)).wait(timeout=SOON) == 2 * n


async def test_the_sync_client_wakes_a_worker(running: Any, make_app: Any) -> None:
    await running(double, worker=NEVER)

    def start() -> list[Any]:
        with make_app(double).sync as client:
            return [client.start(double, n).wait(timeout=SOON) for n in range(5)]

    assert await asyncio.to_thread(start) == [0, 2, 4, 6, 8]


async def test_an_adapter_of_the_users_own_can_tell_that_hints_are_down_and_back(
    opened: Any, recorder: Recorder
) -> None:
    class Own(MemoryNotify):
        async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
            self.changed = changed

    notify = Own()
    await opened(double, notify=notify)

    notify.changed(ConnectionError("gone"))
    notify.changed(None)

    assert recorder.of(events.NotifyError)[0].error.message == "gone"
    assert len(recorder.of(events.NotifyRecovered)) == 1
