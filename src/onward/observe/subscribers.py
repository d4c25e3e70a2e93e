"""Who is told of events, and what becomes of what they raise: observers of apps and flows, listeners of queues."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from onward.errands import Errands

E = TypeVar("E")
Subscriber: TypeAlias = Callable[[Any], object]


class Subscribers(Generic[E]):
    """Those who are told, by the class of the event. What one raises goes to `failed`, and no further.

    One that returns an awaitable, as a coroutine function does, is awaited beside; `settle` waits for those.
    """

    def __init__(self, failed: Callable[[Subscriber, E, BaseException], None]) -> None:
        self.by_kind: Mapping[type[E], tuple[Subscriber, ...]] = {}
        self._failed = failed
        self._awaited = Errands()

    def add(self, kind: type[E], subscriber: Subscriber) -> Callable[[], None]:
        """Have it told of events of this kind; returns what ends that."""
        self.by_kind = {**self.by_kind, kind: (*self.by_kind.get(kind, ()), subscriber)}
        mine = [subscriber]

        def end() -> None:
            left = list(self.by_kind[kind])
            while mine:
                left.remove(mine.pop())
            self.by_kind = {**self.by_kind, kind: tuple(left)}

        return end

    def tell(self, event: E) -> None:
        for subscriber in self.by_kind.get(type(event), ()):
            try:
                answer = subscriber(event)
                if answer is not None and inspect.isawaitable(answer):
                    self._awaited.start(self._hear(subscriber, event, answer))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - also what ends a program: whoever tells has no part in it
                self._failed(subscriber, event, error)

    async def settle(self, within: float) -> None:
        """Wait for those that are awaited; for so many seconds."""
        await self._awaited.settle(within)

    async def _hear(self, subscriber: Subscriber, event: E, answer: Awaitable[object]) -> None:
        try:
            await answer
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(subscriber, event, error)
