"""Queues: one honest interface over providers. `Queue` adds jobs, `QueueWorker` runs them."""

from onward.errors import (
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueNotFound,
    QueuePartlyAdded,
    QueueRuntimeError,
)
from onward.queue.contract import Provider, ProviderFactory
from onward.queue.events import (
    Active,
    Completed,
    Drained,
    Failed,
    Paused,
    QueueEvent,
    Resumed,
    Retrying,
    ShutdownTimeout,
    ShuttingDown,
    Trouble,
)
from onward.queue.model import ActiveJob, Capabilities, QueueHealth, QueueJob, QueueJobStatus, QueueStats
from onward.queue.options import JobOptions, Options, UnsupportedFeature
from onward.queue.providers.memory import Memory
from onward.queue.queue import Queue
from onward.queue.worker import QueueWorker

__all__ = [  # noqa: RUF022 - grouped like a table of contents
    "Queue", "QueueWorker", "QueueJob", "ActiveJob", "QueueJobStatus", "JobOptions",
    # providers
    "Memory", "Provider", "ProviderFactory", "Capabilities", "Options", "UnsupportedFeature",
    # asking
    "QueueStats", "QueueHealth",
    # events
    "QueueEvent", "Active", "Completed", "Failed", "Retrying", "ShuttingDown", "ShutdownTimeout", "Trouble", "Drained",
    "Paused", "Resumed",
    # errors
    "QueueError", "QueueErrorCode", "QueueConfigurationError", "QueueDataError", "QueueRuntimeError",
    "QueuePartlyAdded", "QueueNotFound",
]  # fmt: skip
