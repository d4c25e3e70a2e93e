"""The few things the child does to the database, through each client library; statements come spelled."""

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypedDict
from uuid import UUID

from onward.transport import cut_off, has_news, watch


class Statement(TypedDict):
    """SQL as the client wants it, and its parameters in order."""

    sql: str
    names: list[str]


class Statements(TypedDict):
    """What the child runs."""

    renew: list[Statement]
    expire: Statement
    time_out: Statement
    give_back: Statement
    hint: Statement | None
    """Sends `hint_parameters` when its transaction commits."""
    hint_parameters: dict[str, Any]


class Held(NamedTuple):
    """A lease to renew."""

    job_id: UUID
    attempt: int
    seconds: float


class Answer(NamedTuple):
    """What became of a lease; None: it is renewed, or about to be settled."""

    job_id: UUID
    attempt: int
    lost: str | None


class Overdue(NamedTuple):
    """A lease to let go of, and why, as it is kept among the job's errors."""

    job_id: UUID
    attempt: int
    error: str


class Client(Protocol):
    """A connection that is made when needed."""

    waits_for_writers: bool
    """Whether it may have to wait for others, however long they write: that is no trouble."""

    async def connect(self) -> None:
        """Harmless when there is a connection."""
        ...

    def writing(self, waits: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """A transaction, if there is one lock for all; `waits` is called again and again while others have it."""
        ...

    async def renew(self, worker: str, held: Sequence[Held]) -> list[Answer]: ...

    async def expire(self, worker: str) -> tuple[int, int]:
        """Let all leases of the worker run out and say so to other workers; how many did, and how many are locked."""
        ...

    async def time_out(self, worker: str, overdue: Sequence[Overdue]) -> set[UUID]:
        """Let go of attempts and keep why; those that were not locked."""
        ...

    async def give_back(self, worker: str) -> tuple[int, int]:
        """Let the worker's jobs be taken again and say so; how many were, and how many are locked."""
        ...

    def cut_off(self) -> None:
        """End the wait for an answer, if there is one, with an error."""
        ...

    def drop(self) -> None:
        """The connection may be broken: make another one next time."""
        ...


def client_for(name: str, options: dict[str, Any], statements: Statements) -> Client:
    """The client that the worker uses too."""
    if name == "sqlite3":
        return SqliteClient(options, statements)
    return (AsyncpgClient if name == "asyncpg" else PsycopgClient)(options, statements)


class AsyncpgClient:
    """Through asyncpg."""

    waits_for_writers = False

    def __init__(self, options: dict[str, Any], statements: Statements) -> None:
        self._options, self._statements = options, statements
        self._connection: Any = None

    async def connect(self) -> None:
        import asyncpg  # pyright: ignore[reportMissingTypeStubs]

        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(**self._options)
            watch(self._connection._transport.get_extra_info("socket"))

    async def renew(self, worker: str, held: Sequence[Held]) -> list[Answer]:
        return _answers(await self._fetch(self._statements["renew"][0], _columns(worker, held)))

    def writing(self, waits: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def expire(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["expire"], {"worker": worker, "now": None})

    async def give_back(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["give_back"], {"worker": worker})

    async def _release(self, statement: Statement, parameters: dict[str, Any]) -> tuple[int, int]:
        async with self._connection.transaction():
            rows = await self._fetch(statement, parameters)
            await self._hint(rows[0][0])
        return rows[0][0], rows[0][1] - rows[0][0]

    async def time_out(self, worker: str, overdue: Sequence[Overdue]) -> set[UUID]:
        async with self._connection.transaction():
            rows = await self._fetch(self._statements["time_out"], _overdue_columns(worker, overdue))
            await self._hint(len(rows))
        return {row[0] for row in rows}

    async def _hint(self, released: int) -> None:
        if released and self._statements["hint"]:
            await self._fetch(self._statements["hint"], self._statements["hint_parameters"])

    async def _fetch(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        return await self._connection.fetch(statement["sql"], *[parameters[name] for name in statement["names"]])

    def cut_off(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    def drop(self) -> None:
        self.cut_off()
        self._connection = None


class PsycopgClient:
    """Through psycopg 3."""

    waits_for_writers = False

    def __init__(self, options: dict[str, Any], statements: Statements) -> None:
        self._options, self._statements = options, statements
        self._connection: Any = None

    async def connect(self) -> None:
        import psycopg

        if self._connection is None or self._connection.closed or has_news(self._connection.fileno()):
            self.drop()
            self._connection = await psycopg.AsyncConnection.connect(**self._options)
            watch(self._connection.fileno())

    async def renew(self, worker: str, held: Sequence[Held]) -> list[Answer]:
        return _answers(await self._fetch(self._statements["renew"][0], _columns(worker, held)))

    def writing(self, waits: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def expire(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["expire"], {"worker": worker, "now": None})

    async def give_back(self, worker: str) -> tuple[int, int]:
        return await self._release(self._statements["give_back"], {"worker": worker})

    async def _release(self, statement: Statement, parameters: dict[str, Any]) -> tuple[int, int]:
        async with self._connection.transaction():
            rows = await self._fetch(statement, parameters)
            await self._hint(rows[0][0])
        return rows[0][0], rows[0][1] - rows[0][0]

    async def time_out(self, worker: str, overdue: Sequence[Overdue]) -> set[UUID]:
        async with self._connection.transaction():
            rows = await self._fetch(self._statements["time_out"], _overdue_columns(worker, overdue))
            await self._hint(len(rows))
        return {row[0] for row in rows}

    async def _hint(self, released: int) -> None:
        if released and self._statements["hint"]:
            await self._fetch(self._statements["hint"], self._statements["hint_parameters"])

    async def _fetch(self, statement: Statement, parameters: dict[str, Any]) -> Any:
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


class SqliteClient:
    """Through the standard library. Others may be writing: it tries again until they are done, as Onward does."""

    waits_for_writers = True

    def __init__(self, options: dict[str, Any], statements: Statements) -> None:
        self._path, self._pragmas, self._statements = options["path"], options["pragmas"], statements
        self._connection: sqlite3.Connection | None = None

    async def connect(self) -> None:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            for pragma in self._pragmas:
                await self._patiently(pragma)

    async def renew(self, worker: str, held: Sequence[Held]) -> list[Answer]:
        rows = [(str(h.job_id), h.attempt, round(h.seconds * 1_000_000)) for h in held]
        found = self._run(self._statements["renew"], {"worker": worker, "held": json.dumps(rows)})
        return [Answer(UUID(job_id), attempt, lost) for job_id, attempt, lost in found]

    async def expire(self, worker: str) -> tuple[int, int]:
        # Other processes see it by the change counter.
        async with self.writing():
            return len(self._run([self._statements["expire"]], {"worker": worker})), 0

    async def give_back(self, worker: str) -> tuple[int, int]:
        async with self.writing():
            return len(self._run([self._statements["give_back"]], {"worker": worker})), 0

    async def time_out(self, worker: str, overdue: Sequence[Overdue]) -> set[UUID]:
        rows = json.dumps([(str(o.job_id), o.attempt, o.error) for o in overdue])
        async with self.writing():
            return {
                UUID(row[0]) for row in self._run([self._statements["time_out"]], {"worker": worker, "overdue": rows})
            }

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

    def _run(self, statements: list[Statement], parameters: dict[str, Any]) -> list[Any]:
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


def _columns(worker: str, held: Sequence[Held]) -> dict[str, Any]:
    return {
        "ids": [h.job_id for h in held],
        "attempts": [h.attempt for h in held],
        "leases": [h.seconds for h in held],
        "worker": worker,
        "now": None,
    }


def _overdue_columns(worker: str, overdue: Sequence[Overdue]) -> dict[str, Any]:
    return {
        "ids": [o.job_id for o in overdue],
        "attempts": [o.attempt for o in overdue],
        "errors": [o.error for o in overdue],
        "worker": worker,
    }


def _answers(rows: Any) -> list[Answer]:
    return [Answer(row[0], row[1], None if row[2] in ("renewed", "locked") else row[2]) for row in rows]
