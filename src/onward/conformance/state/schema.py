"""Tests of the tables themselves."""

from collections.abc import Sequence

import pytest

from onward.conformance.state.store import Store


@pytest.mark.asyncio
class TestSchema:
    """`schema_version`, `migrate`, `migration_sql`, `identify`."""

    async def test_a_database_without_tables_has_version_0(self, empty_store: Store) -> None:
        async with empty_store.connect() as session:
            version = await session.connection.run(empty_store.state.schema_version())

        assert version == 0

    async def test_migrating_brings_the_newest_version_and_says_what_it_did(self, empty_store: Store) -> None:
        async with empty_store.connect() as session:
            applied = await session.connection.run(empty_store.state.migrate())

            assert len(applied) == empty_store.state.newest_version
            assert await session.connection.run(empty_store.state.schema_version()) == empty_store.state.newest_version
            await session.start(empty_store.job())

    async def test_migrating_again_does_nothing(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await session.start(job)

            applied = await session.connection.run(store.state.migrate())

            assert list(applied) == []
            assert await session.status(job.id) == "pending"

    async def test_a_migration_that_is_rolled_back_leaves_no_tables(self, empty_store: Store) -> None:
        async with empty_store.connect() as session:
            async with session.rolled_back():
                await session.connection.run(empty_store.state.migrate())

            assert await session.connection.run(empty_store.state.schema_version()) == 0

    async def test_several_that_migrate_at_once_apply_every_migration_once(self, empty_store: Store) -> None:
        async def migrate() -> Sequence[str]:
            async with empty_store.connect() as session:
                return await session.connection.run(empty_store.state.migrate())

        applied = await empty_store.together(migrate, migrate, migrate)

        assert sorted(len(names) for names in applied) == [0, 0, empty_store.state.newest_version]

    async def test_the_script_makes_the_same_tables(self, empty_store: Store) -> None:
        async with empty_store.connect() as session:
            await session.connection.script(empty_store.state.migration_sql())

            assert await session.connection.run(empty_store.state.schema_version()) == empty_store.state.newest_version
            assert list(await session.connection.run(empty_store.state.migrate())) == []
            await session.start(empty_store.job())

    async def test_every_connection_leads_to_the_same_database(self, store: Store) -> None:
        async with store.connect() as one, store.reserve() as other:
            names = {
                await one.connection.run(store.state.identify()),
                await other.connection.run(store.state.identify()),
            }

        assert len(names) == 1

    async def test_a_suspended_connection_still_runs_statements_of_ours_and_is_as_it_was_afterwards(
        self, store: Store
    ) -> None:
        one, other = store.job(), store.job()
        async with store.connect() as session:
            await session.connection.begin()
            await session.start(one)
            session.connection.suspend()
            await session.start(other)
            await session.connection.commit()
            session.connection.resume()
            session.connection.resume()
        async with store.connect() as session:
            await session.connection.query("SELECT 1", {})
            found = [await session.find(job.id) for job in (one, other)]

        assert [job.id for job in found] == [one.id, other.id]
