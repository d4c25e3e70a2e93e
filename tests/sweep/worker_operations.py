"""What a worker does, each as jobs that are there before and the handlers that run them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from onward import Attempt, Backoff, Limit, Next, Outcome, Permanent, Reschedule, Schedule, job
from onward.define.outcome import Done
from onward.state.driver import run_now
from sweep.bench import Room

SOON = Backoff(initial=timedelta(milliseconds=10), maximum=timedelta(milliseconds=10))


class Stage:
    """Where handlers find what they write to, and what they have done before."""

    room: Room
    seen: ClassVar[set[Any]] = set()
    running: ClassVar[Counter[str]] = Counter()
    cancelled = stopped = False

    @classmethod
    def set(cls, room: Room) -> None:
        cls.room, cls.cancelled, cls.stopped = room, False, False
        cls.seen.clear()
        cls.running.clear()


def first_time(key: Any) -> bool:
    """Whether a handler has not been here yet."""
    found = key not in Stage.seen
    Stage.seen.add(key)
    return found


# -- outcomes that are settled together


@job("plain")
async def plain(attempt: Attempt[str]) -> str:
    return attempt.input


@job("hop", continues_to=[plain])
async def hop(attempt: Attempt[str]) -> Next[str]:
    return attempt.continue_with(plain, attempt.input)


@job("broken")
async def broken(attempt: Attempt[str]) -> str:
    raise Permanent("for good")


@job("flaky", backoff=SOON)
async def flaky(attempt: Attempt[str]) -> str:
    if attempt.failures == 0:
        raise ValueError("once")
    return attempt.input


@job("again")
async def again(attempt: Attempt[str]) -> str:
    if first_time(attempt.job_id):
        raise Reschedule(delay=timedelta(milliseconds=10))
    return attempt.input


@job("report", blocked_by=[plain])
async def report(attempt: Attempt[str]) -> str:
    return "".join(sorted(attempt.outputs_of(plain)))


# -- phases


@job("phases.second", internal=True)
async def second(attempt: Attempt[str]) -> str:
    async with attempt.complete() as tx:
        await Stage.room.write(tx, f"second {attempt.input}")
        return attempt.input


@job("phases.first", continues_to=[second])
async def first(attempt: Attempt[str]) -> Next[str]:
    async with attempt.prepare() as tx:
        await Stage.room.read(tx)
    async with attempt.complete() as tx:
        await Stage.room.write(tx, f"first {attempt.input}")
        return attempt.continue_with(second, attempt.input)


@job("atomic")
async def atomic(attempt: Attempt[str]) -> str:
    async with attempt.prepare(atomic=True) as tx:
        await Stage.room.write(tx, f"prepared {attempt.input}")
    async with attempt.complete() as tx:
        await Stage.room.write(tx, f"atomic {attempt.input}")
        return attempt.input


@job("starting")
async def starting(attempt: Attempt[str]) -> str:
    async with attempt.complete() as tx:
        await Stage.room.write(tx, "starting")
        await Stage.room.app.start(plain, "started", tx=tx)
        return attempt.input


@job("twice")
async def twice(attempt: Attempt[str]) -> Outcome[str]:
    """Its first run commits what it wrote, and comes back."""
    async with attempt.complete() as tx:
        if await Stage.room.read(tx, "half"):
            await Stage.room.write(tx, "whole")
            return Done(attempt.input)
        await Stage.room.write(tx, "half")
        return attempt.reschedule(delay=timedelta(milliseconds=10))


@job("gathering", blocked_by=[plain])
async def gathering(attempt: Attempt[str]) -> str:
    async with attempt.complete() as tx:
        await Stage.room.write(tx, "gathered")
        return "".join(sorted(attempt.outputs_of(plain)))


@job("in a thread")
def in_thread(attempt: Attempt[str]) -> str:
    with attempt.prepare() as tx:
        run_now(Stage.room.read(tx))
    with attempt.complete() as tx:
        run_now(Stage.room.write(tx, f"thread {attempt.input}"))
        return attempt.input


# -- schedules


@job("scheduled", schedule=Schedule(input=str, every=timedelta(days=20), missed="all"))
async def scheduled(attempt: Attempt[str]) -> str:
    return attempt.input


@job("scheduled.in_line", schedule=Schedule(input=str, every=timedelta(days=20), missed="all", overlap="queue"))
async def in_line(attempt: Attempt[str]) -> str:
    return attempt.input


# -- limits

PLACES = 2


@job("limited", limit=Limit(concurrency=PLACES, key=lambda input: input))
async def limited(attempt: Attempt[str]) -> str:
    """For so long that places are looked for beside the next take."""
    Stage.running[attempt.input] += 1
    try:
        if Stage.running[attempt.input] > PLACES:
            raise Permanent("more at a time than there are places")
        await asyncio.sleep(0.12)
    finally:
        Stage.running[attempt.input] -= 1
    return attempt.input


# -- leases


@job("long", lease=timedelta(seconds=2))
async def long(attempt: Attempt[str]) -> str:
    attempt.progress(0.5, "half way")
    await asyncio.sleep(0.75)
    return attempt.input


@job("held", lease=timedelta(seconds=3))
async def held(attempt: Attempt[str]) -> str:
    """Runs until its worker is told to stop."""
    if not Stage.stopped:
        await asyncio.Event().wait()
    return attempt.input


@job("doomed", lease=timedelta(seconds=3))
async def doomed(attempt: Attempt[str]) -> str:
    """Runs until somebody cancels it."""
    await asyncio.Event().wait()
    return attempt.input


Arrange = Callable[[Room], Awaitable[Any]]


@dataclass(frozen=True)
class Work:
    """Chains for a worker, and what is done to it beside."""

    name: str
    jobs: tuple[Any, ...]
    arrange: Arrange
    beside: Callable[[Room, Any, Any, Callable[[], bool]], Awaitable[None]] | None = None
    """With the room, what was arranged, the worker, and whether that has ended."""
    may_crash: bool = False
    """Whether a worker that is cancelled may leave a job to its lease: it was stopping already."""


async def _outcomes(room: Room) -> None:
    for kind in (plain, hop, broken, flaky, again):
        await room.app.start(kind, kind.name)
    await room.app.start(report, "r", blockers=[plain.with_input("a"), plain.with_input("b")])


async def _phases(room: Room) -> None:
    for kind in (first, atomic, starting, twice):
        await room.app.start(kind, kind.name)
    await room.app.start(gathering, "g", blockers=[plain.with_input("a")])


async def _leases(room: Room) -> None:
    lost = await room.app.start(plain, "reaped")
    await room.app.start(long, "long")
    await room.app.start(plain, "due", delay=timedelta(milliseconds=30))
    room.bench.lose(lost.id)


async def _threads(room: Room) -> None:
    await room.app.start_many([in_thread.with_input(str(n)) for n in range(2)])


async def _schedules(room: Room) -> None:
    """Two ticks of each are due."""
    for kind in (scheduled, in_line):
        await room.app.schedules.resume(kind.name)
    back = "interval '40 days'" if room.bench.dialect == "postgres" else "40 * 86400 * 1000000"
    room.bench.run(f"UPDATE {room.bench.table('schedule')} SET next_at = next_at - {back}")


async def _limits(room: Room) -> None:
    """More than there are slots have a place, and some have none."""
    await room.app.start_many([limited.with_input(f"key {n % 3}") for n in range(9)])


async def _held(room: Room) -> None:
    await room.app.start(held, "held")


async def _runs(room: Room, has_ended: Callable[[], bool]) -> bool:
    """Wait for a job that runs, as long as there is a worker that could."""
    await room.bench.wait_until(lambda: has_ended() or bool(room.bench.running()), within=5)
    return bool(room.bench.running())


async def _stop(room: Room, _: Any, worker: Any, has_ended: Callable[[], bool]) -> None:
    if not Stage.stopped and await _runs(room, has_ended):
        Stage.stopped = True
        worker.stop()
        worker.give_back()


async def _doomed(room: Room) -> Any:
    return await room.app.start(doomed, "doomed")


async def _cancel(room: Room, chain: Any, worker: Any, has_ended: Callable[[], bool]) -> None:
    if not Stage.cancelled and await _runs(room, has_ended):
        await room.app.cancel(chain)
        Stage.cancelled = True


WORKS = {
    work.name: work
    for work in (
        Work("outcomes", (plain, hop, broken, flaky, again, report), _outcomes),
        Work("phases", (first, second, atomic, starting, twice, gathering, plain), _phases),
        Work("leases", (plain, long), _leases),
        Work("threads", (in_thread,), _threads),
        Work("schedules", (scheduled, in_line), _schedules),
        Work("limits", (limited,), _limits),
        Work("stopping", (held,), _held, beside=_stop, may_crash=True),
        Work("cancelling", (doomed,), _doomed, beside=_cancel),
    )
}
