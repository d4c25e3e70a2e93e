"""Tests of schedules as rows: whoever declares, claims, pauses or changes one, it is done once and by one."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from onward.conformance.state.session import Session, completing
from onward.conformance.state.store import Store
from onward.state.schedules import Declaration, FoundSchedules, Move, ScheduleRow

MINUTE = timedelta(minutes=1)


def declaration(store: Store, name: str = "nightly", **fields: Any) -> Declaration:
    fields = {"definition": "{}", "fingerprint": "first", "superseded": "[]", "next_at": store.clock.now, **fields}
    return Declaration(name=name, type_name="work", **fields)


def move(row: ScheduleRow, next_at: datetime | None, **fields: Any) -> Move:
    assert row.next_at is not None
    return Move(
        name=row.name, fingerprint=row.fingerprint, changed=row.changed, tick=row.next_at, next_at=next_at, **fields
    )


async def declare(session: Session, *said: Declaration) -> set[str]:
    return await session.connection.run(session.state.schedules.declare(said))


async def find(session: Session, *names: str) -> FoundSchedules:
    return await session.connection.run(session.state.schedules.find(names or None))


async def row_of(session: Session, name: str = "nightly") -> ScheduleRow:
    return (await find(session, name)).rows[0]


async def due(session: Session, *known: tuple[str, str], limit: int = 10) -> FoundSchedules:
    return await session.connection.run(session.state.schedules.due(known or [("nightly", "first")], limit=limit))


async def claim(session: Session, *moves: Move) -> set[str]:
    return await session.connection.run(session.state.schedules.move(moves))


@pytest.mark.asyncio
class TestSchedules:
    """`state.schedules`."""

    async def test_a_declaration_is_found_as_it_was_made(self, store: Store) -> None:
        later = store.clock.now + MINUTE
        async with store.connect() as session:
            written = await declare(session, declaration(store, definition='{"ü":"1"}', next_at=later))
            found = await find(session)

        assert (written, found.now, found.next_in) == ({"nightly"}, store.clock.now, None)
        assert found.rows == [
            ScheduleRow(
                name="nightly",
                type_name="work",
                definition='{"ü":"1"}',
                fingerprint="first",
                superseded="[]",
                next_at=later,
                declared_at=store.clock.now,
            )
        ]

    async def test_schedules_are_listed_by_name_and_the_time_is_told_without_any(self, store: Store) -> None:
        async with store.connect() as session:
            nothing = await find(session)
            await declare(session, *(declaration(store, name) for name in ("b", "c", "a")))

            everything, some = await find(session), await find(session, "c", "b", "z")

        assert (nothing.now, nothing.rows) == (store.clock.now, [])
        assert [[row.name for row in found.rows] for found in (everything, some)] == [["a", "b", "c"], ["b", "c"]]

    async def test_one_that_is_there_is_replaced_only_by_who_has_read_it(self, store: Store) -> None:
        later = store.clock.now + MINUTE
        second = declaration(store, fingerprint="second", next_at=later)
        async with store.connect() as session:
            await declare(session, declaration(store))

            unread = await declare(session, second)
            stale = await declare(session, replaced(second, instead_of="zeroth", seen_at=store.clock.now))
            moved = await declare(session, replaced(second, instead_of="first", seen_at=later))
            read = await declare(session, replaced(second, instead_of="first", seen_at=store.clock.now))
            row = await row_of(session)

        assert (unread, stale, moved, read) == (set(), set(), set(), {"nightly"})
        assert (row.fingerprint, row.next_at) == ("second", later)

    async def test_one_that_keeps_its_time_goes_on_from_where_it_is(self, store: Store) -> None:
        now, later = store.clock.now, store.clock.now + MINUTE
        again = declaration(store, fingerprint="second", instead_of="first", keeps=True, next_at=now)
        async with store.connect() as session:
            await declare(session, declaration(store))
            await claim(session, move(await row_of(session), later))

            assert await declare(session, again) == {"nightly"}
            row = await row_of(session)

        assert (row.fingerprint, row.next_at) == ("second", later)

    async def test_a_declaration_ends_what_was_changed_and_what_was_wrong(self, store: Store) -> None:
        now = store.clock.now
        async with store.connect() as session:
            rows = session.state.schedules
            await declare(session, declaration(store))
            changed = await session.connection.run(rows.change(await row_of(session), changed="{}", next_at=now))
            await session.connection.run(rows.fail("nightly", now, "it broke"))
            before = await row_of(session)
            await declare(session, declaration(store, fingerprint="second", instead_of="first", seen_at=now))
            row = await row_of(session)

        assert changed
        assert (before.changed, before.error) == ("{}", "it broke")
        assert (row.changed, row.error) == (None, None)

    async def test_only_what_is_due_and_known_as_it_is_stored_is_due(self, store: Store) -> None:
        now = store.clock.now
        known = [(name, "first") for name in ("due", "overdue", "later", "last", "over", "paused", "other")]
        async with store.connect() as session:
            await declare(
                session,
                declaration(store, "due"),
                declaration(store, "overdue", next_at=now - MINUTE),
                declaration(store, "later", next_at=now + MINUTE),
                declaration(store, "last", next_at=now + 2 * MINUTE),
                declaration(store, "over", next_at=None),
                declaration(store, "paused"),
                declaration(store, "other", fingerprint="second"),
                declaration(store, "unknown"),
            )
            await session.connection.run(session.state.schedules.pause("paused", paused=True))

            found, first = await due(session, *known), await due(session, *known, limit=1)
            nothing = await due(session, ("other", "first"))

        assert ([row.name for row in found.rows], found.next_in) == (["overdue", "due"], 60.0)
        assert [row.name for row in first.rows] == ["overdue"]
        assert (nothing.rows, nothing.next_in, nothing.now) == ([], None, now)

    async def test_a_tick_is_claimed_once_and_by_who_has_read_it(self, store: Store) -> None:
        now, later, job = store.clock.now, store.clock.now + MINUTE, store.job()
        async with store.connect() as session:
            await declare(session, declaration(store))
            row = await row_of(session)
            claimed = move(row, later, last_tick=now, last_chain_id=job.id, skipped=3)
            strange = msgspec.structs.replace(claimed, fingerprint="second")
            changed = msgspec.structs.replace(claimed, changed="{}")

            assert [await claim(session, one) for one in (strange, changed, claimed, claimed)] == [
                set(), set(), {"nightly"}, set()
            ]  # fmt: skip
            found = await row_of(session)
            await claim(session, move(found, None, skipped=1))
            last = await row_of(session)

        assert (found.next_at, found.last_tick, found.last_chain_id, found.skipped) == (later, now, job.id, 3)
        assert (last.next_at, last.last_tick, last.last_chain_id, last.skipped) == (None, now, job.id, 4)

    async def test_a_claim_that_is_rolled_back_starts_nothing_and_can_be_had_again(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await declare(session, declaration(store))
            claimed = move(await row_of(session), None, last_chain_id=job.id)
            async with session.rolled_back():
                assert await claim(session, claimed) == {"nightly"}
                await session.start(job)

            assert [row.name for row in (await due(session)).rows] == ["nightly"]
            assert not await session.connection.run(session.state.find_jobs([job.id]))

    async def test_of_many_who_claim_at_once_one_starts_the_chain(self, store: Store) -> None:
        async with store.connect() as session:
            await declare(session, *(declaration(store, str(n)) for n in range(5)))

        async def tick() -> int:
            async with store.connect() as session:
                rows = (await find(session)).rows
                jobs = {row.name: store.job() for row in rows if row.next_at is not None}
                moves = [move(row, None, last_chain_id=jobs[row.name].id) for row in rows if row.name in jobs]
                async with session.transaction():
                    names = await claim(session, *moves)
                    if names:
                        await session.start(*(jobs[name] for name in names))
                return len(names)

        claimed = await store.together(*[tick] * 4)
        async with store.connect() as session:
            left = await tick()
            rows = (await find(session)).rows
            stored = await session.connection.run(session.state.find_jobs([row.last_chain_id for row in rows]))  # type: ignore[misc]
            taken = await session.take(limit=100)

        assert sum(claimed) + left == 5
        assert {job.id for job in stored} == {row.last_chain_id for row in rows}
        assert len(taken) == 5

    async def test_the_row_says_whether_its_last_chain_runs(self, store: Store) -> None:
        job = store.job()
        async with store.connect() as session:
            await declare(session, declaration(store))
            before = await row_of(session)
            await session.start(job)
            await claim(session, move(before, store.clock.now, last_chain_id=job.id))
            while_waiting = (await due(session)).rows[0]
            taken = await session.take_one()
            while_running = await row_of(session)
            await session.settle(completing(taken))
            ended = await row_of(session)
            await session.delete(job.id)
            deleted = await row_of(session)

        rows = (before, while_waiting, while_running, ended, deleted)
        assert [row.is_running for row in rows] == [False, True, True, False, False]

    async def test_a_paused_one_is_not_claimed_and_goes_on_where_it_was(self, store: Store) -> None:
        async with store.connect() as session:
            rows = session.state.schedules
            await declare(session, declaration(store))
            row = await row_of(session)

            paused = await session.connection.run(rows.pause("nightly", paused=True))
            store.clock.advance(MINUTE)
            await session.connection.run(rows.pause("nightly", paused=True))
            since = (await row_of(session)).paused_at
            claimed = await claim(session, move(row, None))
            await session.connection.run(rows.pause("nightly", paused=False))

            assert (await due(session)).rows == [row]
            assert not await session.connection.run(rows.pause("nightlyy", paused=True))
        assert (paused, since, claimed) == (True, store.clock.now - MINUTE, set())

    async def test_only_who_has_read_it_changes_it(self, store: Store) -> None:
        later = store.clock.now + MINUTE
        async with store.connect() as session:
            rows = session.state.schedules
            await declare(session, declaration(store))
            row = await row_of(session)
            await claim(session, move(row, later))

            late = await session.connection.run(rows.change(row, changed="{}", next_at=None))
            again = await session.connection.run(rows.change(await row_of(session), changed="{}", next_at=None))
            found = await row_of(session)

        assert (late, again) == (False, True)
        assert (found.changed, found.next_at) == ("{}", None)

    async def test_an_error_is_kept_while_its_tick_is_the_next(self, store: Store) -> None:
        now, later = store.clock.now, store.clock.now + MINUTE
        async with store.connect() as session:
            rows = session.state.schedules
            await declare(session, declaration(store))
            await session.connection.run(rows.fail("nightly", later, "of another tick"))
            before = await row_of(session)
            await session.connection.run(rows.fail("nightly", now, "it broke"))
            failed = await row_of(session)
            await claim(session, move(failed, later))
            after = await row_of(session)

        assert (before.error, failed.error, after.error) == (None, "it broke", None)

    async def test_it_is_refreshed_by_who_declares_it_as_it_is_and_not_too_often(self, store: Store) -> None:
        began = store.clock.now
        async with store.connect() as session:
            await declare(session, declaration(store))

            async def refreshed(fingerprint: str, older_than: float) -> datetime:
                known = [("nightly", fingerprint)]
                await session.connection.run(session.state.schedules.refresh(known, older_than=older_than))
                return (await row_of(session)).declared_at

            store.clock.advance(MINUTE)
            found = [await refreshed("second", 10.0), await refreshed("first", 90.0), await refreshed("first", 10.0)]

        assert found == [began, began, began + MINUTE]

    async def test_one_that_is_forgotten_is_gone(self, store: Store) -> None:
        async with store.connect() as session:
            await declare(session, declaration(store))

            forgotten = [await session.connection.run(session.state.schedules.forget("nightly")) for _ in range(2)]

            assert (await find(session)).rows == []
        assert forgotten == [True, False]


def replaced(said: Declaration, **fields: Any) -> Declaration:
    return msgspec.structs.replace(said, **fields)
