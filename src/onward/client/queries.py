"""Reads: how a page of jobs or chains is found, however many there are and whatever is asked for.

Jobs have few indexes, since each one costs those who work: of what waits, runs and failed, by type. A list looks
through these where little is in them, and through all jobs, newest first, where a page is soon full. Who cannot wait
until all were looked at says `among`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from onward.model import Page
from onward.state.command import Operation, Steps
from onward.state.contract import Filter, StateAdapter
from onward.state.driver import Connection

FEW = 5_000
"""Jobs that can be looked up one by one, and sorted, in a tenth of a second."""


class Listed(Protocol):
    """What pages are made of."""

    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=Listed)
T_co = TypeVar("T_co", bound=Listed, covariant=True)


class List(Protocol[T_co]):
    """`list_jobs` or `list_chains` of a state adapter."""

    def __call__(self, filter: Filter, *, after: UUID | None, limit: int) -> Operation[Sequence[T_co]]: ...


def page_of(
    state: StateAdapter, listing: List[T], filter: Filter, *, after: UUID | None, limit: int, by_chain: bool
) -> Operation[Page[T]]:
    """A page of what matches; `by_chain`: of jobs, which indexes know by their chain and their type.

    Where fewer than `limit` were found among as many jobs as might be looked at, the next page begins behind those.
    """
    named = by_chain and filter.chain_ids is not None
    # A chain's type is that of its first job, by which no index knows the one it has come to.
    counted = filter if by_chain else msgspec.structs.replace(filter, type_names=None)

    async def look(connection: Connection) -> Page[T]:
        indexed = named or (
            filter.only_live and await connection.run(state.count_indexed(counted, most=FEW + 1)) <= FEW
        )
        down_to = None
        if filter.among is not None and not indexed:
            down_to = await connection.run(state.place_below(after, jobs=filter.among))
        bounded = msgspec.structs.replace(filter, indexed=indexed, down_to=down_to)
        items = await connection.run(listing(bounded, after=after, limit=limit))
        return page(items, limit, otherwise=down_to)

    return Steps(look)


def page(items: Sequence[T], limit: int, *, otherwise: UUID | None = None) -> Page[T]:
    """Items, and where the next page begins: behind the last of them if there may be more, or else `otherwise`."""
    return Page(items=items, next=items[-1].id if len(items) == limit else otherwise)


def shown(found: Page[T], show: Callable[[T], T]) -> Page[T]:
    """The page as it may be seen."""
    return Page(items=[show(item) for item in found], next=found.next)
