"""A connection beside the pool that comes back by itself after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from operator import methodcaller
from typing import TypeVar

from onward.state.command import Operation
from onward.state.driver import Connection, Driver, Fault

T = TypeVar("T")


class Reserved:
    """One connection for one purpose, made when first needed and made anew after an error that may have broken it.

    A statement that is not answered ends the connection: drivers see to that.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._connection: Connection | None = None
        self._borrowed: Connection | None = None
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation; one at a time."""
        return await self.use(methodcaller("run", operation))

    async def use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something with the connection; one at a time."""
        async with self._turn:
            if self._connection is None:
                self._connection = await self._stack.enter_async_context(self._driver.reserved())
            try:
                return await work(self._connection)
            except BaseException as error:
                if self._may_be_broken(error):
                    await self._drop(error)
                raise

    async def borrow(self, operation: Operation[T]) -> T:
        """Run an operation on a connection of the pool, unless it has one: for what comes too seldom to have one."""
        if self._connection is not None:
            return await self.run(operation)
        async with self._turn:
            try:
                async with self._driver.connection() as self._borrowed:
                    return await self._borrowed.run(operation)
            finally:
                self._borrowed = None  # not before it is given back, for which a server may be needed too

    def _may_be_broken(self, error: BaseException) -> bool:
        # A cancelled statement leaves the connection in the middle of something; a server that cannot write may have
        # been demoted, and another one be in its place.
        cancelled = not isinstance(error, Exception)
        return cancelled or self._driver.fault(error) in (Fault.LOST, Fault.READ_ONLY)

    async def _drop(self, error: BaseException) -> None:
        """Close without a farewell, for which a lost server would let us wait."""
        self._connection = None
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(Exception):  # the error that led here says more
            await stack.__aexit__(type(error), error, error.__traceback__)

    def cut_off(self) -> None:
        """Have the operation under way, if there is one, wait no longer for the server."""
        for connection in (self._connection, self._borrowed):
            if connection is not None:
                connection.cut_off()

    async def close(self) -> None:
        """End the connection, and before that whatever is under way on it: some libraries free what they close."""
        if self._turn.locked():
            self.cut_off()
        async with self._turn:
            self._connection = None
            stack, self._stack = self._stack, AsyncExitStack()
            await stack.aclose()
