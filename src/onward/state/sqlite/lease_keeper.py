"""Keeps leases in a SQLite file, through the standard library; imported without the rest of Onward."""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from onward.state.lease_keeper import HeldLease, KeeperStatements, OverdueLease, RenewedLease, SpelledStatement


class SqliteLeaseKeeper:
    """Keeps the promises of `LeaseKeeper`. Others may be writing: it tries again until they are done."""

    waits_for_writers = True

    def __init__(self, options: dict[str, Any], statements: KeeperStatements) -> None:
        self._path, self._pragmas, self._statements = options["path"], options["pragmas"], statements
        self._connection: sqlite3.Connection | None = None

    async def connect(self) -> None:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            for pragma in self._pragmas:
                await self._patiently(pragma)

    async def renew(self, worker: str, held: Sequence[HeldLease]) -> list[RenewedLease]:
        rows = [(str(h.job_id), h.attempt, round(h.seconds * 1_000_000)) for h in held]
        found = self._run(self._statements["renew"], {"worker": worker, "held": json.dumps(rows)})
        return [RenewedLease(UUID(job_id), attempt, lost) for job_id, attempt, lost in found]

    async def expire(self, worker: str) -> tuple[int, int]:
        # Other processes see it by the change counter.
        async with self.writing():
            return len(self._run([self._statements["expire"]], {"worker": worker})), 0

    async def give_back(self, worker: str) -> tuple[int, int]:
        async with self.writing():
            return len(self._run([self._statements["give_back"]], {"worker": worker})), 0

    async def time_out(self, worker: str, overdue: Sequence[OverdueLease]) -> set[UUID]:
        rows = json.dumps([(str(o.job_id), o.attempt, o.error) for o in overdue])
        async with self.writing():
            return {
                UUID(row[0]) for row in self._run([self._statements["time_out"]], {"worker": worker, "overdue": rows})
            }

    async def sign(self, said: dict[str, Any], waits: Callable[[], None]) -> None:
        async with self.writing(waits):
            self._run(self._statements["sign"], {**self._statements["sign_parameters"], **said})

    async def bury(self, worker: str) -> None:
        async with self.writing():
            self._run([self._statements["bury"]], {"worker": worker})

    @asynccontextmanager
    async def writing(self, waits: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        await self._patiently("BEGIN IMMEDIATE", waits)
        assert self._connection is not None
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _run(self, statements: list[SpelledStatement], parameters: dict[str, Any]) -> list[Any]:
        """The rows of the last statement."""
        assert self._connection is not None
        given = {**parameters, "now": time.time_ns() // 1000}
        return [self._connection.execute(statement["sql"], given).fetchall() for statement in statements][-1]

    async def _patiently(self, sql: str, waits: Callable[[], None] = lambda: None) -> None:
        assert self._connection is not None
        while True:
            try:
                self._connection.execute(sql).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
            else:
                return
            waits()
            await asyncio.sleep(random.uniform(0.00025, 0.00075))

    def cut_off(self) -> None:
        """Nothing: a file answers, or is waited for in a way that can be cancelled."""

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
