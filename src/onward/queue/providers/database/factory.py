"""What users make: queues in the database of an app, and what those on one app share."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from onward.client.app import Onward
from onward.errands import Errands
from onward.errors import ConfigurationError, QueueConfigurationError
from onward.lifecycle.settle import given_back
from onward.model import JobId, JobStatus
from onward.queue.checks import ProviderArguments
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, Keep
from onward.queue.provider import ProviderFactory, elsewhere
from onward.queue.providers.database.forms import Enveloped, Typed
from onward.queue.providers.database.provider import DatabaseProvider
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


DEFAULT_LEASE = timedelta(seconds=30)


class Database(ProviderFactory[Link]):
    """Queues in an app's database. The app is opened with the first queue, unless it is open.

    A queue with the name of one of the app's job types is the queue of that type: `queue.add` and `app.start` do the
    same, and queue workers share its jobs with workers of the app. Every other queue has plain data.

    >>> from onward import Onward
    >>> Database(Onward("memory://", jobs=[])).for_queue("emails").capabilities.transactions
    True
    """

    def __init__(
        self,
        app: Onward,
        *,
        lease: timedelta = DEFAULT_LEASE,
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
    ) -> None:
        """`lease`: how long a job stays with a worker of which nothing is heard. `keep_completed` and `keep_failed`:
        how many finished jobs of each queue are kept, and for how long; not of the app's own job types."""
        super().__init__()
        arguments = ProviderArguments("Database")
        arguments.one_of("app", app, _is_fit, "an Onward app, and not one on a sync engine or pool")
        arguments.duration("lease", lease, least=timedelta(seconds=1))
        arguments.keep("keep_completed", keep_completed)
        arguments.keep("keep_failed", keep_failed)
        self._app, self._lease = app, lease
        self._keep = {JobStatus.COMPLETED: keep_completed, JobStatus.FAILED: keep_failed}

    def for_queue(self, queue_name: str) -> DatabaseProvider:
        job_type = self._app.registry.get(queue_name)
        if job_type is not None and job_type.definition.internal:
            raise QueueConfigurationError(
                f"job type {queue_name!r} is internal: no chain begins with it, so it cannot be a queue"
            )
        if job_type is not None and job_type.encryption is not None:
            raise QueueConfigurationError(
                f"job type {queue_name!r} is encrypted, which queues are not: run it with app.worker()"
            )
        form = Enveloped(queue_name) if job_type is None else Typed(job_type)
        lease = self._lease if job_type is None or job_type.lease is None else job_type.lease
        events = self.events_of(queue_name)
        provider = DatabaseProvider(queue_name, self, form, lease=lease, events=events, keep=self._keep)
        return provider.declare(max_job_size=self._app.registry.limits.bytes)

    async def _open(self) -> Link:
        opened_here = self._app.loop is None
        if self._app.loop not in (None, asyncio.get_running_loop()):
            raise QueueConfigurationError(elsewhere("the app of this database", has_ended=self._app.loop.is_closed()))
        if opened_here:
            try:
                await self._app.open()
            except ConfigurationError as error:  # such as tables that are missing
                raise QueueConfigurationError(str(error)) from error
        return Link(self._app, opened_here=opened_here)

    async def _close(self, connection: Link) -> None:
        await connection.close()


def _is_fit(app: object) -> bool:
    return isinstance(app, Onward) and app.driver.is_async
