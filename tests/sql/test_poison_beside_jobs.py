"""Rows of schedules, limits, workers and figures written by hand: what one holds stops neither others nor a listing."""

import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import odd_values
from onward import Attempt, Limit, Onward, Rate, Schedule, job
from onward.state.contract import TypeClaim
from onward.worker.admission import Admission
from onward.worker.connections import Reserved
from onward.worker.schedules import StartScheduled

SOON = timedelta(seconds=1)
ROWS = {
    "schedule": "name = 'bad'", "limit_rule": "name = 'bad'", "limit_key": "key = 'bad/k'", "limit_wake": "true",
    "worker": "id = 'ghost'", "figure": "type_name = 'bad'", "figure_turn": "true", "retention": "true",
    "paused_type": "type_name = 'nobody'",
}  # fmt: skip
"""The one that is spoiled of each table."""
CASES = {
    "postgres": [
        ("schedule.superseded", "'{'"), ("schedule.changed", "'{'"), ("schedule.changed", "'{\"every\": \"-PT1S\"}'"),
        ("schedule.definition", "repeat('[', 3000)"), ("schedule.next_at", "'infinity'"),
        ("schedule.next_at", "'4000-01-01 BC'"), ("schedule.declared_at", "'4000-01-01 BC'"),
        ("limit_rule.every", "0"), ("limit_rule.every", "-1"), ("limit_rule.every", "'NaN'"),
        ("limit_rule.every", "1e300"),
        ("limit_rule.burst", "0"), ("limit_rule.declared_at", "'4000-01-01 BC'"), ("limit_key.wake_at", "'infinity'"),
        ("figure.waits", "'{'"), ("figure_turn.counted_to", "'soon'"), ("worker.types", "'[]'"),
        ("retention.held_until", "'infinity'"),
    ],
    "sqlite": [
        ("schedule.superseded", "'{'"), ("schedule.changed", "x'ff'"), ("schedule.changed", "'{\"every\": \"-PT1S\"}'"),
        ("schedule.next_at", "'soon'"), ("schedule.definition", "CAST(x'ff' AS TEXT)"), ("schedule.paused_at", "1.5"),
        ("limit_rule.places", "'soon'"), ("limit_rule.every", "'soon'"), ("limit_rule.every", "-1"),
        ("limit_rule.burst", "0"), ("limit_rule.declared", "CAST(x'ff' AS TEXT)"), ("limit_rule.declared_at", "'soon'"),
        ("limit_key.tat", "'soon'"), ("limit_key.wake_at", "'soon'"), ("limit_wake.key", "CAST(x'ff' AS TEXT)"),
        ("figure.waits", "'{'"), ("figure.started", "'many'"), ("figure_turn.counted_to", "x'ff'"),
        ("figure_turn.loose_from", "'soon'"), ("retention.held_until", "'soon'"), ("retention.walks", "x'ff'"),
        ("worker.id", "x'00'"), ("worker.concurrency", "'many'"), ("paused_type.type_name", "CAST(x'ff' AS TEXT)"),
    ],
}  # fmt: skip


@job("good", limit=Limit(concurrency=5), schedule=Schedule(input=1, every=SOON))
async def good(attempt: Attempt[int]) -> None: ...


@job(
    "bad",
    limit=Limit(concurrency=5, rate=Rate(100, per=SOON), key=lambda _: "k"),
    schedule=Schedule(input=1, every=SOON),
)
async def bad(attempt: Attempt[int]) -> None: ...


class Place:
    """A database, and a hand that writes there."""

    def __init__(self, app: Onward, hand: Callable[[str], Any], *, table: str, now: str) -> None:
        self.app, self._hand, self._table, self._now = app, hand, table, now
        self._limits = [limit for kind in app.registry.values() for limit in kind.limits]
        self.reserved = Reserved(app.driver)

    async def aclose(self) -> None:
        await self.reserved.close()

    def write(self, sql: str) -> Any:
        return self._hand(sql.replace("<", self._table).replace(">", "").replace("NOW", self._now))

    async def make(self) -> None:
        """One row of each kind that will be spoiled, and one that will not."""
        for table in (*ROWS, "job"):
            self.write(f"DELETE FROM <{table}>")
        self.write("INSERT INTO <retention> (whose, held_until, walks) VALUES ('', NOW, '{}')")
        self.write(
            "INSERT INTO <figure_turn> (one, next_at, counted_to, loose_from) "
            "VALUES (true, 0, '00000000-0000-0000-0000-000000000000', 0)"
        )
        await self.tick()
        await self.let_in()
        await self.app.start_many([bad.with_input(1), good.with_input(1)])
        await self.let_in()
        for name in ("ghost", "real"):
            self.write(
                "INSERT INTO <worker> (id, host, pid, onward_version, types, concurrency, started_at, seen_at, "
                f"alive_until, is_stopping) VALUES ('{name}', 'h', 1, '1', '{{}}', 1, NOW, NOW, NOW, false)"
            )
        for name in ("good", "bad"):
            self.write(f"INSERT INTO <figure> (minute, type_name, writer, started) VALUES (29000000, '{name}', 'w', 1)")
        self.write("INSERT INTO <paused_type> VALUES ('nobody', NOW)")
        self.write("INSERT INTO <limit_wake> (key) VALUES ('bad/k')")
        self.write("UPDATE <schedule> SET next_at = NOW WHERE name = 'good'")

    async def tick(self) -> None:
        app: Any = self.app
        await StartScheduled(app.store, app.registry, app._notify, app._schedules).look(self.reserved)

    async def let_in(self) -> None:
        admission = Admission(self.app.store, ["good", "bad"], self._limits)
        await self.reserved.use(partial(admission.before_take, free=10))

    async def goes_on(self) -> None:
        """The schedule and the jobs of the other type, and every listing."""
        before = self.write("SELECT count(*) FROM <job> WHERE type_name = 'good'")[0][0]
        await self.tick()
        assert self.write("SELECT count(*) FROM <job> WHERE type_name = 'good'")[0][0] == before + 1
        await self.let_in()
        state, run = self.app.state, self.reserved.run
        assert await run(state.take(types=[TypeClaim("good", 1, 60.0)], limit=5, worker="w"))
        await run(state.figures.tend())
        assert (await run(state.take_pruning_turn(worker="w", lease=60.0, walks=None))).now
        assert "good" in {one.name for one in await self.app.schedules.list()}
        assert "good" in {one.name for one in await self.app.limits.list()}
        await self.app.limits.keys("good")
        await self.app.limits.keys("bad")
        assert "real" in {one.id for one in await self.app.workers()}
        await self.app.stats()
        await self.app.paused()
        for one in (await self.app.jobs()).items:
            await self.app.explain(one.id)


