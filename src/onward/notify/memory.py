"""Hints within one process, and the quiet adapter for those who only poll."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager

from onward.notify.contract import Hint, Listener
from onward.notify.switchboard import Switchboard


class MemoryNotify:
    """Carries hints between the clients and workers of one process."""

    sees_commits = False
    crosses_processes = False
    is_up = True

    def __init__(self) -> None:
        self._switchboard = Switchboard()

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        pass

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        return None

    async def close(self) -> None:
        self._switchboard.wake_all()

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._switchboard.deliver(hints)

    def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        return self._switchboard.listen(scheduled=scheduled, ended=ended, lost=lost, awaited=awaited)


class NoNotify:
    """Carries nothing: everything is found by polling."""

    sees_commits = True
    crosses_processes = False
    is_up = True

    def __init__(self) -> None:
        self._switchboard = Switchboard()

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        pass

    def within_transaction(self, hints: Sequence[Hint]) -> tuple[str, dict[str, object]] | None:
        return None

    async def close(self) -> None:
        self._switchboard.wake_all()

    async def announce(self, hints: Sequence[Hint]) -> None:
        pass

    def listen(
        self, *, scheduled: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        return self._switchboard.listen()
