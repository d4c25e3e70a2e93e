"""What adapters share whose listeners hear of other processes in no way, or not by hints."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager

from onward.notify.contract import Changed, Hint, Listener, ignore
from onward.notify.encoding import no_command
from onward.notify.listeners import Listeners
from onward.state.command import Command


class LocalNotify(ABC):
    """Nothing to connect to: always up."""

    crosses_processes = False
    sees_commits = False
    hears_commands = False
    is_up = True

    def __init__(self) -> None:
        self.command: Callable[[Sequence[Hint]], Command[None] | None] = no_command
        self._listeners = Listeners()

    async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
        return

    async def close(self) -> None:
        self._listeners.wake_all()

    @abstractmethod
    async def announce(self, hints: Sequence[Hint]) -> None: ...

    def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        return self._listeners.listen(types=types, ended=ended, lost=lost, awaited=awaited)
