"""A worker's row, by which others see it.

The invariants:

- *Who has a row that is not dead has given a sign of life within its promise*, by the database's clock. The guardian
  gives it, outside the event loop: a worker whose loop is blocked is alive, and the row says since when it is blocked.
  A guardian that sees its worker die says so at once; otherwise the promise runs out.
- *Who lives has a row*: each sign of life makes it where there is none, whoever has deleted it.
- *Who has stopped in order has none*: the worker removes its row when nobody is left who would give another sign.
- *A row costs the work nothing*: one statement each 15 s on the connection that renews leases, after the renewal, for
  no longer than leases can wait. It waits for no row that somebody has locked. What becomes of it concerns no job.
- *Trouble is told once*, however long it lasts.

On SQLite, whoever holds the one write lock keeps everybody from giving a sign, and time in which nobody could write
counts for nobody. So nobody is told to be dead there before ten more minutes have gone by, as long as its process
lives: a file has one machine.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from onward.errands import to_the_end
from onward.lifecycle.effects import describe
from onward.lifecycle.store import Store
from onward.model import WorkerId
from onward.observe import events
from onward.pacing import pause_after
from onward.state.command import Operation
from onward.state.workers import SignOfLife, WorkerRow
from onward.version import VERSION
from onward.worker.connections import Reserved
from onward.worker.guardian.table import blocked_for

SIGNING = "say that a worker is alive"
_MOMENT = 1.0
"""Seconds that a worker spends on its row when it starts, and when it has stopped."""


class Presence:
    """What a worker says of itself, and when it next has to."""

    every: ClassVar[float] = 15.0
    """Seconds between two signs of life."""
    promise: ClassVar[float] = 60.0
    """Seconds after a sign of life until its worker counts as dead."""

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        *,
        version: str | None,
        types: Mapping[str, Sequence[int]],
        concurrency: int,
    ) -> None:
        self._store = store
        self.row = WorkerRow(
            id=worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version,
            onward_version=VERSION,
            types=types,
            concurrency=concurrency,
        )
        self.started = time.monotonic()
        self.is_stopping = self._said_stopping = False
        self.next_sign = 0.0
        """When it is due (monotonic)."""
        self._failures = 0

    def sign(self, beat: float) -> Operation[None]:
        """A sign of life of a worker whose event loop last turned at `beat`."""
        now, self._said_stopping = time.monotonic(), self.is_stopping
        sign = SignOfLife(
            age=now - self.started,
            promise=self.promise,
            is_stopping=self._said_stopping,
            blocked_for=blocked_for(beat, now),
        )
        return self._store.state.workers.sign(self.row, sign)

    def signed(self) -> bool:
        """A sign was given; whether one had failed before."""
        had_failed, self._failures = self._failures > 0, 0
        # It may have begun to stop meanwhile, in another thread.
        self.next_sign = time.monotonic() + self.every if self._said_stopping == self.is_stopping else 0.0
        return had_failed

    def failed(self) -> bool:
        """A sign could not be given; whether that is new."""
        self._failures += 1
        self.next_sign = time.monotonic() + pause_after(self._failures, 1.0, self.every, jitter=0)
        return self._failures == 1

    # -- in the worker's loop

    async def appear(self, reserved: Reserved) -> None:
        """The first sign of life. Whatever comes of it, the worker goes on: its guardian gives the next."""
        self.started, self.is_stopping, self.next_sign = time.monotonic(), False, 0.0
        if await self._try(reserved, self.sign(self.started)):
            self.signed()

    async def leave(self, reserved: Reserved) -> None:
        """Nobody gives a sign any more. Where this fails, the promise runs out."""
        await to_the_end(self._try(reserved, self._store.state.workers.remove(self.row.id)))

    async def _try(self, reserved: Reserved, operation: Operation[None]) -> bool:
        try:
            async with asyncio.timeout(_MOMENT):
                await reserved.run(operation)
        except TimeoutError:
            return False  # somebody writes to the file, or the database does not answer, as others will notice
        except Exception as error:  # noqa: BLE001 - a row for people to look at is no reason not to work
            self._store.observers.emit(events.StateError(doing=SIGNING, error=describe(error)))
            return False
        return True
