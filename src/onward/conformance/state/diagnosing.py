"""Tests of what an adapter sees of its database for those who judge it."""

from datetime import timedelta

import pytest

from onward.conformance.state.session import continuing, next_of
from onward.conformance.state.store import Store
from onward.state.contract import LimitRule
from onward.state.facts import Diagnosis


async def diagnosed(store: Store, *, most: int | None = 100) -> Diagnosis:
    async with store.connect() as session:
        return await session.connection.run(store.state.diagnose(most=most, late=60.0))


@pytest.mark.asyncio
class TestDueTypes:
    """`due_types`."""

    async def test_each_type_and_version_is_told_with_the_age_of_its_oldest(self, store: Store) -> None:
        async with store.connect() as session:
            await session.start(store.job("mail", payload_version=2, priority=-3))
            store.clock.advance(timedelta(seconds=10))
            await session.start(store.job("mail", payload_version=2), store.job("mail", payload_version=1, priority=5))
            await session.start(store.job("later", delay=60.0), store.job("taken"))
            await session.take_one("taken")
            await session.connection.run(store.state.pause(["mail"]))
            store.clock.advance(timedelta(seconds=5))

            found = await session.connection.run(store.state.due_types())

            assert [(one.type_name, one.payload_version, round(one.oldest), one.paused) for one in found] == [
                ("mail", 1, 5, True),
                ("mail", 2, 15, True),
            ]
            assert await session.connection.run(store.state.due_types(most=1)) == found[:1]

    async def test_what_limits_hold_is_told_by_the_first_of_each_key(self, store: Store) -> None:
        async with store.connect() as session:
            rule = LimitRule("some", places=1)
            await session.connection.run(store.state.set_limits([rule], declared=False))
            for key, kind in (("some/a", "mail"), ("some/b", "call"), ("some/b", "mail")):
                await session.start(store.job(kind, limit_key=key))

            found = await session.connection.run(store.state.due_types())

        assert [(one.type_name, one.payload_version) for one in found] == [("call", 1), ("mail", 1)]


@pytest.mark.asyncio
class TestDiagnosing:
    """`diagnose`."""

    async def test_a_database_in_order_has_nothing_odd(self, store: Store) -> None:
        async with store.connect() as session:
            first, other = store.job(), store.job("other")
            await session.start(first, other)
            await session.start(store.job("report", blockers=(first.id,)))
            taken = await session.take_one()
            await session.settle(continuing(taken, next_of(taken)))
            await session.finish("other")

        found = await diagnosed(store, most=None)

        assert (found.version, found.newest) == (store.state.newest_version, store.state.newest_version)
        assert (list(found.drift), list(found.strays), dict(found.unseen)) == ([], [], {})
        assert (found.server is None) != (found.file is None)

    async def test_leases_that_ran_out_and_keys_that_nobody_admits_from_are_seen(self, store: Store) -> None:
        async with store.connect() as session:
            await session.connection.run(store.state.set_limits([LimitRule("some", places=1)], declared=False))
            await session.start(store.job(limit_key="some/a"), store.job(limit_key="some/b"))
            await session.connection.run(store.state.admit(sweep=True))
            await session.start(store.job(limit_key="some/a"), store.job(limit_key="some/c"))
            lost = await session.start_and_take(store.job("lost"), lease=30.0)
            await session.start_and_take(store.job("late"), lease=80.0)
            store.clock.advance(timedelta(seconds=100))

        found = await diagnosed(store)

        seen = [(stray.kind, stray.id, stray.type_name, round(stray.seconds or 0)) for stray in found.strays]
        assert seen == [
            ("expired lease", str(lost.id), "lost", 70),
            ("stuck limit", "some/c", "work", 100),
        ]

    async def test_a_database_without_tables_is_told_as_such(self, empty_store: Store) -> None:
        found = await diagnosed(empty_store)

        assert (found.version, list(found.drift), list(found.strays)) == (0, [], [])
