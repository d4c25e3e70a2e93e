"""Tests of leases: renewing them, and taking back what expired."""

from datetime import timedelta
from functools import partial

import pytest
from msgspec import structs

from onward.conformance.state.session import LEASE, OTHER_WORKER, WORKER, completing, failing, retrying
from onward.conformance.state.store import Store
from onward.model import LossReason, Progress, new_id
from onward.state.contract import HeldAttempt, ProgressReport, TakenJob


@pytest.mark.asyncio
class TestRenewing:
    """`renew`: a lease goes on, or its holder is told why not."""

    async def test_a_renewed_lease_runs_from_now(self, store: Store) -> None:
        async with store.reserve() as session:
            running = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=20))

            lost = await session.renew(running, lease=90.0)

            assert lost is None
            assert (await session.find(running.id)).leased_until == store.clock.now + timedelta(seconds=90)

    async def test_a_lease_that_ran_out_but_was_not_reaped_can_be_renewed(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            store.clock.advance(timedelta(hours=1))

            assert await session.renew(running) is None
            assert list((await session.reap()).jobs) == []

    async def test_every_attempt_is_answered(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*[store.job() for _ in range(4)])
            alive, ended, deleted, reaped = await session.take()
            await session.settle(completing(ended), retrying(reaped))
            await session.delete(deleted.id)
            await session.take_one(worker=OTHER_WORKER)
            held = [HeldAttempt(job.id, job.attempt, LEASE) for job in (ended, deleted, alive, reaped)]

            renewals = await session.connection.run(store.state.renew(worker=WORKER, held=held))

        assert {renewal.job_id: renewal.lost for renewal in renewals} == {
            alive.id: None,
            ended.id: LossReason.ALREADY_COMPLETED,
            deleted.id: LossReason.NOT_FOUND,
            reaped.id: LossReason.TAKEN_BY_ANOTHER_WORKER,
        }

    async def test_nothing_to_renew_is_an_empty_answer(self, store: Store) -> None:
        async with store.connect() as session:
            assert list(await session.connection.run(store.state.renew(worker=WORKER, held=[]))) == []

    async def test_a_holder_is_told_that_its_job_is_to_be_cancelled(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.cancel(running.chain_id)
            store.clock.advance(timedelta(seconds=30))

            lost = await session.renew(running)

            assert lost == LossReason.CANCELLED
            assert (await session.find(running.id)).leased_until == store.clock.now + timedelta(seconds=LEASE)

    async def test_a_holder_is_told_that_its_job_failed_elsewhere(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(failing(running))

            assert await session.renew(running) == LossReason.ALREADY_COMPLETED

    async def test_an_older_attempt_of_the_same_worker_is_lost(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            await session.settle(retrying(stale))
            current = await session.take_one(lease=10.0)

            assert await session.renew(stale) == LossReason.TAKEN_BY_ANOTHER_WORKER
            assert await session.renew(current) is None

    async def test_a_stale_holder_does_not_prolong_the_lease_of_another(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=61))
            await session.reap(lease=5.0)
            until = (await session.find(stale.id)).leased_until

            assert await session.renew(stale, lease=600.0) == LossReason.TAKEN_BY_ANOTHER_WORKER
            assert (await session.find(stale.id)).leased_until == until

    async def test_a_job_that_was_given_back_is_lost(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            await session.settle(retrying(stale))

            assert await session.renew(stale) == LossReason.TAKEN_BY_ANOTHER_WORKER


@pytest.mark.asyncio
class TestProgress:
    """`report_progress`: how far running attempts have come."""

    async def test_the_last_report_of_a_running_attempt_can_be_read(self, store: Store) -> None:
        async with store.reserve() as session:
            await session.start(store.job(), store.job())
            first, second = await session.take()

            await session.report(first, 0.25, "a quarter")
            await session.report(first, 0.5, None)

            assert (await session.find(first.id)).progress == Progress(0.5, None)
            assert (await session.find(second.id)).progress is None

    async def test_several_attempts_report_together(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job())
            taken = await session.take()
            reports = [ProgressReport(job.id, job.attempt, n / 4, f"żółw {n}") for n, job in enumerate(taken)]

            await session.connection.run(store.state.report_progress(worker=WORKER, reports=reports))

            found = [(await session.find(job.id)).progress for job in taken]
        assert found == [Progress(0.0, "żółw 0"), Progress(0.25, "żółw 1")]

    async def test_no_reports_are_harmless(self, store: Store) -> None:
        async with store.connect() as session:
            await session.connection.run(store.state.report_progress(worker=WORKER, reports=[]))

    async def test_reports_of_attempts_that_are_lost_are_dropped(self, store: Store) -> None:
        async with store.connect() as session:
            stale = await session.start_and_take(store.job())
            await session.settle(retrying(stale))
            current = await session.take_one()

            await session.report(stale, 0.9, "stale")
            await session.report(current, 0.8, "of another", worker=OTHER_WORKER)

            assert (await session.find(stale.id)).progress is None

    async def test_a_settlement_has_the_last_word_or_leaves_it(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job())
            spoken, silent = await session.take()
            await session.report(spoken, 0.5, "half")
            await session.report(silent, 0.5, "half")

            await session.settle(
                structs.replace(completing(spoken), progress=Progress(1.0)),
                completing(silent),
            )

            assert (await session.find(spoken.id)).progress == Progress(1.0, None)
            assert (await session.find(silent.id)).progress == Progress(0.5, "half")


@pytest.mark.asyncio
class TestReaping:
    """`reap`: the jobs of holders that are gone."""

    async def test_an_expired_lease_is_taken_over_by_the_reaper(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job(input='"x"'))
            store.clock.advance(timedelta(seconds=61))

            reaped = await session.reap(lease=7.0)

            found = await session.find(running.id)
            assert [(job.id, job.attempt, job.input) for job in reaped.jobs] == [(running.id, 1, '"x"')]
            assert (found.status, found.leased_by) == ("running", OTHER_WORKER)
            assert found.leased_until == store.clock.now + timedelta(seconds=7)

    async def test_a_reaped_job_is_settled_by_its_reaper(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=61))
            (reaped,) = (await session.reap()).jobs

            await session.settle(retrying(reaped, failures=1, crashes=1, holder=OTHER_WORKER))

            again = await session.take_one()
        assert (again.failures, again.crashes, again.attempt) == (1, 1, 2)

    async def test_a_reaper_that_dies_is_reaped_itself(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=61))
            await session.reap(worker=OTHER_WORKER, lease=5.0)
            store.clock.advance(timedelta(seconds=6))

            reaped = await session.reap(worker="worker-3")

        assert [job.id for job in reaped.jobs] == [running.id]

    async def test_a_live_lease_is_left_alone_and_says_when_to_look_again(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("short"), store.job("long"))
            await session.take("long", lease=90.0)
            await session.take("short", lease=40.0)
            store.clock.advance(timedelta(seconds=10))

            reaped = await session.reap("short", "long")

        assert list(reaped.jobs) == []
        assert reaped.next_in == pytest.approx(30.0)

    async def test_with_no_foreign_lease_there_is_nothing_to_look_for(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job(), worker=OTHER_WORKER)
            await session.start_and_take(store.job("foreign"))

            reaped = await session.reap(worker=OTHER_WORKER)

        assert (list(reaped.jobs), reaped.next_in) == ([], None)

    async def test_where_more_have_expired_than_asked_for_it_is_worth_looking_at_once(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*[store.job() for _ in range(3)])
            await session.take()
            store.clock.advance(timedelta(seconds=61))

            first, rest = await session.reap(limit=2), await session.reap(limit=2)

        assert (len(first.jobs), first.next_in) == (2, 0)
        assert (len(rest.jobs), rest.next_in) == (1, None)

    async def test_an_expired_lease_that_is_held_here_is_looked_at_again_after_a_while(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            store.clock.advance(timedelta(seconds=61))

            reaped = await session.reap(held_here=[running.id], lease=20.0)

        assert list(reaped.jobs) == []
        assert reaped.next_in == pytest.approx(5.0)

    async def test_what_was_just_reaped_is_not_what_to_look_for_next(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job("short"), lease=10.0)
            await session.start_and_take(store.job("long"), lease=100.0)
            store.clock.advance(timedelta(seconds=50))

            reaped = await session.reap("short", "long")

        assert len(reaped.jobs) == 1
        assert reaped.next_in == pytest.approx(50.0)

    async def test_a_lease_ends_only_after_its_last_moment(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start_and_take(store.job(), lease=60.0)
            store.clock.advance(timedelta(seconds=60))

            assert list((await session.reap()).jobs) == []

    async def test_types_that_were_not_asked_for_stay(self, store: Store) -> None:
        async with store.connect() as session:
            foreign = await session.start_and_take(store.job("foreign"))
            store.clock.advance(timedelta(seconds=61))

            assert list((await session.reap("work")).jobs) == []
            assert (await session.find(foreign.id)).leased_by == WORKER

    async def test_a_worker_does_not_reap_what_it_is_running(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(), store.job())
            own, forgotten = await session.take()
            store.clock.advance(timedelta(seconds=61))

            reaped = await session.reap(worker=WORKER, held_here=[own.id, new_id()])

        assert [job.id for job in reaped.jobs] == [forgotten.id]

    async def test_the_oldest_leases_are_reaped_first(self, store: Store) -> None:
        leases = [30.0, 10.0, 50.0, 20.0, 40.0]
        order = []
        async with store.connect() as session:
            jobs = [await session.start_and_take(store.job(), lease=lease) for lease in leases]
            store.clock.advance(timedelta(seconds=61))

            for _ in range(5):
                (reaped,) = (await session.reap(limit=1)).jobs
                order.append(reaped.id)

        assert order == [jobs[n].id for n in (1, 3, 0, 4, 2)]

    async def test_what_is_not_running_is_not_reaped(self, store: Store) -> None:
        async with store.connect() as session:
            completed = await session.start_and_take(store.job())
            await session.settle(completing(completed))
            given_back = await session.start_and_take(store.job())
            await session.settle(retrying(given_back))
            store.clock.advance(timedelta(days=1))

            assert list((await session.reap()).jobs) == []


@pytest.mark.asyncio
class TestLockedJobs:
    """A job that its holder is completing at this moment is alive."""

    async def test_a_renewal_beside_a_completion_never_says_taken(self, store: Store) -> None:
        for _ in range(store.rounds):
            async with store.connect() as session:
                running = await session.start_and_take(store.job())

            async def complete(running: TakenJob) -> LossReason | None:
                async with store.connect() as session, session.transaction():
                    await session.lock(running)
                    await session.settle(completing(running))
                return None

            async def renew(running: TakenJob) -> LossReason | None:
                async with store.connect() as session:
                    return await session.renew(running)

            _, lost = await store.together(partial(complete, running), partial(renew, running))

            assert lost in (None, LossReason.ALREADY_COMPLETED)


@pytest.mark.asyncio
class TestStrays:
    """`unanswered_takes`: what a worker holds without knowing."""

    async def test_only_jobs_of_this_worker_that_it_does_not_know_of_are_found(self, store: Store) -> None:
        async with store.reserve() as session:
            await session.start(*[store.job() for _ in range(3)])
            known, stray, ended = await session.take()
            await session.settle(completing(ended))
            await session.start_and_take(store.job(), worker=OTHER_WORKER)

            found = await session.connection.run(store.state.unanswered_takes(worker=WORKER, held_here=[known.id]))

            assert list(found) == [stray]
            assert (
                await session.connection.run(
                    store.state.unanswered_takes(worker=WORKER, held_here=[known.id, stray.id])
                )
                == []
            )
