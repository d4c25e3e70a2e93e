"""The client: transactions, deduplication, refusals, workerless completion, changes and queries."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward import (
    Attempt,
    BlockedJob,
    ChainFailed,
    CompletedJob,
    Deduplication,
    FailedJob,
    JobStatus,
    JobType,
    Next,
    Onward,
    WaitTimeout,
    job,
    new_id,
)
from onward.errors import (
    BlockerNotFound,
    ChainNotFailed,
    ChainNotFound,
    ChainReferenced,
    ConfigurationError,
    DuplicateJobId,
    InternalJobType,
    JobAlreadyCompleted,
    PayloadError,
    PhaseError,
    SchemaMissing,
    StartRefused,
    TransactionClosed,
    TransactionOpen,
    TransactionUnsuitable,
    UndeclaredStep,
    UnknownJobType,
)
from onward.observe import events
from support import SOON, Recorder


@dataclass
class Order:
    id: int
    note: str = ""


@job("order")
async def order(attempt: Attempt[Order]) -> int:
    return attempt.input.id


@job("report", blocked_by=[order])
async def report(attempt: Attempt[str]) -> list[int]:
    return attempt.outputs_of(order)


@job("anything")
async def anything(attempt: Attempt[Any]) -> None: ...


@job("inside", internal=True)
async def inside(attempt: Attempt[int]) -> str:
    return f"inside {attempt.input}"


@job("outside", continues_to=[inside])
async def outside(attempt: Attempt[int]) -> Next[str]:
    return attempt.continue_with(inside, attempt.input)


approve = JobType("approve", input=str, output=bool)


# -- transactions


async def test_a_rolled_back_start_never_existed(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(order)

    with pytest.raises(ZeroDivisionError):
        async with app.transaction() as tx:
            chain = await app.start(order, Order(1), tx=tx)
            raise ZeroDivisionError

    assert await app.find_chain(chain.id) is None
    assert not recorder.of(events.ChainStarted)
    with pytest.raises(ChainNotFound):
        await chain.wait(timeout=SOON)


async def test_events_are_told_after_the_commit(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(order)

    async with app.transaction() as tx:
        chain = await app.start(order, Order(1), tx=tx)
        assert not recorder.events

    assert [event.chain_id for event in recorder.of(events.ChainStarted)] == [chain.id]


async def test_a_savepoint_undoes_what_was_started_in_it_and_its_events(opened: Any, recorder: Recorder) -> None:
    app: Onward = await opened(order)
    done: list[str] = []

    async with app.transaction() as tx:
        kept = await app.start(order, Order(1), tx=tx)
        tx.after_commit(lambda: done.append("outer"))
        with pytest.raises(ZeroDivisionError):
            async with tx.savepoint():
                undone = await app.start(order, Order(2), tx=tx)
                tx.after_commit(lambda: done.append("undone"))
                raise ZeroDivisionError
        async with tx.savepoint():
            also_kept = await app.start(order, Order(3), tx=tx)

    assert done == ["outer"]
    assert [event.chain_id for event in recorder.of(events.ChainStarted)] == [kept.id, also_kept.id]
    assert await app.find_chain(undone.id) is None


async def test_a_savepoint_that_is_left_late_undoes_nothing_of_another_transaction(opened: Any) -> None:
    """As a generator does that nobody has finished; the connection, and the savepoint's name, are another's by then."""
    app: Onward = await opened(order, pool_size=1)

    async def rows(tx: Any) -> AsyncIterator[int]:
        async with tx.savepoint():
            yield 1

    async with app.transaction() as tx:
        unfinished = rows(tx)
        await anext(unfinished)
    async with app.transaction() as tx, tx.savepoint():
        chain = await app.start(order, Order(1), tx=tx)
        await unfinished.aclose()

    assert await app.find_chain(chain.id) is not None


async def test_several_tasks_may_use_one_transaction(running: Any) -> None:
    """One after another, whatever the client makes of that: what works on a file works on a server."""

    @job("fans out")
    async def fans_out(attempt: Attempt[int]) -> list[int]:
        async with attempt.complete() as tx, asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(attempt.start(order, Order(number)))
            read = [tasks.create_task(tx.fetchval("SELECT 7")) for _ in range(3)]
        return [task.result() for task in read]

    app: Onward = await running(order, fans_out)

    async with app.transaction() as tx, asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(app.start(order, Order(number), tx=tx))
    output = await (await app.start(fans_out, 1)).wait(timeout=SOON)

    assert output == [7, 7, 7]
    assert len((await app.chains(types=[order])).items) == 6


async def test_inside_a_transaction_calls_must_join_it(opened: Any) -> None:
    app: Onward = await opened(order)
    chain = await app.start(order, Order(1))

    async with app.transaction() as tx:
        for call in (
            app.start(order, Order(2)),
            app.cancel(chain),
            app.delete(chain),
        ):
            with pytest.raises(TransactionOpen, match="pass tx=tx"):
                await call
        with pytest.raises(TransactionOpen, match="call it after the block"):
            await chain.wait(timeout=SOON)
        await app.start(order, Order(3), tx=tx)

    assert len((await app.chains()).items) == 2


async def test_a_transaction_that_has_ended_is_refused(opened: Any) -> None:
    app: Onward = await opened(order)
    async with app.transaction() as tx:
        pass

    with pytest.raises(TransactionClosed):
        await app.start(order, Order(1), tx=tx)
    with pytest.raises(TransactionUnsuitable, match="does not know"):
        await app.start(order, Order(1), tx=object())


REFUSALS: dict[str, tuple[type[Exception], str]] = {
    "wrong shape": (PayloadError, r"input of job type 'order' at \$\.id: Expected `int`, got `str`"),
    "NaN": (PayloadError, r"'anything' at \$\.a\[1\]: nan is not a JSON number"),
    "NUL": (PayloadError, r"'order' at \$\.note: text with a NUL"),
    "surrogate": (PayloadError, r"'order' at \$\.note: text with a lone surrogate"),
    "too large": (PayloadError, r"'order': 2,0\d\d,\d\d\d bytes of JSON, more than the limit"),
    "too deep": (PayloadError, r"'anything' at .*nested deeper than 100 levels"),
    "not JSON": (PayloadError, r"'anything': a value of type object cannot be stored"),
    "unknown type": (UnknownJobType, "'stranger' is not among the jobs"),
    "internal type": (InternalJobType, "'inside' is internal"),
    "missing blocker": (BlockerNotFound, "cannot start 'report': its blockers do not exist"),
    "deleted blocker": (BlockerNotFound, "cannot start 'report': its blockers do not exist"),
    "undeclared blocker": (UndeclaredStep, "'report' does not declare 'anything'"),
    "id taken": (DuplicateJobId, "id already taken"),
    "negative delay": (StartRefused, "is negative"),
    "naive time": (StartRefused, "no time zone"),
    "both times": (StartRefused, "delay= or at=, not both"),
    "huge priority": (StartRefused, "32 bits"),
    "empty key": (ConfigurationError, "1 to 1000 characters"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_bad_input_is_refused_in_words_and_the_transaction_goes_on(opened: Any, case: str) -> None:
    app: Onward = await opened(order, report, anything, outside, inside)
    stranger: JobType[int, int] = JobType("stranger", input=int, output=int)
    deep: Any = None
    for _ in range(150):
        deep = [deep]
    taken = await app.start(order, Order(0))
    deleted = await app.start(order, Order(0))
    await app.delete(deleted)
    calls: dict[str, Any] = {
        "wrong shape": lambda tx: app.start(order, Order("one"), tx=tx),  # type: ignore[arg-type]
        "NaN": lambda tx: app.start(anything, {"a": [1.0, float("nan")]}, tx=tx),
        "NUL": lambda tx: app.start(order, Order(1, "a\0b"), tx=tx),
        "surrogate": lambda tx: app.start(order, Order(1, "\ud800"), tx=tx),
        "too large": lambda tx: app.start(order, Order(1, "x" * 2 * 1024 * 1024), tx=tx),
        "too deep": lambda tx: app.start(anything, deep, tx=tx),
        "not JSON": lambda tx: app.start(anything, object(), tx=tx),
        "unknown type": lambda tx: app.start(stranger, 1, tx=tx),
        "internal type": lambda tx: app.start(inside, 1, tx=tx),  # type: ignore[arg-type]
        "missing blocker": lambda tx: app.start(report, "r", blockers=[app.chain(order, new_id())], tx=tx),
        "deleted blocker": lambda tx: app.start(report, "r", blockers=[deleted], tx=tx),
        "undeclared blocker": lambda tx: app.start(report, "r", blockers=[anything.with_input(1)], tx=tx),
        "id taken": lambda tx: app.start(order, Order(1), id=taken.id, tx=tx),
        "negative delay": lambda tx: app.start(order, Order(1), delay=timedelta(seconds=-1), tx=tx),
        "naive time": lambda tx: app.start(order, Order(1), at=datetime(2030, 1, 1), tx=tx),  # noqa: DTZ001
        "both times": lambda tx: app.start(order, Order(1), at=datetime.now(UTC), delay=timedelta(1), tx=tx),
        "huge priority": lambda tx: app.start(order, Order(1), priority=2**31, tx=tx),
        "empty key": lambda tx: app.start(order, Order(1), deduplication=Deduplication(""), tx=tx),
    }
    error, words = REFUSALS[case]

    async with app.transaction() as tx:
        with pytest.raises(error, match=words):
            await calls[case](tx)
        good = await app.start(order, Order(2), tx=tx)
    with pytest.raises(error, match=words):
        await calls[case](None)

    assert {chain.id for chain in (await app.chains()).items} == {taken.id, good.id}


async def test_start_many_is_all_or_nothing_and_answers_in_order(opened: Any) -> None:
    app: Onward = await opened(order)

    with pytest.raises(PayloadError):
        await app.start_many([order.with_input(Order(1)), order.with_input(Order("two"))])  # type: ignore[arg-type]
    chains = await app.start_many([order.with_input(Order(n)) for n in range(100)])

    inputs = [(await chain.get()).current.input["id"] for chain in chains]
    assert inputs == list(range(100))
    assert len((await app.chains()).items) == 100
    assert await app.start_many([]) == []


async def test_an_id_may_be_the_callers(opened: Any) -> None:
    app: Onward = await opened(order)
    mine = new_id()

    chain = await app.start(order, Order(1), id=mine)

    assert chain.id == mine


# -- deduplication


async def test_a_key_finds_the_chain_that_has_not_ended(running: Any) -> None:
    app: Onward = await running(order, approve)
    key = Deduplication("customer-7")

    first = await app.start(approve, "a", deduplication=key)
    second = await app.start(approve, "b", deduplication=key)
    other_type = await app.start(order, Order(1), deduplication=key)
    await app.cancel(first)
    third = await app.start(approve, "c", deduplication=key)
    any_time = await app.start(approve, "d", deduplication=Deduplication("customer-7", scope="any"))
    excluded = await app.start(
        approve, "e", deduplication=Deduplication("customer-7", scope="any", exclude=[first.id, third.id])
    )

    assert (first.duplicate, second.duplicate, second.id == first.id) == (False, True, True)
    assert not other_type.duplicate
    assert (third.duplicate, third.id != first.id) == (False, True)
    assert (any_time.duplicate, any_time.id) == (True, third.id)
    assert not excluded.duplicate


async def test_fifty_transactions_with_one_key_start_one_chain(opened: Any) -> None:
    app: Onward = await opened(approve)

    async def begin(n: int) -> Any:
        async with app.transaction() as tx:
            return await app.start(approve, str(n), tx=tx, deduplication=Deduplication("same"))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(begin(n)) for n in range(50)]

    chains = [task.result() for task in tasks]
    assert len({chain.id for chain in chains}) == 1
    assert sum(not chain.duplicate for chain in chains) == 1


# -- completing without a worker


async def test_a_chain_can_be_completed_step_by_step_without_a_worker(opened: Any) -> None:
    app: Onward = await opened(outside, inside)
    chain = await app.start(outside, 1)

    async with app.transaction() as tx, app.complete(chain, tx=tx) as completion:
        assert (completion.status, completion.input) == (JobStatus.PENDING, 1)
        await completion.continue_with(inside, 5)
        assert completion.job is not None
        assert (completion.job.type_name, completion.input_of(inside)) == ("inside", 5)
        with pytest.raises(PhaseError, match=r"began with 'outside' and has come to 'inside': use input_of"):
            _ = completion.input
        with pytest.raises(PhaseError, match="has come to 'inside', not to 'outside'"):
            completion.input_of(outside)
        await completion.done("by hand")
        with pytest.raises(PhaseError):
            await completion.done("again")

    assert await chain.wait(timeout=SOON) == "by hand"
    stored = (await chain.get()).current
    assert isinstance(stored, CompletedJob)
    assert stored.completed_by is None


async def test_leaving_a_completion_without_a_word_changes_nothing(opened: Any) -> None:
    app: Onward = await opened(approve)
    chain = await app.start(approve, "x")

    async with app.complete(chain):
        pass

    assert (await chain.get()).status is JobStatus.PENDING
    async with app.complete(chain) as completion:
        await completion.done(True)
    with pytest.raises(JobAlreadyCompleted):
        async with app.complete(chain):
            pass
    with pytest.raises(ChainNotFound):
        async with app.complete(new_id()):
            pass


async def test_a_blocked_job_can_be_completed_by_hand(running: Any) -> None:
    app: Onward = await running(order, report, approve)
    blocker = await app.start(order, Order(1), delay=timedelta(hours=1))
    chain = await app.start(report, "r", blockers=[blocker])

    async with app.complete(chain) as completion:
        assert isinstance(completion.job, BlockedJob)
        await completion.done([1, 2])

    assert await chain.wait(timeout=SOON) == [1, 2]
    await app.trigger(blocker)
    assert await blocker.wait(timeout=SOON) == 1


# -- wait, cancel, retry, delete


async def test_waiting_ends_in_a_typed_error(opened: Any) -> None:
    app: Onward = await opened(approve)
    chain = await app.start(approve, "x")

    with pytest.raises(WaitTimeout):
        await chain.wait(timeout=timedelta(milliseconds=50))
    with pytest.raises(ChainNotFound):
        await app.chain(approve, new_id()).wait(timeout=SOON)
    await app.cancel(chain)
    with pytest.raises(ChainFailed, match="reason cancelled"):
        await chain.wait(timeout=SOON)


async def test_only_failed_chains_can_be_retried_and_only_existing_ones_changed(opened: Any) -> None:
    app: Onward = await opened(approve)
    chain = await app.start(approve, "x")

    with pytest.raises(ChainNotFailed):
        await app.retry(chain)
    for call in (app.cancel, app.retry, app.trigger):
        with pytest.raises(ChainNotFound):
            await call(new_id())

    await app.cancel(chain)
    assert isinstance((await chain.get()).current, FailedJob)
    await app.retry(chain)
    assert (await chain.get()).status is JobStatus.PENDING
    await app.cancel(chain)
    await app.cancel(chain)


async def test_a_chain_that_others_wait_for_cannot_be_deleted(opened: Any) -> None:
    app: Onward = await opened(order, report)
    blocker = await app.start(order, Order(1))
    chain = await app.start(report, "r", blockers=[blocker])

    with pytest.raises(ChainReferenced) as refused:
        await app.delete(blocker)
    assert refused.value.references == ((blocker.id, chain.id),)

    assert await app.delete(chain, cascade=True) == 2
    assert (await app.jobs()).items == []
    assert await app.delete(chain) == 0


# -- queries


async def test_pages_follow_one_another_while_chains_are_added(opened: Any) -> None:
    app: Onward = await opened(order, approve)
    chains = await app.start_many([order.with_input(Order(n)) for n in range(5)])

    first = await app.chains(limit=2)
    await app.start(order, Order(99))
    second = await app.chains(limit=2, after=first.next)
    third = await app.chains(limit=2, after=second.next)

    listed = [chain.id for page in (first, second, third) for chain in page.items]
    assert listed == [chain.id for chain in reversed(chains)]
    assert third.next is None


async def test_jobs_are_found_by_type_status_time_and_chain(opened: Any) -> None:
    app: Onward = await opened(order, approve, report)
    a, b = await app.start(order, Order(1)), await app.start(approve, "x")
    c = await app.start(report, "r", blockers=[a])
    await app.cancel(b)
    now = datetime.now(UTC)

    async def ids(**filters: Any) -> set[Any]:
        return {one.id for one in (await app.jobs(**filters)).items}

    assert await ids(types=[order, "approve"]) == {a.id, b.id}
    assert await ids(status="failed") == {b.id}
    assert await ids(status=["blocked", JobStatus.PENDING]) == {a.id, c.id}
    assert await ids(chains=[a, b]) == {a.id, b.id}
    assert await ids(root_id=c.id) == {c.id}
    assert await ids(created_from=now + timedelta(hours=1)) == set()
    assert await ids(created_before=now + timedelta(hours=1)) == {a.id, b.id, c.id}
    assert {job.id for job in (await app.blocked_by(a)).items} == {c.id}
    assert [blocker.chain_id for blocker in await app.blockers_of(c.id)] == [a.id]
    assert (await app.chains(status="failed")).items[0].id == b.id
    with pytest.raises(ConfigurationError, match="use one of"):
        await app.jobs(status="lost")
    with pytest.raises(ConfigurationError, match="a page has"):
        await app.jobs(limit=0)


# -- schema


async def test_a_database_without_tables_names_the_command_that_makes_them(make_app: Any) -> None:
    app: Onward = make_app(order, migrate=False)

    with pytest.raises(SchemaMissing, match="onward migrate"):
        async with app:
            pass
