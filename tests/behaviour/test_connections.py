"""Servers that fall silent or can no longer write: noticed, and their connections replaced."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn, cast

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from onward import Attempt, Onward, job
from onward.conformance.queue.session import until
from onward.errors import ConfigurationError
from onward.notify.contract import Hint, HintKind
from onward.notify.encoding import read_payload
from onward.notify.memory import NoNotify
from onward.notify.postgres import PostgresNotify
from onward.notify.postgres_connections import Connect, PostgresHintConnection, Receive, asyncpg_hints, psycopg_hints
from onward.observe import events
from onward.state.command import Command
from onward.state.driver import Connection, Driver, Fault, transaction
from onward.state.postgres.asyncpg import AsyncpgDriver
from onward.state.postgres.psycopg import PsycopgDriver
from onward.state.sqlalchemy import SqlAlchemyDriver
from onward.worker.connections import Reserved
from proxy import proxied
from support import SOON, Recorder


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


def on_postgres(dsn: str, **options: Any) -> Onward:
    return Onward(dsn, jobs=[double], schema=f"t_{secrets.token_hex(6)}", migrate=True, **options)


def drivers(dsn: str) -> dict[str, Driver]:
    return {
        "asyncpg": AsyncpgDriver(dsn),
        "psycopg": PsycopgDriver(dsn),
        "sqlalchemy-asyncpg": SqlAlchemyDriver(create_async_engine(dsn.replace("://", "+asyncpg://", 1))),
        "sqlalchemy-psycopg": SqlAlchemyDriver(create_async_engine(dsn.replace("://", "+psycopg://", 1))),
    }


@pytest.fixture(params=["asyncpg", "psycopg", "sqlalchemy-asyncpg", "sqlalchemy-psycopg"])
async def opened_driver(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[str], Any]]:
    """Opens a driver of each kind for a DSN."""
    made: list[Any] = []

    async def make(dsn: str) -> Driver:
        driver = drivers(dsn)[request.param]
        await driver.open()
        made.append(driver)
        return driver

    yield make
    for driver in made:
        await driver.close()
        if hasattr(driver, "_engine"):
            await driver._engine.dispose()


async def process_of(connection: Connection) -> int:
    rows = await connection.fetch("SELECT pg_backend_pid()", {})
    process: int = rows[0][0]
    return process


async def several(driver: Driver) -> set[int]:
    """The processes behind three connections at once."""
    async with AsyncExitStack() as stack:
        lent = [await stack.enter_async_context(driver.connection()) for _ in range(3)]
        return {await process_of(connection) for connection in lent}


# -- reserved connections


async def test_a_reserved_connection_that_gets_no_answer_is_replaced(
    postgres_dsn: str, opened_driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("postgres.asyncpg", "postgres.psycopg", "sqlalchemy.driver"):
        monkeypatch.setattr(f"onward.state.{module}.STATEMENT", 0.5)
    async with proxied(postgres_dsn) as (proxy, dsn):
        driver: Driver = await opened_driver(dsn)
        reserved = Reserved(driver)
        before = await reserved.use(process_of)

        proxy.silence()
        began = time.monotonic()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
            await reserved.use(process_of)
        waited = time.monotonic() - began
        after = await reserved.use(process_of)
        await reserved.close()

    assert driver.fault(raised.value) is Fault.LOST
    assert waited < 5
    assert after != before


@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_who_holds_all_connections_of_an_engine_is_told_that_there_is_no_other(
    postgres_dsn: str, client: str
) -> None:
    address = postgres_dsn.replace("postgresql", f"postgresql+{client}", 1)
    engine = create_async_engine(address, pool_size=1, max_overflow=0, pool_timeout=0.1)
    driver = SqlAlchemyDriver(engine)
    await driver.open()

    async with driver.connection() as held:
        await held.begin()
        with pytest.raises(Exception, match="QueuePool limit") as raised:
            async with driver.connection() as other:
                await other.fetch("SELECT 1", {})
        await held.rollback()
    async with driver.connection() as other:
        found = await other.fetch("SELECT 1", {})
    await driver.close()
    await engine.dispose()

    assert driver.fault(raised.value) is Fault.TROUBLE
    assert [tuple(row) for row in found] == [(1,)]


@pytest.mark.parametrize("client", ["asyncpg", "psycopg"])
async def test_an_engine_whose_server_does_not_answer_is_not_waited_for(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.state.sqlalchemy.driver.CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        engine = create_async_engine(f"postgresql+{client}://postgres@127.0.0.1:{deaf.getsockname()[1]}/postgres")
        driver = SqlAlchemyDriver(engine)

        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(SOON.total_seconds()) as limit, driver.reserved():
                pass

    assert not limit.expired()
    assert driver.fault(raised.value) is Fault.LOST


async def test_a_connection_that_cannot_write_any_more_is_not_used_again(postgres_dsn: str, opened_driver: Any) -> None:
    async def fail_to_write(connection: Connection) -> None:
        await connection.script("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        await connection.fetch("CREATE TABLE never (n int)", {})

    driver: Driver = await opened_driver(postgres_dsn)
    reserved = Reserved(driver)
    async with driver.connection() as connection:
        processes = [await reserved.use(process_of), await process_of(connection)]

    errors: list[BaseException] = []
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        await reserved.use(fail_to_write)
    errors.append(raised.value)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        async with driver.connection() as connection:
            await fail_to_write(connection)
    errors.append(raised.value)

    assert all(driver.fault(error) is Fault.READ_ONLY for error in errors)
    async with driver.connection() as connection:
        assert not {await reserved.use(process_of), await process_of(connection)} & set(processes)
    await reserved.close()


@pytest.mark.parametrize("whose", ["ours", "the user's", "the user's, through what he was given"])
async def test_its_sisters_are_not_used_again_either(postgres_dsn: str, opened_driver: Any, whose: str) -> None:
    """Whosever statement it was that could not write: they all lead to the same server."""

    async def fail_to_write(connection: Connection) -> None:
        await connection.script("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        if whose == "ours":
            await connection.fetch("CREATE TABLE never (n int)", {})
        elif whose == "the user's":
            await connection.query("CREATE TABLE never (n int)", {})
        else:
            statement = "CREATE TABLE never (n int)"
            raw = connection.raw
            await raw.execute(text(statement) if isinstance(raw, AsyncConnection) else statement)

    driver: Driver = await opened_driver(postgres_dsn)
    before = await several(driver)
    with pytest.raises(Exception, match="read-only"):
        async with driver.connection() as connection:
            await fail_to_write(connection)

    assert not before & await several(driver)


async def test_a_transaction_that_is_to_be_read_only_says_nothing_of_the_server(
    postgres_dsn: str, opened_driver: Any
) -> None:
    driver: Driver = await opened_driver(postgres_dsn)

    with pytest.raises(Exception, match="read-only"):
        async with driver.connection() as connection, transaction(connection):
            process = await process_of(connection)
            await connection.script("SET TRANSACTION READ ONLY")
            await connection.query("CREATE TABLE never (n int)", {})

    assert process in await several(driver), "psycopg's pool may have made more than one by now"


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_every_connection_of_ours_notices_a_lost_peer(postgres_dsn: str, library: str) -> None:
    driver = drivers(postgres_dsn)[library]
    await driver.open()

    async with driver.connection() as pooled, driver.reserved() as reserved:
        options = [_options_of(connection.raw) for connection in (pooled, reserved)]
        there = await reserved.fetch("SELECT current_setting('tcp_user_timeout'), current_setting('lock_timeout')", {})

    await driver.close()
    assert options == [(True, 2, 6000), (True, 2, 5000)]
    assert tuple(there[0]) == ("20000", "100ms")


def _options_of(raw: Any) -> tuple[bool, int, int]:
    number = raw.pgconn.socket if hasattr(raw, "pgconn") else raw._transport.get_extra_info("socket").fileno()
    handle = socket.socket(fileno=number)
    try:
        return (
            bool(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
            handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )
    finally:
        handle.detach()


async def test_a_transaction_whose_connection_is_lost_says_so_and_not_something_else(
    postgres_dsn: str, opened_driver: Any
) -> None:
    driver: Driver = await opened_driver(postgres_dsn)

    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own
        async with driver.connection() as connection, transaction(connection):
            process = await process_of(connection)
            async with driver.reserved() as other:
                await other.fetch("SELECT pg_terminate_backend(:process::int)", {"process": process})
                while await other.fetch("SELECT 1 FROM pg_stat_activity WHERE pid = :process", {"process": process}):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            await process_of(connection)

    assert driver.fault(raised.value) is Fault.LOST


@pytest.mark.parametrize("how", ["ours", "the user's"])
async def test_a_session_that_the_server_has_just_ended_is_lost_and_not_a_riddle(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Between hearing of it and seeing the end asyncpg speaks of states of its protocol."""
    driver = AsyncpgDriver(postgres_dsn)
    await driver.open()
    async with driver.reserved() as other:
        for _ in range(10):
            with pytest.raises(asyncpg.PostgresError) as raised:
                async with driver.connection() as connection:
                    process = await process_of(connection)
                    heard = _heard_of_the_end(connection)
                    await other.fetch("SELECT pg_terminate_backend(:process::int)", {"process": process})
                    await heard
                    if how == "ours":
                        await connection.run(Command("SELECT 1", {}, len, "count"), begin=True)
                    else:
                        await connection.query("SELECT 1", {})
            assert driver.fault(raised.value) is Fault.LOST
    await driver.close()

    assert not caplog.records


