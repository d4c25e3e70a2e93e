"""Queues: one honest interface over providers. `Queue` adds jobs, `QueueWorker` runs them."""

from onward.errors import (
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueJobFailed,
    QueueNotFound,
    QueuePartlyAdded,
    QueueRuntimeError,
    QueueWaitTimeout,
)
from onward.queue.events import (
    Active,
    Completed,
    Drained,
    Failed,
    Paused,
    QueueErrorEvent,
    QueueEvent,
    Resumed,
    Retrying,
    ShutdownTimeout,
    ShuttingDown,
)
from onward.queue.model import (
    ActiveJob,
    Capabilities,
    Keep,
    QueueFailureReason,
    QueueHealth,
    QueueJob,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import JobOptions, Options, UnsupportedFeature
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.memory import Memory
from onward.queue.queue import Queue
from onward.queue.worker import QueueWorker

__all__ = [  # noqa: RUF022 - grouped like a table of contents
    "Queue", "QueueWorker", "QueueJob", "ActiveJob", "QueueJobStatus", "QueueFailureReason", "QueuePage",
    "JobOptions",
    # providers
    "Memory", "Keep", "Provider", "ProviderFactory", "Capabilities", "Options", "UnsupportedFeature",
    # asking
    "QueueStats", "QueueHealth",
    # events
    "QueueEvent", "Active", "Completed", "Failed", "Retrying", "ShuttingDown", "ShutdownTimeout", "QueueErrorEvent",
    "Drained",
    "Paused", "Resumed",
    # errors
    "QueueError", "QueueErrorCode", "QueueConfigurationError", "QueueDataError", "QueueRuntimeError",
    "QueuePartlyAdded", "QueueNotFound", "QueueJobFailed", "QueueWaitTimeout",
]  # fmt: skip
