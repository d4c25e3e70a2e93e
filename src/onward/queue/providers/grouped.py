"""Many callers, few calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from onward.errands import Errands

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")
R = TypeVar("R")


class Grouped(Generic[I, A]):
    """Sends items in groups: what arrives while a call is under way leaves together in the next one.

    Nobody is answered before the call that carried their item has returned.
    """

    def __init__(
        self,
        send: Callable[[Sequence[I]], Awaitable[Sequence[A]]],
        *,
        most: int,
        size: Callable[[I], int] = lambda item: 0,
        most_size: int = 0,
    ) -> None:
        """`most` items together, and no more than `most_size` of their sizes: a larger one goes alone."""
        self._send, self._most = send, most
        self._size, self._most_size = size, most_size
        # Kept, because Python 3.11 makes a system call to tell which one it is.
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[I, asyncio.Future[A]]] = []
        self._errands = Errands()
        self._sending = self._alone = False

    async def __call__(self, item: I) -> A:
        """The answer to this item."""
        answer: asyncio.Future[A] = self._loop.create_future()
        self._waiting.append((item, answer))
        if self.is_idle:
            self._begin()
        return await answer

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: whoever comes now may as well send by itself."""
        return not self._sending and not self._alone

    async def alone(self, call: Awaitable[R]) -> R:
        """Make a call of one's own, during which what arrives waits as usual."""
        self._alone = True
        try:
            return await call
        finally:
            self._alone = False
            if self._waiting:
                self._begin()

    def _begin(self) -> None:
        self._sending = True
        self._errands.begin(self._send_all())

    async def close(self) -> None:
        """Return when everything has been sent."""
        await self._errands.settle()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                count = self._together()
                group, self._waiting = self._waiting[:count], self._waiting[count:]
                await self._send_group([(item, answer) for item, answer in group if not answer.done()])
        finally:
            self._sending = False

    def _together(self) -> int:
        """How many of those that wait go in one call."""
        total = 0
        for count, (item, _) in enumerate(self._waiting[: self._most]):
            total += self._size(item)
            if total > self._most_size and count > 0:
                return count
        return self._most

    async def _send_group(self, group: list[tuple[I, "asyncio.Future[A]"]]) -> None:
        try:
            answers = await self._send([item for item, _ in group]) if group else []
        except BaseException as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), said in zip(group, answers, strict=True):
                if not answer.done():
                    answer.set_result(said)
