"""Not a library: jobs with a user's write, on the bare driver; the limit for `ONWARD_WORK=write`.

Claims in batches of 100 on the table of `bare-pg`. Then, per job, on one of ten connections: BEGIN, the user's update,
the job's own row, COMMIT.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import bare  # type: ignore[import-not-found]
import benchlib as B  # type: ignore[import-not-found]  # noqa: N812 - the harness calls it so
import uvloop

DB = "bench_bare_write"
CONNECTIONS, BATCH, ROWS = 10, 100, 50_000
ACCOUNTS = Path(__file__).with_name("account.sql")


class Peer:
    name, backend, db, uvloop = "bare-write", "postgres", DB, True
    packages = ("asyncpg", "uvloop")
    drain_n = 20_000
    settings = f"asyncpg, uvloop, claim of {BATCH}, then one transaction per job on {CONNECTIONS} connections"
    semantics = "at-least-once, 30 s lease; the user's write and the completion are one commit per job; rows kept"
    settle_sql = "select count(*) from jobs where status <> 'done'"

    async def reset(self) -> None:
        B.pg_fresh(DB)
        B.psql(bare.DDL + ACCOUNTS.read_text(), DB)

    async def open(self) -> None:
        self.connection = await asyncpg.connect(B.pg_dsn(DB))

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, n: int) -> None:
        await self.enqueue_many([n])

    async def enqueue_many(self, ns: list[int]) -> None:
        await self.connection.execute(
            "insert into jobs (id, type, input) select id, 'write', input "
            "from unnest($1::uuid[], $2::jsonb[]) as new(id, input)",
            [bare.uuid7() for _ in ns],
            [json.dumps({"n": n}) for n in ns],
        )

    def worker(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        claimed: asyncio.Queue[Any] = asyncio.Queue(maxsize=BATCH)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claim(claimed))
            for _ in range(CONNECTIONS):
                tasks.create_task(self._write(claimed))

    async def _claim(self, claimed: "asyncio.Queue[Any]") -> None:
        """Claims the next batch while the last one is being worked off."""
        claim = await (await asyncpg.connect(B.pg_dsn(DB))).prepare(bare.CLAIMN)
        while True:
            rows = await claim.fetch("w", BATCH)
            for row in rows:
                await claimed.put(row)
            if not rows:
                await asyncio.sleep(0.01)

    async def _write(self, claimed: "asyncio.Queue[Any]") -> None:
        connection = await asyncpg.connect(B.pg_dsn(DB))
        update = await connection.prepare("update account set visits = visits + 1 where id = $1")
        done = await connection.prepare(bare.DONE1)
        while True:
            row = await claimed.get()
            number = json.loads(row["input"])["n"]
            B.hit(number)
            async with connection.transaction():
                await update.fetch(number % ROWS)
                await done.fetch(row["id"], "w", "null")


if __name__ == "__main__":
    B.main(Peer())
