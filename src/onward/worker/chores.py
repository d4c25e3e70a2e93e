"""What workers do beside jobs: every chore looks when its time has come, in one worker of an app at a time."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from onward.errands import to_the_end
from onward.lifecycle.effects import describe
from onward.lifecycle.store import Store
from onward.observe import events
from onward.pacing import pause_after
from onward.worker.connections import Reserved

logger = logging.getLogger("onward.worker")
_LONGEST_PAUSE, _LONGEST_OUTAGE = 10.0, 0.5
"""The latter between looks whether a database that is away is back."""
_LONGEST_WAIT = 3600.0


class Chore(Protocol):
    """Something to be done now and then. Other processes may do the same at this moment: it is the database's rows that
    let only one of them.
    """

    @property
    def name(self) -> str:
        """What it does, for logs and events: "start what is scheduled". A `DEFERRED` hint with this as its key has it
        look at once, in every process.
        """
        ...

    async def look(self, reserved: Reserved) -> float:
        """Do what is due; seconds until it is worth looking again. May be cancelled at any await.

        What it raises is told, and it looks again after a pause.

        `reserved` is its own connection beside the pool, made when first used.
        """
        ...


class Chores:
    """The chores of an app. Each has a task in every worker: one of them works, the others wait for its end."""

    def __init__(self, store: Store, chores: Sequence[Chore] = ()) -> None:
        self._store = store
        self._places = {chore.name: _Place(chore) for chore in chores}

    @property
    def names(self) -> tuple[str, ...]:
        """What to listen for beside types."""
        return tuple(self._places)

    def reset(self) -> None:
        """The app is opened, perhaps in another event loop."""
        self._places = {name: _Place(place.chore) for name, place in self._places.items()}

    def wake(self, name: str) -> bool:
        """Have the chore of this name look; whether there is one."""
        place = self._places.get(name)
        if place is not None:
            place.woken.set()
        return place is not None

    async def run(self, connections: list[Reserved]) -> None:
        """Until cancelled. Its `connections` are told, so that they can be cut off where nobody answers."""
        async with asyncio.TaskGroup() as tasks:
            for place in self._places.values():
                reserved = Reserved(self._store.driver)
                connections.append(reserved)
                tasks.create_task(self._run(place, reserved), name=f"onward: {place.chore.name}")

    async def _run(self, place: "_Place", reserved: Reserved) -> None:
        async with place.turn:
            try:
                while True:
                    wait = await self._look(place, reserved)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(max(wait, 0.0), _LONGEST_WAIT)):
                            await place.woken.wait()
            finally:
                await to_the_end(reserved.close())

    async def _look(self, place: "_Place", reserved: Reserved) -> float:
        place.woken.clear()
        chore = place.chore
        try:
            wait = await chore.look(reserved)
        except Exception as error:
            place.in_vain += 1
            if is_transient := self._store.is_transient(error):
                self._store.observers.emit(events.StateError(doing=chore.name, error=describe(error)))
            elif place.in_vain & (place.in_vain - 1) == 0:  # the first, second, fourth … time
                logger.exception("a worker could not %s, and tries again", chore.name)
            return pause_after(place.in_vain, longest=_LONGEST_OUTAGE if is_transient else _LONGEST_PAUSE)
        if place.in_vain:
            place.in_vain = 0
            self._store.observers.database_works(chore.name)
        return wait


class _Place:
    def __init__(self, chore: Chore) -> None:
        self.chore = chore
        self.turn = asyncio.Lock()
        self.woken = asyncio.Event()
        self.in_vain = 0
