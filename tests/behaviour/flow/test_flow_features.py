"""Priorities, delays, rates, children, look-up, expiry, deletion, positions; on a single server and on a cluster."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from flows import SOON, FlowRecorder, places
from onward.errors import ConfigurationError
from onward.flow import FanOut, Flow, FlowFull, FlowJobFailed, FlowJobNotFound, Goto, Keep, Position, Rate, Run, events
from onward.flow.keys import Keys

MakeFlow = Callable[..., Flow[Any]]
OFTEN = timedelta(milliseconds=50)


@dataclass
class Item:
    name: str
    tenant: str = "acme"


@dataclass
class Priced:
    price: int


@dataclass
class Album:
    pages: list[str]


@dataclass
class Page:
    url: str


@dataclass
class Sized:
    url: str
    size: int


@dataclass
class Sizes:
    sizes: list[Sized]


@dataclass
class Total:
    total: int


# -- priorities


async def test_the_higher_priority_goes_first_and_equals_as_they_came(make_flow: MakeFlow) -> None:
    flow, seen = make_flow(), list[str]()

    @flow.stage("pick", priorities=True, next="pack")
    async def pick(job: Item) -> None:
        seen.append(job.name)

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        return None

    async with flow:
        await flow.start(Item("a"), priority=1)
        await flow.start_many([Item("b"), Item("c")], priority=5)
        await flow.start(Item("d"))
        last = await flow.start(Item("e"), priority=0)
        assert (await flow.positions()).count(stage="pick", place="waiting") == 5
        async with flow.workers():
            await flow.wait(last, timeout=SOON)

    assert seen == ["b", "c", "a", "d", "e"]


async def test_an_idle_worker_of_a_stage_with_priorities_is_woken(
    make_flow: MakeFlow, all_keys: Any, recorder: FlowRecorder
) -> None:
    flow = make_flow(wait=timedelta(minutes=5))

    @flow.stage("pick", priorities=True)
    async def pick(job: Item) -> None:
        return None

    async with flow, flow.workers(2):
        await recorder.next(events.WorkerStarted, count=2)
        for name in "abc":
            await flow.wait(await flow.start(Item(name), priority=7), timeout=SOON)

    assert not [key for key in await all_keys() if "prioritised" in key or "processing" in key]


# -- delays


async def test_a_delayed_job_waits_and_is_seen_to_wait(make_flow: MakeFlow) -> None:
    flow, began = make_flow(), dict[str, float]()

    @flow.stage("pick", next="pack", goto=["ship"])
    async def pick(job: Item) -> Goto[None] | None:
        began["pick"] = time.monotonic()
        return Goto("ship", delay=timedelta(0)) if job.name == "b" else None

    @flow.stage("pack", delay=timedelta(milliseconds=300))
    async def pack(job: Item) -> None:
        began["pack"] = time.monotonic()

    @flow.stage("ship", delay=timedelta(hours=1))
    async def ship(job: Item) -> None:
        return None

    async with flow, flow.workers(janitor=OFTEN):
        asked = time.monotonic()
        job_id = await flow.start(Item("a"), delay=timedelta(milliseconds=300))
        [position] = (await flow.positions()).jobs
        assert (position.place, position.stage) == ("delayed", "pick")
        assert position.until is not None
        assert timedelta(0) < position.until - datetime.now(UTC) < timedelta(seconds=1)
        await flow.wait(job_id, timeout=SOON)
        assert began["pick"] - asked >= 0.3
        assert began["pack"] - asked >= 0.6
        await flow.wait(await flow.start(Item("b")), timeout=SOON)  # not an hour


# -- rates


async def test_a_rate_holds_for_each_group_in_any_period(make_flow: MakeFlow, recorder: FlowRecorder) -> None:
    flow, began = make_flow(), dict[str, list[float]]()

    @flow.stage("call", rate=Rate(3, per=timedelta(milliseconds=400), group="tenant"))
    async def call(job: Item) -> None:
        began.setdefault(job.tenant, []).append(time.monotonic())

    async with flow, flow.workers(4, janitor=OFTEN):
        asked = time.monotonic()
        ids = await flow.start_many(Item(str(n), tenant) for n in range(8) for tenant in ("acme", "umbrella"))
        for job_id in ids:
            await flow.wait(job_id, timeout=SOON)

    for times in began.values():
        assert len(times) == 8
        assert times[3] - asked >= 0.4
        assert times[6] - asked >= 0.8
    assert recorder.of(events.JobLimited)


async def test_a_rate_holds_by_the_clock_of_the_server(flow_redis_url: str) -> None:
    """By what the scripts note of each start: handlers begin a moment later, on a busy machine not equally so."""
    limit, per, count = 5, timedelta(milliseconds=100), 30
    name = f"rated-{secrets.token_hex(4)}"
    flow: Flow[Any] = Flow(name, flow_redis_url)

    @flow.stage(f"{name}.call", rate=Rate(limit, per=per))
    async def call(job: Item) -> None:
        return None

    starts = Counter[int]()
    async with Redis.from_url(flow_redis_url) as client, client.monitor() as monitor, flow:
        ids = await flow.start_many(Item(str(n)) for n in range(count))
        async with flow.workers(4):
            for job_id in ids:
                await flow.wait(job_id, timeout=SOON)
        await client.echo(f"{name} is over")
        async for said in monitor.listen():
            match said["command"].split():
                case ["LPUSH", key, at] if key.startswith(f"limit:{name}"):
                    starts[int(at)] += 1
                case ["LREM", key, "1", at] if key.startswith(f"limit:{name}"):
                    starts[int(at)] -= 1  # it was taken then, and begins now
                case ["ECHO", first, *_] if first == name:
                    break

    began = sorted(starts.elements())
    assert len(began) == count
    gaps = [later - first for first, later in zip(began, began[limit:], strict=False)]
    assert min(gaps) >= per / timedelta(milliseconds=1)


async def test_a_worker_that_is_so_slow_that_its_turn_passes_waits_for_another(
    make_flow: MakeFlow, redis: Any, keys: Keys
) -> None:
    flow = make_flow()

    @flow.stage("call", rate=Rate(1, per=timedelta(hours=1)))
    async def call(job: Item) -> None:
        return None

    async with flow:
        first, second = await flow.start_many(Item(name) for name in "ab")
        store, stage, starts = flow._store, flow._stages["call"], f"limit:{keys.tag}call:"
        assert (await store.take_by_script(stage)).job_id == first
        await redis.lset(starts, 0, int(await redis.lindex(starts, 0)) + 1)  # now it is the start of another job

        assert await store.claim(stage, [], first, "slow") == "moved"

        assert places(await flow.positions()) == {first: ("call", "waiting"), second: ("call", "waiting")}
        await redis.delete(starts)  # the hour is over
        assert (await store.take_by_script(stage)).job_id == first
        assert not isinstance(await store.claim(stage, [], first, "slow"), str)


async def test_a_rate_is_kept_also_by_workers_that_come_late(make_flow: MakeFlow) -> None:
    flow, began = make_flow(), list[float]()

    @flow.stage("call", rate=Rate(2, per=timedelta(milliseconds=300)))
    async def call(job: Item) -> None:
        began.append(time.monotonic())

    async with flow:
        ids = await flow.start_many(Item(str(n)) for n in range(6))
        async with flow.workers(janitor=None) as workers:
            while len(began) < 2:
                await asyncio.sleep(0.01)
            workers.stop()
        assert (await flow.positions()).count(place="waiting") == 4
        await asyncio.sleep(0.6)  # the line could have moved on twice
        asked = time.monotonic()
        async with flow.workers(3, janitor=OFTEN):
            for job_id in ids:
                await flow.wait(job_id, timeout=SOON)

    assert began[4] - asked >= 0.3


async def test_jobs_put_off_keep_their_place_and_nobody_looks_in_vain(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, seen = make_flow(wait=timedelta(seconds=3)), dict[str, list[int]]()

    @flow.stage("call", rate=Rate(3, per=timedelta(milliseconds=200), group="tenant"))
    async def call(job: Item) -> None:
        seen.setdefault(job.tenant, []).append(int(job.name))

    async with flow:
        script, looks = flow._store.server.script, list[str]()

        async def count(name: str, *words: Any) -> Any:
            looks.append(name)
            return await script(name, *words)

        flow._store.server.script = count  # type: ignore[method-assign]
        ids = await flow.start_many(Item(str(n), tenant) for n in range(12) for tenant in ("acme", "umbrella"))
        async with flow.workers():
            for job_id in ids:
                await flow.wait(job_id, timeout=SOON)
            assert seen == {"acme": list(range(12)), "umbrella": list(range(12))}
            assert looks.count("take") <= 2 * len(ids)
            assert len(recorder.of(events.JobLimited)) <= 18  # each once; on a slow machine some come in time
    assert len(recorder.of(events.JobDone)) == 24


async def test_a_group_that_has_to_wait_holds_up_no_other(make_flow: MakeFlow) -> None:
    flow = make_flow()

    @flow.stage("call", rate=Rate(1, per=timedelta(hours=1), group="tenant"))
    async def call(job: Item) -> None:
        return None

    async with flow, flow.workers():
        many = await flow.start_many(Item(str(n)) for n in range(300))
        await flow.wait(await flow.start(Item("a", "umbrella")), timeout=SOON)
        found = places(await flow.positions())
        assert [found[job_id] for job_id in many[1:]] == [("call", "waiting")] * 299


@pytest.mark.parametrize("priorities", [False, True])
async def test_a_job_given_back_is_again_the_first_of_its_line(make_flow: MakeFlow, priorities: bool) -> None:
    flow, seen, first = make_flow(), list[str](), asyncio.Event()

    @flow.stage("call", rate=Rate(1, per=timedelta(milliseconds=300)), priorities=priorities)
    async def call(job: Item) -> None:
        seen.append(job.name)
        if not first.is_set():
            first.set()
            await asyncio.Event().wait()

    async with flow:
        ids = await flow.start_many(Item(name) for name in "abc")
        async with flow.workers({"call": 2}) as workers:
            await first.wait()
            while len((await flow.positions()).jobs) < 3:
                await asyncio.sleep(0.01)
            workers.stop(grace=timedelta(0))
        async with flow.workers():
            for job_id in ids:
                await flow.wait(job_id, timeout=SOON)

    assert seen == ["a", "a", "b", "c"]


async def test_a_job_deleted_from_a_line_leaves_nothing_behind(make_flow: MakeFlow, all_keys: Any) -> None:
    flow = make_flow(max_waiting=3)

    @flow.stage("call", rate=Rate(1, per=timedelta(milliseconds=500), group="tenant"))
    async def call(job: Item) -> None:
        return None

    async with flow:
        first, second, third = await flow.start_many(Item(name) for name in "abc")
        async with flow.workers() as workers:
            await flow.wait(first, timeout=SOON)
            while not [key for key in await all_keys() if key.endswith(":limited")]:
                await asyncio.sleep(0.01)
            workers.stop()
        with pytest.raises(FlowFull):
            await flow.start_many(Item(name) for name in "de")
        assert await flow.delete(second) == await flow.delete(third) == await flow.delete(first) == 1
        async with asyncio.timeout(10):
            while {key for key in await all_keys() if not key.endswith((":flow", ":wake"))}:
                await asyncio.sleep(0.05)


# -- children


def album(flow: Flow[Any], *, fails: str = "") -> Flow[Any]:
    @flow.stage("split", next="sum", children="fetch", collect="sizes")
    async def split(job: Album) -> FanOut[Page]:
        return FanOut([Page(url) for url in job.pages])

    @flow.stage("fetch", next="measure")
    async def fetch(job: Page, run: Run) -> None:
        if job.url == fails:
            raise RuntimeError(f"no page {job.url}")

    @flow.stage("measure")
    async def measure(job: Page, run: Run) -> Sized:
        return Sized(job.url, len(job.url))

    @flow.stage("sum")
    async def sum_up(job: Sizes) -> Total:
        assert [sized.url for sized in job.sizes] == sorted(sized.url for sized in job.sizes)
        return Total(sum(sized.size for sized in job.sizes))

    return flow


async def test_children_run_at_once_and_their_results_come_together(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow = album(make_flow())
    async with flow, flow.workers(3):
        job_id = await flow.start(Album(["a", "bb", "ccc"]), correlation_id="album-1")
        job = await flow.wait(job_id, timeout=SOON)
        empty = await flow.wait(await flow.start(Album([])), timeout=SOON)

        assert job.read(Total) == Total(6)
        assert empty.read(Total) == Total(0)
        assert (await flow.positions()).count(place="done") == 5
    of_children = [event for event in recorder.of(events.StageCompleted) if event.stage == "measure"]
    assert {event.correlation_id for event in of_children} == {"album-1"}


@pytest.mark.parametrize("keep", [timedelta(0), timedelta(milliseconds=1)], ids=str)
async def test_a_job_is_parked_while_its_children_run(make_flow: MakeFlow, all_keys: Any, keep: timedelta) -> None:
    flow = album(make_flow(keep=keep))
    async with flow:
        job_id = await flow.start(Album(["a", "b"]))
        async with flow.workers({"split": 1}):
            while (await flow.positions()).count(place="parked") == 0:
                await asyncio.sleep(0.01)
        found = places(await flow.positions())
        assert found.pop(job_id) == ("split", "parked")
        assert list(found.values()) == [("fetch", "waiting")] * 2
        assert (await flow.get(next(iter(found)))).parent_id == job_id

        async with flow.workers():
            while (await flow.positions()).count():
                await asyncio.sleep(0.01)
        assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


async def test_a_child_that_fails_fails_its_parent(make_flow: MakeFlow) -> None:
    flow = album(make_flow(), fails="b")
    async with flow, flow.workers(2):
        job_id = await flow.start(Album(["a", "b", "c"]))
        with pytest.raises(FlowJobFailed, match=r"failed at stage 'split': child .* failed: RuntimeError: no page b"):
            await flow.wait(job_id, timeout=SOON)


async def test_a_retried_child_brings_its_parent_back_to_waiting_for_it(
    make_flow: MakeFlow, all_keys: Any, recorder: FlowRecorder
) -> None:
    flow, broken = make_flow(index=["url"]), {"b", "c"}
    started: list[str] = []

    @flow.stage("split", next="sum", children="measure", collect="sizes")
    async def split(job: Album) -> FanOut[Page]:
        started.append("split")
        return FanOut([Page(url) for url in job.pages])

    @flow.stage("measure")
    async def measure(job: Page) -> Sized:
        if job.url in broken:
            raise RuntimeError(f"no page {job.url}")
        return Sized(job.url, len(job.url))

    @flow.stage("sum")
    async def sum_up(job: Sizes) -> Total:
        return Total(sum(sized.size for sized in job.sizes))

    async with flow:
        job_id = await flow.start(Album(["a", "b", "c", "dd"]), correlation_id="album")
        async with flow.workers():
            with pytest.raises(FlowJobFailed, match=r"child .* failed: RuntimeError: no page b") as failed:
                await flow.wait(job_id, timeout=SOON)
            await recorder.next(events.JobFailed, count=3)
            [b], [c] = await flow.find("url", "b"), await flow.find("url", "c")
            broken.clear()
            await flow.wait((await flow.find("url", "dd"))[0].id, timeout=SOON)
            await flow.retry(b.id)
            await flow.wait(b.id, timeout=SOON)
            assert (await flow.get(job_id)).status == "failed"  # the other one has failed still
        await flow.retry(c.id)
        found = places(await flow.positions())
        assert (found[job_id], found[c.id]) == (("split", "parked"), ("measure", "waiting"))
        assert (await flow.get(job_id)).status == "open"
        async with flow.workers():
            job = await flow.wait(job_id, timeout=SOON)

        assert job.read(Total) == Total(5)
        assert started == ["split"]
        assert failed.value.reason == "child"
        told = [event for event in recorder.of(events.JobFailed) if event.job_id == job_id]
        assert [(event.reason, event.correlation_id, event.stage) for event in told] == [("child", "album", "split")]
        for one in [*(position.job_id for position in (await flow.positions()).jobs)]:
            await flow.delete(one)
    assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


async def test_a_retried_grandchild_brings_its_grandparent_back(make_flow: MakeFlow) -> None:
    flow, broken = make_flow(index=["depth"]), {0}

    @dataclass
    class Tree:
        depth: int

    @dataclass
    class Leaves:
        leaves: list[Any]

    @flow.stage("grow", next="gather", goto=["leaf"], children="grow", collect="leaves")
    async def grow(job: Tree) -> FanOut[Tree] | Goto[None]:
        return FanOut([Tree(job.depth - 1)]) if job.depth else Goto("leaf")

    @flow.stage("leaf")
    async def leaf(job: Tree) -> Total:
        if job.depth in broken:
            raise RuntimeError("no leaf")
        return Total(1)

    @flow.stage("gather")
    async def gather(job: Leaves) -> Total:
        return Total(len(job.leaves))

    async with flow, flow.workers():
        job_id = await flow.start(Tree(2))
        with pytest.raises(FlowJobFailed, match=r"child .* failed: child .* failed: RuntimeError: no leaf"):
            await flow.wait(job_id, timeout=SOON)
        broken.clear()
        [grandchild] = await flow.find("depth", 0)
        await flow.retry(grandchild.id)
        assert (await flow.wait(job_id, timeout=SOON)).read(Total) == Total(1)


async def test_a_retried_parent_starts_its_children_anew(make_flow: MakeFlow) -> None:
    flow = album(make_flow(index=["url"]), fails="b")
    async with flow, flow.workers():
        job_id = await flow.start(Album(["a", "b"]))
        with pytest.raises(FlowJobFailed):
            await flow.wait(job_id, timeout=SOON)
        [first] = await flow.find("url", "b")
        await flow.retry(job_id)
        with pytest.raises(FlowJobFailed):
            await flow.wait(job_id, timeout=SOON)
        assert len(await flow.find("url", "b")) == 2
        await flow.retry(first.id)  # nobody waits for it any more
        with pytest.raises(FlowJobFailed):
            await flow.wait(first.id, timeout=SOON)
        assert (await flow.get(job_id)).status == "failed"


async def test_children_may_have_children(make_flow: MakeFlow) -> None:
    flow = make_flow()

    @dataclass
    class Tree:
        depth: int

    @dataclass
    class Leaves:
        leaves: list[Any]

    @dataclass
    class Count:
        count: int

    @flow.stage("grow", next="gather", goto=["leaf"], children="grow", collect="leaves")
    async def grow(job: Tree) -> FanOut[Tree] | Goto[None]:
        return FanOut([Tree(job.depth - 1)] * 2) if job.depth else Goto("leaf")

    @flow.stage("leaf")
    async def leaf(job: Tree) -> Count:
        return Count(1)

    @flow.stage("gather")
    async def gather(job: Leaves) -> Count:
        return Count(sum(leaf["count"] for leaf in job.leaves))

    async with flow, flow.workers(2):
        job = await flow.wait(await flow.start(Tree(3)), timeout=SOON)
        assert job.attributes["count"] == 8


# -- look-up and expiry


async def test_jobs_are_found_by_attributes_also_when_those_change(make_flow: MakeFlow, redis: Any) -> None:
    flow = make_flow(index=["tenant", "price"])

    @flow.stage("pick", goto=["pick"])
    async def pick(job: Item) -> Priced | Goto[Item]:
        return Goto("pick", Item(job.name, "umbrella")) if job.tenant == "acme" else Priced(7)

    async with flow:
        one, two = await flow.start_many([Item("a"), Item("b", "else")])
        assert [job.id for job in await flow.find("tenant", "acme")] == [one]
        assert await flow.find("price", 7) == []
        async with flow.workers():
            await flow.wait(one, timeout=SOON)
            await flow.wait(two, timeout=SOON)
        assert await flow.find("tenant", "acme") == []
        assert [job.id for job in await flow.find("tenant", "umbrella")] == [one]
        assert {job.id for job in await flow.find("price", 7)} == {one, two}
        with pytest.raises(ConfigurationError, match=r"no index of 'name': Flow\(index=\['name'\]\)"):
            await flow.find("name", "a")


async def test_what_has_ended_expires_with_everything_about_it(make_flow: MakeFlow, all_keys: Any) -> None:
    flow = make_flow(index=["tenant"], keep=timedelta(milliseconds=300), keep_failed=timedelta(milliseconds=300))

    @flow.stage("pick", priorities=True, rate=Rate(5, per=timedelta(milliseconds=100), group="tenant"), next="pack")
    async def pick(job: Item) -> Priced:
        return Priced(1)

    @flow.stage("pack", max_retries=1)
    async def pack(job: Item) -> None:
        if job.name == "bad":
            raise RuntimeError("bad")

    async with flow:
        ids = await flow.start_many([Item("a"), Item("bad"), Item("c", "else")])
        async with flow.workers(janitor=OFTEN):
            while (await flow.positions()).count(place="failed") == 0:
                await asyncio.sleep(0.01)
            await flow.wait(ids[0], timeout=SOON)
            async with asyncio.timeout(10):
                while {key for key in await all_keys() if not key.endswith(":flow")}:
                    await asyncio.sleep(0.05)
        assert (await flow.positions()).count() == 0


async def test_of_jobs_that_ended_only_the_newest_are_kept(make_flow: MakeFlow, all_keys: Any) -> None:
    day = timedelta(days=1)
    flow = make_flow(index=["name"], keep=Keep(count=3, age=day), keep_failed=Keep(count=2, age=day))

    @flow.stage("pick", next="pack")
    async def pick(job: Item) -> None:
        return None

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        if job.name.startswith("bad"):
            raise RuntimeError("bad")

    async with flow:
        good = await flow.start_many(Item(f"good{n}") for n in range(8))
        bad = await flow.start_many(Item(f"bad{n}") for n in range(8))
        async with flow.workers():
            await flow.wait(good[-1], timeout=SOON)
            with pytest.raises(FlowJobFailed):
                await flow.wait(bad[-1], timeout=SOON)
        found = places(await flow.positions())
        assert found == dict.fromkeys(good[-3:], (None, "done")) | dict.fromkeys(bad[-2:], (None, "failed"))
        with pytest.raises(FlowJobNotFound):
            await flow.get(good[0])

    keys = {key for key in await all_keys() if not key.endswith(":flow")}
    assert len([key for key in keys if key.startswith("job:")]) == 5
    assert len([key for key in keys if key.startswith("index:")]) == 5
    assert len(keys) == 12


async def test_none_may_be_kept_at_all(make_flow: MakeFlow, all_keys: Any, recorder: FlowRecorder) -> None:
    none = Keep(count=0, age=timedelta(days=1))
    flow = album(make_flow(index=["url"], keep=none, keep_failed=none), fails="b")
    async with flow, flow.workers():
        await flow.start(Album(["a", "c"]))
        await recorder.next(events.JobDone, count=3)
        await flow.start(Album(["b"]))
        await recorder.next(events.JobFailed, count=2)
    assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


async def test_an_index_lives_as_long_as_one_of_its_jobs(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    flow, index = make_flow(index=["tenant"], keep=timedelta(hours=1)), keys.index("tenant", "acme")

    @flow.stage("pick")
    async def pick(job: Item) -> None:
        return None

    async with flow:
        first = await flow.start(Item("a"))
        assert await redis.pttl(index) == -1
        async with flow.workers():
            await flow.wait(first, timeout=SOON)
        assert await redis.pttl(index) > 0
        second = await flow.start(Item("b"))
        assert await redis.pttl(index) == -1
        assert [job.id for job in await flow.find("tenant", "acme")] == [first, second]
        await redis.zadd(index, {first: 1})  # as if its hour was over
        await redis.delete(keys.job(first))
        await flow.delete(second)
        assert await redis.exists(index) == 0


# -- deletion


async def test_a_deleted_job_leaves_nothing_behind(make_flow: MakeFlow, redis: Any, all_keys: Any) -> None:
    flow, running, go_on = make_flow(index=["tenant"]), asyncio.Event(), asyncio.Event()

    @flow.stage("pick", priorities=True, next="pack")
    async def pick(job: Item) -> None:
        return None

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        running.set()
        await go_on.wait()

    async with flow:
        prioritised = await flow.start(Item("a"), priority=3)
        delayed = await flow.start(Item("b"), delay=timedelta(hours=1))
        assert await flow.delete(prioritised) == 1
        assert await flow.delete(delayed) == 1
        assert await flow.delete("nobody") == 0
        held = await flow.start(Item("c"))
        async with flow.workers():
            await running.wait()
            waiting = await flow.start(Item("d"))
            while places(await flow.positions()).get(waiting) != ("pack", "waiting"):
                await asyncio.sleep(0.01)
            assert await flow.delete(waiting) == 1
            assert await flow.delete(held) == 1
            go_on.set()
            done = await flow.start(Item("e"))
            await flow.wait(done, timeout=SOON)
        assert await flow.delete(done) == 1

    assert {key for key in await all_keys() if not key.endswith((":flow", ":wake"))} == set()


async def test_a_worker_whose_job_is_deleted_changes_nothing(
    make_flow: MakeFlow, all_keys: Any, recorder: FlowRecorder
) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("pick", next="pack")
    async def pick(job: Item) -> Priced:
        running.set()
        await go_on.wait()
        return Priced(1)

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        raise AssertionError

    async with flow, flow.workers():
        job_id = await flow.start(Item("a"), correlation_id="c")
        await running.wait()
        await flow.delete(job_id)
        go_on.set()
        dropped = await recorder.next(events.ResultDropped)

    assert (dropped.job_id, dropped.correlation_id, dropped.stage) == (job_id, "c", "pick")
    assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


async def test_deleting_takes_children_along_and_fails_a_parent_that_waits(make_flow: MakeFlow, all_keys: Any) -> None:
    flow = album(make_flow(index=["url"]))
    async with flow:
        first, second = await flow.start_many([Album(["a", "b"]), Album(["c", "d"])])
        async with flow.workers({"split": 1}):
            while (await flow.positions()).count(place="parked") < 2:
                await asyncio.sleep(0.01)
        assert await flow.delete(first) == 3
        [child, other] = [*await flow.find("url", "c"), *await flow.find("url", "d")]
        assert child.parent_id == second
        assert await flow.delete(child.id) == 1
        assert places(await flow.positions()) == {other.id: ("fetch", "waiting"), second: (None, "failed")}
        assert (await flow.get(second)).error == f"child {child.id} failed: deleted"
        assert await flow.delete(other.id) == await flow.delete(second) == 1

    assert {key for key in await all_keys() if not key.endswith(":flow")} == set()


# -- positions


async def test_positions_say_where_every_job_is(make_flow: MakeFlow) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("pick", next="pack")
    async def pick(job: Item) -> None:
        if job.name == "bad":
            raise RuntimeError("bad")

    @flow.stage("pack")
    async def pack(job: Item) -> None:
        if job.name == "held":
            running.set()
            await go_on.wait()

    async with flow:
        done, bad, held, behind = await flow.start_many([Item("ok"), Item("bad"), Item("held"), Item("behind")])
        delayed = await flow.start(Item("late"), delay=timedelta(hours=1))
        async with flow.workers() as workers:
            await running.wait()
            async with asyncio.timeout(10):
                while (await flow.positions()).count(stage="pack") < 2:
                    await asyncio.sleep(0.01)
            positions = await flow.positions()
            assert places(positions) == {
                done: (None, "done"), bad: (None, "failed"), held: ("pack", "processing"),
                behind: ("pack", "waiting"), delayed: ("pick", "delayed"),
            }  # fmt: skip
            [pack_worker] = [worker.id for worker in workers.workers if worker.stage.name == "pack"]
            at_work = Position(job_id=held, stage="pack", place="processing", worker=pack_worker)
            assert [position for position in positions.jobs if position.job_id == held] == [at_work]
            assert (positions.count(), positions.count(place="waiting")) == (5, 1)
            few = await flow.positions(limit=0)
            assert (few.jobs, few.count()) == ((), 5)
            go_on.set()
