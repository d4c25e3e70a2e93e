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
from onward.redis.scripts import load

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
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, late, runs = make_flow(), Event(), list[str]()

    @flow.stage("price")
    def price(job: Item, run: Run) -> Priced:
        runs.append(run.worker)
        if run.stalls == 0:
            late.wait(10)  # a thread, so nobody can stop it
            return Priced(1)
        return Priced(2)

    async with flow, flow.workers(2, janitor=OFTEN):
        job_id = await flow.start(Item("a"))
        while not runs:
            await asyncio.sleep(0.01)
        await redis.delete(f"lock:{keys.tag}price:{job_id}")  # as if it had run out
        job = await flow.wait(job_id, timeout=SOON)
        late.set()
        dropped = await recorder.next(events.ResultDropped)
        assert (await flow.get(job_id)).attributes == job.attributes == {"name": "a", "price": 2}

    [expired] = recorder.of(events.LockExpired)
    assert (expired.worker, expired.stalls, expired.will_retry, expired.job_id) == (runs[0], 1, True, job_id)
    assert dropped.worker == runs[0] != runs[1]


# -- stalls and time limits


class Hold:
    """Handlers that hang until the test is over, as those of workers that were killed do."""

    def __init__(self, redis: Any, keys: Keys, stage: str) -> None:
        self._redis, self._lock = redis, f"lock:{keys.tag}{stage}:"

    async def kill(self, job_id: str) -> None:
        """Let the lock run out while somebody has the job."""
        async with asyncio.timeout(10):
            while not await self._redis.delete(self._lock + job_id):
                await asyncio.sleep(0.01)


