"""What a handler can know of its job, and do about its lock."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_current: ContextVar["Run | None"] = ContextVar("onward_flow_run", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a handler, for handlers that ask for it: `async def check(job: Access, run: Run) -> Checked`."""

    flow: str
    stage: str
    job_id: str
    correlation_id: str
    worker: str
    retries: int
    """How many handlers of this stage have failed on it before."""
    stalls: int
    """How many workers have died on it at this stage, or lost their lock."""
    _renew: Callable[[], Awaitable[None]] = field(repr=False)

    async def renew(self) -> None:
        """Have another `timeout` of the stage from now on; raises FlowLockLost when the job is no longer yours."""
        await self._renew()


def current_run() -> Run | None:
    """The run that the caller is part of, for what is called by handlers: logging filters, tracing.

    >>> current_run() is None
    True
    """
    return _current.get()


def enter(run: Run) -> Any:
    """Make a run the current one of this task; threads are given a copy."""
    return _current.set(run)
