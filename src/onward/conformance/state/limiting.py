"""Tests of limits: who is held, who has a place, and that there are never more than there may be."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from onward.conformance.state.session import (
    LEASE,
    OTHER_WORKER,
    WORKER,
    Session,
    completing,
    continuing,
    failing,
    next_of,
    retrying,
)
from onward.conformance.state.store import Store
from onward.model import ChainId, JobStatus, WorkerId
from onward.options import several_keys
from onward.state.contract import Admitted, JobCounts, LimitRule, SetOutcome, TakenJob
from onward.state.driver import Fault
from onward.state.workers import SignOfLife, WorkerRow

KEY = "tenant/a"


async def limited(session: Session, *rules: LimitRule, declared: bool = True) -> Sequence[SetOutcome]:
    return await session.connection.run(session.state.set_limits(rules, declared=declared))


async def admit(session: Session, *, sweep: bool = False) -> Admitted:
    return await session.connection.run(session.state.admit(sweep=sweep))


async def admit_and_take(session: Session, *type_names: str) -> list[TakenJob]:
    while (await admit(session)).next_in == 0:
        pass  # those with several limits go on to the next
    return list(await session.take(*type_names, limit=100))


async def use(session: Session, name: str = "tenant") -> dict[str, tuple[int, int]]:
    """How many have a place, and are held, by key."""
    uses = await session.connection.run(session.state.limit_uses(name, after=None, limit=1000))
    return {one.key: (one.placed, one.held) for one in uses}


async def serve(
    session: Session, worker: WorkerId, *type_names: str, version: int = 1, is_stopping: bool = False, types: Any = None
) -> None:
    """A worker that lives says what it takes, whatever it said before."""
    said = types if types is not None else {name: [version] for name in type_names}
    row = WorkerRow(id=worker, host="", pid=0, version=None, onward_version="", types=said, concurrency=1)
    await session.connection.run(session.state.workers.remove(worker))
    await session.connection.run(
        session.state.workers.sign(row, SignOfLife(age=0.0, promise=60.0, is_stopping=is_stopping))
    )


@pytest.mark.asyncio
class TestPlaces:
    """`set_limits(places=…)` and `admit`."""

    async def test_a_job_with_a_limit_is_taken_once_it_is_admitted(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=2))
            await session.start(*(store.job(limit_key=KEY) for _ in range(5)), store.job())

            before = await session.take()
            admitted = await admit(session)
            taken = await session.take()

        assert [job.attempt for job in before] == [1]
        assert admitted.types == {"work": 2}
        assert len(taken) == 2

    @pytest.mark.parametrize("end", ["complete", "fail", "requeue", "defer", "give back", "delete"])
    async def test_a_place_is_free_again_however_an_attempt_ends(self, store: Store, end: str) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            first, second = store.job(limit_key=KEY), store.job(limit_key=KEY)
            await session.start(first, second)
            (taken,) = await admit_and_take(session)
            assert await admit_and_take(session) == []
            store.clock.advance(timedelta(seconds=1))

            match end:
                case "complete":
                    await session.settle(completing(taken))
                case "fail":
                    await session.settle(failing(taken))
                case "requeue":
                    await session.settle(retrying(taken))
                case "defer":
                    await session.settle(retrying(taken, delay=60.0))
                case "give back":
                    await session.connection.run(store.state.give_back(worker=WORKER))
                case _:
                    await session.delete(first.id)
            next = await admit_and_take(session)

        assert len(next) == 1
        assert next[0].id == (first.id if end == "give back" else second.id)

    async def test_what_has_a_place_and_is_cancelled_before_it_runs_frees_it(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            first, second = store.job(limit_key=KEY), store.job(limit_key=KEY)
            await session.start(first, second)
            await admit(session)

            await session.cancel(first.id)
            taken = await admit_and_take(session)

        assert [job.id for job in taken] == [second.id]

    @pytest.mark.parametrize("key", [KEY, several_keys(["tenant/a", "shared/"])], ids=["one limit", "several"])
    async def test_what_was_cancelled_with_a_place_needs_another_when_it_comes_back(
        self, store: Store, key: str
    ) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1), LimitRule("shared", places=5))
            first, second = store.job(limit_key=key), store.job(limit_key=key)
            await session.start(first, second)
            while (await admit(session)).next_in == 0:
                pass  # from one limit to the next

            await session.cancel(first.id)
            (taken,) = await admit_and_take(session)
            await session.retry(first.id)
            meanwhile = await admit_and_take(session)
            await session.settle(completing(taken))
            afterwards = await admit_and_take(session)

        assert (taken.id, meanwhile, [job.id for job in afterwards]) == (second.id, [], [first.id])

    async def test_a_reaped_job_has_its_place_until_it_is_settled(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            await session.start(store.job(limit_key=KEY), store.job(limit_key=KEY))
            await admit_and_take(session)
            store.clock.advance(timedelta(seconds=LEASE + 1))

            (reaped,) = (await session.reap()).jobs
            while_reaped = await admit_and_take(session)
            await session.settle(retrying(reaped, crashes=1, holder=OTHER_WORKER))
            afterwards = await admit_and_take(session)

        assert while_reaped == []
        assert len(afterwards) == 1

    async def test_keys_do_not_wait_for_each_other(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            await session.start(*(store.job(limit_key=f"tenant/{n % 5}") for n in range(20)))

            taken = await admit_and_take(session)

            assert len(taken) == 5
            assert await use(session) == {f"tenant/{n}": (1, 3) for n in range(5)}

    async def test_several_types_share_a_limit(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=2))
            await session.start(*(store.job(name, limit_key="shared/") for name in ("a", "b", "c", "d")))

            first = await admit_and_take(session, "a", "b", "c", "d")
            await session.settle(*map(completing, first))
            then = await admit_and_take(session, "a", "b", "c", "d")

        assert ([job.type_name for job in first], [job.type_name for job in then]) == (["a", "b"], ["c", "d"])

    async def test_within_a_key_the_higher_priority_has_the_next_place(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            jobs = [store.job(limit_key=KEY, priority=priority) for priority in (0, 5, 9, 5)]
            await session.start(*jobs)
            order = []
            while taken := await admit_and_take(session):
                order += [job.id for job in taken]
                await session.settle(*map(completing, taken))

        assert order == [jobs[n].id for n in (2, 1, 3, 0)]

    async def test_a_key_with_many_waiting_does_not_come_before_one_with_a_single_job(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=10))
            await session.start(*(store.job(limit_key="tenant/big") for _ in range(100)))
            await admit(session)
            store.clock.advance(timedelta(seconds=1))
            small = store.job(limit_key="tenant/small")
            await session.start(small)

            for _ in range(2):
                await admit(session)
                taken = await session.take(limit=10)
                await session.settle(*map(completing, taken))
                store.clock.advance(timedelta(seconds=1))

            assert await session.status(small.id) is JobStatus.COMPLETED

    async def test_whether_there_are_rates_is_told(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            without = await session.connection.run(store.state.admit())
            await limited(session, LimitRule("tenant", places=1, every=1.0), declared=False)
            paced = await session.connection.run(store.state.admit())

        assert (without.is_paced, paced.is_paced) == (False, True)

    async def test_what_is_too_much_for_one_look_is_told(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            await session.start(*(store.job(limit_key=f"tenant/{n}") for n in range(5)))

            looks = [await session.connection.run(store.state.admit(most=2))]
            while looks[-1].next_in == 0:
                looks.append(await session.connection.run(store.state.admit(most=2)))

        assert sum(sum(look.types.values()) for look in looks) == 5
        assert len(looks) >= 3
        assert looks[-1].next_in is None

    async def test_a_job_without_a_rule_is_admitted(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(limit_key="nobody/knows"), store.job(limit_key="no name"))

            assert len(await admit_and_take(session)) == 2

    async def test_jobs_are_held_that_come_due_are_unblocked_continued_to_or_retried(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=9))
            blocker, late, first, broken = (
                store.job("blocker"),
                store.job(limit_key=KEY, delay=60.0),
                store.job(),
                store.job(),
            )
            waiting = store.job(limit_key=KEY, blockers=(blocker.id,))
            retried = store.job("broken", limit_key=KEY)
            await session.start(late, first)
            await session.start(blocker, retried)
            await session.start(waiting)
            running = await session.take_one()
            step = next_of(running, limit_key=KEY)
            (breaking,) = await admit_and_take(session, "broken")
            await session.settle(failing(breaking), continuing(running, step))
            await session.finish("blocker")
            await session.retry(retried.id)
            store.clock.advance(timedelta(minutes=2))
            await session.connection.run(store.state.promote(type_names=["work"], limit=10))

            held = await use(session)
            taken = await admit_and_take(session, "work", "next", "broken")

        assert held == {KEY: (0, 4)}
        assert {job.id for job in taken} == {late.id, waiting.id, retried.id, step.id}
        assert broken is not None

    async def test_what_is_run_now_still_needs_a_place(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            late = store.job(limit_key=KEY, delay=60.0)
            await session.start(store.job(limit_key=KEY), late)
            await admit_and_take(session)

            await session.trigger(late.id)

            assert await admit_and_take(session) == []
            assert await use(session) == {KEY: (1, 1)}

    async def test_held_jobs_are_pending_to_those_who_count(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(limit_key=KEY), store.job())

            counts = await session.connection.run(store.state.count_jobs(["work"]))

        assert counts == {"work": JobCounts(pending=2)}

    async def test_a_start_is_seen_when_its_transaction_commits_and_never_when_it_does_not(self, store: Store) -> None:
        async with store.connect() as session:
            async with session.rolled_back():
                await session.start(store.job(limit_key=KEY))
            async with session.transaction():
                await session.start(store.job(limit_key=KEY))

            assert len(await admit_and_take(session)) == 1

    async def test_who_holds_and_who_waits_is_told(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1), LimitRule("tenant2", places=1))
            jobs = [store.job(limit_key=KEY) for _ in range(3)]
            await session.start(*jobs, *(store.job(limit_key=key) for key in ("tenant/b", "tenant/", "tenant2/a")))
            await admit(session)

            pages, after = [], None
            while page := await session.connection.run(store.state.limit_uses("tenant", after=after, limit=2)):
                pages.append([one.key for one in page])
                after = page[-1].key
            placed = await session.connection.run(store.state.placed_jobs(KEY, limit=10))
            held = await session.connection.run(store.state.held_jobs(KEY, limit=1))

        assert pages == [["tenant/", "tenant/a"], ["tenant/b"]]
        assert [job.id for job in placed] == [jobs[0].id]
        assert [job.id for job in held] == [jobs[1].id]


@pytest.mark.asyncio
class TestSeveralLimits:
    """Jobs that need a place of each of several limits."""

    async def test_a_job_is_taken_once_it_has_a_place_of_each(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=2), LimitRule("shared", places=3))
            jobs = [store.job(limit_key=several_keys([f"tenant/{n % 3}", "shared/"])) for n in range(12)]
            await session.start(*jobs)
            runs = []
            while taken := await admit_and_take(session):
                assert all(placed <= 2 for placed, _ in (await use(session)).values())
                assert (await use(session, "shared"))["shared/"][0] <= 3
                runs.append(len(taken))
                await session.settle(*map(completing, taken))

            assert runs == [3, 3, 3, 3]
            assert (await use(session), await use(session, "shared")) == ({}, {})

    async def test_who_waits_for_the_next_holds_the_first(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1), LimitRule("shared", places=1))
            jobs = [store.job(limit_key=several_keys([f"tenant/{n}", "shared/"])) for n in range(2)]
            await session.start(*jobs)
            await admit_and_take(session)

            holding = [await session.connection.run(store.state.placed_jobs(f"tenant/{n}", limit=9)) for n in range(2)]

            assert [[job.id for job in held] for held in holding] == [[jobs[0].id], [jobs[1].id]]
            assert (await use(session), await use(session, "shared")) == (
                {"tenant/0": (1, 0), "tenant/1": (1, 0)},
                {"shared/": (1, 1)},
            )

    @pytest.mark.parametrize("end", ["complete", "requeue", "defer", "give back", "cancel", "delete"])
    async def test_however_it_ends_all_places_are_free_again(self, store: Store, end: str) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1), LimitRule("shared", places=1))
            first, second = (store.job(limit_key=several_keys(["tenant/a", "shared/"])) for _ in range(2))
            await session.start(first, second)
            (taken,) = await admit_and_take(session)
            store.clock.advance(timedelta(seconds=1))

            match end:
                case "complete":
                    await session.settle(completing(taken))
                case "requeue":
                    await session.settle(retrying(taken))
                case "defer":
                    await session.settle(retrying(taken, delay=60.0))
                case "give back":
                    await session.connection.run(store.state.give_back(worker=WORKER))
                case "cancel":
                    await session.cancel(first.id)
                    await session.settle(retrying(taken))
                case _:
                    await session.delete(first.id)
            (next,) = await admit_and_take(session)
            await session.settle(completing(next))
            await session.connection.run(store.state.give_back(worker=WORKER))

            assert next.id == (first.id if end == "give back" else second.id)
            assert len(await admit_and_take(session)) == (end in ("requeue", "give back"))

    async def test_what_is_cancelled_or_paused_before_the_last_leaves_the_first_to_others(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1), LimitRule("shared", places=1))
            await session.start(store.job("first", limit_key="shared/"))
            (busy,) = await admit_and_take(session, "first")
            keys = several_keys(["tenant/a", "shared/"])
            jobs = [store.job(name, limit_key=keys) for name in ("a", "b", "c")]
            await session.start(*jobs)
            await admit_and_take(session)

            await session.cancel(jobs[0].id)
            await admit_and_take(session)
            await session.connection.run(store.state.pause(["b"]))
            await session.settle(completing(busy))
            (taken,) = await admit_and_take(session, "a", "b", "c")
            await session.settle(completing(taken))
            await session.retry(jobs[0].id)
            await session.connection.run(store.state.resume(["b"]))
            rest = []
            while more := await admit_and_take(session, "a", "b", "c"):
                await session.settle(*map(completing, more))
                rest += [job.type_name for job in more]

        assert (taken.type_name, sorted(rest)) == ("c", ["a", "b"])

    async def test_a_first_limit_that_is_lowered_holds_what_does_not_run_yet(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=3), LimitRule("shared", places=2))
            await session.start(*(store.job(limit_key=several_keys(["tenant/a", "shared/"])) for _ in range(5)))
            while (await admit(session)).next_in == 0:
                pass

            await limited(session, LimitRule("tenant", places=1), declared=False)

            assert len(await admit_and_take(session)) == 1
            assert await use(session) == {"tenant/a": (1, 4)}


@pytest.mark.asyncio
class TestRates:
    """`set_limits(every=…, burst=…)`."""

    async def test_a_burst_and_then_one_by_one(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=1.0, burst=3))
            await session.start(*(store.job(limit_key=KEY) for _ in range(10)))

            taken, waits = [], []
            for _ in range(4):
                admitted = await admit(session)
                taken.append(len(await session.take(limit=100)))
                waits.append(admitted.next_in)
                store.clock.advance(timedelta(seconds=admitted.next_in or 0))

        assert taken == [3, 1, 1, 1]
        assert waits == pytest.approx([1.0] * 4)

    async def test_the_second_after_a_pause_has_the_burst_beside_its_rate_and_any_later_one_the_rate(
        self, store: Store
    ) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=0.005, burst=10))
            await session.start(*(store.job(limit_key=KEY) for _ in range(500)))
            started = []
            for _ in range(400):  # slots of 5 ms: two seconds
                taken = await admit_and_take(session)
                await session.settle(*map(completing, taken))
                started.append(len(taken))
                store.clock.advance(timedelta(milliseconds=5))

        assert (sum(started[:200]), sum(started[:20])) == (209, 29)
        assert {sum(started[n : n + 200]) for n in range(1, 201)} == {200}

    async def test_after_a_pause_not_more_than_the_burst(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=1.0, burst=3))
            await session.start(*(store.job(limit_key=KEY) for _ in range(10)))
            await admit(session)  # and nobody is there to take them
            store.clock.advance(timedelta(hours=1))

            first = await admit_and_take(session)
            store.clock.advance(timedelta(seconds=1))
            then = await admit_and_take(session)

        assert (len(first), len(then)) == (3, 1)

    async def test_what_was_let_in_long_ago_counts_from_when_it_starts(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=1.0, burst=3))
            await session.start(*(store.job(limit_key=KEY) for _ in range(3)))
            await admit(session)  # and nobody has room for them
            store.clock.advance(timedelta(hours=1))

            first = await admit_and_take(session)
            await session.start(*(store.job(limit_key=KEY) for _ in range(3)))
            then = await admit_and_take(session)
            store.clock.advance(timedelta(seconds=1))
            later = await admit_and_take(session)

        assert (len(first), len(then), len(later)) == (3, 0, 1)

    async def test_a_clock_that_is_set_back_keeps_nobody_waiting(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=1.0, burst=2))
            await session.start(*(store.job(limit_key=KEY) for _ in range(10)))
            await admit_and_take(session)
            store.clock.advance(timedelta(hours=-1))

            taken = []
            for _ in range(10):
                store.clock.advance(timedelta(seconds=1))
                taken += await admit_and_take(session)

        assert 7 <= len(taken) <= 8

    async def test_places_and_rate_together(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=2, every=1.0, burst=5))
            await session.start(*(store.job(limit_key=KEY) for _ in range(10)))

            admitted = await admit(session)
            taken = await session.take(limit=100)
            await session.settle(*map(completing, taken))
            for expected in (2, 1):
                again = await admit_and_take(session)
                await session.settle(*map(completing, again))
                assert len(again) == expected

        assert (len(taken), admitted.next_in) == (2, 1.0)

    async def test_a_burst_of_more_than_fits_into_one_look_is_let_in_soon(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=3600.0, burst=1_300))
            await session.start(*(store.job(limit_key=KEY) for _ in range(1_500)))

            looks = [await admit(session), await admit(session), await admit(session)]

        assert [look.types.get("work", 0) for look in looks] == [1_000, 300, 0]
        assert looks[0].next_in is not None
        assert looks[0].next_in < 0.1

    async def test_a_rate_that_nobody_waits_for_any_more_wakes_nobody(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=1.0))
            jobs = [store.job(limit_key=KEY) for _ in range(2)]
            await session.start(*jobs)
            await admit(session)
            await session.cancel(jobs[1].id)
            store.clock.advance(timedelta(seconds=1))

            admitted = await admit(session)

        assert (admitted.types, admitted.next_in) == ({}, None)


@pytest.mark.asyncio
class TestChangingLimits:
    """`set_limits`, `pause` and `resume` beside jobs."""

    async def test_a_raised_limit_lets_more_in_at_once(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            await session.start(*(store.job(limit_key=KEY) for _ in range(5)))
            await admit_and_take(session)

            await limited(session, LimitRule("tenant", places=4), declared=False)

            assert len(await admit_and_take(session)) == 3

    async def test_a_lowered_limit_holds_what_does_not_run_yet(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=4))
            await session.start(*(store.job(limit_key=KEY) for _ in range(6)))
            await admit(session)
            running = await session.take(limit=2)

            await limited(session, LimitRule("tenant", places=2), declared=False)
            lowered = await admit_and_take(session)
            await session.settle(completing(running[0]))
            then = await admit_and_take(session)

        assert (len(lowered), len(then)) == (0, 1)

    async def test_a_rate_that_is_raised_counts_at_once(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", every=3600.0))
            await session.start(*(store.job(limit_key=KEY) for _ in range(5)))
            await admit_and_take(session)

            await limited(session, LimitRule("tenant", every=1.0, burst=2), declared=False)
            await admit(session)
            store.clock.advance(timedelta(seconds=1))

            assert len(await admit_and_take(session)) == 1

    async def test_the_newest_change_of_what_is_declared_wins(self, store: Store) -> None:
        async with store.connect() as session:
            old, new = LimitRule("tenant", places=1), LimitRule("tenant", places=2)

            outcomes = [*await limited(session, old), *await limited(session, old)]
            outcomes += await limited(session, LimitRule("tenant", places=7), declared=False)
            outcomes += await limited(session, old)
            stored = await session.connection.run(store.state.limits())
            outcomes += [*await limited(session, new), *await limited(session, old), *await limited(session, new)]
            store.clock.advance(timedelta(hours=1))
            outcomes += await limited(session, old)
            outcomes += await limited(session, LimitRule("other", places=7), declared=False)

            assert outcomes == [
                "changed", "kept", "changed", "kept", "changed", "outdated", "kept", "changed", "unknown"
            ]  # fmt: skip
            assert [(one.rule.places, one.changed_at is None) for one in stored] == [(7, False)]
            (last,) = await session.connection.run(store.state.limits())
            assert (last.rule, last.changed_at, last.declared) == (old, None, old.figures)

    async def test_a_paused_type_takes_no_place_from_others(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            first, second = store.job("a", limit_key="shared/"), store.job("b", limit_key="shared/")
            await session.start(first, second)
            await admit(session)

            await session.connection.run(store.state.pause(["a"]))
            while_paused = await admit_and_take(session, "a", "b")
            await session.settle(*map(completing, while_paused))
            assert await admit_and_take(session, "a", "b") == []
            await session.connection.run(store.state.resume(["a"]))
            afterwards = await admit_and_take(session, "a", "b")

        assert [job.id for job in while_paused] == [second.id]
        assert [job.id for job in afterwards] == [first.id]

    async def test_a_type_that_nobody_serves_takes_no_place_from_others(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            first, second = store.job("a", limit_key="shared/"), store.job("b", limit_key="shared/")
            await session.start(first, second)
            await serve(session, WORKER, "a", "b")
            await admit(session, sweep=True)

            await serve(session, WORKER, "b")
            await admit(session, sweep=True)
            while_unserved = await admit_and_take(session, "b")
            await session.settle(*map(completing, while_unserved))
            assert await admit_and_take(session, "a", "b") == []
            await serve(session, OTHER_WORKER, "a")
            await admit(session, sweep=True)
            afterwards = await admit_and_take(session, "a", "b")

        assert [job.id for job in while_unserved] == [second.id]
        assert [job.id for job in afterwards] == [first.id]

    @pytest.mark.parametrize("why", ["gone", "stopping", "dead", "other version"])
    async def test_who_served_a_type_and_does_no_more_leaves_its_places_to_others_in_a_while(
        self, store: Store, why: str
    ) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            first, second = store.job("a", limit_key="shared/"), store.job("b", limit_key="shared/")
            await session.start(first, second)
            await serve(session, OTHER_WORKER, "a")
            await serve(session, WORKER, "b")
            await admit(session, sweep=True)
            assert await admit_and_take(session, "b") == []

            match why:
                case "gone":
                    await session.connection.run(store.state.workers.remove(OTHER_WORKER))
                case "stopping":
                    await serve(session, OTHER_WORKER, "a", is_stopping=True)
                case "dead":
                    await session.connection.run(store.state.workers.bury(OTHER_WORKER))
                case _:
                    await serve(session, OTHER_WORKER, "a", version=2)
            store.clock.advance(timedelta(seconds=31))
            await serve(session, WORKER, "b")
            taken = await admit_and_take(session, "b")

        assert [job.id for job in taken] == [second.id]

    async def test_however_many_types_nobody_serves_others_have_their_turn_soon(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            await session.start(*(store.job(f"a{n}", limit_key="shared/") for n in range(5)))
            served = store.job("b", limit_key="shared/")
            await session.start(served)
            await serve(session, WORKER, "b")
            await admit(session, sweep=True)
            store.clock.advance(timedelta(seconds=30))
            taken: list[TakenJob] = []
            for _ in range(6):
                store.clock.advance(timedelta(seconds=1.1))
                taken += await admit_and_take(session, "b")

        assert [job.id for job in taken] == [served.id]

    async def test_while_no_worker_is_known_places_are_kept(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            first, second = store.job("a", limit_key="shared/"), store.job("b", limit_key="shared/")
            await session.start(first, second)
            await admit(session)

            await admit(session, sweep=True)
            taken = await session.take("a", "b")

        assert [job.id for job in taken] == [first.id]

    async def test_what_nobody_serves_and_waits_for_its_next_limit_leaves_the_first_to_others(
        self, store: Store
    ) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("first", places=1), LimitRule("second", places=1))
            await session.start(store.job("b", limit_key="second/"))
            await serve(session, WORKER, "b")
            assert len(await admit_and_take(session, "b")) == 1
            await session.start(store.job("a", limit_key=several_keys(["first/", "second/"])))
            while (await admit(session)).next_in == 0:
                pass
            other = store.job("b", limit_key="first/")
            await session.start(other)
            assert await admit_and_take(session, "b") == []

            await admit(session, sweep=True)
            taken = await admit_and_take(session, "b")

        assert [job.id for job in taken] == [other.id]

    async def test_a_worker_whose_row_says_odd_things_keeps_nobody_from_being_let_in(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("shared", places=1))
            await session.start(store.job("b", limit_key="shared/"))
            odd = [{}, [1], "text", 7, None, {"a": 1}, {"a": {"b": 2}}, {"a": [None, "x", [1], {}]}]
            for n, types in enumerate(odd):
                await serve(session, WorkerId(f"odd-{n}"), types=types)
            await serve(session, WORKER, "b")

            await admit(session, sweep=True)

            assert len(await session.take("b")) == 1


@pytest.mark.asyncio
class TestLimitRaces:
    """Several at a time."""

    async def test_however_many_admit_at_once_no_place_is_given_twice(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=3))

        async def work() -> int:
            done = 0
            async with store.reserve() as own:
                for _ in range(8):
                    taken = await admit_and_take(own)
                    assert all(placed <= 3 for placed, _ in (await use(own)).values())
                    await own.settle(*map(completing, taken))
                    done += len(taken)
            return done

        for _ in range(max(store.rounds // 25, 1)):
            async with store.connect() as session:
                await session.start(*(store.job(limit_key=f"tenant/{n % 3}") for n in range(60)))
            done = sum(await store.together(*[work] * 4))
            async with store.connect() as session:
                while taken := await admit_and_take(session):
                    await session.settle(*map(completing, taken))
                    done += len(taken)

            assert done == 60

    async def test_those_who_look_at_a_key_at_the_same_moment_count_each_other(self, store: Store) -> None:
        async def look() -> None:
            async with store.reserve() as own:
                for _ in range(4):
                    with _or_somebody_was_in_the_way(store):
                        await own.connection.run(store.state.admit(most=1))

        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=3))
            for number in range(max(store.rounds // 5, 5)):
                key = f"tenant/{number}"
                await session.start(store.job(limit_key=key))
                await session.settle(*map(completing, await admit_and_take(session)))
                await session.start(*(store.job(limit_key=key) for _ in range(16)))

                await store.together(*[look] * 4)
                await admit(session)

                assert (await use(session))[key] == (3, 13)
                await session.take(limit=3)

    async def test_a_limit_raised_beside_starts_strands_nobody(self, store: Store) -> None:
        async with store.connect() as session:
            for number in range(max(store.rounds // 5, 2)):
                key = f"tenant{number}/a"
                await limited(session, LimitRule(f"tenant{number}", places=1))

                async def start(key: str = key) -> None:
                    async with store.connect() as own, own.transaction():
                        await own.start(store.job(limit_key=key), store.job(limit_key=key))

                async def change(number: int = number) -> None:
                    async with store.connect() as own:
                        await limited(own, LimitRule(f"tenant{number}", places=2), declared=False)

                async def let_in() -> None:
                    async with store.connect() as own:
                        await admit(own)

                await store.together(start, change, let_in)

                assert len(await admit_and_take(session)) == 2

    async def test_a_type_that_is_resumed_beside_starts_strands_nobody(self, store: Store) -> None:
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=1))
            for number in range(max(store.rounds // 5, 2)):
                key = f"tenant/{number}"
                await session.connection.run(store.state.pause(["work"]))

                async def start(key: str = key) -> None:
                    async with store.connect() as own, own.transaction():
                        await own.start(store.job(limit_key=key))

                async def resume() -> None:
                    async with store.connect() as own, own.transaction():
                        await own.connection.run(store.state.resume(["work"]))

                async def let_in() -> None:
                    async with store.connect() as own:
                        await admit(own)

                await store.together(start, resume, let_in)

                assert len(await admit_and_take(session)) == 1

    async def test_whatever_happens_the_places_are_as_the_rows_say(self, store: Store) -> None:
        dice = random.Random(16)
        async with store.connect() as session:
            await limited(session, LimitRule("tenant", places=2), LimitRule("shared", places=2))
            running: list[TakenJob] = []
            chains: list[ChainId] = []
            for _ in range(max(store.rounds * 4, 100)):
                await _something(dice, store, session, running, chains)
                await _agrees(session)
            await session.connection.run(store.state.resume(["work", "other"]))
            store.clock.advance(timedelta(hours=1))
            await session.connection.run(store.state.give_back(worker=WORKER))
            await session.connection.run(store.state.promote(type_names=["work", "other"], limit=1000))
            while taken := await admit_and_take(session, "work", "other"):
                await session.settle(*map(completing, taken))

            left = Counter(job.status for job in await session.everything())
        assert not set(left) & {JobStatus.PENDING, JobStatus.RUNNING}


@contextmanager
def _or_somebody_was_in_the_way(store: Store) -> Iterator[None]:
    """A worker waits for no lock for long: on a slow machine a look may fail for those before it, and is made again."""
    try:
        yield
    except Exception as error:
        if store.driver.fault(error) is not Fault.TIMEOUT:
            raise


async def _something(
    dice: random.Random, store: Store, session: Session, running: list[TakenJob], chains: list[ChainId]
) -> None:
    match dice.choice(
        ["start", "start", "admit", "take", "take", "settle", "settle", "change", "pause", "time", "places"]
    ):
        case "start":
            key, type_name = f"tenant/{dice.choice('abc')}", dice.choice(["work", "other"])
            key = several_keys([key, "shared/"]) if dice.random() < 0.4 else key
            job = store.job(type_name, limit_key=key, delay=dice.choice([0.0, 0.0, 5.0]), priority=dice.randrange(3))
            chains.append(job.chain_id)
            await session.start(job)
        case "admit":
            await admit(session, sweep=dice.random() < 0.1)
        case "take":
            running += await session.take("work", "other", limit=dice.randrange(1, 5))
        case "settle" if running:
            taken = running.pop(dice.randrange(len(running)))
            ends = [completing(taken), failing(taken), retrying(taken), retrying(taken, delay=3.0)]
            ends.append(continuing(taken, next_of(taken, "other", limit_key="tenant/a")))
            await session.settle(dice.choice(ends))
        case "change" if chains:
            chain = dice.choice(chains)
            found = await session.connection.run(store.state.find_chains([chain]))
            if found and found[0].status is JobStatus.FAILED:
                await session.retry(chain)
            elif found:
                await dice.choice([session.cancel, session.trigger, session.delete])(chain)
        case "pause":
            state = store.state
            await session.connection.run(dice.choice([state.pause, state.resume])([dice.choice(["work", "other"])]))
        case "time":
            store.clock.advance(timedelta(seconds=dice.randrange(LEASE_AND_MORE)))
            await session.connection.run(store.state.promote(type_names=["work", "other"], limit=1000))
            if dice.random() < 0.2:
                await session.connection.run(store.state.give_back(worker=WORKER))
        case "places":
            await limited(session, LimitRule("tenant", places=2), declared=False)
        case _:
            pass


LEASE_AND_MORE = int(LEASE) + 10


async def _agrees(session: Session) -> None:
    """Nobody has more places than there are, and those that run have one."""
    running = Counter(job.limit_key for job in await session.everything() if job.status is JobStatus.RUNNING)
    uses = {**await use(session), **await use(session, "shared")}
    assert all(running[key] <= placed <= 2 for key, (placed, _) in uses.items())
    assert set(running) <= set(uses)
