"""Connections for LISTEN/NOTIFY by asyncpg and by psycopg.

They run nothing but what is written here, and find functions and operators nowhere but in `pg_catalog`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, NoReturn, Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

from onward.errands import after_a_moment, to_the_end
from onward.notify.connected import ANSWER, QUIET
from onward.transport import CONNECT, Patience, Reach, cut_off, watch

_BEGIN = """
SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),
  pg_catalog.set_config('application_name', 'onward hints', false), pg_catalog.pg_backend_pid()
"""
"""Not what the client says of the last: a pooler tells it numbers of its own."""
_IS_READ_ONLY = """
SELECT pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool
"""
"""Asked for a sign of life: nobody says anything on a server from which another one has taken over."""
_LOOK_EVERY = 2.0
"""Seconds between such questions to a server that is not quiet."""
NOTIFY = "SELECT pg_catalog.pg_notify({channel}, p) FROM pg_catalog.unnest({payloads}::text[]) AS p"
"""In braces the places of parameters, which every client spells in its own way."""
_PRESENT = """
SELECT a.pid FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid = ANY({processes}::integer[]) AND a.datname = pg_catalog.current_database()
  AND CASE WHEN {table}::text IS NULL THEN a.usename = session_user
    ELSE pg_catalog.has_table_privilege(a.usesysid, pg_catalog.to_regclass({table}), 'UPDATE') END
"""
_KNOWN_TO_ASYNCPG = {
    "host", "port", "user", "password", "passfile", "dbname", "database", "sslmode", "sslcert", "sslkey",
    "sslrootcert", "sslcrl", "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version",
    "target_session_attrs",
}  # fmt: skip
"""What an address may say; asyncpg takes anything else for a setting of the server's, also `channel_binding`."""
_UNKNOWN_TO_ASYNCPG = ("PGCHANNELBINDING", "PGREQUIREAUTH", "PGREQUIREPEER", "PGGSSENCMODE", "PGSSLCRLDIR")
"""What the environment may demand of libpq before it tells a server the password."""


Receive: TypeAlias = Callable[[int, str], None]
"""Told the session that sent a payload, and the payload."""


class PostgresHintConnection(Protocol):
    """A connection that can both send and receive notifications. One that is not answered in time ends."""

    can_listen_later: bool
    """Whether `listen` may be called while it is held."""
    process: int
    """The server's number for the session that sends."""

    async def listen(self, channel: str, receive: Receive) -> None: ...
    async def present(self, processes: Collection[int], table: str | None) -> set[int]:
        """Which of these sessions exist whose role may change this table; without one, whose role is ours."""
        ...

    async def notify(self, channel: str, payloads: Sequence[str]) -> None: ...
    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        """Receive; send what is due; ask a quiet server for a sign of life. Raises when the connection is lost."""
        ...


Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[PostgresHintConnection]]
Connects: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes connections of a client library."""


class _AsyncpgHints:
    can_listen_later = True

    def __init__(self, raw: Any, process: int) -> None:
        self._raw, self.process = raw, process
        self._turn = asyncio.Lock()
        self._lost = asyncio.Event()
        self._heard = self._looked = 0.0
        raw.add_termination_listener(lambda _: self._lost.set())

    async def listen(self, channel: str, receive: Receive) -> None:
        def heard(_connection: Any, process: int, _channel: str, payload: str) -> None:
            self._heard = time.monotonic()
            receive(process, payload)

        with Patience(ANSWER, self._raw.terminate):
            async with self._turn:
                await self._raw.add_listener(channel, heard)
                self._heard = time.monotonic()

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._ask(NOTIFY, channel=channel, payloads=list(payloads))

    async def present(self, processes: Collection[int], table: str | None) -> set[int]:
        return {row[0] for row in await self._ask(_PRESENT, processes=list(processes), table=table)}

    async def _ask(self, sql: str, **parameters: object) -> list[Any]:
        places = {name: f"${number}" for number, name in enumerate(parameters, 1)}
        with Patience(ANSWER, self._raw.terminate):
            async with self._turn:
                rows: list[Any] = await self._raw.fetch(sql.format(**places), *parameters.values())
                self._heard = time.monotonic()
        return rows

    async def look(self) -> None:
        """Ask for a sign of life. Raises if it is a server that one does not announce things on."""
        with Patience(ANSWER, self._raw.terminate):
            async with self._turn:
                _refuse(await self._raw.fetchval(_IS_READ_ONLY))
                self._heard = self._looked = time.monotonic()

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        while True:
            if payloads := due():
                await self.notify(channel, payloads)
            if min(self._heard + QUIET, self._looked + _LOOK_EVERY) <= time.monotonic():
                await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heard + QUIET - time.monotonic()):
                    await self._lost.wait()
                    raise ConnectionResetError("the listening connection was closed")


def asyncpg_hints(source: str | Connects) -> Connect:
    """Connects with asyncpg, by address or as the application does."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresHintConnection]:
        async with _asyncpg_by_address(source) if isinstance(source, str) else source() as raw:
            watch(raw._transport.get_extra_info("socket"))
            try:
                row = await raw.fetchrow(_BEGIN, timeout=CONNECT)
                connection = _AsyncpgHints(raw, row[2])
                await connection.look()
                yield connection
            finally:
                raw.terminate()  # nothing is under way that would be worth a farewell

    return connect


