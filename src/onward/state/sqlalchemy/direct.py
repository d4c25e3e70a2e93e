"""A connection that nobody else sees: single statements of ours in autocommit."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onward.state.command import Rows
from onward.state.driver import (
    PlainConnection,
    Result,
)
from onward.state.sqlalchemy.checks import discard_useless
from onward.state.sqlalchemy.work import (
    WriterBusy,
    do,
    is_autocommit,
    is_locked,
    nothing,
    query,
    refuse_poisoned,
    roll_back,
    rows,
    rows_in_thread,
    script,
    take_write_lock,
)
from onward.state.sqlite.gate import LockLimit

T = TypeVar("T")


class DirectConnection(PlainConnection):
    """A connection that nobody else sees, in autocommit if it can be: single statements are one round trip."""

    native = None

    def __init__(
        self,
        raw: Any,
        *,
        patience: AbstractContextManager[None] | None = None,
        end: Callable[[], object] | None = None,
        past: bool = False,
        limit: LockLimit | None = None,
    ) -> None:
        """`past`: ask past SQLAlchemy, which is then told of no error: no other connection is given up for it."""
        self.raw = raw
        self._past, self._limit = past, limit
        self.in_transaction = False
        self._end = end or nothing
        self._patience = patience or nullcontext()

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return await self._do(self._rows, sql, parameters)

    async def query(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        return await self._do(self._alone, query, sql, parameters)

    async def script(self, sql: str) -> None:
        await self._do(self._alone, script, sql)

    async def begin(self) -> None:
        try:
            await self._do(_begin_by_hand)
        except asyncio.CancelledError:
            await self._do(_roll_back_by_hand)  # it may have begun
            raise
        self.in_transaction = True

    async def commit(self) -> None:
        self.in_transaction = False
        await self._do(_commit_by_hand)

    async def rollback(self) -> None:
        self.in_transaction = False
        await self._do(_roll_back_by_hand)

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._patience:
            return await do(self.raw, work, *arguments, limit=self._limit)

    @property
    def borrowed(self) -> None:
        """Nothing but `raw`."""

    def after_commit(self, action: Callable[[], Any]) -> bool:
        return False

    def cut_off(self) -> None:
        self._end()

    def _rows(self, connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if connection.dialect.driver == "aiosqlite" and not connection.dispatch.commit:
            return rows_in_thread(connection, sql, parameters, alone=not self.in_transaction)
        return self._alone(connection, rows, sql, parameters, self._past)

    def _alone(self, connection: Connection, work: Callable[..., T], *arguments: Any) -> T:
        if self.in_transaction:
            return work(connection, *arguments)
        try:
            answer = work(connection, *arguments)
            # In autocommit only SQLAlchemy believes that there is a transaction to end.
            connection.commit()
        except BaseException as error:
            if isinstance(error, DBAPIError):
                discard_useless(connection, error)
            roll_back(connection)
            if isinstance(error, DBAPIError) and is_locked(error):
                raise WriterBusy from error
            raise
        return answer


def _by_hand(connection: Connection, sql: str) -> None:
    # Out of autocommit SQLAlchemy begins, commits and rolls back itself; a connection that is lost has done so.
    if is_autocommit(connection) and not connection.invalidated:
        connection.exec_driver_sql(sql)


def _begin_by_hand(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        take_write_lock(connection)
    else:
        _by_hand(connection, "BEGIN")


def _commit_by_hand(connection: Connection) -> None:
    try:
        refuse_poisoned(connection)
        _by_hand(connection, "COMMIT")
        connection.commit()
    except BaseException:
        _roll_back_by_hand(connection)
        raise


def _roll_back_by_hand(connection: Connection) -> None:
    with suppress(DBAPIError, OSError):
        _by_hand(connection, "ROLLBACK")
    roll_back(connection)