def _heard_of_the_end(connection: Any) -> "asyncio.Future[None]":
    """Done when the server's last words have been read, but not yet the end of the stream."""
    protocol = connection._raw._protocol
    transport = connection._raw._transport
    heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Listening(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            protocol.data_received(data)
            transport.set_protocol(protocol)
            transport.pause_reading()
            heard.set_result(None)

        def connection_lost(self, error: Exception | None) -> None:
            protocol.connection_lost(error)

    transport.set_protocol(Listening())
    return heard


# -- hints


@pytest.mark.parametrize("wire_to", [asyncpg_hints, psycopg_hints])
async def test_a_listener_whose_server_falls_silent_listens_again(
    postgres_dsn: str, wire_to: Callable[[str], Connect]
) -> None:
    changes: list[Exception | None] = []
    async with proxied(postgres_dsn) as (proxy, dsn), asyncio.TaskGroup() as tasks:
        notify = PostgresNotify(wire_to(dsn), channel="silent")
        await notify.open(tasks, changes.append)
        async with notify.listen(types=["a"]) as listener:
            assert notify.is_up

            proxy.silence()
            async with asyncio.timeout(10):
                assert [hint.kind for hint in await listener.wait(None)] == [HintKind.UNKNOWN]  # lost: look yourself
                was_up = notify.is_up
                assert [hint.kind for hint in await listener.wait(None)] == [HintKind.UNKNOWN]  # back: look once more
            await notify.announce([Hint(HintKind.READY, "a")])
            hints = await listener.wait(SOON.total_seconds())

        await notify.close()
    assert ([error is None for error in changes], was_up) == ([False, True], False)
    assert hints == [Hint(HintKind.READY, "a")]


class FailingWire:
    """Fails once, when it should send."""

    can_listen_later = True
    process = 1

    def __init__(self, sent: list[Hint]) -> None:
        self._sent = sent
        self._fails = not sent
        self._lost = asyncio.Event()

    async def listen(self, channel: str, receive: Receive) -> None:
        pass

    async def present(self, processes: Collection[int], table: str | None) -> set[int]:
        return set()

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        if not self._sent and self._fails:
            self._sent.append(Hint(HintKind.UNKNOWN, "failed"))
            self._lost.set()
            raise ConnectionResetError
        self._sent += [hint for payload in payloads for hint in read_payload(payload)[1]]

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        await self._lost.wait()
        raise ConnectionResetError


async def test_hints_that_could_not_be_sent_are_sent_when_there_is_a_connection_again() -> None:
    sent: list[Hint] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresHintConnection]:
        yield FailingWire(sent)

    async with asyncio.TaskGroup() as tasks:
        notify = PostgresNotify(connect, channel="any")
        await notify.open(tasks)
        with pytest.raises(ConnectionResetError):
            await notify.announce([Hint(HintKind.READY, "a")])
        async with asyncio.timeout(SOON.total_seconds()):
            while len(sent) < 2:
                await asyncio.sleep(0.01)
        await notify.close()

    assert sent[1:] == [Hint(HintKind.READY, "a")]


