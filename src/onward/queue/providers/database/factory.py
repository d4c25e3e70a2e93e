"""Queues in the database of an app: jobs that commit with your data, and no server beside it."""

import asyncio
from datetime import timedelta

from onward.client.app import Onward
from onward.errors import ConfigurationError, QueueConfigurationError, QueueErrorCode
from onward.model import JobStatus
from onward.queue.checks import ProviderArguments
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, Keep
from onward.queue.provider import ProviderFactory, elsewhere
from onward.queue.providers.database.forms import Enveloped, Typed
from onward.queue.providers.database.link import Link
from onward.queue.providers.database.provider import DatabaseProvider

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
        kind = self._app.registry.get(queue_name)
        if kind is not None and kind.definition.internal:
            raise _refused(f"job type {queue_name!r} is internal: no chain begins with it, so it cannot be a queue")
        if kind is not None and kind.encryption is not None:
            raise _refused(f"job type {queue_name!r} is encrypted, which queues are not: run it with app.worker()")
        form = Enveloped(queue_name) if kind is None else Typed(kind)
        lease = self._lease if kind is None or kind.lease is None else kind.lease
        events = self.events_of(queue_name)
        provider = DatabaseProvider(queue_name, self, form, lease=lease, events=events, keep=self._keep)
        return provider.declare(max_job_size=self._app.registry.limits.bytes)

    async def _open(self) -> Link:
        opened_here = self._app.loop is None
        if self._app.loop not in (None, asyncio.get_running_loop()):
            raise _refused(elsewhere("the app of this database", has_ended=self._app.loop.is_closed()))
        if opened_here:
            try:
                await self._app.open()
            except ConfigurationError as error:  # such as tables that are missing
                raise _refused(str(error)) from error
        return Link(self._app, opened_here=opened_here)

    async def _close(self, connection: Link) -> None:
        await connection.close()


def _is_fit(app: object) -> bool:
    return isinstance(app, Onward) and app.driver.is_async


def _refused(problem: str) -> QueueConfigurationError:
    return QueueConfigurationError(problem, code=QueueErrorCode.INVALID_OPTION)
