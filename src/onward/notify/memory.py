"""Hints within one process, and the quiet adapter for those who only poll."""

from collections.abc import Sequence

from onward.notify.contract import Hint
from onward.notify.local import LocalNotify


class MemoryNotify(LocalNotify):
    """Carries hints between the clients and workers of one process."""

    async def announce(self, hints: Sequence[Hint]) -> None:
        self._listeners.deliver(hints)


class NoNotify(LocalNotify):
    """Carries nothing: everything is found by polling."""

    sees_commits = True  # by polling, as good as it gets: nobody need be warned

    async def announce(self, hints: Sequence[Hint]) -> None:
        pass