async def test_while_hints_are_down_workers_look_by_themselves(make_app: Any) -> None:
    notify = NoNotify()
    notify.is_up = False
    app: Onward = make_app(double, notify=notify)

    async with app, app.worker(poll=timedelta(hours=1)):
        chain = await app.start(double, 4)
        assert await chain.wait(timeout=SOON) == 8


async def test_callers_neither_fail_nor_wait_because_hints_are_down(postgres_dsn: str) -> None:
    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresHintConnection]:
        raise OSError("there is nobody")
        yield

    app = on_postgres(postgres_dsn, notify=PostgresNotify(connect, channel="none"))
    async with app, app.worker():
        began = time.monotonic()
        chains = [await app.start(double, n) for n in range(20)]
        waited = time.monotonic() - began
        outputs = [await chain.wait(timeout=SOON) for chain in chains]

    assert waited < 2
    assert outputs == [2 * n for n in range(20)]


async def test_loss_and_return_of_hints_are_told(postgres_dsn: str, recorder: Recorder) -> None:
    app = on_postgres(postgres_dsn, observers=[recorder])
    async with app, app.worker():
        assert await (await app.start(double, 1)).wait(timeout=SOON) == 2

        async with app.transaction() as tx:
            name = "onward hints"
            await tx.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = :name AND datname = current_database()",
                name=name,
            )
        error = await recorder.next(events.NotifyError)
        assert await (await app.start(double, 2)).wait(timeout=SOON) == 4
        await recorder.next(events.NotifyRecovered)

    assert error.doing == "listen"


