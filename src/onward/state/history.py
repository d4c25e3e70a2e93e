"""The history: where a database that keeps one moves chains that are pruned, and how they are looked up there."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from onward.model import Chain, ChainId, Job
from onward.state.command import Command, first_value
from onward.state.rows import read_chain, read_job
from onward.state.statement import Statements


class HistoryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which moved chains to list; None means any."""

    type_names: Sequence[str] | None = None
    failed: Sequence[bool] = (False, True)
    """Whether those that completed, that failed, or both."""
    chain_ids: Sequence[ChainId] | None = None
    ended_from: datetime | None = None
    ended_before: datetime | None = None


class HistoryStatements:
    """What is done with the history, beside moving chains there: `prune` does that."""

    def __init__(self, sql: Statements, *, now: Callable[[], Any]) -> None:
        self._sql, self._now = sql, now

    def list(self, filter: HistoryFilter, *, after: ChainId | None, limit: int) -> Command[Sequence[Chain]]:
        """The last to end first, beginning behind `after`; those that are named all at once."""
        parameters = {
            "type_names": None if filter.type_names is None else [*filter.type_names],
            "failed": [*filter.failed],
            "ended_from": filter.ended_from,
            "ended_before": filter.ended_before,
        }
        if filter.chain_ids is not None:
            return Command(self._sql("find_history"), {**parameters, "chain_ids": [*filter.chain_ids]}, _chains)
        return Command(self._sql("list_history"), {**parameters, "after": after, "limit": limit}, _chains)

    def jobs_of(self, chain_id: ChainId) -> Command[Sequence[Job]]:
        """All jobs of a moved chain, in their order; none, if it is not there."""
        return Command(self._sql("history_jobs"), {"chain_id": chain_id}, _jobs)

    def drop(self) -> Command[datetime | None]:
        """Drop the oldest part of which nothing is wanted any more. When it began; None: there is none, or somebody
        looks at the history at this moment.
        """
        return Command(self._sql("drop_history"), {"now": self._now()}, first_value)


def _chains(rows: Sequence[Sequence[Any]]) -> list[Chain]:
    return [read_chain(row, _as_is, _as_is) for row in rows]


def _jobs(rows: Sequence[Sequence[Any]]) -> list[Job]:
    return [read_job(row, _as_is, _as_is) for row in rows]


def _as_is(value: Any) -> Any:
    return value
