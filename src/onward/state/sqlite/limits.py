"""Admission on SQLite: the single writer is the lock, so that a count of rows is true until the transaction ends."""

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from onward.state.contract import Admitted, LimitRule, SetOutcome, keys_of
from onward.state.driver import Connection, transaction
from onward.state.sqlite.values import duration, many
from onward.state.statement import Statements
from onward.state.workers import AHEAD, LATELY

_MOST_AT_ONCE = 1000
_MOST_KEYS = 1000
"""Looked at in one transaction, for which other writers wait."""
_SWEEP_EVERY = duration(30)
"""While jobs are held: between looks after the places of types that nobody serves."""
_DEPLOYING = duration(600)
"""For so long after a change, who declares what was before is taken for an old worker that starts again."""


def _text(key: bytes) -> str | None:
    """None: a hand has written it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


class Admission:
    """Gives free places to held jobs."""

    def __init__(self, connection: Connection, sql: Statements, now: int) -> None:
        self._connection, self._sql, self._now = connection, sql, now
        self._types: Counter[str] = Counter()

    async def admit(self, *, most: int | None, sweep: bool) -> Admitted:
        if sweep:
            await wake(self._connection, self._sql, everything=True)
        is_woken, next_at, are_held, are_stale, is_paced, is_unswept = await self._next()
        if sweep or (are_held and is_unswept):
            try:
                async with transaction(self._connection):
                    is_woken = await self._look_after_unserved() or is_woken
            except Exception as error:
                # The rows of workers are for people to look at: no reason to let nobody in.
                if "no such table" not in str(error):
                    raise
        if is_woken or are_stale or (next_at is not None and next_at <= self._now):
            async with transaction(self._connection):
                await self._admit(most or _MOST_KEYS)
                is_woken, next_at, are_held, _, is_paced, _ = await self._next()
        waits = [0.0] * is_woken + [1.0] * are_held + ([] if next_at is None else [(next_at - self._now) / 1_000_000])
        return Admitted(dict(self._types), min(waits, default=None), 0, bool(is_paced))

    async def _look_after_unserved(self) -> bool:
        """Have types that nobody serves give places up that others of a limit could have; whether keys were woken."""
        given = {"now": self._now, "ahead": AHEAD, "lately": LATELY}
        served = [row[0] for row in await self._connection.fetch(self._sql("serve_again"), given)]
        if served:
            await wake(self._connection, self._sql, type_names=served)
        unserved = await self._connection.fetch(self._sql("find_unserved"), given)
        await give_up_places(self._connection, self._sql, unserved=True)
        # Others like them may be the next to get these places.
        swept_at = self._now - (_SWEEP_EVERY - duration(1)) if unserved else self._now
        await self._connection.fetch(self._sql("sweep_limits"), {"now": swept_at})
        return bool((await self._next())[0])

    async def _next(self) -> Sequence[Any]:
        return (await self._connection.fetch(self._sql("admit_next"), {"now": self._now, "sweep_every": _SWEEP_EVERY}))[
            0
        ]

    async def _admit(self, most: int) -> None:
        woken = await self._connection.fetch(self._sql("admit_woken"), {"most": most})
        keys = [key for row in woken if (key := _text(row[0])) is not None]
        rooms = await self._connection.fetch(self._sql("admit_room"), {"keys": many(keys), "now": self._now})
        for key, *room in rooms:
            if (text := _text(key)) is not None:
                await self._admit_of(text, *room)
        if rooms:
            await self._connection.fetch(self._sql("admit_idle"), {"now": self._now})

    async def _admit_of(
        self, key: str, places: int | None, every: float | None, burst: int, tat: int | None, placed: int, waiting: int
    ) -> None:
        free = _MOST_AT_ONCE if places is None else min(places - placed, _MOST_AT_ONCE)
        if every is None:
            admitted = await self._place(key, free)
            if tat is not None:  # it had a rate
                await self._pace(key, tat, None)
            await self._go_on(key, admitted)
            return
        # What has not started yet counts as if it started now: workers may have been away.
        # And not more than a burst ahead, whatever the clock was.
        tat = max(min(tat or 0, self._now + duration(every * burst)), self._now + duration(every * waiting))
        slots = burst - math.ceil(round((tat - self._now) / 1_000_000 / every, 6))
        admitted = await self._place(key, min(free, slots))
        tat += duration(every * admitted)
        more = admitted >= slots and await self._has_more(key)
        wake_at = tat - duration(every * (burst - 1)) if more else None
        await self._pace(key, tat, wake_at, self._now + duration(every) if waiting + admitted else None)
        await self._go_on(key, admitted)

    async def _go_on(self, key: str, admitted: int) -> None:
        """There may be room for more than can be admitted at once."""
        if admitted == _MOST_AT_ONCE and await self._has_more(key):
            await wake_keys(self._connection, self._sql, [key])

    async def _place(self, key: str, most: int) -> int:
        if most <= 0:
            return 0
        rows = await self._connection.fetch(self._sql("admit"), {"key": key, "most": most, "now": self._now})
        self._types.update(type_name for type_name, _, now_at in rows if now_at == key)
        passed = [id for _, id, now_at in rows if now_at != key]
        if passed:
            await self._connection.fetch(self._sql("admit_passed"), {"key": key, "ids": many(passed)})
            await wake_keys(self._connection, self._sql, {now_at for *_, now_at in rows if now_at != key})
        return len(rows)

    async def _has_more(self, key: str) -> bool:
        return bool((await self._connection.fetch(self._sql("admit_rest"), {"key": key}))[0][0])

    async def _pace(self, key: str, tat: int, wake_at: int | None, stale_at: int | None = None) -> None:
        paced = {"key": key, "tat": tat, "wake_at": wake_at, "stale_at": stale_at}
        await self._connection.fetch(self._sql("admit_paced"), paced)


async def set_limits(
    connection: Connection, sql: Statements, rules: Sequence[LimitRule], *, declared: bool, now: int
) -> Sequence[SetOutcome]:
    """In one transaction; `StateAdapter.set_limits` says what it does."""
    rows = await connection.fetch(sql("find_limits"), {"names": many([rule.name for rule in rules])})
    stored = {name: said for name, *said in rows}
    outcomes: list[SetOutcome] = [_outcome(rule, stored.get(rule.name), declared=declared, now=now) for rule in rules]
    changed = [rule for rule, outcome in zip(rules, outcomes, strict=True) if outcome == "changed"]
    for rule in changed:
        said = {"name": rule.name, "places": rule.places, "every": rule.every, "burst": rule.burst, "now": now}
        await connection.fetch(sql("set_limit"), {**said, "figures": rule.figures, "declared": declared})
        tat = now + duration(rule.every * rule.burst) if rule.every else now
        await connection.fetch(sql("set_limit_keys"), {**keys_of(rule.name), "tat": tat})
    if changed:
        await give_up_places(connection, sql, names=[rule.name for rule in changed])
        await wake(connection, sql, names=[rule.name for rule in changed])
    return outcomes


def _outcome(rule: LimitRule, stored: Sequence[Any] | None, *, declared: bool, now: int) -> SetOutcome:
    if stored is None:
        return "changed" if declared else "unknown"
    if not declared:
        return "changed"
    figures, previous, declared_at = stored
    if figures == rule.figures.encode():
        return "kept"
    return "outdated" if previous == rule.figures.encode() and declared_at > now - _DEPLOYING else "changed"


async def give_up_places(
    connection: Connection,
    sql: Statements,
    *,
    names: Sequence[str] = (),
    type_names: Sequence[str] = (),
    unserved: bool = False,
) -> None:
    """Have jobs held again that have a place and have not started: of limits, of types, or of what nobody serves."""
    given = {"names": many(list(names)), "type_names": many(list(type_names)), "unserved": unserved}
    await connection.fetch(sql("give_up_places"), given)
    rows = await connection.fetch(sql("begin_anew"), given)
    if rows:
        await connection.fetch(sql("give_back_places"), {"ids": many([row[0] for row in rows])})
        await wake_keys(connection, sql, {key for row in rows for key in json.loads(row[1]) if isinstance(key, str)})


async def wake_keys(connection: Connection, sql: Statements, keys: Collection[str]) -> None:
    """Have the held jobs of keys looked at."""
    await connection.fetch(sql("wake_keys"), {"keys": many(list(keys))})


async def wake(
    connection: Connection,
    sql: Statements,
    *,
    names: Sequence[str] = (),
    type_names: Sequence[str] = (),
    everything: bool = False,
) -> None:
    """Have the held jobs of limits, or of types, looked at."""
    given = {"names": many(list(names)), "type_names": many(list(type_names)), "all": everything}
    await connection.fetch(sql("wake_limits"), given)
