"""A connection beside the pool that comes back by itself after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from onward.state.driver import Connection, Driver

T = TypeVar("T")


class Reserved:
    """One connection for one purpose, made when first needed and made anew after an error that may have broken it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._connection: Connection | None = None
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()

    async def run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an operation; one at a time."""
        async with self._turn:
            if self._connection is None:
                self._connection = await self._stack.enter_async_context(self._driver.reserved())
            try:
                return await operation(self._connection)
            except BaseException as error:
                # A cancelled statement leaves the connection in the middle of something.
                if self._driver.is_disconnect(error) or not isinstance(error, Exception):
                    await self.close()
                raise

    async def close(self) -> None:
        self._connection = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()
