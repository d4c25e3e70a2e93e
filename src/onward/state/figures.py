"""Figures as rows: what happened minute by minute, and how many jobs are where. Alike on every database.

Every writer has rows of its own and says what they are to be. Whoever has the turn counts what was started, by the ids
of jobs, which are made of the time, and puts rows together that are minutes old.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec

from onward.state.command import Command, Rows, steps
from onward.state.driver import Connection, transaction
from onward.state.histogram import Histogram, add_up
from onward.state.rows import as_integer, as_text
from onward.state.statement import Statements
from onward.state.survey import KINDS, Counting, Survey
from onward.state.workers import Fetch

_EVERY = 10_000_000
"""Microseconds between looks."""
_KEPT = 65
"""Minutes."""
_LOOSE = 3
"""Minutes until a minute is put together: who writes says nothing of those before the last."""
_TOGETHER = 10
"""Minutes whose times are kept with the first of them: sixty a type would take longer to read than all else."""
_BEHIND = 1_000
"""Milliseconds that starts may take to commit, to be counted at first; what comes later is counted with its minute."""
_MOST_STARTS = 20_000
"""To look at in one go, and in a minute that is counted once more."""
_MOST_FORGOTTEN = 1_000


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a type in a minute; as one writer saw it, or all."""

    minute: int
    """Since 1970."""
    type_name: str
    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    waits: Histogram = {}
    runs: Histogram = {}


