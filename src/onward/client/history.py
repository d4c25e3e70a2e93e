"""The history: which moved chains to list."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from onward.client.arguments import asked, instant, type_names, words
from onward.client.queries import page
from onward.define.job_type import Step
from onward.define.request import ChainReference
from onward.errors import ConfigurationError, require
from onward.model import Chain, ChainId, JobStatus, Page
from onward.options import given, unknown, wrong_several
from onward.state.history import HistoryFilter

_FAILED = {JobStatus.COMPLETED: False, JobStatus.FAILED: True}


class HistoryFilters(TypedDict, total=False):
    """Which moved chains to list; what is not said does not matter."""

    types: Sequence[Step[Any, Any] | str] | None
    status: JobStatus | str | Sequence[JobStatus | str] | None
    chains: Sequence[ChainReference | ChainId] | None
    ended_from: datetime | None
    ended_before: datetime | None


def history_filter(filters: HistoryFilters) -> HistoryFilter:
    """The filter for a listing, checked."""
    require(
        *(
            unknown(each, HistoryFilters.__annotations__)
            for each in filters
            if each not in HistoryFilters.__annotations__
        )
    )
    types, chains = filters.get("types"), filters.get("chains")
    require(None if chains is None else wrong_several("chains", chains, of="handles or UUIDs"))
    statuses = words("status", JobStatus, filters.get("status"))
    for status in statuses or ():
        if status not in _FAILED:
            raise ConfigurationError(f"{given('status', status)}: only completed and failed chains are moved there")
    return HistoryFilter(
        type_names=None if types is None else type_names(types),
        failed=[*_FAILED.values()] if statuses is None else sorted({_FAILED[status] for status in statuses}),
        chain_ids=None if chains is None else asked("chains=", *chains).ids,
        ended_from=instant("ended_from", filters.get("ended_from")),
        ended_before=instant("ended_before", filters.get("ended_before")),
    )


def page_of_history(filter: HistoryFilter, chains: Sequence[Chain], limit: int) -> Page[Chain]:
    """Those that are named are all on one page."""
    return page(chains, limit) if filter.chain_ids is None else Page(items=chains, next=None)
