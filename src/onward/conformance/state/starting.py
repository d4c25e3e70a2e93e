"""Tests of starting chains."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from onward.conformance.state.session import continuing, kinds, next_of
from onward.conformance.state.store import Store
from onward.errors import ChainNotFound, DuplicateJobId
from onward.model import Deduplication, JobStatus, PendingJob, new_id, new_ids
from onward.state.contract import Started


@pytest.mark.asyncio
class TestStarting:
    """`start` without keys and blockers."""

    async def test_a_started_job_is_pending_and_begins_its_chain(self, store: Store) -> None:
        job = store.job("work", input='{"order": 7}', priority=3, limit_key="tenant-1", payload_version=2)
        async with store.connect() as session:
            started = await session.start(job)

            found = await session.find(job.id)
        assert list(started) == [Started(job.id, JobStatus.PENDING, False)]
        assert found == PendingJob(
            id=job.id,
            chain_id=job.id,
            chain_index=0,
            type_name="work",
            payload_version=2,
            input={"order": 7},
            priority=3,
            created_at=store.clock.now,
            scheduled_at=store.clock.now,
            origin_id=None,
            root_id=job.id,
            attempt=0,
            failures=0,
            limit_key="tenant-1",
        )

    async def test_a_job_remembers_who_started_it_and_its_ultimate_ancestor(self, store: Store) -> None:
        origin, root = new_ids(2)
        job = store.job(origin_id=origin, root_id=root)
        async with store.connect() as session:
            await session.start(job)

            found = await session.find(job.id)
        assert (found.origin_id, found.root_id) == (origin, root)

    @pytest.mark.parametrize("alike", [True, False])
    async def test_several_are_stored_as_each_alone_would_be(self, store: Store, alike: bool) -> None:
        origin = store.job()
        family: dict[str, Any] = {
            "origin_id": origin.id,
            "root_id": origin.id,
            "priority": 2,
            "delay": 5.0,
            "limit_key": "k",
        }
        jobs = [store.job(input=str(n), **(family if alike or n % 2 else {})) for n in range(4)]
        async with store.connect() as session:
            await session.start(origin)

            await session.start(*jobs)

            stored = [await session.find(job.id) for job in jobs]
        assert [
            (j.chain_id, j.chain_index, j.input, j.priority, j.origin_id, j.root_id, j.scheduled_at) for j in stored
        ] == [
            (j.id, 0, int(j.input), j.priority, j.origin_id, j.root_id, store.clock.now + timedelta(seconds=j.delay))
            for j in jobs
        ]

    async def test_an_empty_start_is_harmless(self, store: Store) -> None:
        async with store.connect() as session:
            started = await session.start()

        assert list(started) == []

    async def test_many_are_answered_in_the_order_given(self, store: Store) -> None:
        jobs = [store.job(id=id) for id in reversed(new_ids(50))]
        async with store.connect() as session:
            started = await session.start(*jobs)

        assert [answer.id for answer in started] == [job.id for job in jobs]

    async def test_many_of_different_kinds_are_answered_in_the_order_given(self, store: Store) -> None:
        plain, keyed, chosen = store.job(), store.job(deduplication=Deduplication("k")), store.job(id_is_callers=True)
        blocked = store.job(blockers=(plain.id,))
        async with store.connect() as session:
            started = await session.start(chosen, plain, keyed, blocked)

        assert [answer.id for answer in started] == [chosen.id, plain.id, keyed.id, blocked.id]
        assert [answer.status for answer in started] == ["pending", "pending", "pending", "blocked"]

    async def test_text_of_every_language_comes_back_as_it_was(self, store: Store) -> None:
        text = '{"text":"żółw 🐢 \\"quoted\\" \'single\' % :name $1 \\\\ \\n"}'
        job, checked = store.job(input=text), store.job(input=text, id_is_callers=True)
        async with store.connect() as session:
            await session.start(job, checked)
            await session.start(other := store.job("otherwise", input=text))

            found = [await session.find(id) for id in (job.id, checked.id, other.id)]
        expected = {"text": "żółw 🐢 \"quoted\" 'single' % :name $1 \\ \n"}
        assert [each.input for each in found] == [expected] * 3

    async def test_the_input_is_handed_out_as_it_was_written(self, store: Store) -> None:
        text = '{"b":1,"a":12345678901234567890,"c":1.10,"d":[1,{"e":null}]}'
        async with store.connect() as session:
            await session.start(store.job("plain", input=text))
            await session.start(store.job("checked", input=text, id_is_callers=True))

            taken = await session.take("plain", "checked")
        assert [each.input for each in taken] == [text, text]

    async def test_a_start_that_is_rolled_back_never_was(self, store: Store) -> None:
        plain, blocked = store.job(), store.job(id_is_callers=True)
        async with store.connect() as session:
            async with session.rolled_back():
                await session.start(plain)
                await session.start(store.job(blockers=(plain.id,)), blocked)

            assert list(await session.everything()) == []

    async def test_a_start_can_be_seen_by_others_only_after_the_commit(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session, store.connect() as other:
            async with session.transaction():
                await session.start(job)

                assert await other.status(job.id) is None
            assert await other.status(job.id) == "pending"


@pytest.mark.asyncio
class TestIds:
    """Ids made by the client, and those of the caller's own."""

    async def test_repeating_a_start_whose_commit_was_unknown_is_harmless(self, store: Store) -> None:
        jobs = [store.job(), store.job()]
        async with store.connect() as session:
            first = await session.start(*jobs)
            taken = await session.take_one()

            second = await session.start(*jobs, repeated=True)

            assert list(second) == list(first)
            assert await session.status(taken.id) == "running"
            assert len(await session.everything()) == 2

    async def test_repeating_a_keyed_start_is_no_duplicate_of_itself(self, store: Store) -> None:
        job = store.job(deduplication=Deduplication("key"))
        async with store.connect() as session:
            await session.start(job)

            again = await session.start(job)

            assert [(answer.id, answer.duplicate) for answer in again] == [(job.id, False)]
            assert len(await session.everything()) == 1

    async def test_repeating_a_start_with_blockers_doubles_nothing(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(job, blocker)

            # An adapter may say that the ids are taken: they are looked up then.
            with suppress(DuplicateJobId):
                await session.start(job, blocker)

            assert (await session.find(job.id)).open_blockers == 1
            assert len((await session.connection.run(store.state.blockers_of([job.id])))[job.id]) == 1
            assert len(await session.everything()) == 2

    async def test_an_id_of_the_callers_that_is_taken_is_refused(self, store: Store) -> None:
        taken, fresh = store.job("first"), store.job()
        async with store.connect() as session:
            await session.start(taken)

            with pytest.raises(DuplicateJobId) as refusal:
                await session.start(fresh, store.job(id=taken.id, id_is_callers=True))

            assert refusal.value.job_ids == (taken.id,)
            assert await session.status(fresh.id) is None
            assert (await session.find(taken.id)).type_name == "first"

    async def test_an_id_given_twice_in_one_start_is_refused(self, store: Store) -> None:
        id = new_id()
        async with store.connect() as session:
            with pytest.raises(DuplicateJobId) as refusal:
                await session.start(store.job(id=id, id_is_callers=True), store.job(id=id, id_is_callers=True))

            assert refusal.value.job_ids == (id,)
            assert list(await session.everything()) == []

    async def test_the_id_of_a_job_further_on_in_a_chain_is_taken_too(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            with pytest.raises(DuplicateJobId):
                await session.start(store.job(id=step.id, id_is_callers=True))

    async def test_after_a_taken_id_the_transaction_goes_on(self, store: Store) -> None:
        taken, before, after = store.job(), store.job(), store.job()
        async with store.connect() as session:
            await session.start(taken)

            async with session.transaction():
                await session.start(before)
                with pytest.raises(DuplicateJobId):
                    await session.start(store.job(id=taken.id, id_is_callers=True))
                await session.start(after)

            assert await session.statuses(before.id, after.id) == ["pending", "pending"]


@pytest.mark.asyncio
class TestScheduling:
    """Jobs for later: `delay`, `at`, `promote`, `trigger`."""

    async def test_a_job_for_later_is_not_taken_before_its_time(self, store: Store) -> None:
        job = store.job(delay=60.0)
        async with store.connect() as session:
            await session.start(job)
            store.clock.advance(timedelta(seconds=59))

            promoted = await session.connection.run(store.state.promote(type_names=["work"], limit=10))

            assert promoted.count == 0
            assert promoted.next_in == pytest.approx(1.0)
            assert list(await session.take()) == []
            assert (await session.find(job.id)).scheduled_at == store.clock.now + timedelta(seconds=1)

    async def test_a_job_for_later_is_taken_once_it_is_due_and_promoted(self, store: Store) -> None:
        by_delay, by_time = store.job(delay=60.0), store.job(at=store.clock.now + timedelta(seconds=30))
        async with store.connect() as session:
            await session.start(by_delay, by_time)
            store.clock.advance(timedelta(seconds=60))

            promoted = await session.connection.run(store.state.promote(type_names=["work"], limit=10))

            assert (promoted.count, promoted.next_in) == (2, None)
            assert [job.id for job in await session.take()] == [by_time.id, by_delay.id]

    async def test_a_checked_start_can_be_for_later_too(self, store: Store) -> None:
        by_delay = store.job(delay=60.0, id_is_callers=True)
        by_time = store.job(at=store.clock.now + timedelta(seconds=60), id_is_callers=True)
        async with store.connect() as session:
            await session.start(by_delay, by_time)

            assert list(await session.take()) == []
            store.clock.advance(timedelta(seconds=60))
            assert (await session.connection.run(store.state.promote(type_names=["work"], limit=10))).count == 2

    async def test_a_time_that_has_passed_means_now(self, store: Store) -> None:
        job = store.job(at=store.clock.now - timedelta(days=1))
        async with store.connect() as session:
            await session.start(job)

            assert (await session.take_one()).id == job.id

    async def test_promoting_minds_its_limit_and_its_types(self, store: Store) -> None:
        early, late, foreign = store.job(delay=1.0), store.job(delay=2.0), store.job("foreign", delay=1.0)
        async with store.connect() as session:
            await session.start(late, early, foreign)
            store.clock.advance(timedelta(seconds=10))

            promoted = await session.connection.run(store.state.promote(type_names=["work"], limit=1))

            assert promoted.count == 1
            assert [job.id for job in await session.take("work", "foreign")] == [early.id]

    async def test_promoting_says_when_the_next_one_is_due(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job(delay=90.0), store.job(delay=30.0), store.job("foreign", delay=5.0))

            promoted = await session.connection.run(store.state.promote(type_names=["other", "work"], limit=10))

        assert promoted.count == 0
        assert promoted.next_in == pytest.approx(30.0)

    async def test_a_triggered_job_can_be_taken_now(self, store: Store) -> None:
        job, other = store.job(delay=3600.0), store.job(delay=3600.0)
        async with store.connect() as session:
            await session.start(job, other)

            changes = await session.connection.run(store.state.trigger([job.id]))

            assert [(change.job_id, change.chain_id, change.type_name, change.kind) for change in changes] == [
                (job.id, job.id, "work", "triggered")
            ]
            assert [taken.id for taken in await session.take()] == [job.id]

    async def test_the_current_job_of_a_chain_is_what_is_triggered(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running, delay=3600.0)
            await session.settle(continuing(running, step))

            with pytest.raises(ChainNotFound):
                await session.trigger(step.id)
            changes = await session.connection.run(store.state.trigger([running.chain_id]))

            assert kinds(changes) == {(step.id, "triggered")}
            assert (await session.take_one("next")).id == step.id

    async def test_triggering_leaves_what_is_not_pending_alone(self, store: Store) -> None:
        async with store.connect() as session:
            blocker, blocked = store.job("fetch"), store.job("report")
            await session.start(blocker)
            await session.start(store.job("report", id=blocked.id, blockers=(blocker.id,)))
            running = await session.start_and_take(store.job())

            changes = await session.trigger(running.id, blocked.id)

            assert list(changes) == []
            assert await session.statuses(running.id, blocked.id) == ["running", "blocked"]

    async def test_with_a_chain_that_is_missing_none_is_triggered(self, store: Store) -> None:
        job, missing = store.job(delay=3600.0), new_id()
        async with store.connect() as session:
            await session.start(job)

            with pytest.raises(ChainNotFound) as refusal:
                await session.trigger(job.id, missing)

            assert refusal.value.chain_ids == (missing,)
            assert list(await session.take()) == []

    async def test_a_triggered_job_that_is_due_keeps_its_place(self, store: Store) -> None:
        first, second = store.job(), store.job()
        async with store.connect() as session:
            await session.start(first, second)
            store.clock.advance(timedelta(seconds=1))

            await session.trigger(first.id)

            assert [job.id for job in await session.take()] == [first.id, second.id]
