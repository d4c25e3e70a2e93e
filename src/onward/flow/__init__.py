"""Multi-stage jobs on Redis: attributes come in, each stage adds its result to them. Needs `onward[redis]`."""

from onward.errors import (
    FlowDefinitionError,
    FlowError,
    FlowFull,
    FlowJobExists,
    FlowJobFailed,
    FlowJobNotFailed,
    FlowJobNotFound,
    FlowKeysTaken,
    FlowLockLost,
    FlowPayloadError,
    FlowUnavailable,
    FlowWaitTimeout,
    MissingAttribute,
    Permanent,
)
from onward.flow.events import FlowEvent
from onward.flow.flow import Flow
from onward.flow.options import Keep
from onward.flow.outcome import FanOut, Goto
from onward.flow.run import Run, current_run
from onward.flow.stage import Rate
from onward.flow.views import FlowFailureReason, FlowJob, Position, Positions
from onward.flow.worker import FlowWorker
from onward.flow.workers import FlowWorkers

__all__ = [  # noqa: RUF022 - grouped like a table of contents
    # define
    "Flow", "Goto", "FanOut", "Rate", "Keep", "Run", "current_run", "Permanent",
    # work
    "FlowWorkers", "FlowWorker",
    # observe
    "FlowJob", "FlowFailureReason", "Position", "Positions", "FlowEvent",
    # errors
    "FlowError", "FlowDefinitionError", "MissingAttribute", "FlowPayloadError", "FlowKeysTaken", "FlowUnavailable",
    "FlowFull",
    "FlowJobExists", "FlowJobNotFound", "FlowJobNotFailed", "FlowJobFailed", "FlowWaitTimeout", "FlowLockLost",
]  # fmt: skip