@contextmanager
def hand_on_postgres(dsn: str) -> Iterator[Callable[[str], Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:

        def write(sql: str) -> Any:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else None

        yield write


@asynccontextmanager
async def place_on(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    jobs = [good, bad]
    if kind == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        async with Onward(dsn, jobs=jobs, schema="beside", migrate=True, observers=[]) as app:
            with hand_on_postgres(dsn) as write:
                async with aclosing(Place(app, write, table="beside.", now="now()")) as place:
                    yield place
    else:
        path = tmp_path / "jobs.db"
        async with Onward(f"sqlite:///{path}", jobs=jobs, observers=[]) as app:
            with closing(sqlite3.connect(path, isolation_level=None)) as hand:
                now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
                write = lambda sql: hand.execute(sql).fetchall()  # noqa: E731
                async with aclosing(Place(app, write, table="onward_", now=now)) as place:
                    yield place


@pytest.mark.parametrize("kind", CASES)
async def test_a_row_that_is_spoiled_stops_nothing_beside_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with place_on(kind, request, tmp_path) as place:
        for column, value in CASES[kind]:
            table, _, name = column.partition(".")
            await place.make()
            place.write(f"UPDATE <{table}> SET {name} = {value} WHERE {ROWS[table]}")

            await place.goes_on()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", CASES)
async def test_nor_does_it_with_any_of_fifty_odd_values_in_any_column(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, scale: Callable[[int], int]
) -> None:
    tried = 0
    async with place_on(kind, request, tmp_path) as place:
        cases = [case for table in ROWS for case in _cases(place, kind, table)]
        for number, (table, column, value) in enumerate(cases):
            if number % max(1, len(cases) // scale(len(cases))):
                continue
            await place.make()
            try:
                place.write(f"UPDATE <{table}> SET {column} = {value} WHERE {ROWS[table]}")
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.OperationalError, sqlite3.IntegrityError):
                continue
            tried += 1
            await place.goes_on()
    assert tried > scale(len(cases)) // 2


def _cases(place: Place, kind: str, table: str) -> Iterator[tuple[str, str, str]]:
    if kind == "sqlite":
        columns = [(row[1], odd_values.ON_SQLITE) for row in place.write(f"PRAGMA table_info(<{table}>)")]
    else:
        found = place.write(
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE table_schema = 'beside' AND table_name = '{table}' AND is_identity = 'NO'"
        )
        columns = [(name, odd_values.ON_POSTGRES[data_type]) for name, data_type in found]
    for column, values in columns:
        yield from itertools.product([table], [column], values)


@pytest.mark.parametrize("kind", CASES)
async def test_what_is_spoiled_is_shown_with_what_it_holds(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with place_on(kind, request, tmp_path) as place:
        await place.make()
        place.write("UPDATE <schedule> SET changed = '{' WHERE name = 'bad'")
        place.write("UPDATE <limit_rule> SET every = -1 WHERE name = 'bad'")

        schedules = {one.name: one.error for one in await place.app.schedules.list()}
        limits = {one.name: (one.concurrency, one.problem) for one in await place.app.limits.list()}

        assert schedules == {"good": None, "bad": "changed holds '{': reset it"}
        assert limits == {"good": (5, None), "bad": (0, "every holds -1.0")}
        await place.app.schedules.reset("bad")
        await place.app.limits.reset("bad")
        assert [one.error for one in await place.app.schedules.list()] == [None, None]
        assert [one.problem for one in await place.app.limits.list()] == [None, None]
