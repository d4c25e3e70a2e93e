"""What each client library makes of the database's troubles, in one word: the same word."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

import servers
from onward.state.command import Command
from onward.state.driver import Connection, Driver, Fault, run_now
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver, SyncPsycopgDriver
from onward.state.sqlalchemy import SqlAlchemyDriver, SyncSqlAlchemyDriver

KINDS = ["asyncpg", "psycopg", "psycopg sync", "sqlalchemy asyncpg", "sqlalchemy psycopg", "sqlalchemy psycopg sync"]
SETUP = """
CREATE TABLE IF NOT EXISTS slow_to_commit (n int);
CREATE OR REPLACE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS is_slow ON slow_to_commit;
CREATE CONSTRAINT TRIGGER is_slow AFTER INSERT ON slow_to_commit DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION be_slow();
CREATE OR REPLACE FUNCTION fail_with(code text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = code; END $$;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Instance]:
    """One that may be stopped, and that asks some for a password."""
    with servers.private_postgres() as instance:
        rules = instance.log.parent / "data" / "pg_hba.conf"
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        with psycopg.connect(instance.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            admin.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
            admin.execute(SETUP)
        yield instance


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


Make = Callable[[str], Driver]


@pytest.fixture
async def make(kind: str) -> AsyncIterator[Make]:
    """Makes drivers of the kind, and puts them away."""
    made: list[Any] = []

    def driver(dsn: str) -> Driver:
        if kind.startswith("sqlalchemy"):
            url = dsn.replace("://", f"+{kind.split()[1]}://", 1)
            one: Any = (
                SyncSqlAlchemyDriver(create_engine(url))
                if kind.endswith("sync")
                else SqlAlchemyDriver(create_async_engine(url))
            )
        else:
            one = {"asyncpg": AsyncpgDriver, "psycopg": PsycopgDriver, "psycopg sync": SyncPsycopgDriver}[kind](dsn)
        made.append(one)
        return one

    yield driver
    for one in made:
        await on(one, one.close())
        engine = getattr(one, "_engine", None)
        if engine is not None:
            await (engine.dispose() if one.is_async else asyncio.to_thread(engine.dispose))


async def on(driver: Driver, work: Any) -> Any:
    """Await it, or have it done in a thread by a driver that knows no event loop."""
    return await (work if driver.is_async else asyncio.to_thread(run_now, work))


class Admin:
    """Does to a connection what befalls it; without an event loop, so that it fits into either kind of driver."""

    def __init__(self, instance: servers.Instance) -> None:
        self.instance = instance

    def run(self, sql: str, *arguments: Any) -> Any:
        with psycopg.connect(self.instance.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql, arguments or None)
            return cursor.fetchall() if cursor.description else None

    def terminate(self, process: int) -> None:
        self.run("SELECT pg_terminate_backend(%s, 5000)", process)
        time.sleep(0.05)  # until our side has heard of it

    def drop(self, database: str) -> None:
        self.run(f"DROP DATABASE {database} WITH (FORCE)")
        time.sleep(0.05)

    def terminate_at_work(self, process: int) -> None:
        """As soon as it sleeps in a statement."""
        threading.Thread(target=self._terminate_at_work, args=(process,), daemon=True).start()

    def _terminate_at_work(self, process: int) -> None:
        question = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        while not self.run(question, process):
            time.sleep(0.02)
        self.run("SELECT pg_terminate_backend(%s)", process)


async def process_of(connection: Connection) -> int:
    return int((await connection.fetch("SELECT pg_backend_pid()", {}))[0][0])


Scenario = Callable[[Connection, Admin], Awaitable[None]]


async def stopped_while_idle(connection: Connection, admin: Admin) -> None:
    await connection.fetch("SELECT 1", {})
    admin.instance.restart()
    await connection.fetch("SELECT 1", {})


async def ended_during_a_statement(connection: Connection, admin: Admin) -> None:
    admin.terminate_at_work(await process_of(connection))
    await connection.fetch("SELECT pg_sleep(30)::text", {})


async def ended_during_a_statement_of_the_users(connection: Connection, admin: Admin) -> None:
    admin.terminate_at_work(await process_of(connection))
    await connection.query("SELECT pg_sleep(30)::text", {})


async def ended_before_begin(connection: Connection, admin: Admin) -> None:
    admin.terminate(await process_of(connection))
    await connection.run(Command("SELECT 1", {}, len, "count"), begin=True)


async def ended_in_a_transaction(connection: Connection, admin: Admin) -> None:
    await connection.begin()
    process = await process_of(connection)
    admin.terminate(process)
    await connection.run(Command("SELECT 1", {}, len, "count"), commit=True)


async def ended_at_commit(connection: Connection, admin: Admin) -> None:
    await connection.begin()
    await connection.query("INSERT INTO slow_to_commit VALUES (1)", {})
    admin.terminate_at_work(await process_of(connection))
    await connection.commit()


async def statement_timeout(connection: Connection, admin: Admin) -> None:
    await connection.begin()
    await connection.script("SET LOCAL statement_timeout = '50ms'")
    await connection.fetch("SELECT pg_sleep(30)::text", {})


async def lock_timeout(connection: Connection, admin: Admin) -> None:
    with psycopg.connect(admin.instance.dsn) as other:
        other.execute("LOCK TABLE slow_to_commit")
        await connection.begin()
        await connection.script("SET LOCAL lock_timeout = '50ms'")
        await connection.fetch("SELECT count(*) FROM slow_to_commit", {})


async def read_only(connection: Connection, admin: Admin) -> None:
    await connection.begin()
    await connection.script("SET TRANSACTION READ ONLY")
    await connection.query("INSERT INTO slow_to_commit VALUES (1)", {})


async def cached_plan(connection: Connection, admin: Admin) -> None:
    admin.run("DROP TABLE IF EXISTS altered; CREATE TABLE altered (a int)")
    for _ in range(8):  # psycopg prepares what it has seen five times
        await connection.fetch("SELECT * FROM altered", {})
    await connection.begin()
    await connection.fetch("SELECT 1", {})
    admin.run("ALTER TABLE altered ADD COLUMN b int")
    await connection.fetch("SELECT * FROM altered", {})


def failing_with(code: str) -> Scenario:
    async def scenario(connection: Connection, admin: Admin) -> None:
        await connection.fetch("SELECT fail_with(:code)::text", {"code": code})

    return scenario


async def too_large_a_number(connection: Connection, admin: Admin) -> None:
    await connection.query("SELECT :n::int", {"n": 2**40})


async def bad_statement(connection: Connection, admin: Admin) -> None:
    await connection.query("SELEKT 1", {})


CASES: dict[str, tuple[Scenario, Fault | None]] = {
    "stopped while idle": (stopped_while_idle, Fault.LOST),
    "ended during a statement": (ended_during_a_statement, Fault.LOST),
    "ended during a statement of the user's": (ended_during_a_statement_of_the_users, Fault.LOST),
    "ended before begin": (ended_before_begin, Fault.LOST),
    "ended in a transaction": (ended_in_a_transaction, Fault.LOST),
    "ended at commit": (ended_at_commit, Fault.LOST),
    "statement timeout": (statement_timeout, Fault.TIMEOUT),
    "lock timeout": (lock_timeout, Fault.TIMEOUT),
    "read-only": (read_only, Fault.READ_ONLY),
    "a table altered since": (cached_plan, Fault.TROUBLE),
    "disk full": (failing_with("53100"), Fault.TROUBLE),
    "out of memory": (failing_with("53200"), Fault.TROUBLE),
    "serialization failure": (failing_with("40001"), Fault.TROUBLE),
    "deadlock": (failing_with("40P01"), Fault.TROUBLE),
    "broken file": (failing_with("58030"), Fault.TROUBLE),
    "corrupt index": (failing_with("XX002"), Fault.TROUBLE),
    "starting up": (failing_with("57P03"), Fault.LOST),
    "bad value": (failing_with("22003"), Fault.VALUE),
    "value refused by the client": (too_large_a_number, Fault.VALUE),
    "bad statement": (bad_statement, None),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_befalls_a_connection_is_called_by_one_name(server: servers.Instance, make: Make, case: str) -> None:
    scenario, expected = CASES[case]
    driver = make(server.dsn)

    async def suffer() -> None:
        async with driver.connection() as connection:
            await scenario(connection, Admin(server))

    async def ask() -> Any:
        async with driver.connection() as connection:
            return (await connection.fetch("SELECT 1", {}))[0][0]

    await on(driver, driver.open())
    async with asyncio.timeout(30):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
            await on(driver, suffer())
        # And the pool is whole, at the latest when what was lost has been noticed.
        for _ in range(3):
            with suppress(Exception):
                assert await on(driver, ask()) == 1
        assert await on(driver, ask()) == 1

    assert driver.fault(raised.value) is expected, repr(raised.value)


@pytest.mark.parametrize(
    ("user", "database", "expected"),
    [
        ("guarded:wrong", "postgres", {None}),
        ("guarded", "postgres", {None}),
        ("nobody", "postgres", {None}),
        ("postgres", "no_such_database", {None}),
        # libpq does not tell the code of what it hears before a connection is made.
        ("crowded", "postgres", {Fault.TROUBLE, Fault.LOST}),
    ],
)
async def test_why_a_connection_cannot_be_made_says_whether_to_try_again(
    server: servers.Instance, make: Make, user: str, database: str, expected: set[Fault | None]
) -> None:
    port = urlsplit(server.dsn).port
    driver = make(f"postgresql://{user}@127.0.0.1:{port}/{database}")

    async def ask() -> None:
        await driver.open()
        async with driver.connection() as connection:
            await connection.fetch("SELECT 1", {})

    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        await on(driver, ask())

    assert driver.fault(raised.value) in expected, repr(raised.value)


async def test_nobody_there_is_a_loss(make: Make) -> None:
    driver = make("postgresql://postgres@127.0.0.1:1/postgres")

    async def ask() -> None:
        await driver.open()
        async with driver.connection() as connection:
            await connection.fetch("SELECT 1", {})

    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        await on(driver, ask())

    assert driver.fault(raised.value) is Fault.LOST


async def test_a_database_that_is_dropped_under_its_users_is_lost_to_them(server: servers.Instance, make: Make) -> None:
    Admin(server).run("CREATE DATABASE doomed")
    driver = make(urlsplit(server.dsn)._replace(path="/doomed").geturl())

    async def suffer() -> None:
        async with driver.connection() as connection:
            await connection.fetch("SELECT 1", {})
            Admin(server).drop("doomed")
            await connection.fetch("SELECT 1", {})

    await on(driver, driver.open())
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        await on(driver, suffer())

    assert driver.fault(raised.value) is Fault.LOST