async def test_a_job_that_kills_every_worker_fails_as_stalled_and_this_is_told(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, seen = make_flow(), list[tuple[int, int]]()

    @flow.stage("price")
    async def price(job: Item, run: Run) -> Priced:
        seen.append((run.retries, run.stalls))
        await asyncio.Event().wait()
        raise AssertionError

    async with flow, flow.workers(5, janitor=OFTEN) as workers:
        job_id = await flow.start(Item("poison"), correlation_id="c")
        for _ in range(4):
            await Hold(redis, keys, "price").kill(job_id)
        with pytest.raises(FlowJobFailed, match=r"stalled 4 times: worker \S+ died, or .* max_stalls=3") as failed:
            await flow.wait(job_id, timeout=SOON)
        ended = await recorder.next(events.JobFailed)
        job = await flow.get(job_id)
        workers.stop(grace=timedelta(0))

    assert (failed.value.reason, job.reason, job.stalls, job.retries) == ("stalled", "stalled", 4, 0)
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [event.will_retry for event in recorder.of(events.LockExpired)] == [True, True, True, False]
    assert (ended.job_id, ended.correlation_id, ended.stage, ended.reason) == (job_id, "c", "price", "stalled")
    assert recorder.of(events.StageFailed) == []


async def test_stalls_use_up_no_retries_and_begin_anew_at_each_stage(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow, seen = make_flow(), list[tuple[str, int, int]]()

    async def work(job: Item, run: Run) -> None:
        seen.append((run.stage, run.retries, run.stalls))
        if run.stalls == 0:
            await asyncio.Event().wait()
        if run.retries == 0:
            raise RuntimeError("once")

    flow.stage("price", next="pack", max_retries=1, max_stalls=1)(work)
    flow.stage("pack", max_retries=1, max_stalls=1)(work)

    async with flow, flow.workers(2, janitor=OFTEN) as workers:
        job_id = await flow.start(Item("a"))
        await Hold(redis, keys, "price").kill(job_id)
        await Hold(redis, keys, "pack").kill(job_id)
        job = await flow.wait(job_id, timeout=SOON)
        workers.stop(grace=timedelta(0))

    assert seen == [(stage, *run) for stage in ("price", "pack") for run in ((0, 0), (0, 1), (1, 1))]
    assert (job.retries, job.stalls, job.error) == (0, 0, None)


async def test_stalled_jobs_come_first_again_in_their_order(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    flow = make_flow()

    @flow.stage("price")
    async def price(job: Item) -> None:
        await asyncio.Event().wait()

    async with flow:
        ids = await flow.start_many([Item("a"), Item("b"), Item("c")])
        async with flow.workers({"price": 1}, janitor=None) as one, flow.workers({"price": 1}, janitor=None) as two:
            while await redis.llen(keys.queue("price", "processing")) < 2:
                await asyncio.sleep(0.01)
            for job_id in ids[:2]:
                await Hold(redis, keys, "price").kill(job_id)
            one.stop(grace=timedelta(0))
            two.stop(grace=timedelta(0))
        await flow._store.recover(patience=0)
        assert await redis.lrange(keys.queue("price", "waiting"), 0, -1) == ids


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_takes_too_long_is_a_failed_try(
    make_flow: MakeFlow, recorder: FlowRecorder, kind: str
) -> None:
    flow, late, ended = make_flow(), Event(), list[str]()

    async def hang(job: Item, run: Run) -> Priced:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.name)
        raise AssertionError

    def hang_in_thread(job: Item, run: Run) -> Priced:
        late.wait(10)
        ended.append(job.name)
        return Priced(1)

    flow.stage("price", timeout=timedelta(milliseconds=50), max_retries=1)(hang if kind == "async" else hang_in_thread)
    async with flow, flow.workers(2, janitor=OFTEN):
        job_id = await flow.start(Item("a"))
        with pytest.raises(FlowJobFailed, match=r"TimeoutError: the handler did not return within 0.05 s") as failed:
            await flow.wait(job_id, timeout=SOON)
        late.set()

    assert failed.value.reason == "attempts"
    assert ended == ["a", "a"]
    assert [event.will_retry for event in recorder.of(events.StageFailed)] == [True, False]
    assert recorder.of(events.LockExpired) == []
    assert len(recorder.of(events.ResultDropped)) == 2


async def test_a_handler_that_takes_no_notice_of_its_cancellation_is_not_waited_for(make_flow: MakeFlow) -> None:
    flow, go_on = make_flow(), asyncio.Event()

    @flow.stage("price", timeout=timedelta(milliseconds=50))
    async def price(job: Item) -> None:
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()

    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match="TimeoutError"):
            await flow.wait(await flow.start(Item("a")), timeout=SOON)
        go_on.set()


async def test_without_a_timeout_a_handler_may_take_its_time(make_flow: MakeFlow, recorder: FlowRecorder) -> None:
    flow = make_flow()

    @flow.stage("price", timeout=None, lock=SHORT)
    async def price(job: Item) -> Priced:
        await asyncio.sleep(3 * SHORT.total_seconds())  # longer than a lock lives
        return Priced(7)

    async with flow, flow.workers(2, janitor=OFTEN):
        job = await flow.wait(await flow.start(Item("a")), timeout=SOON)

    assert job.read(Priced) == Priced(7)
    assert recorder.of(events.ResultDropped) == []


# -- locks that are renewed


async def test_a_handler_may_ask_for_more_time(make_flow: MakeFlow) -> None:
    flow = make_flow()

    @flow.stage("price", timeout=timedelta(seconds=1))
    async def price(job: Item, run: Run) -> Priced:
        for _ in range(10):
            await asyncio.sleep(0.2)
            await run.renew()
        return Priced(7)

    async with flow, flow.workers(janitor=OFTEN):
        job = await flow.wait(await flow.start(Item("a")), timeout=SOON)

    assert job.read(Priced) == Priced(7)


@pytest.mark.parametrize("by", ["worker", "handler"])
async def test_who_renews_a_lost_lock_is_told(make_flow: MakeFlow, recorder: FlowRecorder, by: str) -> None:
    flow, told = make_flow(), list[BaseException]()

    @flow.stage("price", lock=SHORT)
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


async def test_a_worker_that_cannot_renew_its_lock_ends_its_handler(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, ended = make_flow(), asyncio.Event()

    @flow.stage("price", lock=SHORT)
    async def price(job: Item) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with flow:
        script = flow._store.server.script

        async def cut(name: str, *words: Any) -> Any:
            if name == "renew":
                raise ConnectionError("away")
            return await script(name, *words)

        flow._store.server.script = cut  # type: ignore[method-assign]
        async with flow.workers(janitor=None):
            await flow.start(Item("a"))
            await recorder.next(events.ResultDropped)
        assert ended.is_set()
    assert {error.doing for error in recorder.of(events.RedisError)} == {"renew"}


async def test_renewing_ends_with_the_job_also_when_the_client_swallows_a_cancellation(make_flow: MakeFlow) -> None:
    flow, renewing, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("price", lock=SHORT)
    async def price(job: Item) -> None:
        await renewing.wait()

    async with flow:
        script = flow._store.server.script

        async def swallow(name: str, *words: Any) -> Any:
            if name != "renew":
                return await script(name, *words)
            renewing.set()
            with suppress(asyncio.CancelledError):  # as asyncio.wait_for does when the answer is there
                await go_on.wait()
            raise ConnectionError("dead")  # from now on, for ever

        flow._store.server.script = swallow  # type: ignore[method-assign]
        async with asyncio.timeout(10), flow.workers(janitor=None):
            await flow.wait(await flow.start(Item("a")), timeout=SOON)


# -- claims


async def test_a_claim_that_nobody_waits_for_any_more_is_undone_uncounted(
    make_flow: MakeFlow, redis: Any, keys: Keys
) -> None:
    flow, claimed = make_flow(), asyncio.Event()

    @flow.stage("price")
    async def price(job: Item) -> None:
        raise AssertionError

    async with flow:
        job_id = await flow.start(Item("a"))
        script = flow._store.server.script

        async def lose_the_answer(name: str, *words: Any) -> Any:
            answer = await script(name, *words)
            if name == "claim":
                claimed.set()
                raise ConnectionError("the answer was lost")
            return answer

        flow._store.server.script = lose_the_answer  # type: ignore[method-assign]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(flow.workers(janitor=None).run())
            await claimed.wait()
            running.cancel()
        assert places(await flow.positions()) == {job_id: ("price", "waiting")}
        assert (await flow.get(job_id)).stalls == 0
    assert await redis.exists(f"lock:{keys.tag}price:{job_id}") == 0


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


NAMES = {
    load("onward.flow", "common", name).digest: name
    for name in ("take", "claim", "renew", "complete", "fail", "release")
}
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
        if self._after and answer is not None and not (name == "take" and answer[0] == ""):
            self._count(name)
        return answer

    def _count(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self._number:
            self.struck.set()
            raise ConnectionError(f"cut {'after' if self._after else 'before'} {name}")


def shop(make_flow: MakeFlow, number: int, *, max_retries: int, max_stalls: int, lock: timedelta) -> Flow[Any]:
    """Everything that workers say to Redis: plain stages, priorities, children, errors, locks that are renewed.

    Each has a name and queues of its own, so that a life is that of one job, whatever else goes on.
    """
    flow = make_flow(name=f"shop{number}", index=["name"])
    patience: dict[str, Any] = {"lock": lock, "max_retries": max_retries, "max_stalls": max_stalls}
    split, price, add, end = (f"{flow.name}.{stage}" for stage in ("split", "price", "add", "end"))

    @flow.stage(split, next=add, children=price, collect="prices", **patience)
    async def split_up(job: Item) -> FanOut[Item]:
        return FanOut([Item(f"{job.name}{n}") for n in range(2)])

    @flow.stage(price, priorities=True, **patience)
    async def find_price(job: Item) -> Priced:
        return Priced(3)

    @flow.stage(add, next=end, **patience)
    async def add_up(job: Prices, run: Run) -> Priced:
        if run.retries == 0 and max_retries:
            raise RuntimeError("once")
        await asyncio.sleep(min(lock.total_seconds() / 2, 1.0))  # a short lock is renewed meanwhile
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
    assert (await flow.wait(job_id, timeout=4 * SOON)).attributes["price"] == 6
    found = places(await flow.positions())
    assert list(found.values()) == [(None, "done")] * 3


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
async def test_workers_that_die_at_any_command_lose_no_job(make_flow: MakeFlow, after: bool) -> None:
    # Who dies has a short lock, to be missed soon; who survives has a long one, that a slow machine renews in time.
    make = partial(shop, make_flow, max_retries=1, max_stalls=1_000, lock=SHORT)
    make_survivors = partial(shop, make_flow, max_retries=1, max_stalls=1_000, lock=SOON)

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
        async with make_survivors(number) as survivors, survivors.workers(janitor=OFTEN):
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
    make = partial(shop, make_flow, max_retries=0, max_stalls=0, lock=timedelta(seconds=20))
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
