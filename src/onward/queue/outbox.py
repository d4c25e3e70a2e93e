"""Jobs that are published once the transaction they were added in has committed."""

from typing import Any

import msgspec

from onward.client.app import Onward
from onward.errors import (
    DuplicateJobId,
    PayloadError,
    QueueConfigurationError,
    QueueErrorCode,
    QueueRuntimeError,
    TransactionError,
)
from onward.queue.contract import StoredJob, unfit
from onward.queue.ids import derived_id
from onward.queue.model import Keep
from onward.queue.options import Options
from onward.queue.payload import with_data
from onward.queue.provider import Provider
from onward.queue.relay import Message, relay_for


class Outbox:
    """Keeps jobs for a provider in an app's database: as chains of a relay type that the app's workers run."""

    def __init__(self, app: Onward, provider: Provider, *, keep: Keep) -> None:
        self._app, self._provider = app, provider
        self._relay = relay_for(app, provider, keep=keep)

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        """Record it in the caller's transaction."""
        if not self._app.is_open:
            raise self._refused("the app of the outbox is not open: use `async with app:` around this call")
        message = Message(job=with_data(job, msgspec.json.decode(job.data)), options=options)
        relay = self._relay.job_type
        try:
            await self._app.start(relay, message, tx=tx, id=derived_id(relay.name, job.id))
        except DuplicateJobId as error:
            raise self._provider.duplicate(job.id) from error
        except PayloadError as error:
            raise unfit(job, f"it does not fit into the outbox: {error.problem}", error) from error
        except TransactionError as error:
            raise self._refused(str(error)) from error
        except Exception as error:
            raise QueueRuntimeError(
                f"the outbox could not keep it: {type(error).__name__}: {error}",
                code=QueueErrorCode.ENQUEUE,
                queue_name=job.queue_name,
                job_id=job.id,
                retryable=True,
                cause=error,
            ) from error
        return job

    def _refused(self, problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(problem, queue_name=self._provider.queue_name)
