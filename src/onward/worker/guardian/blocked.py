"""A worker whose event loop does not turn: who notices, what is said, and how the process ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from onward.model import JobId, WorkerId
from onward.worker.guardian.contract import HasReturned
from onward.worker.stall import stack_of

logger = logging.getLogger("onward.worker")
BEAT = 0.5
"""Seconds between signs of life of an event loop that turns."""
End: TypeAlias = Callable[[str], object]
"""Called in another thread when the process should be replaced; does not return."""


class Watch:
    """Watches the event loop in which it is started, for guardians that do not live in it."""

    def __init__(self, worker: WorkerId, *, has_returned: HasReturned, end: Callable[[], End | None]) -> None:
        self._worker, self.has_returned, self._end = worker, has_returned, end
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._say: Callable[[float], None] = lambda now: None
        self.beat = 0.0
        """When the loop last turned."""

    @property
    def ends_process(self) -> bool:
        """Whether the process may be ended."""
        return self._end() is not None

    def start(self, thread_id: int, say: Callable[[float], None] = lambda now: None) -> None:
        """Let the running loop, in this thread, beat; `say` hands that on."""
        self._thread_id, self._say = thread_id, say
        self._turn()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self.beat = time.monotonic()
        self._say(self.beat)
        self._timer = asyncio.get_running_loop().call_later(BEAT, self._turn)

    # -- in another thread

    def stack(self) -> str:
        """What the loop is doing."""
        return stack_of(self._thread_id)

    def report(self, overdue: Sequence[tuple[JobId, int]], stack: str) -> None:
        """Say which attempts were let go of."""
        names = ", ".join(f"job {job_id} (attempt {attempt})" for job_id, attempt in overdue)
        logger.error(
            "worker %s: the event loop has not turned for %.1f s, beyond the timeout of %s, which is let go of and "
            "counted as a timeout%s. A def handler would not block it. Its stack:\n%s",
            self._worker, time.monotonic() - self.beat, names,
            "; this process makes room for another" if self.ends_process else
            "; this process cannot be ended from here, and what else it runs waits with it",
            stack.rstrip(),
        )  # fmt: skip

    def is_to_end(self) -> bool:
        """Whether to end the process: that is ours to do, and the loop still does not turn. Waits to see that."""
        beat = self.beat
        time.sleep(BEAT * 1.2)  # it may just have been allowed to go on
        return self.ends_process and self.beat == beat

    def end(self) -> None:
        """End the process."""
        end = self._end()
        if end is not None:
            end(
                "a handler blocks the event loop beyond its timeout (see above): ended to make room for another process"
            )
