"""Jobs that are published once the transaction they were added in has committed."""

from typing import Any

from onward.client.app import Onward
from onward.queue.contract import Provider, StoredJob
from onward.queue.options import Options


class Outbox:
    """Keeps jobs for a provider in an app's database: as chains of a relay type that the app's workers run."""

    def __init__(self, app: Onward, provider: Provider) -> None:
        self._app, self._provider = app, provider

    async def add_within(self, tx: Any, job: StoredJob, options: Options) -> StoredJob:
        """Record it in the caller's transaction."""
        raise NotImplementedError
