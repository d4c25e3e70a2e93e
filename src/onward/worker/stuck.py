"""Handlers that do not stop when they are told to."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from onward.model import JobId
from onward.state.contract import Settlement
from onward.worker.attempt import RunningAttempt
from onward.worker.settler import Settler

logger = logging.getLogger("onward.worker")
_LEAVE_WITHIN = 0.5
"""Seconds to settle the jobs of handlers that do not stop."""


class StuckHandlers:
    """Those among a worker's attempts whose handlers still run a grace period after they were told to stop."""

    def __init__(
        self,
        attempts: Mapping[JobId, RunningAttempt],
        *,
        grace: float,
        let_go: Callable[[JobId, int], object],
    ) -> None:
        self._attempts, self._let_go, self._grace = attempts, let_go, grace
        self._stuck: set[RunningAttempt] = set()
        self._changed = asyncio.Event()
        self.found = asyncio.Event()
        """Set with the first: its slot is lost to the process."""

    def was_told(self, attempt: RunningAttempt) -> None:
        """A handler was told to stop: look later whether it has."""
        asyncio.get_running_loop().call_later(self._grace, self._look, attempt)

    def _look(self, attempt: RunningAttempt) -> None:
        if attempt.handler == "running":
            self._let_go(attempt.job.id, attempt.job.attempt)
            attempt.phases.cut_off()
            logger.error(
                "the handler of %s (job %s) was told to stop (%s) and still runs; its slot is lost until it returns",
                attempt.job.type_name, attempt.job.id, attempt.cancelled,
            )  # fmt: skip
            self._stuck.add(attempt)
            self._changed.set()
            self.found.set()

    def has_lost(self, attempt: RunningAttempt) -> bool:
        """Whether a handler is stuck, so that its lease has been let go."""
        return attempt in self._stuck

    def has_ended(self, attempt: RunningAttempt) -> None:
        """An attempt, stuck or not, has come to its end."""
        self._stuck.discard(attempt)
        self._changed.set()

    async def wait_for_others(self) -> None:
        """Wait until everything else is done; once one was `found`."""
        while not self._stuck.issuperset(self._attempts.values()):
            self._changed.clear()
            await self._changed.wait()

    async def leave(self, settler: Settler, settlement_of: Callable[[RunningAttempt], Settlement | None]) -> list[str]:
        """Settle the jobs of handlers that do not stop as if they had, and name their types."""
        running = [attempt for attempt in self._attempts.values() if attempt.handler == "running" and attempt.cancelled]
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN):
                for attempt in running:
                    settlement = settlement_of(attempt)
                    if settlement is not None:
                        await settler.put(settlement)
                await settler.idle.wait()
        return [attempt.job.type_name for attempt in running]