class FigureStatements:
    """What can be done with the rows, on one database."""

    def __init__(
        self,
        sql: Statements,
        *,
        now: Callable[[], Any],
        write_id: Callable[[UUID], Any],
        write_names: Callable[[Sequence[str]], Any],
        before_survey: str | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """`before_survey`: the statement that has a transaction be fit for one, where that takes one. `fetch`: how rows
        of a query are read of which a hand may have spoiled some.
        """
        self._sql, self._now, self._write_id, self._write_names = sql, now, write_id, write_names
        self._before_survey, self._careful = before_survey, fetch

    # -- for workers

    def record(self, writer: str, figures: Sequence[Figure]) -> Command[float]:
        """Say what the rows of a writer are to be; the database's time, in seconds since 1970.

        Those of minutes before the last one are dropped. To say the same once more is harmless.
        """
        now = self._now()

        def read(rows: Rows) -> float:
            return float(rows[0][0]) if rows else now / 1_000_000

        return Command(self._sql("record_figures"), {"writer": writer, "rows": _many(figures), "now": now}, read)

    @steps
    async def tend(self, connection: Connection) -> float:
        """Count starts, put together what is minutes old, forget what is older than an hour; seconds until it is worth
        looking again. One at a time does so, whoever comes when it is due.
        """
        now, next_at, counted_to, loose_from = (await self._fetch(connection, "figure_turn", now=self._now()))[0]
        if now < next_at <= now + 2 * _EVERY:  # if it is later than anybody says, the clock was ahead then
            return float(next_at - now) / 1_000_000
        if not await self._fetch(connection, "take_figure_turn", seen=next_at, next_at=now + _EVERY):
            return _EVERY / 1_000_000
        is_done = await self._count_starts(connection, now // 1000, counted_to)
        minute = now // 60_000_000
        if loose_from <= minute - _LOOSE:
            await self._count_again(connection, minute - _LOOSE + 1)
            old = await self._first_from(connection, max(loose_from, minute - _KEPT))
            while old is not None and old <= minute - _LOOSE:
                await self._put_together(connection, old)
                old = await self._first_from(connection, old + 1)
            await self._fetch(connection, "gathered_figures", minute=minute - _LOOSE + 1)
            await self._fetch(connection, "forget_figures", minute=minute - _KEPT, limit=_MOST_FORGOTTEN)
        return _EVERY / 1_000_000 if is_done else 0.0

    async def _count_starts(self, connection: Connection, now: int, counted_to: str | bytes) -> bool:
        """Count what was started since, minute by minute; whether that is all."""
        seen = counted_to.decode(errors="replace") if isinstance(counted_to, bytes) else counted_to
        place, left = _as_id(seen) or _first_at(0), _MOST_STARTS  # a hand may have written anything there
        at, until = place.int >> 80, now - _BEHIND
        if not now - _KEPT * 60_000 < at <= now + 60_000:  # nobody has counted for long; or the clock was ahead then
            at = now - (_KEPT * 60_000 if at < now else _EVERY // 1000)
            place = _first_at(at)
        while at < until and left > 0:
            end = min(until, (at // 60_000 + 1) * 60_000)
            counts, last = await self._starts(connection, place, _first_at(end), left)
            if not counts:
                end = await self._end_of_gap(connection, place, end, until)
            left -= sum(counts.values())
            reached = last if left <= 0 and last is not None else _first_at(end)
            async with transaction(connection):
                moved = await self._fetch(connection, "move_figure_turn", seen=seen, counted_to=str(reached))
                if not moved:
                    return True
                if counts:
                    await self._fetch(connection, "add_starts", minute=at // 60_000, rows=_starts(counts))
            place, seen = reached, str(reached)
            at = end
        return left > 0

    async def _end_of_gap(self, connection: Connection, place: UUID, end: int, until: int) -> int:
        """When the minute begins in which something was started next: an hour without is not worth sixty looks."""
        if end < until:
            _, following = await self._starts(connection, place, _first_at(until), 1)
            end = until if following is None else max(end, (following.int >> 80) // 60_000 * 60_000)
        return end

    async def _count_again(self, connection: Connection, minute: int) -> None:
        """Transactions may have been long, and the clocks of those who start behind."""
        first, end = _first_at(minute * 60_000), _first_at((minute + 1) * 60_000)
        counts, _ = await self._starts(connection, first, end, _MOST_STARTS)
        if counts and sum(counts.values()) < _MOST_STARTS:
            await self._fetch(connection, "set_starts", minute=minute, rows=_starts(counts))

    async def _starts(
        self, connection: Connection, after: UUID, before: UUID, limit: int
    ) -> tuple[dict[str, int], UUID | None]:
        bounds = {"after": self._write_id(after), "before": self._write_id(before)}
        rows = await self._fetch_jobs(connection, "count_starts", {**bounds, "limit": limit}, 3)
        counts = {row[0]: row[1] for row in rows if isinstance(row[0], str)}
        return counts, _as_id(rows[0][2]) if rows else None

    async def _first_from(self, connection: Connection, minute: int) -> int | None:
        """The first minute from one on of which there are rows."""
        first: int | None = (await self._fetch(connection, "first_figures", minute=minute))[0][0]
        return first

    async def _put_together(self, connection: Connection, minute: int) -> None:
        async with transaction(connection):
            first = minute - minute % _TOGETHER
            rows = await self._fetch(connection, "gather_figures", minute=minute, first=first)
            if rows:
                await self._fetch(connection, "put_figures", rows=_many(summed(_times_at(first, _read(rows)))))

    async def _fetch(self, connection: Connection, name: str, **parameters: Any) -> Rows:
        return await connection.fetch(self._sql(name), parameters)

    async def _fetch_jobs(self, connection: Connection, name: str, parameters: dict[str, Any], columns: int) -> Rows:
        if self._careful is None:
            return await connection.fetch(self._sql(name), parameters)
        return await self._careful(connection, name, parameters, columns)

    # -- for whoever asks

    def read(self, *, first: int) -> Command[list[Figure]]:
        """What happened from a minute on, in no particular order; of a minute and a type there may be several."""
        return Command(self._sql("read_figures"), {"minute": first}, _read)

    @steps
    async def survey(self, connection: Connection, *, most: int, within: float | None = None) -> Survey:
        """How many jobs of each type are where, of every type there is; counted up to `most`, or up to fewer, where
        that would take more than `within` seconds. Of what limits hold, so many are looked at for each limit.
        """
        if self._before_survey is None:
            return await self._survey(connection, most, within)
        if connection.in_transaction:
            await self._fetch(connection, self._before_survey)
            return await self._survey(connection, most, within)
        async with transaction(connection):
            await self._fetch(connection, self._before_survey)
            return await self._survey(connection, most, within)

    async def _survey(self, connection: Connection, most: int, within: float | None) -> Survey:
        found = await self._fetch_jobs(connection, "survey", {"now": self._now()}, 3)
        counting = Counting(found, most=most, within=within)
        while not counting.is_done:
            began = time.perf_counter()
            asked = {kind: self._write_names(counting.names[kind]) for kind in KINDS}
            asked |= {"most": counting.reached, "now": self._now()}
            rows = await self._fetch_jobs(connection, "survey_counts", asked, 5)
            counting.count(rows, time.perf_counter() - began)
        return counting.survey()


def summed(figures: Iterable[Figure]) -> list[Figure]:
    """One for each minute and type."""
    sums: dict[tuple[int, str], dict[str, Any]] = {}
    for one in figures:
        sum = sums.get((one.minute, one.type_name))
        if sum is None:
            sum = sums[one.minute, one.type_name] = {
                **msgspec.structs.asdict(one), "waits": dict(one.waits), "runs": dict(one.runs),
            }  # fmt: skip
            continue
        for name in ("started", "completed", "failed", "retried"):
            sum[name] += getattr(one, name)
        add_up(sum["waits"], one.waits)
        add_up(sum["runs"], one.runs)
    return [Figure(**sum) for sum in sums.values()]


def _times_at(minute: int, figures: Sequence[Figure]) -> Iterator[Figure]:
    """The same, with how long jobs waited and ran in one minute for all."""
    for one in figures:
        if one.minute != minute and (one.waits or one.runs):
            yield Figure(minute=minute, type_name=one.type_name, waits=one.waits, runs=one.runs)
            yield msgspec.structs.replace(one, waits={}, runs={})
        else:
            yield one


def _many(figures: Sequence[Figure]) -> str:
    rows = [
        {**msgspec.structs.asdict(one), "waits": _written(one.waits), "runs": _written(one.runs)} for one in figures
    ]
    return msgspec.json.encode(rows).decode()


def _written(histogram: Histogram) -> str:
    return msgspec.json.encode(histogram).decode()


_histogram = msgspec.json.Decoder(Histogram)
_NOTHING: Histogram = {}


def _times(written: str | bytes) -> Histogram:
    return _NOTHING if written in ("{}", b"{}") else _histogram.decode(written)


def _read(rows: Rows) -> list[Figure]:
    """Without those that a hand has spoiled."""
    return [figure for row in rows if (figure := _figure(row)) is not None]


def _figure(row: Sequence[Any]) -> Figure | None:
    minute, type_name, started, completed, failed, retried, waits, runs = row
    try:
        return Figure(
            minute=as_integer(minute),
            type_name=type_name.decode() if isinstance(type_name, bytes) else as_text(type_name),
            started=as_integer(started),
            completed=as_integer(completed),
            failed=as_integer(failed),
            retried=as_integer(retried),
            waits=_times(waits),
            runs=_times(runs),
        )
    except Exception:  # noqa: BLE001 - whatever a hand has written there
        return None


def _starts(counts: dict[str, int]) -> str:
    return msgspec.json.encode([{"type_name": name, "started": count} for name, count in counts.items()]).decode()


def _as_id(found: Any) -> UUID | None:
    """None: a hand has spoiled it."""
    with suppress(ValueError, TypeError, AttributeError):
        return found if isinstance(found, UUID) else UUID(found)
    return None


def _first_at(milliseconds: int) -> UUID:
    """No id of that time comes before it."""
    return UUID(int=milliseconds << 80)
