"""An outcome is settled whatever the database does meanwhile, and holds no other up."""

import asyncio
import contextvars
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from onward import Attempt, Backoff, ChainFailed, Next, Onward, job
from onward.conformance.queue.session import until
from onward.lifecycle.store import Store
from onward.lifecycle.transaction import OpenTransaction
from onward.model import Progress, new_id
from onward.observe import events
from onward.state.contract import Settlement, TakenJob
from onward.worker.figures import Figures
from onward.worker.settler import Settler
from support import SOON, Recorder, Run, intercept

SHORT = timedelta(seconds=1)


def troubles(target: str) -> list[Exception]:
    """What the database says that has nothing to do with the job."""
    if target.startswith("sqlite"):
        return [_sqlite(code) for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)]
    return [
        asyncpg.DiskFullError("no space left"),
        asyncpg.QueryCanceledError("statement timeout"),
        asyncpg.OutOfMemoryError("out of memory"),
        asyncpg.ReadOnlySQLTransactionError("read-only"),
        asyncpg.InsufficientPrivilegeError("permission denied"),
        asyncpg.SerializationError("could not serialize"),
        asyncpg.InternalServerError("unexpected"),
        ConnectionResetError("gone"),
    ]


def _sqlite(code: int) -> Exception:
    error = sqlite3.OperationalError("disk trouble")
    error.sqlite_errorcode = code
    return error


class Failing:
    """Raises what it was given, one after the other, then lets the work be done."""

    def __init__(self, errors: Sequence[Exception], *, after: bool = False) -> None:
        self._errors, self._after = list(errors), after

    async def __call__(self, run: Run, *_: Any, **__: Any) -> Any:
        if self._after:
            answer = await run()
        if self._errors:
            raise self._errors.pop(0)
        return answer if self._after else await run()


@job("counts", max_attempts=1, lease=SHORT)
async def counts(attempt: Attempt[list[int]]) -> int:
    return attempt.number


