"""What a client can do, each as what is there before, and the act that is hit."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from onward import Attempt, Deduplication, JobType, Limit, Next, Onward, Schedule, job
from sweep.bench import Room, entered, got

approve = JobType("approve", input=str, output=str)
rare = JobType("rare", input=str, output=str, schedule=Schedule(input="x", every=timedelta(days=20)))
report = JobType("report", input=str, output=str, blocked_by=[approve])

charge = JobType("charge", input=str, output=str, limit=Limit("stripe", concurrency=3))


@job("finish", internal=True)
async def finish(attempt: Attempt[str]) -> str:
    return attempt.input


@job("begin", continues_to=[finish])
async def begin(attempt: Attempt[str]) -> Next[str]:
    return attempt.continue_with(finish, attempt.input)


JOBS = [approve, report, charge, begin, finish, rare]
Arrange = Callable[[Room], Awaitable[Any]]
Act = Callable[[Room, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """One thing a client does."""

    name: str
    arrange: Arrange
    act: Act
    retries: bool
    """Whether Onward itself tries again, so that one stumble of the database is not seen."""
    is_native: bool = False
    """Whether it needs a connection of the application's own."""
    cancels: bool = True


OPERATIONS: dict[str, Operation] = {}


async def nothing(room: Room) -> None:
    """Nothing has to be there before."""


def operation(
    arrange: Arrange = nothing, *, retries: bool = True, is_native: bool = False, cancels: bool = True
) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        name = act.__name__.strip("_")
        OPERATIONS[name] = Operation(name, arrange, act, retries, is_native, cancels)
        return act

    return add


# -- start


@operation()
async def start(room: Room, _: Any) -> None:
    await got(room.client.start(approve, "a"))


@operation()
async def start_with_key(room: Room, _: Any) -> None:
    await got(room.client.start(approve, "a", deduplication=Deduplication("key")))


@operation()
async def start_with_id(room: Room, _: Any) -> None:
    await got(room.client.start(approve, "a", id=UUID(int=7)))


@operation()
async def start_later(room: Room, _: Any) -> None:
    await got(room.client.start(approve, "a", delay=timedelta(hours=1), priority=3))


@operation()
async def start_with_new_blockers(room: Room, _: Any) -> None:
    await got(room.client.start(report, "a", blockers=[approve.with_input("b"), approve.with_input("c")]))


async def a_chain(room: Room) -> Any:
    return await got(room.client.start(approve, "there"))


@operation(a_chain)
async def start_with_a_blocker_that_is_there(room: Room, blocker: Any) -> None:
    await got(room.client.start(report, "a", blockers=[blocker]))


@operation()
async def start_many(room: Room, _: Any) -> None:
    await got(room.client.start_many([approve.with_input(str(n)) for n in range(3)]))


@operation()
async def start_many_with_keys(room: Room, _: Any) -> None:
    chains = [approve.with_input(str(n), deduplication=Deduplication(f"key {n}")) for n in range(3)]
    await got(room.client.start_many(chains))


@operation(retries=False)
async def start_in_a_transaction(room: Room, _: Any) -> None:
    async with entered(room.client.transaction()) as tx:
        await room.write(tx, "a")
        await got(room.client.start(approve, "a", tx=tx))
        await room.write(tx, "b")


@operation(retries=False)
async def start_keyed_in_a_transaction(room: Room, _: Any) -> None:
    async with entered(room.client.transaction()) as tx:
        await room.write(tx, "a")
        await got(room.client.start(approve, "a", tx=tx, deduplication=Deduplication("key")))


@operation(retries=False)
async def roll_back(room: Room, _: Any) -> None:
    try:
        async with entered(room.client.transaction()) as tx:
            await room.write(tx, "a")
            await got(room.client.start(approve, "a", tx=tx))
            raise _Undo
    except _Undo:
        pass


class _Undo(Exception):
    pass


@operation(retries=False)
async def savepoint(room: Room, _: Any) -> None:
    if room.bench._engine is not None:
        return
    async with entered(room.client.transaction()) as tx:
        await room.write(tx, "kept")
        try:
            async with entered(tx.savepoint()):
                await room.write(tx, "undone")
                raise _Undo
        except _Undo:
            pass
        await got(room.client.start(approve, "a", tx=tx))


@operation(retries=False, is_native=True)
async def start_in_a_native_transaction(room: Room, _: Any) -> None:
    async with entered(room.bench.native(room)) as tx:
        await room.write(tx, "a")
        await got(room.client.start(approve, "a", tx=tx))


# -- complete


async def begun(room: Room) -> Any:
    return await got(room.client.start(begin, "a"))


@operation(a_chain, retries=False)
async def complete(room: Room, chain: Any) -> None:
    async with entered(room.client.complete(chain)) as completion:
        await got(completion.done("yes"))


