"""Keeps leases on Postgres, through asyncpg or psycopg; imported without the rest of Onward."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol
from uuid import UUID

from onward.state.lease_keeper import HeldLease, KeeperStatements, OverdueLease, RenewedLease, SpelledStatement
from onward.transport import cut_off, has_news, watch


class Client(Protocol):
    """A connection through one client library."""

    async def connect(self) -> None: ...

    def transaction(self) -> AbstractAsyncContextManager[Any]: ...

    async def fetch(self, statement: SpelledStatement, parameters: dict[str, Any]) -> Any:
        """The rows."""
        ...

    def cut_off(self) -> None: ...

    def drop(self) -> None: ...


class PostgresLeaseKeeper:
    """Keeps the promises of `LeaseKeeper`."""

    waits_for_writers = False

    def __init__(self, client: Client, statements: KeeperStatements) -> None:
        self._client, self._statements = client, statements
        self.connect, self.cut_off, self.drop = client.connect, client.cut_off, client.drop

    def writing(self, waits: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def renew(self, worker: str, held: Sequence[HeldLease]) -> list[RenewedLease]:
        parameters = {
            "ids": [lease.job_id for lease in held],
            "attempts": [lease.attempt for lease in held],
            "leases": [lease.seconds for lease in held],
            "worker": worker,
            "now": None,
        }
        rows = await self._client.fetch(self._statements["renew"][0], parameters)
        return [RenewedLease(row[0], row[1], None if row[2] in ("renewed", "locked") else row[2]) for row in rows]

    async def expire(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["expire"], {"worker": worker, "now": None})

    async def give_back(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["give_back"], {"worker": worker})

    async def _release(self, statement: SpelledStatement, parameters: dict[str, Any]) -> tuple[int, int]:
        async with self._client.transaction():
            rows = await self._client.fetch(statement, parameters)
            await self._hint(rows[0][0])
        return rows[0][0], rows[0][1] - rows[0][0]

    async def time_out(self, worker: str, overdue: Sequence[OverdueLease]) -> set[UUID]:
        parameters = {
            "ids": [lease.job_id for lease in overdue],
            "attempts": [lease.attempt for lease in overdue],
            "errors": [lease.error for lease in overdue],
            "worker": worker,
        }
        async with self._client.transaction():
            rows = await self._client.fetch(self._statements["time_out"], parameters)
            await self._hint(len(rows))
        return {row[0] for row in rows}

    async def sign(self, said: dict[str, Any], waits: Callable[[], None]) -> None:
        await self._client.fetch(self._statements["sign"][0], {**self._statements["sign_parameters"], **said})

    async def bury(self, worker: str) -> None:
        await self._client.fetch(self._statements["bury"], {"worker": worker, "now": None})

    async def _hint(self, released: int) -> None:
        if released and self._statements["hint"]:
            await self._client.fetch(self._statements["hint"], self._statements["hint_parameters"])


class AsyncpgClient:
    """Through asyncpg."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._connection: Any = None

    async def connect(self) -> None:
        import asyncpg  # pyright: ignore[reportMissingTypeStubs]

        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(**self._options)
            watch(self._connection._transport.get_extra_info("socket"))

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction

    async def fetch(self, statement: SpelledStatement, parameters: dict[str, Any]) -> Any:
        return await self._connection.fetch(statement["sql"], *[parameters[name] for name in statement["names"]])

    def cut_off(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    def drop(self) -> None:
        self.cut_off()
        self._connection = None


class PsycopgClient:
    """Through psycopg 3."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._connection: Any = None

    async def connect(self) -> None:
        import psycopg

        if self._connection is None or self._connection.closed or has_news(self._connection.fileno()):
            self.drop()
            self._connection = await psycopg.AsyncConnection.connect(**self._options)
            watch(self._connection.fileno())

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction

    async def fetch(self, statement: SpelledStatement, parameters: dict[str, Any]) -> Any:
        cursor = await self._connection.execute(statement["sql"], parameters)
        return await cursor.fetchall()

    def cut_off(self) -> None:
        # Cancelling instead would ask the server, and wait for its answer on the connection that has none.
        if self._connection is not None and not self._connection.closed:
            cut_off(self._connection.fileno())

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()
