"""Tests of the figures: how many jobs are where, and what happened minute by minute."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from onward.conformance.state.session import OTHER_WORKER, WORKER, Session, completing, failing
from onward.conformance.state.store import Store
from onward.state.contract import LimitRule
from onward.state.figures import Figure, summed
from onward.state.survey import Whereabouts

MINUTE = timedelta(minutes=1)


async def record(session: Session, *figures: Figure, writer: str = WORKER) -> float:
    return await session.connection.run(session.state.figures.record(writer, figures))


async def tend(session: Session) -> float:
    return await session.connection.run(session.state.figures.tend())


async def figures(session: Session) -> Sequence[Figure]:
    """One for each minute and type, in their order."""
    found = summed(await session.connection.run(session.state.figures.read(first=0)))
    return sorted(found, key=lambda one: (one.minute, one.type_name))


def minute(store: Store) -> int:
    return int(store.clock.now.timestamp() // 60)


def ids(store: Store, count: int, *, after: timedelta = timedelta()) -> list[UUID]:
    """As they are made so long after now."""
    first = int((store.clock.now + after).timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62
    return [UUID(int=first + n) for n in range(count)]


@pytest.mark.asyncio
class TestSurvey:
    """`figures.survey`."""

    async def test_jobs_of_every_type_are_counted_wherever_they_are(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job("mail") for _ in range(5)), store.job("mail", delay=60.0))
            chain = store.job("other")
            await session.start(chain)
            await session.start(store.job("waiting", blockers=(chain.id,)))
            done, broken, _ = await session.take("mail", limit=3)
            await session.settle(completing(done), failing(broken))
            store.clock.advance(timedelta(seconds=5))

            survey = await session.connection.run(store.state.figures.survey(most=100))

        assert survey.now == pytest.approx(store.clock.now.timestamp())
        assert survey.types == {
            "mail": Whereabouts(pending=2, scheduled=1, running=1, failed=1, oldest=5.0),
            "other": Whereabouts(pending=1, oldest=5.0),
            "waiting": Whereabouts(blocked=1),
        }

    async def test_counting_ends_where_it_is_told(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(*(store.job("mail") for _ in range(5)), *(store.job("mail", delay=9.0) for _ in "1234"))

            survey = await session.connection.run(store.state.figures.survey(most=3))

        assert survey.most == 3
        assert survey.types["mail"] == Whereabouts(pending=3, scheduled=3, oldest=0.0)

    async def test_counting_ends_where_it_takes_too_long(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onward.state.survey._ROWS_AT_FIRST", 6)
        monkeypatch.setattr("onward.state.survey._ROWS_ANYWAY", 0)
        monkeypatch.setattr("onward.state.survey._LEAST", 1)
        async with store.connect() as session:
            await session.start(*(store.job("mail") for _ in range(9)), *(store.job("mail", delay=9.0) for _ in "12"))

            hurried = await session.connection.run(store.state.figures.survey(most=100, within=0.0))
            patient = await session.connection.run(store.state.figures.survey(most=100, within=60.0))

        assert (hurried.most, patient.most) == (3, 100)
        assert hurried.types["mail"] == Whereabouts(pending=3, scheduled=2, oldest=0.0)
        assert patient.types["mail"] == Whereabouts(pending=9, scheduled=2, oldest=0.0)

    async def test_what_is_held_by_a_limit_is_pending(self, store: Store) -> None:
        async with store.connect() as session:
            rules = [LimitRule("few", places=1), LimitRule("more", places=1)]
            await session.connection.run(store.state.set_limits(rules, declared=True))
            await session.start(*(store.job("mail", limit_key=f"few/{n % 2}") for n in range(6)))
            await session.start(*(store.job("call", limit_key="more/x") for _ in range(3)), store.job("mail"))
            store.clock.advance(timedelta(seconds=5))

            before = await session.connection.run(store.state.figures.survey(most=100))
            await session.connection.run(store.state.admit())
            after = await session.connection.run(store.state.figures.survey(most=100))

        expected = {
            "mail": Whereabouts(pending=7, oldest=5.0),
            "call": Whereabouts(pending=3, oldest=5.0),
        }
        assert before.types == after.types == expected

    async def test_the_oldest_is_found_whatever_its_version_and_priority(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("mail", payload_version=2, priority=-3))
            store.clock.advance(timedelta(seconds=10))
            await session.start(
                *(store.job("mail", payload_version=v, priority=p) for v in (1, 2, 3) for p in (-5, 0, 5))
            )
            survey = await session.connection.run(store.state.figures.survey(most=100))

        assert survey.types == {"mail": Whereabouts(pending=10, oldest=10.0)}


@pytest.mark.asyncio
class TestFigures:
    """`figures.record`, `figures.tend` and `figures.read`."""

    async def test_what_a_writer_says_is_what_there_is_however_often_it_is_said(self, store: Store) -> None:
        said = Figure(minute=minute(store), type_name="mail", completed=3, retried=1, waits={-7: 4}, runs={2: 3, 5: 1})
        more = Figure(minute=minute(store), type_name="mail", completed=5, retried=1, waits={-7: 6}, runs={2: 5, 5: 1})
        other = Figure(minute=minute(store), type_name="mail", failed=2, waits={-7: 1, 9: 1}, runs={2: 2})
        async with store.connect() as session:
            now = [await record(session, one) for one in (said, more, more)]
            await record(session, other, writer=OTHER_WORKER)

            found = await figures(session)

        assert now[0] == pytest.approx(store.clock.now.timestamp())
        assert found == [
            Figure(
                minute=minute(store),
                type_name="mail",
                completed=5,
                failed=2,
                retried=1,
                waits={-7: 7, 9: 1},
                runs={2: 7, 5: 1},
            )
        ]

    async def test_what_is_put_together_stays_the_same_and_takes_nothing_more(self, store: Store) -> None:
        said = Figure(minute=minute(store), type_name="mail", completed=3, waits={1: 3}, runs={2: 3})
        async with store.connect() as session:
            for writer in (WORKER, OTHER_WORKER):
                await record(session, said, writer=writer)
            before = await figures(session)
            store.clock.advance(4 * MINUTE)
            await tend(session)
            rows = await session.connection.run(store.state.figures.read(first=0))
            await record(session, said)  # too late: it is among them
            store.clock.advance(MINUTE)
            await tend(session)
            after = await figures(session)
            store.clock.advance(70 * MINUTE)
            await tend(session)
            gone = await figures(session)

        assert before == after == [Figure(minute=said.minute, type_name="mail", completed=6, waits={1: 6}, runs={2: 6})]
        assert len(rows) == 1
        assert gone == []

    async def test_times_of_ten_minutes_are_kept_together_and_counts_by_the_minute(self, store: Store) -> None:
        async with store.connect() as session:
            await tend(session)
            first = minute(store)
            for n in range(25):
                said = Figure(minute=first + n, type_name="mail", completed=n + 1, waits={1: 1}, runs={n: 2})
                await record(session, said)
                store.clock.advance(MINUTE)
                await tend(session)
            store.clock.advance(5 * MINUTE)
            await tend(session)

            found = await figures(session)

        assert {one.minute - first: one.completed for one in found if one.completed} == {n: n + 1 for n in range(25)}
        assert sum(one.waits.get(1, 0) for one in found) == 25
        assert {bucket: count for one in found for bucket, count in one.runs.items()} == dict.fromkeys(range(25), 2)
        assert {one.minute % 10 for one in found if one.waits or one.runs} == {0}

    async def test_starts_are_counted_by_the_minute_of_their_ids_and_once(self, store: Store) -> None:
        async with store.connect() as session:
            await tend(session)  # begins to count
            store.clock.advance(MINUTE)
            first = minute(store)
            await session.start(*(store.job("mail", id=id) for id in ids(store, 5)))
            await session.start(*(store.job("other", id=id) for id in ids(store, 2, after=MINUTE)))
            await session.start(store.job("mail"), store.job("mail", id=UUID(int=7), id_is_callers=True))
            store.clock.advance(timedelta(seconds=30))
            waits = [await tend(session), await tend(session)]
            one = await figures(session)
            store.clock.advance(MINUTE)
            await tend(session)
            both = await figures(session)

        expected = [
            Figure(minute=first, type_name="mail", started=5), Figure(minute=first + 1, type_name="other", started=2),
        ]  # fmt: skip
        assert one == expected[:1]
        assert both == expected
        assert 0 < waits[1] <= waits[0]

    async def test_an_hour_nobody_has_counted_is_counted_with_its_gaps(self, store: Store) -> None:
        async with store.connect() as session:
            await tend(session)
            store.clock.advance(MINUTE)
            first, said = minute(store), Figure(minute=minute(store), type_name="mail", completed=1)
            await record(session, said)
            for after in (0, 1, 20, 50):
                await session.start(*(store.job("mail", id=id) for id in ids(store, 1 + after, after=after * MINUTE)))
            store.clock.advance(51.5 * MINUTE)
            await tend(session)
            await tend(session)
            counted = await figures(session)

        assert [(one.minute - first, one.started) for one in counted] == [(0, 1), (1, 2), (20, 21), (50, 51)]
        assert counted[0].completed == 1

    async def test_what_was_committed_late_is_counted_with_its_minute(self, store: Store) -> None:
        async with store.connect() as session:
            await tend(session)
            store.clock.advance(MINUTE)
            first, late = minute(store), ids(store, 6)
            await session.start(*(store.job("mail", id=id) for id in late[:4]))
            for _ in range(4):
                store.clock.advance(timedelta(seconds=30))
                await tend(session)
                await session.start(*(store.job("mail", id=id) for id in late[4:]), repeated=True)
            store.clock.advance(MINUTE)
            await tend(session)

            assert await figures(session) == [Figure(minute=first, type_name="mail", started=6)]

    async def test_several_who_look_at_once_count_and_put_together_once(self, store: Store) -> None:
        said = Figure(minute=minute(store), type_name="mail", completed=1)
        async with store.connect() as session:
            await tend(session)
            store.clock.advance(MINUTE)
            await session.start(*(store.job("mail", id=id) for id in ids(store, 50)))
            said = Figure(minute=minute(store), type_name="mail", completed=1)
            await record(session, said)
        store.clock.advance(4 * MINUTE)

        async def look() -> float:
            async with store.connect() as session:
                return await tend(session)

        await store.together(*[look] * 4)

        async with store.connect() as session:
            assert await figures(session) == [Figure(minute=said.minute, type_name="mail", started=50, completed=1)]
