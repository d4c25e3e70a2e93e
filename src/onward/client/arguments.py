"""What callers pass, in the several forms they may pass it in, as the one form operations take."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

from onward.define.job_type import Step
from onward.define.request import ChainReference
from onward.errors import ConfigurationError
from onward.model import ChainId, JobId, JobStatus
from onward.state.contract import Filter


def chain_id(chain: ChainReference | ChainId) -> ChainId:
    """The id of a handle, or the id itself."""
    return chain if isinstance(chain, ChainId) else chain.id


def chain_ids(chains: Iterable[ChainReference | ChainId]) -> list[ChainId]:
    """The ids of handles."""
    return [chain_id(chain) for chain in chains]


def type_names(job_types: Iterable[Step[Any, Any] | str]) -> list[str]:
    """The names of job types."""
    return [one if isinstance(one, str) else one.name for one in job_types]


class Filters(TypedDict, total=False):
    """Which jobs or chains to list; what is not said does not matter."""

    types: Sequence[Step[Any, Any] | str] | None
    status: JobStatus | str | Sequence[JobStatus | str] | None
    chains: Sequence[ChainReference | ChainId] | None
    root_id: JobId | None
    created_from: datetime | None
    created_before: datetime | None


def filter_of(filters: Filters) -> Filter:
    """The filter for a listing, checked."""
    types, status, chains = filters.get("types"), filters.get("status"), filters.get("chains")
    root_id, moments = filters.get("root_id"), (filters.get("created_from"), filters.get("created_before"))
    wanted = [status] if isinstance(status, str) else status
    for moment in moments:
        if moment is not None and moment.tzinfo is None:
            raise ConfigurationError(f"{moment} has no time zone; use datetime.now(UTC) or astimezone()")
    try:
        statuses = None if wanted is None else [JobStatus(one) for one in wanted]
    except ValueError as error:
        raise ConfigurationError(f"{error}: use one of {', '.join(JobStatus)}") from None
    return Filter(
        type_names=None if types is None else type_names(types),
        statuses=statuses,
        chain_ids=None if chains is None else chain_ids(chains),
        root_ids=None if root_id is None else [root_id],
        created_from=moments[0],
        created_before=moments[1],
    )
