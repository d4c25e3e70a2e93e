"""Pruning a batch of chains that have ended."""

from collections.abc import Sequence
from typing import Any

from onward.state.command import Rows
from onward.state.contract import Keeping, Pruned
from onward.state.driver import Connection, transaction
from onward.state.sqlite.values import duration, many
from onward.state.statement import Statements

_PAGES = 10
"""How often to read as many rows as a batch has, if it is not full by then."""
_LAST = "g"
"""Comes after every UUID; what a hand has written as an id may come later, and stays."""


class Pruning:
    """One batch, on one connection. What there is to do is looked up before the one lock is asked for."""

    def __init__(self, connection: Connection, sql: Statements, rules: Sequence[Keeping], *, now: int) -> None:
        self._connection, self._sql, self._now = connection, sql, now
        self._rules = as_rules(rules)

    async def prune(self, place: str, before: float | None, chains: int, rows: int) -> Pruned:
        last = _LAST if before is None else _first_id((self._now - duration(before)) // 1000)
        found: list[Sequence[Any]] = []
        doomed: Sequence[str] = ()
        following: str | None = None
        for _ in range(_PAGES):
            page = await self._fetch("prune_candidates", place=place, last=last, read=rows + 1, rows=rows)
            found.extend(page[:rows])
            doomed, following = _batch(found, chains, rows)
            if following is not None or len(page) <= rows:
                break
            place = following = page[rows][0]
        completed, failed, jobs = await self._delete(doomed) if doomed else (0, 0, 0)
        return Pruned(completed, failed, jobs, following or last, following is None)

    async def _delete(self, doomed: Sequence[str]) -> tuple[int, int, int]:
        async with transaction(self._connection):
            found = await self._fetch("prunable", chain_ids=many(doomed))
            chain_ids = many([row[0] for row in found])
            await self._connection.fetch(self._sql("delete_edges"), {"chain_ids": chain_ids})
            gone = await self._connection.fetch(self._sql("delete"), {"chain_ids": chain_ids})
        failed = sum(bool(row[1]) for row in found)
        return len(found) - failed, failed, len(gone)

    async def _fetch(self, name: str, **parameters: Any) -> Rows:
        return await self._connection.fetch(self._sql(name), {**parameters, "rules": self._rules, "now": self._now})


def as_rules(rules: Sequence[Keeping]) -> str:
    """As the statements take them."""
    return many([(rule.type_name, _kept(rule.completed), _kept(rule.failed)) for rule in rules])


def _batch(page: Rows, chains: int, rows: int) -> tuple[list[str], str | None]:
    """The chains to delete, and the first that there is no room for."""
    doomed: list[str] = []
    total = 0
    for id, weight in page:
        if weight is None:
            continue
        if len(doomed) == chains or (doomed and total + weight > rows):
            return doomed, id
        doomed.append(id)
        total += weight
    return doomed, None


def _kept(seconds: float | None) -> int | None:
    return None if seconds is None else duration(seconds)


def _first_id(milliseconds: int) -> str:
    """What comes before every UUIDv7 of that time."""
    digits = f"{max(milliseconds, 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"
