"""A method of the state contract asks Postgres once, whatever it is given."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onward.model import new_id
from onward.state.contract import NewJob, Settlement, TypeClaim
from onward.state.postgres.adapter import PostgresState
from onward.state.postgres.asyncpg import AsyncpgConnection, AsyncpgDriver

STATE = PostgresState(schema="round_trips")


class Counted(AsyncpgConnection):
    """Counts what it sends."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw, prepared=True)
        self.sent: list[str] = []

    async def fetch(self, sql: str, parameters: Any) -> Any:
        self.sent.append(sql)
        return await super().fetch(sql, parameters)

    async def script(self, sql: str) -> None:
        self.sent.append(sql)
        await super().script(sql)

    async def begin(self) -> None:
        self.sent.append("BEGIN")
        await super().begin()


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Counted]:
    driver = AsyncpgDriver(postgres_dsn)
    async with driver.reserved() as plain:
        await STATE.migrate(plain)
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
    await STATE.start(connection, [blocker, job])
    if blocker_fails:
        await STATE.cancel(connection, [blocker.id])
    await STATE.start(connection, [new_job("dependent", blockers=(job.id,))])
    (taken,) = await STATE.take(connection, types=[TypeClaim("work", 1, 60.0)], limit=1, worker="w")
    step = new_job("next", chain_id=job.id, chain_index=1, origin_id=job.id, root_id=job.id, blockers=(blocker.id,))
    connection.sent.clear()

    changes = await STATE.settle(
        connection,
        [Settlement(job_id=job.id, attempt=taken.attempt, holder="w", kind="continue", completed_by="w", next=(step,))],
    )

    assert len(connection.sent) == 1
    assert [change.kind for change in changes] == (["settled", "failed", "failed"] if blocker_fails else ["settled"])
