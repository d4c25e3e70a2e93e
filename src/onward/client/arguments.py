"""What callers pass, in the several forms they may pass it in, as the one form operations take."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, TypeVar

from onward.define.job_type import Step
from onward.define.request import ChainReference
from onward.errors import ConfigurationError
from onward.model import ChainId, FailureReason, JobId, JobStatus
from onward.state.contract import Filter

W = TypeVar("W", bound=StrEnum)


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
    reason: FailureReason | str | Sequence[FailureReason | str] | None
    error_type: str | Sequence[str] | None
    failed_from: datetime | None
    failed_before: datetime | None


def filter_of(filters: Filters) -> Filter:
    """The filter for a listing, checked."""
    types, chains, root_id = filters.get("types"), filters.get("chains"), filters.get("root_id")
    return Filter(
        type_names=None if types is None else type_names(types),
        statuses=_words(JobStatus, filters.get("status")),
        chain_ids=None if chains is None else chain_ids(chains),
        root_ids=None if root_id is None else [root_id],
        created_from=_moment(filters.get("created_from")),
        created_before=_moment(filters.get("created_before")),
        reasons=_words(FailureReason, filters.get("reason")),
        error_types=_several(filters.get("error_type")),
        failed_from=_moment(filters.get("failed_from")),
        failed_before=_moment(filters.get("failed_before")),
    )


def _several(given: str | Sequence[str] | None) -> Sequence[str] | None:
    return [given] if isinstance(given, str) else given


def _words(kind: type[W], given: str | Sequence[str] | None) -> list[W] | None:
    try:
        return None if given is None else [kind(one) for one in _several(given) or ()]
    except ValueError as error:
        raise ConfigurationError(f"{error}: use one of {', '.join(kind)}") from None


def _moment(given: datetime | None) -> datetime | None:
    if given is not None and given.tzinfo is None:
        raise ConfigurationError(f"{given} has no time zone; use datetime.now(UTC) or astimezone()")
    return given
