"""What callers pass, in the several forms they may pass it in, as the one form operations take."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict, TypeGuard, TypeVar
from uuid import UUID

from onward.define.job_type import Step
from onward.define.request import ChainReference
from onward.errors import ChainOfAnotherType, ConfigurationError, require
from onward.model import Chain, ChainId, FailureReason, JobId, JobStatus
from onward.options import (
    LONGEST_NAME,
    given,
    unknown,
    wrong_duration,
    wrong_id,
    wrong_instant,
    wrong_number,
    wrong_several,
    wrong_text,
)
from onward.state.command import Operation, Steps
from onward.state.contract import Filter, StateAdapter
from onward.state.driver import Connection

_MOST_PER_PAGE = 1_000
_LONGEST_TEXT = 1_000
_MOST_LOOKED_AT = 2**31 - 1
AMONG, AMONG_CHAINS, AMONG_ERRORS = 100_000, 50_000, 5_000
"""How many jobs a list looks through for a page: chains, and the text of errors, take longer to look at."""

T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)


class Asked(NamedTuple):
    """Chains that a caller named: by handles, which say with which type each began, or by bare ids."""

    ids: list[ChainId]
    types: dict[ChainId, str]

    def check(self, chain: Chain) -> Chain:
        """Raise ChainOfAnotherType unless the chain is what its handle says."""
        expected = self.types.get(chain.id, chain.type_name)
        if chain.type_name != expected:
            raise ChainOfAnotherType(chain_id=chain.id, expected=expected, found=chain.type_name)
        return chain

    def checked(self, state: StateAdapter, operation: Operation[T]) -> Operation[T]:
        """The same for those that exist, before an operation, on its connection, and so in its transaction."""
        if not self.types:
            return operation

        async def check_and_run(connection: Connection) -> T:
            for chain in await connection.run(state.find_chains(list(self.types))):
                self.check(chain)
            return await connection.run(operation)

        return Steps(check_and_run)


def asked(doing: str, *chains: ChainReference | ChainId) -> Asked:
    """The chains given to a call."""
    types = {chain.id: chain.job_type.name for chain in chains if _is_handle(chain, doing)}
    return Asked([chain if isinstance(chain, UUID) else chain.id for chain in chains], types)


def _is_handle(chain: Any, doing: str) -> TypeGuard[ChainReference]:
    if isinstance(chain, UUID):
        return False
    if isinstance(getattr(chain, "id", None), UUID) and isinstance(getattr(chain, "job_type", None), Step):
        return True
    several = f"; write {doing}(*chains)" if isinstance(chain, list | tuple) else ""
    raise ConfigurationError(
        f"{doing}({given('chain', chain)}): expected a handle, as start(…) and chain(…) give it, or a UUID{several}"
    )


def checked_id(option: str, value: UUID) -> UUID:
    """An id, if it is one."""
    require(wrong_id(option, value))
    return value


def checked_limit(limit: int) -> int:
    """How many a page may have."""
    problem = wrong_number("limit", limit, least=1, most=_MOST_PER_PAGE)
    require(problem and f"{problem}; a page has 1 to {_MOST_PER_PAGE} items")
    return limit


def checked_place(after: UUID | None) -> UUID | None:
    """After which item a page begins."""
    require(None if after is None else wrong_id("after", after))
    return after


def type_names(job_types: Iterable[Step[Any, Any] | str]) -> list[str]:
    """The names of job types."""
    require(wrong_several("types", job_types, of="job types or names"))
    return [_name_of(one) for one in job_types]


def _name_of(job_type: Any) -> str:
    if isinstance(job_type, Step):
        return job_type.name
    if not isinstance(job_type, str):
        raise ConfigurationError(f"{given('types', job_type)}: expected a job type, as @job makes it, or its name")
    require(wrong_text("types", job_type, most=LONGEST_NAME))
    return str(job_type)


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
    older_than: timedelta | None
    newer_than: timedelta | None
    error_text: str | None
    among: int | None


def filter_of(filters: Filters) -> Filter:
    """The filter for a listing, checked."""
    for option in filters:
        if option not in Filters.__annotations__:
            raise ConfigurationError(unknown(option, Filters.__annotations__))
    types, chains, root_id = filters.get("types"), filters.get("chains"), filters.get("root_id")
    error_text, among = filters.get("error_text"), filters.get("among")
    require(
        None if chains is None else wrong_several("chains", chains, of="handles or UUIDs"),
        None if error_text is None else wrong_text("error_text", error_text, most=_LONGEST_TEXT),
        None if among is None else wrong_number("among", among, least=1, most=_MOST_LOOKED_AT),
    )
    return Filter(
        type_names=None if types is None else type_names(types),
        statuses=words("status", JobStatus, filters.get("status")),
        chain_ids=None if chains is None else asked("chains=", *chains).ids,
        root_ids=None if root_id is None else [checked_id("root_id", root_id)],
        created_from=instant("created_from", filters.get("created_from")),
        created_before=instant("created_before", filters.get("created_before")),
        reasons=words("reason", FailureReason, filters.get("reason")),
        error_types=_texts("error_type", filters.get("error_type")),
        failed_from=instant("failed_from", filters.get("failed_from")),
        failed_before=instant("failed_before", filters.get("failed_before")),
        older_than=_seconds("older_than", filters.get("older_than")),
        newer_than=_seconds("newer_than", filters.get("newer_than")),
        error_text=error_text,
        among=among,
    )


def _seconds(option: str, value: timedelta | None) -> float | None:
    require(None if value is None else wrong_duration(option, value))
    return None if value is None else value.total_seconds()


def words(option: str, kind: type[W], value: str | Sequence[str] | None) -> list[W] | None:
    """Of a closed set, one or several."""
    try:
        return None if value is None else [kind(one) for one in ([value] if isinstance(value, str) else value)]
    except (ValueError, TypeError):
        raise ConfigurationError(f"{given(option, value)}: use one of {', '.join(kind)}") from None


def _texts(option: str, value: str | Sequence[str] | None) -> list[str] | None:
    texts = [value] if isinstance(value, str) else value
    if texts is not None and not (isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts)):
        raise ConfigurationError(f"{given(option, value)}: expected a str, or several in a list")
    require(*(wrong_text(option, one, most=_LONGEST_TEXT) for one in texts or ()))
    return None if texts is None else list(map(str, texts))


def instant(option: str, value: datetime | None) -> datetime | None:
    """A time that may be missing, if it is one."""
    if value is not None:
        require(wrong_instant(option, value))
    return value
