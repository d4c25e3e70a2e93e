"""The databases and drivers under test, and what is looked at after a blow."""

import asyncio
import gc
import inspect
import secrets
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Onward
from onward.client.sync import SyncOnward
from onward.state.driver import run_now
from sweep.taps import UNTAPPED, untapped_sqlite

Image: TypeAlias = tuple[Any, ...]
"""What the tables say, without ids and times."""
POOL = 3
_SOON = 4.0
"""Seconds in which what ends by itself has ended."""
_JOBS = """SELECT type_name, chain_index, status, failures, open_blockers, cancel_requested_at IS NOT NULL,
  failure_reason, chain_ended_at IS NOT NULL, chain_failed, has_dependents, deduplication_key, rank, input, output,
  leased_by IS NOT NULL, attempt FROM {job}"""
_ATTEMPT = -1
_SCHEDULES = """SELECT name, fingerprint, changed, paused_at IS NOT NULL, next_at, last_chain_id IS NOT NULL, skipped,
  error FROM {schedule} ORDER BY 1"""


async def got(value: Any) -> Any:
    """An answer of an async client, or of a sync one."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    """A block of an async client, or of a sync one."""
    if hasattr(block, "__aenter__"):
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


class Room:
    """An app that is open, to be hurt."""

    def __init__(self, bench: "Bench", app: Onward, client: Onward | SyncOnward) -> None:
        self.bench, self.app = bench, app
        self.client: Any = client
        self.is_sync = isinstance(client, SyncOnward)
        driver = client._driver if isinstance(client, SyncOnward) else app.driver
        self.driver: Any = driver

    async def write(self, tx: Any, what: str) -> None:
        """A row of the application's own."""
        sql = f"INSERT INTO {self.bench.ledger} VALUES ({{}})"
        module = type(tx).__module__.partition(".")[0]
        if module == "sqlalchemy":
            await got(tx.execute(sqlalchemy.text(sql.format(":what")), {"what": what}))
        elif module == "asyncpg":
            await tx.execute(sql.format("$1"), what)
        elif module == "psycopg":
            await got(tx.execute(sql.format("%s"), (what,)))
        elif isinstance(tx, sqlite3.Connection):
            tx.execute(sql.format("?"), (what,))
        else:
            await got(tx.execute(sql.format(":what"), what=what))

    async def read(self, tx: Any, what: str | None = None) -> int:
        """How many rows of the application's own there are, or how many of these."""
        sql = f"SELECT count(*) FROM {self.bench.ledger} WHERE what = coalesce({{}}, what)"
        if type(tx).__module__.partition(".")[0] == "sqlalchemy":
            found = await got(tx.execute(sqlalchemy.text(sql.format("CAST(:what AS text)")), {"what": what}))
            return int(found.scalar())
        return int(await got(tx.fetchval(sql.format("CAST(:what AS text)"), what=what)))

    async def lend_all(self) -> None:
        """Every connection of the pool at the same time, each able to do its work."""
        await self._lend(POOL)

    async def _lend(self, left: int) -> None:
        if not left:
            return
        async with self.driver.connection() as connection:
            assert [tuple(row) for row in await connection.fetch("SELECT 1", {})] == [(1,)]
            if self.bench.row_locks:
                await connection.begin()
                await connection.fetch(f"SELECT count(*) FROM {self.bench.job}", {})
            await self._lend(left - 1)
            if self.bench.row_locks:
                await connection.rollback()
        if not self.bench.row_locks:
            async with self.driver.connection() as connection:
                await connection.begin()
                await connection.rollback()


