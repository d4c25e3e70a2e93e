"""Locks, late workers, the janitor, and workers that die or lose their connection after any command."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha1
from threading import Event
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from flows import SOON, FlowRecorder, places
from onward.flow import FanOut, Flow, FlowJobFailed, FlowLockLost, Run, events
from onward.flow.keys import Keys
from onward.flow.server import load

MakeFlow = Callable[..., Flow[Any]]
OFTEN = timedelta(milliseconds=50)
SHORT = timedelta(milliseconds=300)


@dataclass
class Item:
    name: str


@dataclass
class Priced:
    price: int


@dataclass
class Prices:
    prices: list[Priced]


# -- locks that are lost


async def test_a_worker_that_lost_its_lock_changes_nothing_and_learns_it(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("price", next="pack")
    async def price(job: Item) -> Priced:
        running.set()
        await go_on.wait()
        return Priced(7)

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        return None

    async with flow, flow.workers({"price": 1}, janitor=None):
        job_id = await flow.start(Item("a"), correlation_id="c")
        await running.wait()
        await redis.set(f"lock:{keys.tag}price:{job_id}", "somebody else")
        before = await redis.hgetall(keys.job(job_id))
        go_on.set()
        dropped = await recorder.next(events.ResultDropped)

        assert (dropped.job_id, dropped.correlation_id) == (job_id, "c")
        assert await redis.hgetall(keys.job(job_id)) == before
        assert places(await flow.positions()) == {job_id: ("price", "processing")}
        assert await redis.get(f"lock:{keys.tag}price:{job_id}") == "somebody else"


async def test_an_earlier_claim_of_the_same_worker_cannot_settle(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("price")
    async def price(job: Item) -> Priced:
        running.set()
        await go_on.wait()
        return Priced(7)

    async with flow, flow.workers(janitor=None):
        job_id = await flow.start(Item("a"))
        await running.wait()
        await redis.hincrby(keys.job(job_id), "claim-number", 1)
        go_on.set()

    assert "price" not in await redis.hgetall(keys.job(job_id))


async def test_a_late_worker_cannot_complete_what_was_taken_from_it(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, late, runs = make_flow(), Event(), list[str]()

    @flow.stage("price", timeout=SHORT, max_retries=1)
    def price(job: Item, run: Run) -> Priced:
        runs.append(run.worker)
        if run.retries == 0:
            late.wait(10)  # a thread, so nobody can stop it
            return Priced(1)
        return Priced(2)

    async with flow, flow.workers(2, janitor=OFTEN):
        job_id = await flow.start(Item("a"))
        job = await flow.wait(job_id, timeout=SOON)
        late.set()
        dropped = await recorder.next(events.ResultDropped)
        assert (await flow.get(job_id)).attributes == job.attributes == {"name": "a", "price": 2}

    [expired] = recorder.of(events.LockExpired)
    assert (expired.worker, expired.will_retry, expired.job_id) == (runs[0], True, job_id)
    assert dropped.worker == runs[0] != runs[1]


async def test_an_expired_lock_fails_the_job_with_a_clear_message_and_ends_the_handler(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, ended = make_flow(), asyncio.Event()

    @flow.stage("price", timeout=SHORT)
    async def price(job: Item) -> Priced:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with flow, flow.workers(janitor=OFTEN):
        with pytest.raises(FlowJobFailed, match=r"worker timeout: \S+ did not finish stage price within 0.3 s"):
            await flow.wait(await flow.start(Item("a")), timeout=SOON)
        await ended.wait()
        await recorder.next(events.ResultDropped)

    assert [event.will_retry for event in recorder.of(events.LockExpired)] == [False]


async def test_a_job_that_kills_every_worker_is_not_tried_for_ever(make_flow: MakeFlow) -> None:
    flow, tries = make_flow(), list[int]()

    @flow.stage("price", timeout=SHORT, max_retries=2)
    async def price(job: Item, run: Run) -> Priced:
        tries.append(run.retries)
        await asyncio.Event().wait()
        raise AssertionError

    async with flow, flow.workers(janitor=OFTEN):
        with pytest.raises(FlowJobFailed, match="worker timeout"):
            await flow.wait(await flow.start(Item("poison")), timeout=SOON)

    assert tries == [0, 1, 2]


# -- locks that are renewed


@pytest.mark.parametrize("by", ["worker", "handler"])
async def test_a_renewed_lock_outlives_its_timeout(make_flow: MakeFlow, recorder: FlowRecorder, by: str) -> None:
    flow = make_flow()

    @flow.stage("price", timeout=timedelta(seconds=1), renew=by == "worker")
    async def price(job: Item, run: Run) -> Priced:
        for _ in range(10):
            await asyncio.sleep(0.2)
            if by == "handler":
                await run.renew()
        return Priced(7)

    async with flow, flow.workers(janitor=OFTEN):
        job = await flow.wait(await flow.start(Item("a")), timeout=SOON)

    assert job.read(Priced) == Priced(7)
    assert recorder.of(events.LockExpired) == []


@pytest.mark.parametrize("by", ["worker", "handler"])
async def test_who_renews_a_lost_lock_is_told(make_flow: MakeFlow, recorder: FlowRecorder, by: str) -> None:
    flow, told = make_flow(), list[BaseException]()

    @flow.stage("price", timeout=SHORT, renew=by == "worker")
    async def price(job: Item, run: Run) -> Priced:
        await flow.delete(run.job_id)
        try:
            await (run.renew() if by == "handler" else asyncio.Event().wait())
        except BaseException as error:
            told.append(error)
            raise
        raise AssertionError

    async with flow, flow.workers(janitor=None):
        job_id = await flow.start(Item("a"))
        dropped = await recorder.next(events.ResultDropped)

    assert dropped.job_id == job_id
    assert isinstance(told[0], FlowLockLost if by == "handler" else asyncio.CancelledError)


# -- the crash window


async def test_a_job_moved_but_never_locked_is_taken_back_without_counting(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, retries = make_flow(), list[int]()

    @flow.stage("price")
    async def price(job: Item, run: Run) -> Priced:
        retries.append(run.retries)
        return Priced(7)

    async with flow:
        job_id = await flow.start(Item("a"))
        await redis.lmove(keys.queue("price", "waiting"), keys.queue("price", "processing"))
        async with flow.workers(janitor=OFTEN):
            await flow.wait(job_id, timeout=SOON)

    assert retries == [0]
    assert [event.job_id for event in recorder.of(events.JobTakenBack)] == [job_id]


async def test_a_job_that_was_taken_back_before_the_lock_is_not_locked(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, runs = make_flow(), list[str]()

    @flow.stage("price")
    async def price(job: Item, run: Run) -> None:
        runs.append(run.job_id)

    async with flow:
        script, job_id, taken_back = flow._store.server.script, await flow.start(Item("a")), asyncio.Event()

        async def slow(name: str, *words: Any) -> Any:
            if name == "claim" and not taken_back.is_set():
                await redis.lmove(keys.queue("price", "processing"), keys.queue("price", "waiting"))
                taken_back.set()
            return await script(name, *words)

        flow._store.server.script = slow  # type: ignore[method-assign]
        async with flow.workers(janitor=None):
            await flow.wait(job_id, timeout=SOON)
        assert taken_back.is_set()
        assert places(await flow.positions()) == {job_id: (None, "done")}
    assert runs == [job_id]


async def test_a_name_without_a_job_is_dropped(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder, all_keys: Any
) -> None:
    flow = make_flow()

    @flow.stage("price")
    async def price(job: Item) -> None:
        raise AssertionError

    async with flow:
        await redis.rpush(keys.queue("price", "waiting"), "ghost")
        await redis.rpush(keys.queue("price", "processing"), "old ghost")
        async with flow.workers(janitor=OFTEN):
            await recorder.next(events.JobMissing, count=2)

    assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


# -- death, or a lost connection, after any command


NAMES = {load(name)[1]: name for name in ("take", "claim", "renew", "complete", "fail", "release")}
TAKES = ("BLMOVE", "take")


class Mortal:
    """Stands between workers and Redis: before or after their nth command the connection is cut, once or for ever.

    Counted are commands that do something: not those that find nothing, nor those that only wait.
    """

    def __init__(self, flow: Flow[Any], *, number: int = 0, after: bool = True, for_ever: bool = False) -> None:
        server = flow._store.server
        self._execute = server.execute
        server.execute = self.execute  # type: ignore[method-assign]
        self._number, self._after, self._for_ever = number, after, for_ever
        self.seen: list[str] = []
        self.struck = asyncio.Event()

    async def execute(self, *words: Any) -> Any:
        if self._for_ever and self.struck.is_set():
            raise ConnectionError("dead")
        name = words[0]
        if name in ("EVAL", "EVALSHA"):
            name = NAMES.get(words[1] if name == "EVALSHA" else sha1(words[1].encode()).hexdigest(), "")
        if name not in (*NAMES.values(), *TAKES):
            return await self._execute(*words)
        if not self._after and name not in TAKES:
            self._count(name)
        answer = await self._execute(*words)
        if self._after and answer is not None:
            self._count(name)
        return answer

    def _count(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self._number:
            self.struck.set()
            raise ConnectionError(f"cut {'after' if self._after else 'before'} {name}")


def shop(make_flow: MakeFlow, number: int, *, max_retries: int, timeout: timedelta) -> Flow[Any]:
    """Everything that workers say to Redis: plain stages, priorities, children, errors, a lock that is renewed.

    Each has a name and queues of its own, so that a life is that of one job, whatever else goes on.
    """
    flow = make_flow(name=f"shop{number}", index=["name"])
    patience: dict[str, Any] = {"timeout": timeout, "max_retries": max_retries}
    split, price, add, end = (f"{flow.name}.{stage}" for stage in ("split", "price", "add", "end"))

    @flow.stage(split, next=add, children=price, collect="prices", **patience)
    async def split_up(job: Item) -> FanOut[Item]:
        return FanOut([Item(f"{job.name}{n}") for n in range(2)])

    @flow.stage(price, priorities=True, **patience)
    async def find_price(job: Item) -> Priced:
        return Priced(3)

    @flow.stage(add, next=end, renew=True, **patience)
    async def add_up(job: Prices, run: Run) -> Priced:
        if run.retries == 0 and max_retries:
            raise RuntimeError("once")
        await asyncio.sleep(timeout.total_seconds() / 2)
        return Priced(sum(one.price for one in job.prices))

    @flow.stage(end, **patience)
    async def finish(job: Priced) -> None:
        return None

    return flow


async def commands_of_a_life(flow: Flow[Any], *, after: bool) -> list[str]:
    """What the workers say to Redis until a job is done."""
    async with flow:
        job_id = await flow.start(Item("a"))
        mortal = Mortal(flow, after=after)
        async with flow.workers(janitor=None):
            await flow.wait(job_id, timeout=SOON)
        return mortal.seen


async def check_the_end(flow: Flow[Any], job_id: str) -> None:
    """The job and its two children are done, and nowhere else."""
    assert (await flow.wait(job_id, timeout=SOON)).attributes["price"] == 6
    found = places(await flow.positions())
    assert list(found.values()) == [(None, "done")] * 3


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
async def test_workers_that_die_at_any_command_lose_no_job(make_flow: MakeFlow, after: bool) -> None:
    make = partial(shop, make_flow, max_retries=20, timeout=SHORT)

    async def die_and_be_survived(number: int) -> None:
        async with make(number) as dying, asyncio.TaskGroup() as tasks:
            job_id = await dying.start(Item("a"))
            mortal = Mortal(dying, number=number, after=after, for_ever=True)
            running = tasks.create_task(dying.workers(janitor=None).run())
            with suppress(TimeoutError):  # slow lives renew a lock more often: this one may have fewer commands
                async with asyncio.timeout(SOON.total_seconds() / 2):
                    await mortal.struck.wait()
            while not running.done():  # told once it would finish what it has
                running.cancel()
                await asyncio.sleep(0.01)
        async with make(number) as survivors, survivors.workers(janitor=OFTEN):
            await check_the_end(survivors, job_id)

    life = await commands_of_a_life(make(0), after=after)
    assert {"claim", "renew", "complete", "fail"} <= set(life)
    assert len(life) >= 13
    async with asyncio.TaskGroup() as lives:
        for number in range(1, len(life) + 1):
            lives.create_task(die_and_be_survived(number))


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
async def test_a_connection_lost_at_any_command_costs_no_try(
    make_flow: MakeFlow, recorder: FlowRecorder, after: bool
) -> None:
    make = partial(shop, make_flow, max_retries=0, timeout=timedelta(seconds=2))
    struck: list[bool] = []

    async def stumble(number: int) -> None:
        async with make(number) as flow:
            job_id = await flow.start(Item("a"))
            mortal = Mortal(flow, number=number, after=after)
            async with flow.workers(janitor=OFTEN):
                await check_the_end(flow, job_id)
            struck.append(mortal.struck.is_set())

    life = await commands_of_a_life(make(0), after=after)
    recorder.events.clear()
    async with asyncio.TaskGroup() as lives:
        for number in range(1, len(life) + 1):
            lives.create_task(stumble(number))

    assert struck.count(False) <= 3  # slow lives renew a lock more often: some may have had fewer commands
    assert recorder.of(events.LockExpired) == recorder.of(events.ResultDropped) == recorder.of(events.StageFailed) == []
    assert len(recorder.of(events.StageCompleted)) == 5 * len(life)
