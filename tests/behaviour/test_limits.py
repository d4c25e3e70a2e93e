"""Limits, with client and worker: never more than there may be, none left behind."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import asyncpg
import msgspec
import pytest

from onward import Attempt, Backoff, JobType, Limit, Next, Onward, Rate, Reschedule, job
from onward.errors import ConfigurationError, DefinitionError, LimitNotFound, StartRefused, WaitTimeout
from onward.observe import events
from onward.worker import admission
from support import SOON, Recorder, Run, intercept


@dataclass
class Work:
    tenant: str
    number: int = 0


class Running:
    """How many run at a time, by key."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done = 0

    async def __call__(self, key: str) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        await asyncio.sleep(0.002)
        self.now[key] -= 1
        self.done += 1


def look_at_least_every(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """For places, while there is enough to take."""
    for name in ("_AT_MOST_AHEAD", "_AT_MOST_AHEAD_ALONE"):
        monkeypatch.setattr(admission, name, seconds)


async def finish(*chains: Any) -> None:
    for chain in chains:
        await chain.wait(timeout=timedelta(seconds=60))


async def test_so_many_of_a_key_run_at_a_time_in_all_workers(make_app: Callable[..., Onward]) -> None:
    runs = Running()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        await runs(attempt.input.tenant)

    app, other = make_app(work), make_app(work)
    async with app, other, app.worker(concurrency=10), other.worker(concurrency=10):
        chains = await app.start_many([work.with_input(Work(f"tenant-{n % 3}")) for n in range(45)])
        await finish(*chains)

    assert runs.most == {f"tenant-{n}": 2 for n in range(3)}


async def test_a_worker_that_finds_enough_to_take_does_not_look_for_more_each_time(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, calls = Running(), Counter[str]()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        await runs(attempt.input.tenant)

    async with make_app(work) as app:
        for name in ("admit", "take"):
            monkeypatch.setattr(app.state, name, _counted(getattr(app.state, name), name, calls))
        look_at_least_every(monkeypatch, 60.0)
        monkeypatch.setattr(admission, "_LOOK_BACK_EVERY", 60.0)
        chains = await app.start_many([work.with_input(Work(f"tenant-{n % 40}")) for n in range(200)])
        async with app.worker(concurrency=4):
            await finish(*chains)

    assert max(runs.most.values()) <= 2
    assert calls["admit"] < calls["take"] / 2


async def test_a_place_given_up_while_a_worker_takes_ahead_is_looked_at_though_it_is_full(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last look that says when the next one is due, and nobody else may be there."""
    calls, release = Counter[str](), asyncio.Event()

    @job("work", limit=Limit(concurrency=1, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        if attempt.input.tenant == "slow":
            await release.wait()

    async with make_app(work) as app:
        monkeypatch.setattr(admission, "_LOOK_BACK_EVERY", 60.0)
        look_at_least_every(monkeypatch, 1.0)

        async def admit(run: Run, **_: Any) -> Any:
            calls["admit"] += 1
            return msgspec.structs.replace(await run(), next_in=None)

        intercept(monkeypatch, app.state, "admit", admit)
        chains = await app.start_many([work.with_input(Work(tenant)) for tenant in ("fast", "fast", "slow")])
        async with app.worker(concurrency=1):
            await chains[0].wait(timeout=SOON)
            try:
                async with asyncio.timeout(SOON.total_seconds()):
                    while calls["admit"] < 2:
                        await asyncio.sleep(0.01)
            finally:
                release.set()


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
async def test_jobs_are_taken_while_places_are_looked_for(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Beside the takes, by another connection; and if that fails, the next take looks itself."""
    looks, release, done = Counter[str](), asyncio.Event(), list[int]()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        done.append(attempt.input.number)

    async with make_app(work) as app:
        monkeypatch.setattr(admission, "_LOOK_BACK_EVERY", 60.0)
        look_at_least_every(monkeypatch, 0.0)
        monkeypatch.setattr(admission.Admission, "can_wait", property(lambda one: one._enough_until > 0))

        async def admit(run: Run, **_: Any) -> Any:
            looks["admit"] += 1
            if looks["admit"] == 2:
                await release.wait()
                if fails:
                    raise asyncpg.InterfaceError("gone")
            return await run()

        intercept(monkeypatch, app.state, "admit", admit)
        chains = await app.start_many([work.with_input(Work(f"tenant-{n % 20}", n)) for n in range(60)])
        async with app.worker(concurrency=2):
            try:
                async with asyncio.timeout(10.0):
                    while len(done) < 10 or looks["admit"] < 2:
                        await asyncio.sleep(0.01)
            finally:
                release.set()
            await finish(*chains)

    assert sorted(done) == list(range(60))
    assert looks["admit"] > 2


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_takes_look_themselves_while_the_look_beside_them_has_no_answer(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, looks, release = Running(), Counter[str](), asyncio.Event()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        await runs(attempt.input.tenant)

    monkeypatch.setattr(admission, "_AHEAD_WITHIN", 0.2)
    monkeypatch.setattr(admission, "_AT_MOST_AHEAD", 0.005)  # before all that was let in has been taken
    async with make_app(work) as app:
        worker = app.worker(concurrency=2)

        async def admit(run: Run, **_: Any) -> Any:
            if not worker._source.limited.has_looked_ahead.is_set() and not looks["hanging"]:
                looks["hanging"] += 1
                await release.wait()
            return await run()

        intercept(monkeypatch, app.state, "admit", admit)
        chains = await app.start_many([work.with_input(Work(f"tenant-{n % 100}", n)) for n in range(400)])
        async with worker:
            await finish(*chains)
            is_hanging = not release.is_set()
            release.set()

    assert looks["hanging"] == 1
    assert is_hanging
    assert max(runs.most.values()) <= 2


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_takes_look_themselves_while_no_connection_is_to_be_had_beside_them(
    make_app: Callable[..., Onward], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes long to fail would hold them up again and again."""
    runs, tries = Running(), Counter[str]()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        await runs(attempt.input.tenant)

    class NotToBeHad(admission.Reserved):
        async def use(self, work: Any) -> Any:
            tries["ahead"] += 1
            raise asyncpg.TooManyConnectionsError("sorry, too many clients already")

    monkeypatch.setattr(admission, "Reserved", NotToBeHad)
    look_at_least_every(monkeypatch, 0.05)
    monkeypatch.setattr(admission, "_AT_MOST_AHEAD", 0.005)
    monkeypatch.setattr(admission, "_NONE_AHEAD_FOR", 60.0)
    async with make_app(work) as app:
        chains = await app.start_many([work.with_input(Work(f"tenant-{n % 100}")) for n in range(400)])
        async with app.worker(concurrency=4):
            await finish(*chains)

    assert max(runs.most.values()) <= 2
    assert tries["ahead"] == 1
    assert "let jobs in" in {event.doing for event in recorder.of(events.StateError)}
    assert recorder.of(events.StateRecovered)


async def test_all_keys_are_looked_at_when_touch_is_lost_while_places_are_looked_for(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a take on another connection: the look under way may have begun before the server lost what it knew."""
    sweeps = list[bool]()

    @job("work", limit=Limit(concurrency=2, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None: ...

    async with make_app(work) as app:
        worker = app.worker(concurrency=2)

        async def admit(run: Run, *, sweep: bool, **_: Any) -> Any:
            sweeps.append(sweep)
            if len(sweeps) == 2:
                worker._source._admission.lost_touch()
            return await run()

        intercept(monkeypatch, app.state, "admit", admit)
        async with worker:
            while len(sweeps) < 3:
                await (await app.start(work, Work("tenant"))).wait(timeout=SOON)

    assert sweeps[:3] == [True, False, True]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_what_was_taken_runs_though_the_look_for_more_fails(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release, attempts = asyncio.Semaphore(0), asyncio.Event(), list[int]()

    @job("work", limit=Limit(concurrency=1, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        attempts.append(attempt.number)
        begun.release()
        await release.wait()

    async with make_app(work) as app:
        look_at_least_every(monkeypatch, 60.0)
        monkeypatch.setattr(admission, "_LOOK_BACK_EVERY", 60.0)
        is_locked = False

        async def admit(run: Run, **_: Any) -> Any:
            if is_locked:
                raise asyncpg.LockNotAvailableError("somebody has locked a key")
            return await run()

        intercept(monkeypatch, app.state, "admit", admit)
        chains = await app.start_many([work.with_input(Work(f"tenant-{n}")) for n in range(3)])
        async with app.worker(concurrency=2):
            await begun.acquire()
            await begun.acquire()
            is_locked = True
            release.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await begun.acquire()
            is_locked = False
            await finish(*chains)

    assert attempts == [1, 1, 1]


def _counted(call: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return call(*arguments, **options)

    return counted


async def test_types_share_a_named_limit_and_a_continuation_needs_a_place_too(running: Callable[..., Any]) -> None:
    runs, stripe = Running(), Limit("stripe", concurrency=1)

    @job("refund", limit=stripe, internal=True)
    async def refund(attempt: Attempt[int]) -> None:
        await runs("stripe")

    @job("charge", limit=Limit("stripe", concurrency=1), continues_to=[refund])
    async def charge(attempt: Attempt[int]) -> Next[None]:
        await runs("stripe")
        return attempt.continue_with(refund, 1)

    app: Onward = await running(charge, refund)
    await finish(*await app.start_many([charge.with_input(n) for n in range(10)]))

    assert (runs.most, runs.done) == ({"stripe": 1}, 20)


async def test_a_job_with_several_limits_has_a_place_of_each(running: Callable[..., Any]) -> None:
    runs, all_of_them = Running(), Limit("all", concurrency=3)

    @job("work", limit=[all_of_them, Limit(concurrency=2, key=lambda input: input.tenant)])
    async def work(attempt: Attempt[Work]) -> None:
        runs.now["all"] += 1
        runs.most["all"] = max(runs.most["all"], runs.now["all"])
        await runs(attempt.input.tenant)
        runs.now["all"] -= 1

    app: Onward = await running(work)
    await finish(*await app.start_many([work.with_input(Work(f"t{n % 4}")) for n in range(40)]))

    assert runs.done == 40
    assert runs.most["all"] == 3
    assert max(runs.most[f"t{n}"] for n in range(4)) <= 2


async def test_a_rate_spreads_what_starts(running: Callable[..., Any]) -> None:
    @job("work", limit=Limit(rate=Rate(50, per=timedelta(seconds=1), burst=5)))
    async def work(attempt: Attempt[int]) -> None: ...

    app: Onward = await running(work)
    await finish(*await app.start_many([work.with_input(n) for n in range(25)]))
    let_in = sorted([found.scheduled_at async for found in app.jobs()])

    for first, later in itertools.combinations(range(25), 2):
        waited = (let_in[later] - let_in[first]).total_seconds()
        assert later - first + 1 <= 5 + waited * 50 + 0.001


async def test_failed_attempts_and_crashes_leave_their_places_to_others(running: Callable[..., Any]) -> None:
    runs, failed = Running(), set[int]()

    @job("work", limit=Limit(concurrency=1))
    async def work(attempt: Attempt[Work]) -> None:
        await runs("all")
        if attempt.input.number not in failed:
            failed.add(attempt.input.number)
            raise Reschedule(delay=timedelta(milliseconds=1)) if attempt.input.number % 2 else ValueError("no")

    app: Onward = await running(work, worker={"backoff": Backoff(initial=timedelta(milliseconds=5))})
    await finish(*await app.start_many([work.with_input(Work("a", n)) for n in range(6)]))

    assert (runs.most, runs.done) == ({"all": 1}, 12)


async def test_who_waits_is_found_by_the_key_itself_whatever_it_is_shown_as(make_app: Callable[..., Onward]) -> None:
    class Color(str, Enum):  # noqa: UP042 - a StrEnum is shown as its text
        RED = "red"

    @job("paint", limit=Limit(concurrency=1, key=lambda input: Color(input)))
    async def paint(attempt: Attempt[str]) -> None: ...

    async with make_app(paint) as app:
        chain = await app.start(paint, "red")
        waiting = [[job.id for job in await app.limits.waiting("paint", key)] for key in (Color.RED, "red")]

    assert waiting == [[chain.id], [chain.id]]


@pytest.mark.parametrize("ends", ["cancelled", "completed", "deleted"])
async def test_a_place_that_no_worker_gives_up_is_free_at_once(make_app: Callable[..., Onward], ends: str) -> None:
    desk = Limit("desk", concurrency=1)
    approve = JobType("approve", input=int, output=str, limit=desk)

    @job("work", limit=desk)
    async def work(attempt: Attempt[int]) -> int:
        return attempt.input

    async with make_app(approve, work) as app, app.worker():
        first = await app.start(approve, 1)
        await asyncio.sleep(0.3)  # it has the place by then
        second = await app.start(work, 2)
        with pytest.raises(WaitTimeout):
            await second.wait(timeout=timedelta(seconds=0.3))
        if ends == "cancelled":
            await app.cancel(first)
        elif ends == "deleted":
            await app.delete(first)
        else:
            async with app.complete(first) as completion:
                await completion.done("yes")

        assert await second.wait(timeout=SOON) == 2


async def test_a_limit_is_listed_changed_and_reset_while_jobs_run(make_app: Callable[..., Onward]) -> None:
    go, runs = asyncio.Event(), Counter[str]()

    @job("work", limit=Limit("shared/x", concurrency=1, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None:
        runs[attempt.input.tenant] += 1
        await go.wait()

    async with make_app(work) as app, app.worker(concurrency=10):
        chains = await app.start_many([work.with_input(Work("a")) for _ in range(5)])
        await reached(lambda: runs["a"] == 1)
        (listed,) = await app.limits.list()
        (key,) = await app.limits.keys("shared/x")
        holding, waiting = await app.limits.holding("shared/x", "a"), await app.limits.waiting("shared/x", "a", limit=2)

        with pytest.raises(WaitTimeout, match="waits for a place of limit 'shared/x', key 'a'"):
            await chains[1].wait(timeout=timedelta(milliseconds=50))

        await app.limits.change("shared/x", concurrency=3)
        await reached(lambda: runs["a"] == 3)
        (changed,) = await app.limits.list()
        await app.limits.reset("shared/x")
        (reset,) = await app.limits.list()
        go.set()
        await finish(*chains)

    assert (listed.name, listed.concurrency, listed.rate, listed.changed_at) == ("shared/x", 1, None, None)
    assert (key.key, key.holding, key.waiting) == ("a", 1, 4)
    assert [job.id for job in (*holding, *waiting)] == [chain.id for chain in chains[:3]]
    assert (changed.concurrency, changed.changed_at is None) == (3, False)
    assert (reset.concurrency, reset.changed_at) == (1, None)


async def test_limits_without_an_event_loop(make_app: Callable[..., Onward]) -> None:
    rate = Rate(100, per=timedelta(minutes=1), burst=20)

    @job("work", limit=Limit(concurrency=1, rate=rate, key=lambda input: input.tenant))
    async def work(attempt: Attempt[Work]) -> None: ...

    app = make_app(work)
    with app.sync as client:
        client.start(work, Work("a"))
        client.limits.change("work", concurrency=7)
        (listed,) = client.limits.list()
        (key,) = client.limits.keys("work")
        waiting = client.limits.waiting("work", "a")
        client.limits.reset("work")
        with pytest.raises(LimitNotFound, match="did you mean 'work'"):
            client.limits.change("worck", concurrency=1)

        assert (listed.concurrency, listed.rate) == (7, Rate(1, per=timedelta(milliseconds=600), burst=20))
        assert (key.holding, key.waiting, len(waiting), client.limits.holding("work", "a")) == (0, 1, 1, [])
        assert client.limits.list()[0].concurrency == 1


async def test_jobs_of_a_limit_that_the_code_no_longer_has_are_run(make_app: Callable[..., Onward]) -> None:
    runs = Running()

    async def work(attempt: Attempt[Work]) -> None:
        await runs("all")

    before = make_app(job("work", limit=Limit(concurrency=1))(work))
    async with before, before.worker():
        pass
    async with before:
        old = await before.start_many([before.registry["work"].step.with_input(Work("a")) for _ in range(5)])  # type: ignore[attr-defined]
    now = job("work")(work)
    async with make_app(now) as app, app.worker(concurrency=10, poll=timedelta(seconds=1)):
        await finish(*[app.chain(now, chain.id) for chain in old], await app.start(now, Work("b")))

    assert runs.done == 6


async def test_jobs_of_a_limit_that_the_workers_code_does_not_have_yet_are_run(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are deployed before workers, which have seen a database without any limit."""
    monkeypatch.setattr(admission, "_AT_LEAST_EVERY", 0.1)

    @job("work")
    async def old(attempt: Attempt[Work]) -> None: ...

    @job("work", limit=Limit(concurrency=2))
    async def new(attempt: Attempt[Work]) -> None: ...

    worker, client = make_app(old), make_app(new)
    async with worker, client, worker.worker():
        await finish(await worker.start(old, Work("a")))
        chains = await client.start_many([new.with_input(Work("a")) for _ in range(5)])
        for chain in chains:
            await chain.wait(timeout=timedelta(seconds=10))


async def test_a_type_that_no_worker_serves_leaves_its_places_to_others_until_one_does(
    make_app: Callable[..., Onward],
) -> None:
    shared = Limit("shared", concurrency=1)

    @job("lonely", limit=shared)
    async def lonely(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("served", limit=shared)
    async def served(attempt: Attempt[int]) -> int:
        return attempt.input

    async with make_app(lonely, served) as client, make_app(lonely) as some, make_app(served) as others:
        first, second = await client.start(lonely, 1), await client.start(served, 2)
        async with others.worker():
            while not await client.limits.holding("shared"):
                await asyncio.sleep(0.01)
        assert [job.type_name for job in await client.limits.holding("shared")] == ["lonely"]

        async with others.worker():
            assert await second.wait(timeout=SOON) == 2
            async with some.worker():
                assert await first.wait(timeout=SOON) == 1


async def test_a_lost_wake_is_made_good_by_the_worker_that_starts_next(make_app: Callable[..., Onward]) -> None:
    @job("work", limit=Limit(concurrency=1))
    async def work(attempt: Attempt[int]) -> None: ...

    async with make_app(work) as app:
        chains = await app.start_many([work.with_input(n) for n in range(3)])
        async with app.driver.connection() as connection:
            table = app.state.sql._table("limit_wake")  # type: ignore[attr-defined]
            await connection.fetch(f"DELETE FROM {table}", {})
        async with app.worker():
            await finish(*chains)


async def test_pruning_what_has_ended_has_nobody_look_at_limits(make_app: Callable[..., Onward]) -> None:
    @job("work", limit=[Limit("all", concurrency=5), Limit(concurrency=2, key=str)])
    async def work(attempt: Attempt[int]) -> None: ...

    async with make_app(work) as app:
        table = app.state.sql._table("limit_wake")  # type: ignore[attr-defined]
        async with app.worker():
            await finish(*await app.start_many([work.with_input(n) for n in range(3)]))
        async with app.driver.connection() as connection:
            await connection.fetch(f"DELETE FROM {table}", {})

            assert await app.prune(older_than=timedelta()) == 3
            assert await connection.fetch(f"SELECT key FROM {table}", {}) == []


@pytest.mark.parametrize("bad", [None, True, b"bytes", ["list"], "", "nul\0", "x" * 2000])
async def test_a_key_that_is_none_is_refused_with_nothing_stored(make_app: Callable[..., Onward], bad: object) -> None:
    @job("work", limit=Limit(concurrency=1, key=lambda input: bad))  # type: ignore[arg-type, return-value]
    async def work(attempt: Attempt[int]) -> None: ...

    async with make_app(work) as app:
        with pytest.raises(StartRefused, match="'work': its limit 'work': key="):
            await app.start(work, 1)

        assert len(await app.jobs()) == 0


async def test_a_key_is_its_text_and_not_how_it_is_shown(make_app: Callable[..., Onward]) -> None:
    class Color(str, Enum):  # noqa: UP042 - this is what is meant
        RED = "red"

    @job("work", limit=Limit(concurrency=1, key=lambda number: [Color.RED, 10**5000][number]))
    async def work(attempt: Attempt[int]) -> None: ...

    async with make_app(work) as app:
        await app.start(work, 0)
        with pytest.raises(StartRefused, match="'work': the key= of its limit 'work' raised ValueError"):
            await app.start(work, 1)

        assert [one.key for one in await app.limits.keys("work")] == ["red"]


async def test_a_key_function_that_raises_is_named(make_app: Callable[..., Onward]) -> None:
    @job("work", limit=Limit("stripe", concurrency=1, key=lambda input: input["tenant"]))
    async def work(attempt: Attempt[dict[str, int]]) -> None: ...

    async with make_app(work) as app, app.transaction() as tx:
        with pytest.raises(StartRefused, match="'work': the key= of its limit 'stripe' raised KeyError"):
            await app.start(work, {}, tx=tx)
        await app.start(work, {"tenant": 7}, tx=tx)


def test_a_limit_is_checked_when_it_is_made() -> None:
    for wrong in ({}, {"concurrency": 0}, {"concurrency": 1, "key": "tenant"}, {"rate": 5}, {"concurrency": True}):
        with pytest.raises(ConfigurationError, match="Limit: "):
            Limit(**wrong)  # type: ignore[arg-type]
    for count, per, burst in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1, -1, 1), (1, 86400, 2**31 - 1), (10**7, 1, 1)):
        with pytest.raises(ConfigurationError, match="Rate: "):
            Rate(count, per=timedelta(seconds=per), burst=burst)


def test_different_figures_under_one_name_are_refused_when_the_app_is_built() -> None:
    @job("a", limit=Limit("stripe", concurrency=1))
    async def a(attempt: Attempt[int]) -> None: ...

    @job("b", limit=Limit("stripe", concurrency=2))
    async def b(attempt: Attempt[int]) -> None: ...

    with pytest.raises(DefinitionError, match="b: limits under the name 'stripe' otherwise than a"):
        Onward("memory://", jobs=[a, b])
    with pytest.raises(DefinitionError, match=r"expected a Limit\(concurrency=…\)"):
        job("c", limit=3)(a.run)  # type: ignore[call-overload]


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_start_that_commits_late_is_not_passed_over(make_app: Callable[..., Onward], target: str) -> None:
    if target.startswith("sqlite"):
        pytest.skip("nobody writes beside an open transaction")

    @job("work", limit=Limit(concurrency=5))
    async def work(attempt: Attempt[int]) -> None: ...

    begun, others_done = asyncio.Event(), asyncio.Event()

    async def start_late(app: Onward) -> Any:
        async with app.transaction() as tx:
            chain = await app.start(work, 1, tx=tx)
            begun.set()
            await others_done.wait()
        return chain

    async with make_app(work) as app, app.worker(concurrency=5), asyncio.TaskGroup() as tasks:
        late = tasks.create_task(start_late(app))
        await begun.wait()
        await finish(*await app.start_many([work.with_input(n) for n in range(3)]))
        others_done.set()
        await (await late).wait(timeout=timedelta(seconds=10))
