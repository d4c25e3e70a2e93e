"""The `bullmq` package and the client it brings, as far as they are used here."""

from typing import Any

from onward.errors import QueueConfigurationError

try:
    import bullmq  # type: ignore[import-untyped]
    from bullmq.redis_connection import loadScript  # type: ignore[import-untyped]
except ImportError as error:
    raise QueueConfigurationError("bullmq is not installed: pip install 'onward[bullmq]'") from error

from onward.redis.scripts import Script

# The package has no types: what it makes is `Any` here.
Job: Any = bullmq.Job
Queue: Any = bullmq.Queue
Worker: Any = bullmq.Worker
UnrecoverableError: Any = bullmq.UnrecoverableError

GIVE_BACK = Script.of(loadScript("moveJobFromActiveToWait-9.lua"))
"""BullMQ's script that puts a job back to the front of the line, uncounted; its Python side has no call for it."""


def is_refusal(error: BaseException) -> bool:
    """Whether BullMQ says so of a job that is gone, or that somebody else holds."""
    said = str(error)
    return isinstance(error, TypeError) and (
        said.startswith(("Missing key for job", "Missing lock for job", "Lock mismatch for job"))
        or " is not in the " in said
    )


def is_gone(error: BaseException) -> bool:
    """Whether there is no such job any more."""
    return isinstance(error, TypeError) and str(error).startswith("Missing key for job")
