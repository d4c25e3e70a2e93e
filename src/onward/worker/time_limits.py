"""The timeouts of running attempts, watched by one timer: most attempts end long before theirs."""

import asyncio

from onward.model import LossReason
from onward.worker.attempt import RunningAttempt


class TimeLimits:
    """Tells attempts to stop when the timeout of their type is reached. For the event loop's thread."""

    def __init__(self) -> None:
        self._deadlines: dict[RunningAttempt, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, attempt: RunningAttempt, *, later: float = 0.0) -> None:
        """From now on, or a little later; starting again begins anew."""
        timeout = attempt.kind.time_limit
        if timeout is not None:
            deadline = asyncio.get_running_loop().time() + timeout + later
            self._deadlines[attempt] = deadline
            if self._timer is None or deadline < self._timer.when():
                self._set_timer(deadline)

    def end(self, attempt: RunningAttempt) -> None:
        """The timer stays: it looks whom it was for when it fires."""
        self._deadlines.pop(attempt, None)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for attempt in [attempt for attempt, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[attempt]
            attempt.cancel(LossReason.TIMEOUT)
        if self._deadlines:
            self._set_timer(min(self._deadlines.values()))