class Bench(ABC):
    """A database and a driver, used for one point after another."""

    dialect: str
    row_locks: bool
    job: str
    ledger: str

    def __init__(self, name: str, *, is_sync: bool = False, engine: str | None = None) -> None:
        self.name, self.is_sync, self._engine = name, is_sync, engine

    # -- apps

    @asynccontextmanager
    async def room(self, *jobs: Any) -> AsyncIterator[Room]:
        """An app of its own for each point, so that whatever it leaves behind is seen when it has closed."""
        async with self.target() as target:
            app = Onward(target, jobs=jobs, observers=[], pool_size=POOL, migrate=False, **self.options())
            client: Any = app.sync if self.is_sync else app
            _hasten(client._driver if self.is_sync else app.driver)
            async with entered(client):
                yield Room(self, app, client)

    @asynccontextmanager
    async def target(self) -> AsyncIterator[Any]:
        if self._engine is None:
            yield self.address
            return
        # No overflow: a connection that does not come back is missed.
        engine = create_async_engine(self._url(self._engine), pool_size=POOL, max_overflow=0, pool_timeout=_SOON)
        try:
            yield engine
        finally:
            await engine.dispose()

    @property
    @abstractmethod
    def address(self) -> str: ...

    @abstractmethod
    def _url(self, library: str) -> str: ...

    @abstractmethod
    def options(self) -> dict[str, Any]: ...

    @abstractmethod
    def native(self, room: Room) -> Any:
        """A transaction of the application's own, on a connection of its own, as `with` or `async with`."""

    # -- looking

    @abstractmethod
    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """A statement of the sweep's own, which commits at once."""

    @abstractmethod
    def troubles(self) -> list[str]:
        """Locks and transactions that are still held."""

    @abstractmethod
    def remains(self) -> list[str]:
        """What an app that was closed has left."""

    @abstractmethod
    def renew(self) -> None:
        """Begin anew after something has hung."""

    @abstractmethod
    def break_locks(self) -> None:
        """Have whatever still holds locks end."""

    def clean(self) -> None:
        """Empty the tables."""
        limits = ("limit_rule", "limit_key", "limit_place", "unserved_type")
        for table in ("job", "blocker", "paused_type", "schedule", "worker", "figure", *limits):
            self.run(f"DELETE FROM {self.table(table)}")
        self.run(f"DELETE FROM {self.ledger}")

    @abstractmethod
    def table(self, name: str) -> str: ...

    def image(self, *, attempts: bool = True) -> Image:
        """What the tables say, twice: a commit that was cut off may go through between two tables."""
        found = self._read(attempts=attempts)
        while (again := self._read(attempts=attempts)) != found:
            found = again
        return found

    def _read(self, *, attempts: bool) -> Image:
        jobs = [tuple(map(_plain, row)) for row in self.run(_JOBS.format(job=self.job))]
        if not attempts:
            jobs = [row[:_ATTEMPT] for row in jobs]
        edges = len(self.run(f"SELECT 1 FROM {self.table('blocker')}"))
        paused = self.run(f"SELECT type_name FROM {self.table('paused_type')} ORDER BY 1")
        schedules = self.run(_SCHEDULES.format(schedule=self.table("schedule")))
        limits = self.run(f"SELECT name, places FROM {self.table('limit_rule')} ORDER BY 1")
        ledger = self.run(f"SELECT what FROM {self.ledger} ORDER BY 1")
        return (
            *sorted(jobs, key=repr),
            ("edges", edges),
            *(("paused", *p) for p in paused),
            *(("schedule", *map(_plain, s)) for s in schedules),
            *(("limit", *limit) for limit in limits),
            *(("ledger", *w) for w in ledger),
        )

    def unfinished(self) -> list[tuple[Any, ...]]:
        """Chains that have not ended, and schedules that are due."""
        now = "now()" if self.dialect == "postgres" else "unixepoch() * 1000000"
        return self.run(
            f"SELECT type_name, status, attempt, leased_by, leased_until, errors FROM {self.job} "
            "WHERE chain_index = 0 AND chain_ended_at IS NULL"
        ) + self.run(f"SELECT name, next_at FROM {self.table('schedule')} WHERE next_at <= {now}")

    def running(self) -> list[tuple[Any, ...]]:
        return self.run(f"SELECT id FROM {self.job} WHERE status = 'running'")

    def lose(self, job_id: Any) -> None:
        """A worker that has died was running this job."""
        then = "now() - interval '1 minute'" if self.dialect == "postgres" else "1"
        self.run(
            f"UPDATE {self.job} SET status = 'running', attempt = 1, leased_by = 'dead', leased_until = {then} "
            f"WHERE id = '{job_id}'"
        )

    async def wait_until(self, condition: Callable[[], bool], *, within: float) -> bool:
        """Ask until it is so; whether it has come to that."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True


async def soon_nothing(look: Callable[[], list[str]], *, is_sync: bool) -> list[str]:
    """What is still there after a while in which what ends by itself has ended."""
    deadline = time.monotonic() + _SOON
    while (found := look()) and time.monotonic() < deadline:
        if is_sync:
            time.sleep(0.005)  # noqa: ASYNC251 - there is no loop to keep running
        else:
            await asyncio.sleep(0.005)
    return found


def at_once(look: Callable[[], list[str]]) -> list[str]:
    """The same where no loop runs; what only waits to be collected is none of ours."""
    if look():
        gc.collect()
    return run_now(soon_nothing(look, is_sync=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        return repr(value)
    return int(value) if isinstance(value, bool) else value


def _hasten(driver: Any) -> None:
    """Waits between tries, a twentieth as long."""
    sleep = driver.sleep

    def short(seconds: float) -> Awaitable[None]:
        found: Awaitable[None] = sleep(seconds / 20)
        return found

    driver.sleep = short


class PostgresBench(Bench):
    """A schema of a Postgres database."""

    dialect = "postgres"
    row_locks = True

    def __init__(self, name: str, dsn: str, library: str = "asyncpg", **options: Any) -> None:
        super().__init__(name, **options)
        self.dsn, self._library = dsn, library
        self.schema = f"sweep_{secrets.token_hex(4)}"
        self.job, self.ledger = f'"{self.schema}".job', f'"{self.schema}".ledger'
        self._admin = psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=2s", application_name="sweep")
        UNTAPPED.add(self._admin)
        driven_alone(self._prepare())

    async def _prepare(self) -> None:
        async with Onward(self.dsn, jobs=[], schema=self.schema, migrate=True):
            pass
        self.run(f"CREATE TABLE {self.ledger} (what text)")

    @property
    def address(self) -> str:
        return self.dsn.replace("postgresql://", f"postgresql+{self._library}://", 1)

    def _url(self, library: str) -> str:
        return self.dsn.replace("postgresql://", f"postgresql+{library}://", 1)

    def options(self) -> dict[str, Any]:
        return {"schema": self.schema}

    def table(self, name: str) -> str:
        return f'"{self.schema}".{name}'

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._admin.execute(sql.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def native(self, room: Room) -> AsyncIterator[Any]:
        if self.is_sync:
            raw = psycopg.connect(self.dsn, application_name="theirs")
            try:
                with raw:
                    yield raw
            finally:
                raw.close()
            return
        if self._library == "psycopg":
            native: Any = await psycopg.AsyncConnection.connect(self.dsn, application_name="theirs")
            block, close = native, lambda: native.pgconn.finish()
        else:
            native = await asyncpg.connect(self.dsn, server_settings={"application_name": "theirs"})
            block, close = native.transaction(), native.terminate
        try:
            async with block:
                yield native
        finally:
            close()

    def troubles(self) -> list[str]:
        open_ones = (
            "SELECT application_name, state, left(query, 60) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND (state LIKE 'idle in transaction%' OR state = 'active')"
        )
        advisory = (
            "SELECT l.pid, left(a.query, 60) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = "
            "'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return [f"still open: {r}" for r in self.run(open_ones)] + [f"lock: {r}" for r in self.run(advisory)]

    def remains(self) -> list[str]:
        sql = (
            "SELECT application_name, state, left(query, 60) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return [f"connection left after close: {row}" for row in self.run(sql)]

    def break_locks(self) -> None:
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
        at_once(self.remains)

    def renew(self) -> None:
        self.break_locks()

    def close(self) -> None:
        self.break_locks()
        self.run(f'DROP SCHEMA "{self.schema}" CASCADE')
        UNTAPPED.discard(self._admin)
        self._admin.close()


class SqliteBench(Bench):
    """A file."""

    dialect = "sqlite"
    row_locks = False

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        super().__init__(name, **options)
        self._folder = folder
        self.job, self.ledger = "onward_job", "ledger"
        self.renew()

    def renew(self) -> None:
        """Another file: whoever hangs may still hold this one."""
        self._known = _threads()
        self.path = self._folder / f"{secrets.token_hex(4)}.db"
        driven_alone(self._prepare())
        self._admin = untapped_sqlite(self.path)
        self.run("CREATE TABLE ledger (what text)")

    async def _prepare(self) -> None:
        async with Onward(f"sqlite:///{self.path}", jobs=[]):
            pass

    @property
    def address(self) -> str:
        return f"sqlite:///{self.path}"

    def _url(self, library: str) -> str:
        return f"sqlite+{library}:///{self.path}"

    def options(self) -> dict[str, Any]:
        return {}

    def table(self, name: str) -> str:
        return f"onward_{name}"

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._admin.execute(sql, parameters).fetchall()

    @contextmanager
    def native(self, room: Room) -> Iterator[Any]:
        raw = sqlite3.connect(self.path, timeout=2.0, isolation_level=None)
        try:
            raw.execute("BEGIN IMMEDIATE")
            try:
                yield raw
            except BaseException:
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
                raise
            raw.execute("COMMIT")
        finally:
            raw.close()

    def troubles(self) -> list[str]:
        try:
            self.run("PRAGMA busy_timeout = 10")
            self.run("BEGIN IMMEDIATE")
            self.run("ROLLBACK")
            self.run("PRAGMA busy_timeout = 2000")
        except sqlite3.OperationalError as error:
            return [f"the write lock is still held: {error}"]
        return []

    def remains(self) -> list[str]:
        return [f"thread left after close: {one.name}" for one in _threads() if one not in self._known]

    def break_locks(self) -> None:
        self._known = _threads()
        with suppress(sqlite3.Error):
            self._admin.close()
        self._admin = untapped_sqlite(self.path)
        if self.troubles():
            self.renew()  # nobody can be made to let go

    def close(self) -> None:
        self._admin.close()


def driven_alone(work: Any) -> None:
    """In a thread without a loop of its own: wherever this is called."""
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    thread.join()


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("onward")]


def make_bench(name: str, *, dsn: Callable[[], str], folder: Path) -> Any:
    """By name: `asyncpg`, `psycopg`, `psycopg-sync`, `sqlite`, `sqlite-sync`, `sqlalchemy-…`."""
    if name in ("sqlite", "sqlite-sync"):
        return SqliteBench(name, folder, is_sync=name.endswith("-sync"))
    if name == "sqlalchemy-aiosqlite":
        return SqliteBench(name, folder, engine="aiosqlite")
    if name.startswith("sqlalchemy-"):
        return PostgresBench(name, dsn(), engine=name.removeprefix("sqlalchemy-"))
    return PostgresBench(name, dsn(), name.removesuffix("-sync"), is_sync=name.endswith("-sync"))


def database_of(dsn: str) -> str:
    return urlsplit(dsn).path.lstrip("/")
