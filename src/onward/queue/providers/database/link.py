"""What all queues of one factory share: who takes, renews and settles."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from onward.client.app import Onward
from onward.errands import Errands
from onward.lifecycle.settle import given_back
from onward.model import JobId
from onward.state.contract import HeldAttempt, ProgressReport, Renewal, Settlement, TakenJob, TypeClaim
from onward.worker.connections import Reserved
from onward.worker.settler import Fate, Settler

_AT_A_TIME = 1_000
_LAST_LOOK = 1.0
_LAST_TRIES = 5.0
"""Seconds that outcomes have to be settled once everybody has let go."""


class Link:
    """Takes, renews and settles for all queues of one factory, under one name."""

    def __init__(self, app: Onward, *, opened_here: bool) -> None:
        self.app = app
        self.worker = f"queue-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._opened_here = opened_here
        self.reserved = Reserved(app.store.driver)
        self._settler = Settler(app.store, capacity=_AT_A_TIME, settled=self._settled)
        self._taking = asyncio.Lock()
        self._held: set[JobId] = set()
        self._is_unsure = False
        self._answers: dict[tuple[JobId, int], asyncio.Future[bool]] = {}
        self._afterwards: dict[tuple[JobId, int], Callable[[], None]] = {}
        self._errands = Errands()
        self._settling = self._errands.begin(self._settler.run(), name="onward queue settler")

    async def close(self) -> None:
        """Settle what is left, if that is soon done, and let the app go."""
        with suppress(Exception):  # they are left to their leases
            async with asyncio.timeout(_LAST_LOOK):
                await self._give_back_unanswered()
        self._settler.give_up(within=_LAST_TRIES)
        self._settler.close()
        await self._settling
        await self.reserved.close()
        if self._opened_here:
            await self.app.close()

    async def take(self, claims: Sequence[TypeClaim], count: int) -> Sequence[TakenJob]:
        """At most that many jobs, which are now this link's."""
        async with self._taking:
            await self._give_back_unanswered()
            self._is_unsure = True
            take = self.app.state.take(types=claims, limit=count, worker=self.worker)
            taken = await self.reserved.run(take)
            self._is_unsure = False
            self._held.update(job.id for job in taken)
        return taken

    async def _give_back_unanswered(self) -> None:
        """Jobs may have been taken although the answer did not arrive; nobody runs them, and that is no failure."""
        if self._is_unsure:
            held = [*self._held, *self._settler.jobs]
            for job in await self.reserved.run(self.app.state.unanswered_takes(worker=self.worker, held_here=held)):
                await self.put(given_back(job, self.worker))

    async def renew(self, held: Sequence[HeldAttempt]) -> Sequence[Renewal]:
        """Hold jobs longer; what became of each."""
        renewals = await self.reserved.run(self.app.state.renew(worker=self.worker, held=held))
        self._held.difference_update(renewal.job_id for renewal in renewals if renewal.lost is not None)
        return renewals

    async def report(self, report: ProgressReport) -> None:
        """Keep how far a handler has come."""
        await self.reserved.run(self.app.state.report_progress(worker=self.worker, reports=[report]))

    async def settle(self, settlements: Sequence[Settlement], *, within: float) -> list[bool]:
        """Whether each was in time, once its commit has returned: that of whatever came together."""
        loop = asyncio.get_running_loop()
        keys = [_key(settlement) for settlement in settlements]
        answers = {key: self._answers.setdefault(key, loop.create_future()) for key in keys}
        try:
            async with asyncio.timeout(within):
                for settlement in settlements:
                    await self.put(settlement)
                return [await answer for answer in answers.values()]
        finally:
            for key in answers:
                self._answers.pop(key, None)

    async def put(self, settlement: Settlement, *, then: Callable[[], None] | None = None) -> None:
        """Have an outcome settled that nobody waits for; `then` is called once it is, if it was in time."""
        if then is not None:
            self._afterwards[_key(settlement)] = then
        await self._settler.put(settlement)

    def _settled(self, settlement: Settlement, fate: Fate) -> None:
        self._held.discard(settlement.job_id)
        then = self._afterwards.pop(_key(settlement), None)
        if then is not None and fate == "stored":
            then()
        answer = self._answers.get(_key(settlement))
        if answer is not None and not answer.done():
            answer.set_result(fate == "stored")


def _key(settlement: Settlement) -> tuple[JobId, int]:
    return settlement.job_id, settlement.attempt
