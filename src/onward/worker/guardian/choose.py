"""Which guardian fits a worker."""

import os
import sys
from collections.abc import Sequence

from onward.lifecycle.store import Store
from onward.model import WorkerId
from onward.notify.contract import NotifyAdapter
from onward.state.driver import Driver
from onward.worker.guardian.blocked import Watch
from onward.worker.guardian.contract import Guardian, GuardianKind, Told
from onward.worker.guardian.process import ProcessGuardian
from onward.worker.guardian.thread import ThreadGuardian
from onward.worker.options import WorkerOptions
from onward.worker.presence import Presence


def choose_guardian(
    options: WorkerOptions,
    store: Store,
    notify: NotifyAdapter,
    worker: WorkerId,
    *,
    leases: Sequence[float],
    lost: Told,
    watch: Watch,
    presence: Presence,
) -> Guardian:
    """A child process where one is wanted and can do it, else a thread. `leases`: how long those of each type are."""
    address, why_not = store.driver.address, _why_no_process(options.guardian, store.driver)
    if why_not is None and address is not None:
        return ProcessGuardian(
            store,
            worker,
            address,
            notify,
            shortest=min(leases),
            longest=max(leases),
            concurrency=options.concurrency,
            lost=lost,
            watch=watch,
            presence=presence,
        )
    return ThreadGuardian(
        store, worker, shortest=min(leases), lost=lost, watch=watch, presence=presence, why=why_not or ""
    )


def _why_no_process(kind: GuardianKind, driver: Driver) -> str | None:
    if kind == "thread":
        return "guardian='thread'"
    if driver.address is None:
        return "a child process needs the address of a database that others can reach, not an object or memory://"
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        return "this platform does not let a child process be started as it should"
    return None