@operation(begun, retries=False)
async def complete_by_continuing(room: Room, chain: Any) -> None:
    async with entered(room.client.complete(chain)) as completion:
        await got(completion.continue_with(finish, "b"))


async def blocking(room: Room) -> Any:
    blocker = await a_chain(room)
    await got(room.client.start(report, "a", blockers=[blocker]))
    return blocker


@operation(blocking, retries=False)
async def complete_and_unblock(room: Room, chain: Any) -> None:
    async with entered(room.client.transaction()) as tx:
        await room.write(tx, "approved")
        async with entered(room.client.complete(chain, tx=tx)) as completion:
            await got(completion.done("yes"))


# -- change


@operation(a_chain)
async def cancel(room: Room, chain: Any) -> None:
    await got(room.client.cancel(chain))


@operation(blocking)
async def cancel_a_blocker(room: Room, chain: Any) -> None:
    await got(room.client.cancel(chain))


async def cancelled(room: Room) -> Any:
    blocker = await blocking(room)
    await got(room.client.cancel(blocker))
    return blocker


@operation(cancelled)
async def retry(room: Room, chain: Any) -> None:
    await got(room.client.retry(chain))


async def later(room: Room) -> Any:
    return await got(room.client.start(approve, "there", delay=timedelta(hours=1)))


@operation(later)
async def trigger(room: Room, chain: Any) -> None:
    await got(room.client.trigger(chain))


@operation(a_chain)
async def delete(room: Room, chain: Any) -> None:
    await got(room.client.delete(chain))


@operation(blocking)
async def delete_with_blockers(room: Room, blocker: Any) -> None:
    (waiting,) = (await got(room.client.blocked_by(blocker))).items
    await got(room.client.delete(waiting.chain_id, cascade=True))


@operation(cancelled)
async def prune(room: Room, _: Any) -> None:
    await got(room.client.prune(older_than=timedelta()))


@operation()
async def pause(room: Room, _: Any) -> None:
    await got(room.client.pause(approve))


async def paused(room: Room) -> Any:
    await got(room.client.pause(approve))


@operation(paused)
async def resume(room: Room, _: Any) -> None:
    await got(room.client.resume(approve))


async def a_limit(room: Room) -> None:
    await got(room.client.limits.change("stripe", concurrency=2))


@operation(a_limit)
async def change_a_limit(room: Room, _: Any) -> None:
    await got(room.client.limits.change("stripe", concurrency=1))


@operation(a_chain, retries=False)
async def change_in_a_transaction(room: Room, chain: Any) -> None:
    async with entered(room.client.transaction()) as tx:
        await room.write(tx, "a")
        await got(room.client.cancel(chain, tx=tx))
        await got(room.client.retry(chain, tx=tx))
        await got(room.client.pause(approve, tx=tx))


# -- read


async def completed(room: Room) -> Any:
    chain = await a_chain(room)
    async with entered(room.client.complete(chain)) as completion:
        await got(completion.done("yes"))
    return chain


@operation(completed)
async def wait(room: Room, chain: Any) -> None:
    assert await got(chain.wait(timeout=timedelta(seconds=5))) == "yes"


@operation(blocking)
async def read(room: Room, chain: Any) -> None:
    client = room.client
    assert (await got(client.find_job(chain.id))).id == chain.id
    assert (await got(client.find_chain(chain.id))).id == chain.id
    assert len((await got(client.jobs())).items) == 2
    assert len((await got(client.chains(types=[report]))).items) == 1
    (waiting,) = (await got(client.blocked_by(chain))).items
    assert [b.chain_id for b in await got(client.blockers_of(waiting.id))] == [chain.id]
    assert list(await got(client.paused())) == []
    assert (await got(client.explain(waiting.id))).facts["path"] == [f"{chain.id} ({chain.job_type.name})"]


# -- schedules


@operation(blocking)
async def look_at_health(room: Room, _: Any) -> None:
    room.client._probe._until = 0.0  # what was seen just now is not asked for again
    await got(room.client.health())


async def stored_schedule(room: Room) -> None:
    await got(room.client.schedules.resume("rare"))


@operation()
async def pause_schedule(room: Room, _: Any) -> None:
    await got(room.client.schedules.pause("rare"))


@operation(stored_schedule)
async def change_schedule(room: Room, _: Any) -> None:
    await got(room.client.schedules.change("rare", cron="0 0 1 1 *"))
    assert [one.cron for one in await got(room.client.schedules.list())] == ["0 0 1 1 *"]


# -- life


async def another(room: Room) -> Any:
    """A second app on the same database."""
    bench = room.bench
    if bench._engine is not None:
        return room.app
    made = Onward(bench.address, jobs=JOBS, observers=[], pool_size=2, migrate=False, **bench.options())
    return made.sync if room.is_sync else made


@operation(another, retries=False)
async def open_and_close(room: Room, app: Any) -> None:
    if room.bench._engine is not None:
        return  # the engine is the application's
    async with entered(app):
        assert list(await got(app.paused())) == []