class QuietWire:
    """Keeps count of who listens."""

    can_listen_later = True
    process = 1

    def __init__(self) -> None:
        self.listening = 0

    async def listen(self, channel: str, receive: Receive) -> None:
        await asyncio.sleep(0)
        self.listening += 1

    async def present(self, processes: Collection[int], table: str | None) -> set[int]:
        return set()

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        pass

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_process_that_only_announces_does_not_listen_until_somebody_there_does() -> None:
    wire = QuietWire()

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresHintConnection]:
        yield wire

    async with asyncio.TaskGroup() as tasks:
        notify = PostgresNotify(connect, channel="any")
        await notify.open(tasks)
        await notify.announce([Hint(HintKind.READY, "a")])
        before = wire.listening
        async with notify.listen(types=["a"]), notify.listen(types=["b"]):
            after = wire.listening
        await notify.close()

    assert (before, after) == (0, 1)


async def test_a_wire_may_be_told_to_listen_while_it_sends(postgres_dsn: str) -> None:
    heard: list[str] = []
    async with asyncpg_hints(postgres_dsn)() as wire, asyncio.timeout(SOON.total_seconds()):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wire.notify("late", ["before"]))
            tasks.create_task(wire.listen("late", lambda _, payload: heard.append(payload)))
        await wire.notify("late", ["after"])
        while "after" not in heard:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("due", [list, lambda: ["news"]])
@pytest.mark.parametrize("wire_on", [asyncpg_hints, psycopg_hints])
async def test_a_listener_leaves_a_server_that_takes_no_writes_any_more(
    postgres_dsn: str, wire_on: Any, due: Any
) -> None:
    async with wire_on(postgres_dsn)() as wire:
        await wire.listen("demoted", lambda *_: None)
        for raw in {getattr(wire, name, None) for name in ("_raw", "_listening")} - {None}:
            await raw.execute("SET default_transaction_read_only = on")

        async with asyncio.timeout(20):
            with pytest.raises(ConnectionError, match="takes no writes"):
                await wire.hold("demoted", due)


@pytest.mark.parametrize("wire_on", [asyncpg_hints, psycopg_hints])
async def test_nor_is_there_a_connection_for_hints_to_such_a_server(postgres_dsn: str, wire_on: Any) -> None:
    dsn = f"{postgres_dsn}?options=-c%20default_transaction_read_only%3Don"

    with pytest.raises(ConnectionError, match="takes no writes"):
        async with wire_on(dsn)():
            pass


async def test_a_wire_is_closed_when_nobody_waits_for_an_answer_on_it(postgres_dsn: str) -> None:
    # psycopg frees a connection that is closed; a statement under way would go on reading what was freed.
    ended: list[Exception] = []
    seen_at_close: list[int] = []

    @asynccontextmanager
    async def lent() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as raw:
            yield raw
            seen_at_close.append(len(ended))

    async def ends(asking: Awaitable[Any]) -> None:
        with pytest.raises((OSError, psycopg.OperationalError)) as caught:
            await asking
        ended.append(caught.value)

    async with asyncio.timeout(SOON.total_seconds()), asyncio.TaskGroup() as tasks, psycopg_hints(lent)() as wire:
        tasks.create_task(ends(wire._ask(wire._sending, "SELECT pg_sleep(60)")))  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        tasks.create_task(ends(wire.notify("ending", ["behind it"])))
        await asyncio.sleep(0)

    assert seen_at_close == [2, 2]
    assert [str(error) for error in ended[1:]] == ["the connection for hints has ended"]


async def test_who_connects_while_the_app_is_closed_is_told_so(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = AsyncpgDriver(postgres_dsn, pool_size=2)
    await driver.open()
    pool, pool_class = driver._pool, cast(Any, asyncpg.Pool)
    connect = pool_class._get_new_connection
    is_connecting, may_connect = asyncio.Event(), asyncio.Event()

    async def connect_slowly(pool: Any) -> Any:
        is_connecting.set()
        await may_connect.wait()
        return await connect(pool)

    async def borrow_in_vain() -> None:
        with pytest.raises(ConfigurationError, match="the app is not open"):
            await driver.connection().__aenter__()

    monkeypatch.setattr(pool_class, "_get_new_connection", connect_slowly)
    async with asyncio.TaskGroup() as tasks, driver.connection():
        late = tasks.create_task(borrow_in_vain())
        await is_connecting.wait()
        tasks.create_task(driver.close())
        await until(pool.is_closing)
        may_connect.set()
        await late
