"""Several queues behind one worker: each gets its share of the free slots, and what one leaves the others have."""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from onward.errors import QueueError
from onward.queue.contract import Pulls, TakenJob
from onward.queue.model import Capabilities


class Several:
    """Fetches from several providers by weight. Where all have jobs, each gets its share; none is starved."""

    def __init__(self, providers: Mapping[str, Pulls], weights: Mapping[str, int]) -> None:
        self._providers, self._weights = providers, weights
        all_of_them = [provider.capabilities for provider in providers.values()]
        most = [capabilities.max_batch_size for capabilities in all_of_them if capabilities.max_batch_size]
        self.capabilities = Capabilities(
            long_polling=all(capabilities.long_polling for capabilities in all_of_them),
            max_batch_size=min(most, default=0),
        )
        self.long_poll = max(provider.long_poll for provider in providers.values())
        self._is_interrupted = False

    async def fetch(self, count: int, wait: timedelta) -> Sequence[TakenJob]:
        """At most `count` jobs of all queues together."""
        self._is_interrupted = False
        jobs = await self._look(count)
        if jobs or self._is_interrupted or not self.capabilities.long_polling:
            return jobs
        return await self._wait(count, wait)

    def interrupt(self) -> None:
        self._is_interrupted = True
        for provider in self._providers.values():
            provider.interrupt()

    async def _look(self, count: int) -> list[TakenJob]:
        """Without waiting: first the share of each, then whatever there is. One that is away does not keep others."""
        jobs: list[TakenJob] = []
        errors: dict[str, QueueError] = {}
        order = list(self._shuffled())
        total = sum(self._weights.values())
        shares = [(name, -(-count * self._weights[name] // total)) for name in order]
        for name, most in shares + [(name, count) for name in order]:
            wanted = min(most, count - len(jobs))
            if wanted > 0 and name not in errors:
                try:
                    jobs += await self._providers[name].fetch(wanted)
                except QueueError as error:
                    errors[name] = error
        if errors and not jobs:
            raise next(iter(errors.values()))
        return jobs

    def _shuffled(self) -> Iterator[str]:
        """The heavier first, mostly."""
        left = dict(self._weights)
        while left:
            [name] = random.choices(list(left), weights=list(left.values()))
            del left[name]
            yield name

    async def _wait(self, count: int, wait: timedelta) -> Sequence[TakenJob]:
        """For the first job of any; when several come at once, those too many go back, uncounted."""
        async with asyncio.TaskGroup() as tasks:
            fetches = [tasks.create_task(self._first(one, wait)) for one in self._providers.values()]
            await asyncio.wait(fetches, return_when=asyncio.FIRST_COMPLETED)
            for provider in self._providers.values():
                provider.interrupt()
        answers = [fetch.result() for fetch in fetches]
        jobs = [job for answer in answers if not isinstance(answer, QueueError) for job in answer]
        for job in jobs[count:]:
            await self._providers[job.queue_name].release([job])
        for answer in answers:
            if isinstance(answer, QueueError) and not jobs:
                raise answer
        return jobs[:count]

    async def _first(self, provider: Pulls, wait: timedelta) -> "Sequence[TakenJob] | QueueError":
        try:
            return await provider.fetch(1, min(wait, provider.long_poll))
        except QueueError as error:
            return error
