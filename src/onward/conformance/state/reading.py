"""Tests of finding and listing what is stored."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from onward.conformance.state.session import Session, completing, continuing, failing, next_of, retrying
from onward.conformance.state.store import Store
from onward.model import ChainId, FailureReason, JobError, JobId, JobStatus, new_id, new_ids
from onward.state.contract import Filter
from onward.state.rows import write_errors


@pytest.mark.asyncio
class TestFinding:
    """`find_jobs`, `find_chains`, `ended_chains`, `blockers_of`."""

    async def test_what_does_not_exist_is_missing_from_the_answer(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)
            ids = [new_id(), job.id]

            assert [found.id for found in await session.connection.run(store.state.find_jobs(ids))] == [job.id]
            assert [found.id for found in await session.connection.run(store.state.find_chains(ids))] == [job.id]
            assert await session.connection.run(store.state.ended_chains(ids)) == {job.id: False}
            assert await session.connection.run(store.state.blockers_of(ids)) == {}

    async def test_the_id_of_a_job_further_on_finds_the_job_and_no_chain(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            step = next_of(running)
            await session.settle(continuing(running, step))

            assert [job.id for job in await session.connection.run(store.state.find_jobs([step.id]))] == [step.id]
            assert list(await session.connection.run(store.state.find_chains([step.id]))) == []
            assert await session.connection.run(store.state.ended_chains([step.id])) == {}

    async def test_blockers_come_in_the_order_given_at_the_start(self, store: Store) -> None:
        blockers = [store.job(f"fetch-{n}") for n in range(5)]
        order = [blockers[n].id for n in (3, 0, 4, 1, 2)]
        one, two = store.job(blockers=tuple(order)), store.job(blockers=(order[1],))
        async with store.connect() as session:
            await session.start(*blockers)
            await session.start(one, two)
            await session.finish("fetch-3", output='{"a":1}')
            await session.break_("fetch-0")

            found = await session.connection.run(store.state.blockers_of([one.id, two.id]))

        assert [blocker.chain_id for blocker in found[one.id]] == order
        assert [blocker.status for blocker in found[one.id]] == ["completed", "failed", *["pending"] * 3]
        assert [blocker.output for blocker in found[one.id]] == ['{"a":1}', None, None, None, None]
        assert [(blocker.chain_id, blocker.type_name) for blocker in found[two.id]] == [(order[1], "fetch-0")]


@pytest.mark.asyncio
class TestListing:
    """`list_jobs`, `list_chains`, `list_blocked`."""

    async def test_pages_show_the_newest_first_and_everything_once(self, store: Store) -> None:
        jobs = [store.job() for _ in range(7)]
        async with store.connect() as session:
            await session.start(*jobs)

            newest_first = [job.id for job in reversed(jobs)]
            assert await _all_jobs(session, Filter(), page=3) == newest_first
            assert await _all_chains(session, Filter(), page=3) == newest_first

    async def test_a_cursor_stays_where_it_is_while_rows_come_and_go(self, store: Store) -> None:
        jobs = [store.job() for _ in range(6)]
        async with store.connect() as session:
            await session.start(*jobs)
            page = await session.connection.run(store.state.list_chains(Filter(), after=None, limit=2))
            await session.start(*[store.job() for _ in range(3)])
            await session.delete(jobs[4].id, jobs[2].id)

            rest = await session.connection.run(store.state.list_chains(Filter(), after=page[-1].id, limit=10))

        assert [chain.id for chain in page] == [jobs[5].id, jobs[4].id]
        assert [chain.id for chain in rest] == [jobs[3].id, jobs[1].id, jobs[0].id]

    async def test_nothing_matches_an_empty_list(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job())

            assert await _all_jobs(session, Filter(type_names=[])) == []
            assert await _all_chains(session, Filter(chain_ids=[])) == []

    async def test_jobs_are_filtered_by_type(self, store: Store) -> None:
        a, b, c = (store.job(name) for name in "abc")
        async with store.connect() as session:
            await session.start(a, b, c)

            assert await _all_jobs(session, Filter(type_names=["c", "a", "x"])) == [c.id, a.id]
            assert await _all_chains(session, Filter(type_names=["b"])) == [b.id]

    async def test_jobs_are_filtered_by_status(self, store: Store) -> None:
        async with store.connect() as session:
            by_status = await _one_of_each_status(store, session)

            for status, job_id in by_status.items():
                assert await _all_jobs(session, Filter(statuses=[status])) == [job_id]
                assert await _all_chains(session, Filter(statuses=[status])) == [job_id]
            two = Filter(statuses=[JobStatus.COMPLETED, JobStatus.FAILED])
            assert len(await _all_jobs(session, two)) == 2

    async def test_a_chain_has_the_status_of_its_current_job(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job())
            await session.settle(continuing(running, next_of(running)))

            assert await _all_chains(session, Filter(statuses=[JobStatus.COMPLETED])) == []
            assert await _all_chains(session, Filter(statuses=[JobStatus.PENDING])) == [running.chain_id]
            assert await _all_chains(session, Filter(type_names=["next"])) == []

    async def test_jobs_are_filtered_by_chain_and_root(self, store: Store) -> None:
        async with store.connect() as session:
            running = await session.start_and_take(store.job("first"))
            step = next_of(running)
            await session.settle(continuing(running, step))
            child = store.job("child", origin_id=step.id, root_id=running.root_id)
            await session.start(child, store.job("stranger"))

            in_chain = Filter(chain_ids=[running.chain_id, new_id()])
            in_family = Filter(root_ids=[running.root_id])
            assert await _all_jobs(session, in_chain) == [step.id, running.id]
            assert await _all_jobs(session, in_family) == [child.id, step.id, running.id]
            assert await _all_chains(session, in_chain) == [running.chain_id]
            assert await _all_chains(session, in_family) == [child.id, running.chain_id]

    async def test_jobs_are_filtered_by_when_they_were_created(self, store: Store) -> None:
        begin = store.clock.now
        jobs = [store.job() for _ in range(3)]
        async with store.connect() as session:
            for job in jobs:
                await session.start(job)
                store.clock.advance(timedelta(minutes=1))

            later = Filter(created_from=begin + timedelta(minutes=1))
            earlier = Filter(created_before=begin + timedelta(minutes=1))
            between = Filter(created_from=begin + timedelta(seconds=30), created_before=begin + timedelta(minutes=2))
            for listed in (_all_jobs, _all_chains):
                assert await listed(session, later) == [jobs[2].id, jobs[1].id]
                assert await listed(session, earlier) == [jobs[0].id]
                assert await listed(session, between) == [jobs[1].id]

    async def test_what_failed_is_filtered_by_why_and_when(self, store: Store) -> None:
        async with store.connect() as session:
            by_attempts = await session.start_and_take(store.job("a"))
            await session.settle(failing(by_attempts, reason=FailureReason.ATTEMPTS))
            store.clock.advance(timedelta(minutes=1))
            await session.start(cancelled := store.job("b"), store.job("b"))
            await session.cancel(cancelled.id)
            noon = store.clock.now

            for listed in (_all_jobs, _all_chains):
                assert await listed(session, Filter(statuses=[JobStatus.FAILED])) == [cancelled.id, by_attempts.id]
                assert await listed(session, Filter(reasons=[FailureReason.ATTEMPTS])) == [by_attempts.id]
                assert await listed(session, Filter(error_types=["ValueError", "KeyError"])) == [by_attempts.id]
                assert await listed(session, Filter(error_types=["KeyError"])) == []
                assert await listed(session, Filter(failed_from=noon)) == [cancelled.id]
                assert await listed(session, Filter(failed_before=noon)) == [by_attempts.id]
                assert await listed(session, Filter(failed_before=noon, type_names=["b"])) == []
                assert await listed(session, Filter(failed_from=noon, statuses=[JobStatus.PENDING])) == []

    async def test_a_chain_that_failed_further_on_is_found_by_why_and_by_its_first_type(self, store: Store) -> None:
        async with store.connect() as session:
            first = await session.start_and_take(store.job("first"))
            await session.settle(continuing(first, next_of(first)))
            await session.break_("next")

            wanted = Filter(reasons=[FailureReason.PERMANENT], type_names=["first"])
            assert await _all_chains(session, wanted) == [first.chain_id]
            assert await _all_jobs(session, wanted) == []

    async def test_failed_jobs_come_page_by_page_newest_first(self, store: Store) -> None:
        jobs = [store.job() for _ in range(7)]
        async with store.connect() as session:
            await session.start(*jobs)
            await session.settle(*[failing(job) for job in reversed(await session.take())])

            for listed in (_all_jobs, _all_chains):
                found = await listed(session, Filter(reasons=[FailureReason.PERMANENT]), page=3)
                assert found == [job.id for job in reversed(jobs)]

    async def test_a_job_is_found_by_its_age(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(old := store.job())
            store.clock.advance(timedelta(minutes=10))
            await session.start(young := store.job())
            store.clock.advance(timedelta(minutes=1))

            for listed in (_all_jobs, _all_chains):
                assert await listed(session, Filter(older_than=60)) == [young.id, old.id]
                assert await listed(session, Filter(older_than=61)) == [old.id]
                assert await listed(session, Filter(newer_than=61)) == [young.id]
                assert await listed(session, Filter(newer_than=60)) == []
                assert await listed(session, Filter(older_than=3e9)) == []

    async def test_a_job_is_found_by_the_text_of_an_error(self, store: Store) -> None:
        error = JobError(type="CardDeclined", message='Karte "4711" abgelehnt: 50 % zu müde\n\\')
        async with store.connect() as session:
            failed = await session.start_and_take(store.job())
            await session.settle(replace(failing(failed), errors=write_errors(None, error)))
            retried = await session.start_and_take(store.job())
            await session.settle(replace(retrying(retried), errors=write_errors(None, error)))
            await session.start(store.job())
            both = [retried.id, failed.id]

            for listed in (_all_jobs, _all_chains):
                for text in ("carddeclined", 'karte "4711"', "50 %", "müde\n", "\\"):
                    assert await listed(session, Filter(error_text=text)) == both
                assert await listed(session, Filter(error_text="4712")) == []
                assert await listed(session, Filter(error_text="4711", statuses=[JobStatus.FAILED])) == [failed.id]

    async def test_a_page_need_not_look_at_all_jobs(self, store: Store) -> None:
        jobs = [store.job(name) for name in ("b", "a", "a", "a", "b")]
        ids = [job.id for job in reversed(jobs)]
        async with store.connect() as session:
            await session.start(*jobs)

            for after, count, place in ((None, 2, ids[1]), (ids[1], 2, ids[3]), (None, 5, ids[4])):
                assert await session.connection.run(store.state.place_below(after, jobs=count)) == place
            assert await session.connection.run(store.state.place_below(None, jobs=6)) is None
            assert await session.connection.run(store.state.place_below(ids[4], jobs=1)) is None
            for listed in (_all_jobs, _all_chains):
                assert await listed(session, Filter(type_names=["b"], down_to=ids[3])) == [ids[0]]
                assert await listed(session, Filter(type_names=["b"], down_to=ids[4])) == [ids[0], ids[4]]

    async def test_what_is_in_indexes_is_counted_no_further_than_asked(self, store: Store) -> None:
        async with store.connect() as session:
            await _one_of_each_status(store, session)
            await session.start(*[store.job("late", delay=60) for _ in range(3)])
            all_of_them = [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.FAILED]

            for filter, most, count in (
                (Filter(statuses=all_of_them), 100, 6),
                (Filter(statuses=all_of_them), 4, 4),
                (Filter(statuses=[JobStatus.PENDING]), 100, 4),
                (Filter(statuses=[JobStatus.PENDING], type_names=["late"]), 100, 3),
                (Filter(reasons=[FailureReason.PERMANENT]), 100, 1),
            ):
                assert await session.connection.run(store.state.count_indexed(filter, most=most)) == count

    async def test_filters_are_joined_by_and(self, store: Store) -> None:
        async with store.connect() as session:
            by_status = await _one_of_each_status(store, session)
            pending = by_status[JobStatus.PENDING]

            both = Filter(statuses=[JobStatus.PENDING], chain_ids=[pending], type_names=["pending"])
            neither = Filter(statuses=[JobStatus.RUNNING], chain_ids=[pending])
            assert await _all_jobs(session, both) == [pending]
            assert await _all_jobs(session, neither) == []

    async def test_those_who_wait_for_a_chain_are_listed_by_page(self, store: Store) -> None:
        blocker, other = store.job("fetch"), store.job("fetch")
        jobs = [store.job(blockers=(blocker.id, blocker.id)) for _ in range(5)]
        async with store.connect() as session:
            await session.start(blocker, other)
            await session.start(*jobs, store.job(blockers=(other.id,)))

            first = await session.connection.run(store.state.list_blocked(blocker.id, after=None, limit=2))
            rest = await session.connection.run(store.state.list_blocked(blocker.id, after=first[-1].id, limit=10))

        assert [job.id for job in (*first, *rest)] == [job.id for job in reversed(jobs)]

    async def test_those_who_have_waited_are_listed_too(self, store: Store) -> None:
        blocker = store.job("fetch")
        job = store.job(blockers=(blocker.id,))
        async with store.connect() as session:
            await session.start(blocker)
            await session.start(job)
            await session.finish("fetch")

            (listed,) = await session.connection.run(store.state.list_blocked(blocker.id, after=None, limit=10))

        assert (listed.id, listed.status) == (job.id, "pending")

    async def test_so_many_of_the_newest_are_looked_at_and_no_more(self, store: Store) -> None:
        ids = new_ids(6)
        names = ["a", "b", "b", "a", "b", "b"]
        async with store.connect() as session:
            await session.start(*(store.job(id=id, type_name=name) for id, name in zip(ids, names, strict=True)))

            wanted = Filter(statuses=[JobStatus.PENDING], indexed=True, newest=3)
            looked = await session.connection.run(session.state.list_jobs(wanted, after=None, limit=9))
            oldest = replace(wanted, root_ids=ids[:1])
            found = await session.connection.run(session.state.list_jobs(oldest, after=None, limit=9))
            of_type = replace(wanted, type_names=["a"])
            of_a = await session.connection.run(session.state.list_jobs(of_type, after=None, limit=9))

        assert [job.id for job in looked] == ids[:2:-1]
        assert list(found) == []
        assert [job.id for job in of_a] == [ids[3], ids[0]]

    async def test_pages_are_exact_with_ids_in_any_order(self, store: Store) -> None:
        jobs = [store.job(id=id) for id in reversed(new_ids(9))]
        async with store.connect() as session:
            await session.start(*jobs)

            listed = await _all_jobs(session, Filter(), page=2)

        assert listed == sorted((job.id for job in jobs), reverse=True)


async def _all_jobs(session: Session, filter: Filter, *, page: int = 100) -> list[JobId]:
    """Those that match; the same ones, if they can be found by way of indexes."""
    found: list[JobId] = []
    found_so = None
    if (filter.only_live or filter.chain_ids is not None) and not filter.indexed:
        found_so = await _all_jobs(session, replace(filter, indexed=True), page=page)
    while part := await session.connection.run(session.state.list_jobs(filter, after=_last(found), limit=page)):
        assert len(part) <= page
        found.extend(job.id for job in part)
    assert found_so in (None, found)
    return found


async def _all_chains(session: Session, filter: Filter, *, page: int = 100) -> list[ChainId]:
    """The same of chains."""
    found: list[ChainId] = []
    found_so = None
    if filter.only_live and not filter.indexed and filter.chain_ids is None:
        found_so = await _all_chains(session, replace(filter, indexed=True), page=page)
    while part := await session.connection.run(session.state.list_chains(filter, after=_last(found), limit=page)):
        assert len(part) <= page
        found.extend(chain.id for chain in part)
    assert found_so in (None, found)
    return found


def _last(found: Sequence[JobId]) -> JobId | None:
    return found[-1] if found else None


async def _one_of_each_status(store: Store, session: Session) -> dict[JobStatus, JobId]:
    running = await session.start_and_take(store.job("running"))
    completed = await session.start_and_take(store.job("completed"))
    failed = await session.start_and_take(store.job("failed"))
    await session.settle(completing(completed), failing(failed))
    pending = store.job("pending")
    blocked = store.job("blocked", blockers=(pending.id,))
    await session.start(pending)
    await session.start(blocked)
    return {
        JobStatus.RUNNING: running.id,
        JobStatus.COMPLETED: completed.id,
        JobStatus.FAILED: failed.id,
        JobStatus.PENDING: pending.id,
        JobStatus.BLOCKED: blocked.id,
    }
