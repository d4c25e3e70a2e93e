"""A method of the state contract asks Postgres once, whatever it is given."""

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from onward.model import new_id
from onward.state.contract import NewJob, Settlement, TypeClaim
from onward.state.driver import Fault
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.asyncpg import AsyncpgConnection, AsyncpgDriver

STATE = PostgresState(schema="round_trips")


class Counted(AsyncpgConnection):
    """Counts what it sends."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw, prepared=True)
        self.sent: list[str] = []
        self._raw = Heard(self._raw, self.sent)

    async def fetch(self, sql: str, parameters: Any) -> Any:
        self.sent.append(sql)
        return await super().fetch(sql, parameters)

    async def begin(self) -> None:
        self.sent.append("BEGIN")
        await super().begin()


class Heard:
    """A connection of asyncpg's: notes the messages without parameters that it sends."""

    def __init__(self, raw: Any, sent: list[str]) -> None:
        self._raw, self._sent = raw, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def execute(self, sql: str) -> Any:
        if not sql.startswith(("BEGIN", "PREPARE")) or ";" in sql:
            self._sent.append(re.sub(r"EXECUTE \w+\(.*\)", "EXECUTE", sql))
        return await self._raw.execute(sql)


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Counted]:
    driver = AsyncpgDriver(postgres_dsn)
    async with driver.reserved() as plain:
        await plain.run(STATE.migrate())
        yield Counted(plain.raw)


def new_job(type_name: str, **options: Any) -> NewJob:
    id = new_id()
    return NewJob(**{
        "id": id, "chain_id": id, "chain_index": 0, "type_name": type_name, "payload_version": 1, "input": "1",
        "root_id": id, **options,
    })  # fmt: skip


@pytest.mark.parametrize("blocker_fails", [False, True])
async def test_a_continuation_with_blockers_is_settled_in_one_round_trip(
    connection: Counted, blocker_fails: bool
) -> None:
    blocker, job = new_job("fetch"), new_job("work")
    await connection.run(STATE.start([blocker, job]))
    if blocker_fails:
        await connection.run(STATE.cancel([blocker.id]))
    await connection.run(STATE.start([new_job("dependent", blockers=(job.id,))]))
    (taken,) = await connection.run(STATE.take(types=[TypeClaim("work", 1, 60.0)], limit=1, worker="w"))
    step = new_job("next", chain_id=job.id, chain_index=1, origin_id=job.id, root_id=job.id, blockers=(blocker.id,))
    connection.sent.clear()

    settlement = Settlement(
        job_id=job.id, attempt=taken.attempt, holder="w", kind="continue", completed_by="w", next=(step,)
    )
    changes = await connection.run(STATE.settle([settlement]))

    assert len(connection.sent) == 1
    assert [change.kind for change in changes] == (["settled", "failed", "failed"] if blocker_fails else ["settled"])


@pytest.mark.parametrize("continues", [False, True])
async def test_a_commit_settles_an_attempt_as_a_settlement_would(connection: Counted, continues: bool) -> None:
    jobs = [new_job(f"either {continues}") for _ in range(2)]
    await connection.run(STATE.start(jobs))
    taken = await connection.run(STATE.take(types=[TypeClaim(f"either {continues}", 1, 60.0)], limit=2, worker="w"))
    settlements = [settlement_for(job, continues=continues) for job in taken]
    hold = STATE.hold_attempt(job_id=taken[1].id, attempt=taken[1].attempt, holder="w")

    await connection.run(STATE.settle(settlements[:1]))
    connection.sent.clear()
    assert await connection.run(hold, begin=True)
    await connection.run(STATE.settle(settlements[1:], held=taken[1]), commit=True)

    assert connection.sent == ["BEGIN;EXECUTE", "EXECUTE;COMMIT"]
    one, other = [await comparable(connection, job.id) for job in jobs]
    assert one == other


async def comparable(connection: Counted, chain_id: Any) -> list[dict[str, Any]]:
    """The jobs of a chain, without what tells it from others."""
    rows = await connection.fetch(
        "SELECT * FROM round_trips.job WHERE id = :id::uuid OR chain_id = :id::uuid ORDER BY chain_index",
        {"id": chain_id},
    )
    times = {"created_at", "scheduled_at", "ended_at", "chain_ended_at"}
    ids = {"id", "chain_id", "root_id", "origin_id"}
    return [
        {name: value is None if name in times | ids else value for name, value in dict(row).items()}  # type: ignore[call-overload]
        for row in rows
    ]


def settlement_for(job: Any, *, continues: bool) -> Settlement:
    fence: dict[str, Any] = {"job_id": job.id, "attempt": job.attempt, "holder": "w", "completed_by": "w"}
    if not continues:
        return Settlement(**fence, kind="complete", output='{"it\'s": "\\\\"}')
    step = new_job("step", chain_id=job.id, chain_index=1, origin_id=job.id, root_id=job.id, priority=3, delay=5.0)
    return Settlement(**fence, kind="continue", next=(step,))


async def test_what_somebody_waits_for_is_not_settled_by_the_commit(connection: Counted) -> None:
    job = new_job("awaited")
    await connection.run(STATE.start([job]))
    await connection.run(STATE.start([new_job("dependent", blockers=(job.id,))]))
    (taken,) = await connection.run(STATE.take(types=[TypeClaim("awaited", 1, 60.0)], limit=1, worker="w"))
    hold = STATE.hold_attempt(job_id=job.id, attempt=taken.attempt, holder="w")

    assert not await connection.run(hold, begin=True)

    await connection.rollback()


async def test_an_attempt_that_is_no_longer_held_cannot_commit(connection: Counted, postgres_dsn: str) -> None:
    job = new_job("stale")
    await connection.run(STATE.start([job]))
    (taken,) = await connection.run(STATE.take(types=[TypeClaim("stale", 1, 60.0)], limit=1, worker="w"))
    end = STATE.settle([settlement_for(taken, continues=False)], held=taken)
    await connection.run(STATE.settle([settlement_for(taken, continues=False)]))

    await connection.begin()
    with pytest.raises(asyncpg.PostgresError) as refused:
        await connection.run(end, commit=True)
    await connection.rollback()

    assert AsyncpgDriver(postgres_dsn).fault(refused.value) is Fault.STALE
