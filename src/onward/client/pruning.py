"""Pruning when somebody asks for it: which chains, and batch by batch until none is left."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypedDict

from onward.client.arguments import words
from onward.define.registry import Registry
from onward.errors import ConfigurationError, require
from onward.lifecycle.pruning import keeping, kept_by
from onward.lifecycle.store import Store
from onward.model import JobStatus
from onward.options import given, unknown, wrong_duration, wrong_flag, wrong_function, wrong_number
from onward.state.contract import Keeping

_ENDED = (JobStatus.COMPLETED, JobStatus.FAILED)
_ROWS, _ROWS_UNDER_ONE_LOCK = 500, 100
_ROWS_COUNTED = 10_000


class PruneOptions(TypedDict, total=False):
    """What `prune` may be told; what is not said is as the retention of each type says."""

    older_than: timedelta | None
    status: JobStatus | str | Sequence[JobStatus | str] | None
    limit: int | None
    progress: Callable[[int], object] | None
    dry_run: bool


def rules_of(registry: Registry, type_names: Sequence[str], options: PruneOptions) -> list[Keeping]:
    """Which chains may go: of these types, or of all that the app knows."""
    known = PruneOptions.__annotations__
    older_than, limit, progress = options.get("older_than"), options.get("limit"), options.get("progress")
    require(
        *(unknown(option, known) for option in options if option not in known),
        None if older_than is None else wrong_duration("older_than", older_than),
        None if limit is None else wrong_number("limit", limit, least=1),
        wrong_flag("dry_run", options.get("dry_run", False)),
        None if progress is None else wrong_function("progress", progress, of="of how many chains are gone"),
    )
    said = words("status", JobStatus, options.get("status"))
    require("status is empty: expected 'completed', 'failed', or both" if said == [] else None)
    statuses = said or _ENDED
    if unfinished := [status for status in statuses if status not in _ENDED]:
        raise ConfigurationError(f"{given('status', unfinished[0])}: only completed and failed chains can be pruned")
    named = type_names or [kind.name for kind in registry.values() if not kind.definition.internal]
    if older_than is None:
        kept = keeping({name: registry.find(name).retention for name in named})
    else:
        age, history = older_than.total_seconds(), {rule.type_name: rule.history for rule in kept_by(registry)}
        # Of a type that no code declares any more there may be chains, too.
        kept = [Keeping(name, age, age, history.get(name)) for name in named]
    return [rule for rule in (_of(rule, statuses) for rule in kept) if (rule.completed, rule.failed) != (None, None)]


def _of(rule: Keeping, statuses: Sequence[JobStatus]) -> Keeping:
    completed = rule.completed if JobStatus.COMPLETED in statuses else None
    return Keeping(rule.type_name, completed, rule.failed if JobStatus.FAILED in statuses else None, rule.history)


async def prune(
    store: Store, rules: Sequence[Keeping], *, limit: int | None, progress: Callable[[int], object] | None
) -> int:
    """Delete these chains, or move them to the history, a batch at a time; how many there were."""
    rows = _ROWS if store.state.locks_rows else _ROWS_UNDER_ONE_LOCK
    total, place = 0, ""
    while rules:
        chains = rows if limit is None else min(rows, limit - total)
        began = time.monotonic()
        batch = store.state.prune(rules, place=place, chains=chains, rows=rows)
        pruned = await store.write(batch, store.effects_of.pruned, doing="prune")
        total, place = total + pruned.chains, pruned.reached
        if progress is not None and pruned.chains:
            progress(total)
        if pruned.is_end or total == limit:
            return total
        if not store.state.locks_rows:
            await store.driver.sleep(time.monotonic() - began)  # let others have the one lock for as long
    return 0


async def count(
    store: Store, rules: Sequence[Keeping], *, limit: int | None, progress: Callable[[int], object] | None
) -> int:
    """How many `prune` would delete, as far as nobody has them locked."""
    total, place = 0, ""
    while rules:
        page = await store.read(store.state.count_prunable(rules, place=place, rows=_ROWS_COUNTED))
        total, place = total + page.chains, page.reached
        if limit is not None:
            total = min(total, limit)
        if progress is not None and page.chains:
            progress(total)
        if page.is_end or total == limit:
            return total
    return 0
