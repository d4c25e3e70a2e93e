"""Many callers, few calls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from onward.errands import Errands

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")
R = TypeVar("R")


def in_parts(
    items: Iterable[I], *, most: int, size: Callable[[I], int] = lambda item: 0, most_size: int = 0
) -> Iterator[list[I]]:
    """At most so many together, and no more than `most_size` of their sizes: a larger one goes alone."""
    part, total = list[I](), 0
    for item in items:
        total += size(item)
        if part and (len(part) == most or total > most_size):
            yield part
            part, total = [], size(item)
        part.append(item)
    if part:
        yield part


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
        """As `in_parts` has them together."""
        self._send, self._most, self._most_size = send, most, most_size
        self._size: Callable[[tuple[I, asyncio.Future[A]]], int] = lambda waiting: size(waiting[0])
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
                group = next(in_parts(self._waiting, most=self._most, size=self._size, most_size=self._most_size))
                self._waiting = self._waiting[len(group) :]
                await self._send_group([(item, answer) for item, answer in group if not answer.done()])
        finally:
            self._sending = False

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