@asynccontextmanager
async def _asyncpg_by_address(dsn: str) -> AsyncIterator[Any]:
    import asyncpg

    # Cancelled in the midst of that, asyncpg may leave an error behind that nobody is told of, and which is logged.
    yield await after_a_moment(asyncpg.connect(dsn, timeout=CONNECT), undo=asyncpg.Connection.terminate)


class _PsycopgHints:
    can_listen_later = False

    def __init__(self, listening: Any, sending: Any, process: int) -> None:
        self._listening, self._sending, self.process = listening, sending, process
        self._turn = asyncio.Lock()
        self._receive: Receive | None = None
        self._sent = self._looked = 0.0
        self._has_ended = False

    async def listen(self, channel: str, receive: Receive) -> None:
        self._receive = receive
        await self._ask(self._listening, f'LISTEN "{channel}"')

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._ask(self._sending, NOTIFY, channel=channel, payloads=list(payloads))
        self._sent = time.monotonic()

    async def present(self, processes: Collection[int], table: str | None) -> set[int]:
        cursor = await self._ask(self._sending, _PRESENT, processes=list(processes), table=table)
        return {row[0] for row in await cursor.fetchall()}

    async def look(self) -> None:
        """Ask for a sign of life. Raises if it is a server that one does not announce things on."""
        for raw in (self._listening, self._sending):
            answer = await self._ask(raw, _IS_READ_ONLY)
            _refuse((await answer.fetchone())[0])
        self._sent = self._looked = time.monotonic()

    async def _ask(self, raw: Any, sql: str, **parameters: object) -> Any:
        number, places = raw.pgconn.socket, {name: f"%({name})s" for name in parameters}
        with Patience(ANSWER, lambda: cut_off(number)):
            async with self._turn:
                if self._has_ended:
                    raise ConnectionError("the connection for hints has ended")
                return await raw.execute(sql.format(**places), parameters or None, prepare=bool(parameters))

    async def end(self) -> None:
        """Before they are closed: let nobody be in a statement, for psycopg frees what it closes, and whoever waits for
        an answer goes on reading there.
        """
        self._has_ended = True
        for raw in (self._listening, self._sending):
            if not raw.closed:
                cut_off(raw.pgconn.socket)
        async with self._turn:
            pass

    async def hold(self, channel: str, due: Callable[[], Sequence[str]]) -> NoReturn:
        while True:
            if payloads := due():
                await self.notify(channel, payloads)
            if min(self._sent + 2 * QUIET, self._looked + _LOOK_EVERY) <= time.monotonic():
                await self.look()
            if not await self._hear():
                await self._ask(self._listening, "SELECT 1")

    async def _hear(self) -> bool:
        heard = False
        async for notification in self._listening.notifies(timeout=QUIET):
            heard = True
            if self._receive is not None:
                self._receive(notification.pid, notification.payload)
        return heard


def psycopg_hints(source: str | Connects) -> Connect:
    """Connects with psycopg, which cannot send on the connection on which it waits: one more."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[PostgresHintConnection]:
        async with AsyncExitStack() as stack:
            pair: list[Any] = []
            process = 0
            for _ in range(2):
                raw = await stack.enter_async_context(
                    _psycopg_by_address(source) if isinstance(source, str) else source()
                )
                watch(raw.pgconn.socket)
                number = raw.pgconn.socket
                with Patience(ANSWER, partial(cut_off, number)):
                    row = await (await raw.execute(_BEGIN)).fetchone()
                process = row[2]
                pair.append(raw)
            connection = _PsycopgHints(pair[0], pair[1], process)
            stack.push_async_callback(lambda: to_the_end(connection.end()))
            await connection.look()
            yield connection

    return connect


def _refuse(is_read_only: bool) -> None:
    if is_read_only:
        raise ConnectionError("the server takes no writes: perhaps another one has taken over from it")


@asynccontextmanager
async def _psycopg_by_address(dsn: str) -> AsyncIterator[Any]:
    import psycopg

    raw = await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=int(CONNECT))
    try:
        yield raw
    finally:
        await raw.close()


def hint_connection_for(reach: Reach) -> Connect:
    """With the application's own client; by an address, with asyncpg where it is installed and understands it all."""
    if isinstance(reach.source, str) and find_spec("asyncpg") and _is_known_to_asyncpg(reach.source):
        return asyncpg_hints(reach.source)
    return (asyncpg_hints if reach.client == "asyncpg" else psycopg_hints)(reach.source)


def _is_known_to_asyncpg(dsn: str) -> bool:
    is_known = "://" in dsn and parse_qs(urlsplit(dsn).query).keys() <= _KNOWN_TO_ASYNCPG
    return is_known and not any(map(os.environ.get, _UNKNOWN_TO_ASYNCPG))
