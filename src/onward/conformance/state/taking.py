"""Tests of taking jobs."""

from datetime import timedelta

import pytest
from msgspec import structs

from onward.conformance.state.session import LEASE, OTHER_WORKER, WORKER, completing, retrying
from onward.conformance.state.store import Store
from onward.model import JobError, JobId, RunningJob
from onward.state.contract import Position, TypeClaim
from onward.state.next_in_line import NextInLine
from onward.state.rows import write_errors


@pytest.mark.asyncio
class TestTaking:
    """`take`, `pause`, `resume`."""

    async def test_a_taken_job_is_running_and_leased(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)

            await session.take(lease=30.0)

            found = await session.find(job.id)
        assert isinstance(found, RunningJob)
        assert (found.leased_by, found.attempt, found.cancel_requested) == (WORKER, 1, False)
        assert found.leased_until == store.clock.now + timedelta(seconds=30)

    async def test_going_on_from_a_position_finds_what_is_better_and_what_comes_after(self, store: Store) -> None:
        first, second, third = store.job(), store.job(), store.job()
        better, worse = store.job(priority=1), store.job(priority=-1)
        async with store.connect() as session:
            for job in (first, second, third, better, worse):
                await session.start(job)
                store.clock.advance(timedelta(seconds=1))
            here = Position(0, store.clock.now - timedelta(seconds=4))

            claim = TypeClaim("work", 1, LEASE, here)
            taken = await session.connection.run(session.state.take(types=[claim], limit=10, worker=WORKER))

        found = [job.id for job in taken]
        assert found[:1] + found[-3:] == [better.id, second.id, third.id, worse.id]
        assert set(found) - {first.id} == {second.id, third.id, better.id, worse.id}

    async def test_a_worker_gets_what_it_needs_to_run_the_job(self, store: Store) -> None:
        job = store.job(input='{"order":7}', priority=3)
        async with store.connect() as session:
            await session.start(job)
            await session.settle(retrying(await session.take_one(), transients=2, crashes=1))

            taken = await session.take_one()

        assert (taken.id, taken.chain_id, taken.chain_index, taken.root_id) == (job.id, job.id, 0, job.id)
        assert (taken.type_name, taken.payload_version, taken.input) == ("work", 1, '{"order":7}')
        assert (taken.attempt, taken.failures, taken.transients, taken.crashes) == (2, 1, 2, 1)
        assert (taken.rank, taken.blockers) == (-3, 0)
        assert (taken.scheduled_at, taken.created_at) == (store.clock.now, store.clock.now)
        assert '"it broke"' in (taken.errors or "")

    async def test_the_error_of_the_last_attempt_can_be_read(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            running = await session.start_and_take(job)
            await session.settle(retrying(running))

            assert (await session.find(job.id)).last_error == JobError(type="ValueError", message="it broke")

    async def test_the_errors_kept_are_those_of_the_last_settlement_that_had_some(self, store: Store) -> None:
        first, second = JobError(type="ValueError", message="first"), JobError(type="OSError", message="second")
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(structs.replace(retrying(running), errors=write_errors(None, first)))
            again = await session.take_one()
            await session.settle(structs.replace(retrying(again), errors=write_errors(again.errors, second)))
            last = await session.take_one()
            await session.settle(structs.replace(retrying(last), errors=None))

            assert (await session.find(running.id)).errors == (first, second)

    async def test_nothing_to_take_is_an_empty_answer(self, store: Store) -> None:
        async with store.connect() as session:
            assert list(await session.take()) == []
            for ageing in (None, 60.0):
                take = store.state.take(types=[], limit=1, worker=WORKER, ageing=ageing)
                assert list(await session.connection.run(take)) == []

    async def test_the_limit_is_kept(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*[store.job("a") for _ in range(5)], *[store.job("b") for _ in range(5)])

            sizes = [len(await session.take("a", "b", limit=4)) for _ in range(4)]

        assert sizes == [4, 4, 2, 0]

    async def test_jobs_of_one_start_are_taken_in_its_order(self, store: Store) -> None:
        jobs = [store.job("a" if n % 2 else "b") for n in range(20)]
        async with store.connect() as session:
            await session.start(*jobs)

            taken = [job for _ in range(4) for job in await session.take("b", "a", limit=5)]

        assert [job.id for job in taken] == [job.id for job in jobs]

    async def test_what_was_scheduled_first_is_taken_first(self, store: Store) -> None:
        first, second, third = store.job(), store.job(), store.job()
        async with store.connect() as session:
            for job in (third, second, first):
                await session.start(job)
                store.clock.advance(timedelta(seconds=1))

            assert [taken.id for taken in await session.take()] == [third.id, second.id, first.id]

    async def test_a_higher_priority_goes_first_across_types(self, store: Store) -> None:
        low, middle, high = store.job("a", priority=-5), store.job("b"), store.job("c", priority=5)
        async with store.connect() as session:
            await session.start(low)
            store.clock.advance(timedelta(seconds=1))
            await session.start(middle, high)

            assert [job.id for job in await session.take("a", "b", "c")] == [high.id, middle.id, low.id]

    async def test_types_that_were_not_asked_for_stay(self, store: Store) -> None:
        foreign, own = store.job("foreign", priority=9), store.job()
        async with store.connect() as session:
            await session.start(foreign, own)

            assert [job.id for job in await session.take("work", "work-2", "work-3")] == [own.id]
            assert await session.status(foreign.id) == "pending"

    async def test_payload_versions_that_were_not_asked_for_stay(self, store: Store) -> None:
        old, new, newer = (store.job(payload_version=version) for version in (1, 2, 3))
        claims = [TypeClaim("work", 2, LEASE), TypeClaim("work", 1, LEASE)]
        async with store.connect() as session:
            await session.start(newer, new, old)

            taken = await session.connection.run(store.state.take(types=claims, limit=10, worker=WORKER))

            assert {job.id: job.payload_version for job in taken} == {new.id: 2, old.id: 1}
            assert await session.status(newer.id) == "pending"

    async def test_every_type_has_its_own_lease(self, store: Store) -> None:
        short, long = store.job("short"), store.job("long")
        claims = [TypeClaim("short", 1, 10.0), TypeClaim("other", 1, 20.0), TypeClaim("long", 1, 300.0)]
        async with store.connect() as session:
            await session.start(short, long)

            await session.connection.run(store.state.take(types=claims, limit=10, worker=WORKER))

            leases = [(await session.find(job.id)).leased_until - store.clock.now for job in (short, long)]
        assert leases == [timedelta(seconds=10), timedelta(seconds=300)]

    async def test_every_take_raises_the_attempt(self, store: Store) -> None:
        attempts = []
        async with store.connect() as session:
            await session.start(store.job())
            for _ in range(3):
                taken = await session.take_one()
                attempts.append(taken.attempt)
                await session.settle(retrying(taken, failures=0))

        assert attempts == [1, 2, 3]

    async def test_a_running_job_is_not_taken_again(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job())

            assert list(await session.take(worker=WORKER)) == []

    async def test_a_finished_job_is_not_taken_again(self, store: Store) -> None:
        async with store.connect() as session:
            await session.settle(completing(await session.start_and_take(store.job())))

            assert list(await session.take()) == []

    async def test_many_types_can_be_asked_for_at_once(self, store: Store) -> None:
        names = [f"type-{n}" for n in range(37)]
        jobs = [store.job(name) for name in names]
        async with store.reserve() as session:
            await session.start(*jobs)

            taken = await session.take(*names, limit=100)

        assert [job.id for job in taken] == [job.id for job in jobs]

    @pytest.mark.parametrize("limit", [1, 7, 40])
    async def test_many_types_are_taken_in_order_whichever_has_most(self, store: Store, limit: int) -> None:
        names = [f"type-{n}" for n in range(12)]
        jobs = [store.job(names[n % 12 if n % 3 else 5], priority=n * 7 % 4) for n in range(80)]
        async with store.reserve() as session:
            await session.start(*jobs)

            taken = [job.id for _ in range(-(-80 // limit)) for job in await session.take(*names, limit=limit)]

        assert taken == [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.id))]

    @pytest.mark.parametrize("expected", [0.0, 3.5, 100.0])
    async def test_what_a_take_is_told_to_expect_does_not_decide_what_it_brings(
        self, store: Store, expected: float
    ) -> None:
        names = [f"type-{n}" for n in range(12)]
        jobs = [store.job(name) for name in names for _ in range(3)] + [store.job(names[0]) for _ in range(30)]
        claims = [TypeClaim(name, 1, LEASE, expected=expected) for name in names]
        async with store.reserve() as session:
            await session.start(*jobs)

            sizes = [
                len(await session.connection.run(store.state.take(types=claims, limit=25, worker=WORKER)))
                for _ in range(4)
            ]

        assert sizes == [25, 25, 16, 0]

    async def test_of_many_types_one_that_is_paused_stays_and_the_positions_of_others_hold(self, store: Store) -> None:
        names = [f"type-{n}" for n in range(12)]
        first, second = [store.job(name) for name in names], [store.job(name) for name in names]
        better = store.job("type-3", priority=1)
        async with store.reserve() as session:
            await session.start(*first)
            store.clock.advance(timedelta(seconds=1))
            here = Position(0, store.clock.now)
            await session.start(*second, better)
            await session.connection.run(store.state.pause(["type-7"]))

            claims = [TypeClaim(name, 1, LEASE, None if name == "type-5" else here) for name in names]
            taken = await session.connection.run(store.state.take(types=claims, limit=100, worker=WORKER))

            found = {job.id for job in taken}
            assert taken[0].id == better.id
            assert {job.id for job in second if job.type_name != "type-7"} <= found
            assert first[5].id in found
            assert not {first[7].id, second[7].id} & found

    # -- what earlier takes have seen

    async def test_what_takes_have_seen_in_line_is_taken_in_order_whoever_else_takes(self, store: Store) -> None:
        names, line = [f"type-{n}" for n in range(12)], NextInLine()
        jobs = [store.job(names[n * 5 % 12], priority=-n // 36) for n in range(96)]
        taken: list[JobId] = []
        async with store.reserve() as session:
            await session.start(*jobs)
            for n in range(24):
                who, seen = (OTHER_WORKER, None) if n % 3 == 2 else (WORKER, line)
                taken += [job.id for job in await session.take(*names, limit=4, worker=who, next_in_line=seen)]

        assert taken == [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.id))]

    async def test_a_better_job_goes_before_what_takes_have_seen(self, store: Store) -> None:
        names, line = [f"type-{n}" for n in range(12)], NextInLine()
        jobs = [store.job(names[n % 12]) for n in range(48)]
        better = store.job("type-7", priority=1)
        async with store.reserve() as session:
            await session.start(*jobs)
            first = await session.take(*names, limit=4, next_in_line=line)
            await session.start(better)

            second, third = [await session.take(*names, limit=4, next_in_line=line) for _ in range(2)]

        found = [job.id for job in (*first, *second, *third)]
        assert found == [job.id for job in (*jobs[:4], better, *jobs[4:11])]

    async def test_of_what_takes_have_seen_a_paused_type_stays(self, store: Store) -> None:
        names, line = [f"type-{n}" for n in range(12)], NextInLine()
        jobs = [store.job(names[n % 12]) for n in range(48)]
        async with store.reserve() as session:
            await session.start(*jobs)
            taken = [*await session.take(*names, limit=4, next_in_line=line)]
            await session.connection.run(store.state.pause(["type-7"]))

            for _ in range(12):
                taken += await session.take(*names, limit=4, next_in_line=line)

        assert {job.id for job in taken} == {job.id for job in jobs if job.type_name != "type-7"}

    async def test_what_has_gone_to_the_end_of_the_line_is_not_taken_where_it_was_seen(self, store: Store) -> None:
        names, line = [f"type-{n}" for n in range(12)], NextInLine()
        jobs = [store.job(names[n % 12]) for n in range(48)]
        async with store.reserve() as session:
            await session.start(*jobs)
            taken = [job.id for job in await session.take(*names, limit=4, next_in_line=line)]
            store.clock.advance(timedelta(seconds=1))
            moved = await session.take_one("type-5", worker=OTHER_WORKER)
            await session.settle(structs.replace(retrying(moved, failures=0), holder=OTHER_WORKER))

            for _ in range(11):
                taken += [job.id for job in await session.take(*names, limit=4, next_in_line=line)]

        assert taken == [*(job.id for job in jobs if job.id != moved.id), moved.id]

    # -- ageing

    @pytest.mark.parametrize("types", [1, 12])
    @pytest.mark.parametrize("limit", [1, 6, 100])
    async def test_with_ageing_a_step_of_priority_counts_as_much_as_a_wait(
        self, store: Store, types: int, limit: int
    ) -> None:
        began, step, jobs = store.clock.now, timedelta(minutes=5), []
        names = [f"type-{n}" for n in range(types)]
        async with store.reserve() as session:
            for n in range(40):
                job = store.job(names[n % types], priority=n * 7 % 5 - 2, at=store.clock.now)
                await session.start(job)
                jobs.append((store.clock.now - began - job.priority * step, store.clock.now, job.id))
                store.clock.advance(timedelta(seconds=77))

            taken = [
                job.id for _ in range(-(-40 // limit)) for job in await session.take(*names, limit=limit, ageing=step)
            ]

        assert taken == [id for *_, id in sorted(jobs)]

    async def test_with_ageing_a_job_of_low_priority_is_taken_while_better_ones_keep_coming(self, store: Store) -> None:
        low = store.job(priority=-3)
        taken: list[JobId] = []
        async with store.connect() as session:
            await session.start(low)
            while low.id not in taken and len(taken) < 100:
                store.clock.advance(timedelta(minutes=1))
                await session.start(store.job(), store.job())
                taken += [job.id for job in await session.take(limit=2, ageing=timedelta(minutes=5))]

        assert taken.index(low.id) == 28  # what came within less than a quarter of an hour went first

    async def test_ageing_by_a_thousand_years_a_step_is_as_priorities_are_without(self, store: Store) -> None:
        least, low, high, most = (store.job(priority=n) for n in (-(2**31) + 1, -1, 1, 2**31 - 1))
        async with store.connect() as session:
            await session.start(least, low, high, most)

            taken = await session.take(ageing=timedelta(days=365_000))

        assert [job.id for job in taken] == [most.id, high.id, low.id, least.id]

    async def test_with_ageing_a_paused_type_stays_and_others_are_not_asked_for(self, store: Store) -> None:
        paused, other, foreign = store.job("paused"), store.job("other"), store.job("foreign", priority=5)
        async with store.connect() as session:
            await session.start(paused, other, foreign)
            await session.connection.run(store.state.pause(["paused"]))

            taken = await session.take("paused", "other", ageing=timedelta(seconds=1))

            assert [job.id for job in taken] == [other.id]
            assert list(await session.take("paused", "other", ageing=timedelta(seconds=1))) == []

    async def test_a_take_that_is_rolled_back_leaves_the_job(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)
            async with session.rolled_back():
                await session.take()

            found = await session.find(job.id)
        assert (found.status, found.attempt) == ("pending", 0)

    async def test_a_paused_type_is_left_alone_until_it_is_resumed(self, store: Store) -> None:
        paused, other = store.job("paused"), store.job("other")
        async with store.connect() as session:
            await session.start(paused, other)
            await session.connection.run(store.state.pause(["paused", "never-started"]))
            await session.connection.run(store.state.pause(["paused"]))

            assert list(await session.connection.run(store.state.paused())) == ["never-started", "paused"]
            assert [job.id for job in await session.take("paused", "other")] == [other.id]

            await session.connection.run(store.state.resume(["paused", "unheard-of"]))

            assert list(await session.connection.run(store.state.paused())) == ["never-started"]
            assert [job.id for job in await session.take("paused", "other")] == [paused.id]

    async def test_what_runs_when_its_type_is_paused_may_end(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.connection.run(store.state.pause(["work"]))

            await session.settle(completing(running))

            assert await session.status(running.id) == "completed"
