"""Starting many chains that need a look takes as long per chain as starting a few."""

import time
from collections.abc import AsyncIterator

import pytest

from onward.model import new_ids
from onward.state.contract import NewJob
from onward.state.driver import Connection
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.asyncpg import AsyncpgDriver

STATE = PostgresState(schema="growth")
FEW, TIMES = 1_000, 16


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Connection]:
    async with AsyncpgDriver(postgres_dsn).reserved() as connection:
        await connection.run(STATE.migrate())
        yield connection
        await connection.script("DROP SCHEMA growth CASCADE")


def with_ids_of_the_callers(count: int) -> list[NewJob]:
    return [job(id, id_is_callers=True) for id in new_ids(count)]


def one_behind_many(count: int) -> list[NewJob]:
    first, *others = new_ids(count)
    return [job(first, blockers=tuple(others)), *[job(id, parent=0) for id in others]]


def many_behind_one_each(count: int) -> list[NewJob]:
    ids = new_ids(count)
    pairs = [(job(id, blockers=(ids[n + 1],)), job(ids[n + 1], parent=n)) for n, id in enumerate(ids) if n % 2 == 0]
    return [job for pair in pairs for job in pair]


def job(id, **fields) -> NewJob:  # type: ignore[no-untyped-def]
    return NewJob(id=id, chain_id=id, type_name="work", payload_version=1, input="1", root_id=id, **fields)


@pytest.mark.parametrize("make", [with_ids_of_the_callers, one_behind_many, many_behind_one_each])
async def test_sixteen_times_as_many_take_about_sixteen_times_as_long(connection: Connection, make) -> None:  # type: ignore[no-untyped-def]
    async def took(count: int) -> float:
        jobs = make(count)
        began = time.perf_counter()
        await connection.run(STATE.start(jobs))
        return time.perf_counter() - began

    few = sorted([await took(FEW) for _ in range(3)])[1]

    # What grows with the square would take sixteen times as long as this; the rest is for a busy machine.
    assert await took(FEW * TIMES) < few * TIMES * 5
