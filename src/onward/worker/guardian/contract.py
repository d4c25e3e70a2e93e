"""What a worker needs from whoever keeps its leases."""

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from onward.model import JobId, LossReason
from onward.worker.guardian.leases import Leases

Told: TypeAlias = Callable[[JobId, int, LossReason], None]
"""Called in the worker's event loop: job, attempt, and why it is lost or should end."""
HasReturned: TypeAlias = Callable[[JobId, int], bool]
"""Called in another thread: whether an attempt's handler has ended, so that only its outcome waits to be settled."""
GuardianKind: TypeAlias = Literal["thread", "process"]


class Guardian(Protocol):
    """Renews the leases of all running jobs with one statement, outside the event loop that runs handlers.

    A handler is told to stop before its lease has run out on this machine's monotonic clock.

    Also gives the worker's signs of life: see `worker.presence`.
    """

    leases: Leases
    """Those that it renews: the worker holds them, and lets them go."""

    def start(self) -> None:
        """Begin, in the running event loop, to which losses are reported."""
        ...

    async def stop(self) -> None:
        """End; leases still held are left to run out."""
        ...

    def check_now(self) -> None:
        """Something may have happened to a job: renew at once."""
        ...

    def say_stopping(self) -> None:
        """The worker takes no more jobs: have its row say so."""
        ...

    def add_process(self, pid: int) -> None:
        """A process that works for this worker, to be killed should the worker die, where the guardian outlives it."""
        ...

    def remove_process(self, pid: int) -> None:
        """The process has ended."""
        ...
