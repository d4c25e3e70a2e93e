"""Changing many chains in batches, each all or nothing; what is refused keeps no other from being changed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.client.app import Onward
from onward.client.arguments import Filters
from onward.client.causes import Group, grouped
from onward.errors import ChainError, ChainNotFailed, DatabaseUnavailable
from onward.model import ChainId

BATCH = 200
_LOOKED_THROUGH = 20_000


@dataclass(slots=True)
class Changed:
    """What has come of it so far."""

    count: int = 0
    """Chains that were changed, also those that changed with the ones asked for."""
    refused: list[tuple[ChainId, str]] = field(default_factory=list)
    """Which were not, and why."""
    in_doubt: int = 0
    """How many were under way when it was interrupted: whether they were changed is not known."""
    left: int = 0
    """How many were not tried then."""


async def change_in_batches(
    change: Callable[..., Awaitable[int]],
    ids: Sequence[ChainId],
    *,
    found: bool,
    progress: Callable[[int], None] = lambda done: None,
    interrupted: Callable[[Changed], None] = lambda changed: None,
) -> Changed:
    """Change chains; `progress` is told of how many each time. `found`: by a filter, so that one which has come back
    with what it waits for is no surprise. If it cannot go on, `interrupted` is told how far it has come."""
    changed = Changed()
    todo = [ids[n : n + BATCH] for n in range(0, len(ids), BATCH)][::-1]
    while todo:
        batch = todo.pop()
        try:
            changed.count += await change(*batch)
        except ChainError as refusal:
            if len(batch) > 1:
                middle = len(batch) // 2
                todo += [batch[middle:], batch[:middle]]
                continue
            if not (found and isinstance(refusal, ChainNotFailed)):
                changed.refused.append((batch[0], str(refusal)))
        except BaseException as error:
            is_known = isinstance(error, Exception) and not isinstance(error, DatabaseUnavailable)
            changed.in_doubt = 0 if is_known else len(batch)
            changed.left = sum(map(len, todo)) + len(batch) - changed.in_doubt
            interrupted(changed)
            raise
        progress(len(batch))
    return changed


async def matching(app: Onward, filters: Filters) -> AsyncIterator[ChainId]:
    """The chains that a filter finds, newest first, however many jobs there are."""
    wanted: Any = {**filters, "among": _LOOKED_THROUGH}
    async for chain in app.chains(limit=1000, **wanted):
        yield chain.id


async def causes(app: Onward, filters: Filters, *, most: int) -> tuple[list[Group], bool]:
    """Why jobs failed, among the newest `most` of them; and whether those are all."""
    found, is_all = await app.newest_failed(most=most, **filters)
    return grouped(found), is_all