async def test_an_outcome_outlives_every_trouble_of_the_database(
    running: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(counts)
    intercept(monkeypatch, app.state, "settle", Failing(troubles(target)))

    chain = await app.start(counts, [])

    assert await chain.wait(timeout=SOON) == 1
    assert (await chain.get()).current.failures == 0


async def test_an_outcome_whose_commit_was_not_answered_is_not_settled_twice(
    running: Any, target: str, monkeypatch: pytest.MonkeyPatch, recorder: Any
) -> None:
    app: Onward = await running(counts)
    intercept(monkeypatch, app.state, "settle", Failing([troubles(target)[0]], after=True))

    chain = await app.start(counts, [])

    assert await chain.wait(timeout=SOON) == 1
    assert (await chain.get()).current.attempt == 1
    await until(lambda: bool(recorder.of(events.ChainCompleted)))
    assert [event.chain_id for event in recorder.of(events.ChainCompleted)] == [chain.id]
    assert [event.job_id for event in recorder.of(events.JobCompleted)] == [chain.id]


async def test_an_outcome_that_cannot_be_stored_is_a_failure_of_its_own(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(counts)

    async def refuse(run: Run, settlements: Sequence[Settlement], **_: Any) -> Any:
        if any(settlement.kind == "complete" for settlement in settlements):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return await run()

    intercept(monkeypatch, app.state, "settle", refuse)
    chain = await app.start(counts, [])

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert (failed.value.reason, failed.value.error.type) == ("attempts", "UnicodeEncodeError")


async def test_a_failure_that_cannot_be_stored_fails_the_job_without_its_words(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("fails")
    async def fails(attempt: Attempt[int]) -> None:
        attempt.progress(0.5)
        raise RuntimeError("in words that are refused")

    app: Onward = await running(fails)

    async def refuse(run: Run, settlements: Sequence[Settlement], **_: Any) -> Any:
        if any(settlement.progress == Progress(0.5) for settlement in settlements):
            raise ValueError("refused")
        return await run()

    intercept(monkeypatch, app.state, "settle", refuse)
    chain = await app.start(fails, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.reason == "permanent"


async def test_a_phase_waits_for_the_database_and_the_handler_does_nothing_twice(
    running: Any, target: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[int] = []

    @job("charge", max_attempts=1)
    async def charge(attempt: Attempt[int]) -> int:
        charged.append(attempt.input)
        async with attempt.complete():
            return attempt.number

    app: Onward = await running(charge)
    intercept(monkeypatch, app.state, "hold_attempt", Failing(_transient(app.store, target)))

    assert await (await app.start(charge, 7)).wait(timeout=SOON) == 1
    assert charged == [7]
    told = [type(event) for event in recorder.events if isinstance(event, events.StateError | events.StateRecovered)]
    assert told[-1] is events.StateRecovered, "the outage is over as soon as the phase has begun"


async def test_a_phase_whose_commit_fails_is_run_again_without_counting(
    running: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("commits", max_attempts=1)
    async def commits(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.complete():
            return attempt.number, attempt.failures

    app: Onward = await running(commits)
    errors = _transient(app.store, target)[:3]
    commit = OpenTransaction.commit

    async def fail(tx: OpenTransaction, last: Any = None) -> None:
        if errors:
            await tx.rollback()
            raise errors.pop()
        await commit(tx, last)

    monkeypatch.setattr(OpenTransaction, "commit", fail)

    assert await (await app.start(commits, 7)).wait(timeout=SOON) == (4, 0)


async def test_a_handler_that_returned_in_time_is_not_late_because_its_commit_takes_long(
    running: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[Any] = []

    @job("commits", max_attempts=1, timeout=SHORT / 5)
    async def commits(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.complete():
            returned.append(attempt)
            return attempt.number, attempt.failures

    app: Onward = await running(commits)
    errors = _transient(app.store, target)[:1]
    commit = OpenTransaction.commit

    async def take_long(tx: OpenTransaction, last: Any = None) -> None:
        if errors:
            await until(lambda: returned[0].deadline == math.inf)
            await tx.rollback()
            raise errors.pop()
        await commit(tx, last)

    monkeypatch.setattr(OpenTransaction, "commit", take_long)

    assert await (await app.start(commits, 7)).wait(timeout=SOON) == (2, 0)


async def test_a_handler_that_waits_for_a_phase_beyond_its_timeout_is_not_late(
    running: Any, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    @job("waits", max_attempts=1, timeout=SHORT / 5)
    async def waits(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.complete():
            return attempt.number, attempt.failures

    app: Onward = await running(waits)
    silences = [asyncio.Event()]

    async def say_nothing(run: Run, **_: Any) -> Any:
        if silences:
            await silences.pop().wait()
        return await run()

    intercept(monkeypatch, app.state, "hold_attempt", say_nothing)

    assert await (await app.start(waits, 7)).wait(timeout=SOON) == (2, 0)
    (failed,) = recorder.of(events.AttemptFailed)
    assert (failed.counted, failed.error.message) == (False, "the database let the handler wait beyond its 0.2 s")


async def test_nor_is_one_in_a_thread_whose_phase_cannot_be_begun(
    running: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    @job("waits", max_attempts=1, timeout=SHORT / 5)
    def waits(attempt: Attempt[int]) -> tuple[int, int]:
        begun.append(attempt.number)
        with attempt.complete():
            return attempt.number, attempt.failures

    app: Onward = await running(waits)
    error = _transient(app.store, target)[0]

    async def refuse(run: Run, **_: Any) -> Any:
        if begun == [1]:
            raise error
        return await run()

    intercept(monkeypatch, app.state, "hold_attempt", refuse)

    assert await (await app.start(waits, 7)).wait(timeout=SOON) == (2, 0)


async def test_nor_is_one_whose_prepare_is_long_committed(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @job("waits", max_attempts=1, timeout=SHORT / 5)
    async def waits(attempt: Attempt[int]) -> tuple[int, int]:
        async with attempt.prepare():
            pass
        return attempt.number, attempt.failures

    app: Onward = await running(waits)
    silences, commit = [asyncio.Event()], OpenTransaction.commit

    async def take_long(tx: OpenTransaction, last: Any = None) -> None:
        if silences:
            try:
                await silences.pop().wait()
            finally:
                await tx.rollback()
        await commit(tx, last)

    monkeypatch.setattr(OpenTransaction, "commit", take_long)

    assert await (await app.start(waits, 7)).wait(timeout=SOON) == (2, 0)


def _transient(store: Store, target: str) -> list[Exception]:
    return [error for error in troubles(target) if (fault := store.driver.fault(error)) and fault.is_transient]


# -- locks of others

on_postgres = pytest.mark.parametrize("target", ["postgres"], indirect=True)


@on_postgres
async def test_chains_that_an_application_has_locked_hold_no_others_up(running: Any, recorder: Recorder) -> None:
    @job("slow")
    async def slow(attempt: Attempt[int]) -> int:
        await told.wait()
        return attempt.input

    @job("quick")
    async def quick(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("waits", blocked_by=[slow])
    async def waits(attempt: Attempt[int]) -> int:
        return sum(attempt.outputs_of(slow))

    told = asyncio.Event()
    app: Onward = await running(slow, quick, waits)
    chains = [await app.start(slow, n) for n in range(8)]
    await recorder.next(events.AttemptStarted, count=8)  # what is locked before is not even taken
    async with app.transaction() as tx:
        waiting = await app.start(waits, 0, blockers=chains, tx=tx)
        told.set()
        for n in range(50):
            assert await _by_another(lambda n=n: _start_and_wait(app, quick, n)) == n
        assert await _by_another(lambda: _unended(app, chains)) == 8

    assert await waiting.wait(timeout=SOON) == sum(range(8))
    assert not recorder.of(events.StateError)


async def _by_another(work: Callable[[], Any]) -> Any:
    """In a context without the transaction that is open here."""
    async with asyncio.TaskGroup() as tasks:
        return await tasks.create_task(work(), context=contextvars.Context())


async def _start_and_wait(app: Onward, kind: Any, input: int) -> Any:
    return await (await app.start(kind, input)).wait(timeout=SOON)


async def _unended(app: Onward, chains: Sequence[Any]) -> int:
    return sum([(await chain.get()).ended_at is None for chain in chains])


@on_postgres
async def test_a_chain_whose_dependent_is_locked_holds_no_others_up(running: Any) -> None:
    @job("slow")
    async def slow(attempt: Attempt[int]) -> int:
        await told.wait()
        return attempt.input

    @job("quick", backoff=Backoff())
    async def quick(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("waits", blocked_by=[slow])
    async def waits(attempt: Attempt[int]) -> int:
        return sum(attempt.outputs_of(slow))

    told = asyncio.Event()
    app: Onward = await running(slow, quick, waits)
    chain = await app.start(slow, 1)
    waiting = await app.start(waits, 0, blockers=[chain])
    async with app.transaction() as tx, app.complete(waiting, tx=tx):
        told.set()
        for n in range(20):
            assert await _by_another(lambda n=n: _start_and_wait(app, quick, n)) == n

    assert await waiting.wait(timeout=SOON) == 1


# -- chains that handlers start


@job("child")
async def child(attempt: Attempt[int]) -> int:
    return attempt.input


async def test_a_chain_started_in_a_phase_commits_with_it(running: Any) -> None:
    @job("parent", max_attempts=2, backoff=Backoff(initial=timedelta(milliseconds=1)))
    async def parent(attempt: Attempt[int]) -> str:
        async with attempt.complete():
            started = await attempt.start(child, attempt.number, priority=3)
            if attempt.number == 1:
                raise RuntimeError("rolled back")
            return str(started.id)

    app: Onward = await running(parent, child)
    chain = await app.start(parent, 1)
    started = await chain.wait(timeout=SOON)

    (found,) = (await app.chains(types=[child])).items
    assert (str(found.id), found.current.input, found.current.priority) == (started, 2, 3)
    assert (found.current.origin_id, found.current.root_id) == (chain.id, chain.id)


async def test_a_chain_started_outside_a_phase_is_there_at_once(running: Any) -> None:
    @job("parent", max_attempts=1)
    async def parent(attempt: Attempt[int]) -> int:
        started = await attempt.start(child, 5)
        return await app.chain(child, started.id).wait(timeout=SOON)

    app: Onward = await running(parent, child)

    assert await (await app.start(parent, 1)).wait(timeout=SOON) == 5


async def test_a_def_handler_starts_chains_without_await(running: Any) -> None:
    @job("parent", max_attempts=1)
    def parent(attempt: Attempt[int]) -> list[str]:
        first = attempt.start(child, 1)  # type: ignore[call-overload]
        with attempt.complete():
            second = attempt.start(child, 2)  # type: ignore[call-overload]
            return [str(first.id), str(second.id)]

    app: Onward = await running(parent, child)
    started = await (await app.start(parent, 1)).wait(timeout=SOON)

    found = (await app.chains(types=[child])).items
    assert sorted(str(chain.id) for chain in found) == sorted(started)


async def test_a_chain_cannot_be_started_between_the_end_of_a_phase_and_its_commit(running: Any) -> None:
    @job("parent", max_attempts=1)
    async def parent(attempt: Attempt[int]) -> int:
        async with attempt.complete():
            pass
        await attempt.start(child, 1)
        return 1

    app: Onward = await running(parent, child)

    with pytest.raises(ChainFailed) as failed:
        await (await app.start(parent, 1)).wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == "TransactionClosed"
    assert not (await app.chains(types=[child])).items


async def test_a_chain_started_by_a_handler_may_block_what_continues_it(running: Any) -> None:
    @job("sum", internal=True, blocked_by=[child])
    async def add_up(attempt: Attempt[None]) -> int:
        return sum(attempt.outputs_of(child))

    @job("parent", continues_to=[add_up], max_attempts=1)
    async def parent(attempt: Attempt[int]) -> Next[int]:
        async with attempt.complete():
            started = [await attempt.start(child, n) for n in range(4)]
            return attempt.continue_with(add_up, None, blockers=started)

    app: Onward = await running(parent, child, add_up)

    assert await (await app.start(parent, 1)).wait(timeout=SOON) == 6


async def test_a_cancelled_step_that_goes_on_in_a_phase_leaves_nothing_behind(running: Any) -> None:
    @job("next", internal=True)
    async def follow(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("stubborn", continues_to=[follow])
    def stubborn(attempt: Attempt[int]) -> Next[int]:
        started.set()
        while attempt.cancelled is None:  # told, and goes on all the same
            time.sleep(0.01)
        with attempt.complete() as tx:
            tx.execute("INSERT INTO notes VALUES (1)")  # type: ignore[unused-coroutine]
            return attempt.continue_with(follow, 1)

    started = threading.Event()
    app: Onward = await running(stubborn, follow)
    async with app.transaction() as tx:
        await tx.execute("DROP TABLE IF EXISTS notes")
        await tx.execute("CREATE TABLE notes (number integer)")
    chain = await app.start(stubborn, 1)
    await asyncio.to_thread(started.wait)
    await app.cancel(chain)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    async with app.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM notes") == 0
    assert failed.value.reason == "cancelled"


async def test_figures_whose_write_was_cancelled_are_written_while_outcomes_still_are(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.worker.figures._WRITE_EVERY", 0.01)
    tries, again = asyncio.Event(), asyncio.Event()

    async def record(run: Run, *_: Any) -> Any:
        if not tries.is_set():
            tries.set()
            await asyncio.Event().wait()
        again.set()
        return await run()

    app: Onward = await opened(counts)
    intercept(monkeypatch, app.state.figures, "record", record)  # type: ignore[arg-type]
    figures = Figures(app.state.figures, "worker")
    settler = Settler(app.store, capacity=1, settled=lambda *_: None, figures=figures)
    settling = asyncio.get_running_loop().create_task(settler.run(whatever_comes=True))
    figures.count(*one_ended(counts.name))

    try:
        async with asyncio.timeout(5.0):
            await tries.wait()
            settling.cancel()
            await again.wait()
    finally:
        settler.close()
        await asyncio.wait([settling])

    assert settling.cancelled()


async def test_what_is_counted_when_nobody_writes_any_more_leaves_no_timer(opened: Any) -> None:
    app: Onward = await opened(counts)
    figures = Figures(app.state.figures, "worker")
    figures.close()

    figures.count(*one_ended(counts.name))
    figures.rest()

    assert figures._timer is None


def one_ended(type_name: str) -> tuple[TakenJob, Settlement]:
    id, now = new_id(), datetime.now(UTC)
    taken = TakenJob(id, id, 0, type_name, 1, "[]", 1, 0, 0, 0, 0, id, None, 0, now, now)
    return taken, Settlement(job_id=id, attempt=1, holder="worker", kind="complete")
