"""The job types of a worker, and how it runs each."""

from collections.abc import Sequence
from dataclasses import dataclass

from onward.define.registry import RegisteredType
from onward.errors import ConfigurationError
from onward.lifecycle.settle import RetryPolicy
from onward.lifecycle.store import Store
from onward.model import Backoff
from onward.state.contract import TypeClaim
from onward.state.driver import NO_SYNC_DRIVER
from onward.worker.middleware import check_required
from onward.worker.options import WorkerOptions

STARTING = 60.0
"""Seconds that a process may take to start and import the handler, beside the timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedType:
    """How a worker runs the jobs of a type."""

    registered: RegisteredType
    store: Store
    """What its handlers write through."""
    lease: float
    limit: float | None
    """Seconds after which an attempt has ended or been let go of."""
    policy: RetryPolicy

    @property
    def claims(self) -> list[TypeClaim]:
        """What to ask for when taking."""
        return [TypeClaim(self.registered.name, version, self.lease) for version in self.registered.versions]


def worked_types(
    types: Sequence[RegisteredType], options: WorkerOptions, store: Store, sync_store: Store | None
) -> dict[str, WorkedType]:
    """By name. Raises ConfigurationError or DefinitionError where a worker cannot run them."""
    if not types:
        raise ConfigurationError("no job type has a handler: a worker would have nothing to do")
    if sync_store is None and any(kind.runs_in_thread for kind in types):
        names = ", ".join(kind.name for kind in types if kind.runs_in_thread)
        raise ConfigurationError(f"def handlers ({names}) need a sync driver beside the async one: {NO_SYNC_DRIVER}")
    check_required(types, options.required_middleware)
    return {
        kind.name: WorkedType(
            registered=kind,
            store=store if kind.step.signature.is_async or sync_store is None else sync_store,
            lease=(kind.lease or options.lease).total_seconds(),
            limit=_limit(kind, options.stuck_after),
            policy=RetryPolicy(
                backoff=kind.backoff or options.backoff or Backoff(), max_attempts=kind.definition.max_attempts
            ),
        )
        for kind in types
    }


def _limit(kind: RegisteredType, grace: float) -> float | None:
    if kind.time_limit is None:
        return None
    return kind.time_limit + grace + (STARTING if kind.runs_in_process else 0.0)
