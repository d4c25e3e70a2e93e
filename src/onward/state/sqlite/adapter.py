"""The state contract on SQLite: plain statements, a few to a transaction, and the single writer as the only lock.

A method that is one statement sends it alone and lets it commit by itself; one of several is sent as one piece. A
method that first has to look whether there is anything to do looks without a transaction, so that idle workers do not
queue for the write lock.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from onward.model import Blocker, Chain, ChainId, FailureReason, Job, JobError, JobId, JobStatus, LossReason, WorkerId
from onward.state.command import Command, Operation, Rows, Steps, first_value, steps
from onward.state.contract import (
    Admitted,
    Change,
    Clock,
    DatabaseTime,
    Expired,
    Filter,
    HeldAttempt,
    JobCounts,
    Keeping,
    LeaseCommands,
    LimitRule,
    LimitUse,
    Line,
    NewJob,
    ProgressReport,
    Promoted,
    Pruned,
    PruningTurn,
    Reaped,
    Renewal,
    SetOutcome,
    Settlement,
    Started,
    StoredLimit,
    TakenJob,
    TimedOut,
    TypeClaim,
    best_first,
    keys_of,
    to_remove,
)
from onward.state.driver import Connection, Dialect, transaction
from onward.state.facts import Diagnosis, DueType
from onward.state.figures import FigureStatements
from onward.state.limits import read_limit
from onward.state.next_in_line import NextInLine
from onward.state.refusals import Problem, refuse, refuse_lost
from onward.state.rows import JOB_COLUMNS, REASON, STATUS, write_error, write_errors
from onward.state.schedules import ScheduleStatements
from onward.state.sqlite import values
from onward.state.sqlite.expiry import LOOK_AGAIN, ExpiredLease, Watched
from onward.state.sqlite.graph import Graph
from onward.state.sqlite.limits import Admission, give_up_places, set_limits, wake
from onward.state.sqlite.pruning import Pruning, as_rules
from onward.state.sqlite.retrying import Comeback
from onward.state.sqlite.starting import start_checked
from onward.state.sqlite.values import duration, many
from onward.state.statement import Statements, checked_identifier
from onward.state.workers import WorkerStatements

logger = logging.getLogger("onward")
T = TypeVar("T")
_LOOKS = 3


class SqliteState:
    """Keeps jobs in tables of a SQLite file; their names begin with `prefix`."""

    dialect: Dialect = "sqlite"
    locks_rows = False
    migrates_unasked = True
    history = None

    def __init__(self, *, prefix: str = "onward_") -> None:
        self.prefix = checked_identifier(prefix, option="prefix")
        self.clock: Clock = DatabaseTime()
        self.sql = Statements("onward.state.sqlite", table=lambda name: f'"{prefix}{name}"')
        self.schedules = ScheduleStatements(
            self.sql,
            now=self._now,
            write_time=values.instant,
            read_time=values.read_time,
            read_id=values.some_id,
            fetch=self._read,
        )
        self.figures = FigureStatements(self.sql, now=self._now, write_id=str, write_names=many, fetch=self._read)
        self.workers = WorkerStatements(
            self.sql,
            signs=("sign_life", "remove_dead_workers"),
            now=self._now,
            read_time=values.read_time,
            read_id=values.some_id,
            fetch=self._read,
        )
        self._graph = Graph(self.sql)
        self._watched = Watched()

    def _now(self) -> int:
        moment = values.instant(self.clock.now)
        return values.host_time() if moment is None else moment

    # -- schema

    @property
    def newest_version(self) -> int:
        return self.sql.newest_version()

    def identify(self) -> Command[str]:
        return Command(self.sql("identify"), {}, lambda rows: _path(rows[0][0]))

    @steps
    async def schema_version(self, connection: Connection) -> int:
        if not await connection.fetch(self.sql("has_migrations"), {"table": f"{self.prefix}migration"}):
            return 0
        rows = await connection.fetch(self.sql("schema_version"), {})
        return int(rows[0][0])

    @steps
    async def migrate(self, connection: Connection) -> Sequence[str]:
        if await connection.run(self.schema_version()) >= self.newest_version:
            return []
        applied: list[str] = []
        async with transaction(connection):
            # Looked up again: another process may have migrated while this one waited for the write lock.
            version = await connection.run(self.schema_version())
            await connection.script(self.sql("migration_table"))
            for number, name, sql in self.sql.migrations():
                if number > version:
                    await connection.script(sql + self._record(number, name))
                    applied.append(name)
        return applied

    def migration_sql(self) -> str:
        parts = [sql + self._record(number, name) for number, name, sql in self.sql.migrations()]
        return "\n".join(["BEGIN IMMEDIATE;", self.sql("migration_table"), *parts, "COMMIT;", ""])

    def _record(self, number: int, name: str) -> str:
        return "\n" + self.sql("record_migration").replace(":version", str(number)).replace(":name", f"'{name}'")

    # -- start

    def start(self, jobs: Sequence[NewJob], *, repeated: bool = False) -> Operation[Sequence[Started]]:
        if not all(job.is_plain for job in jobs):
            return self._start_checked(jobs)
        now = self._now()
        started = [Started(job.id, JobStatus.PENDING, False) for job in jobs]
        if len(jobs) == 1:
            return Command(self.sql("start_one"), values.new_job(jobs[0], now), lambda _: started, "nothing")
        rows = many([values.new_row(job, now) for job in jobs])
        return Command(self.sql("start"), {"jobs": rows, "now": now}, lambda _: started, "nothing")

    @steps
    async def _start_checked(self, connection: Connection, jobs: Sequence[NewJob]) -> Sequence[Started]:
        async with transaction(connection):
            started, _ = await start_checked(connection, self.sql, jobs, now=self._now())
        return started

    # -- take, settle

    @steps
    async def take(
        self,
        connection: Connection,
        *,
        types: Sequence[TypeClaim],
        limit: int,
        worker: WorkerId,
        ageing: float | None = None,
        next_in_line: NextInLine | None = None,
    ) -> Sequence[TakenJob]:
        claims = many([(claim.type_name, claim.payload_version, duration(claim.lease)) for claim in types])
        parameters = {"claims": claims, "limit": limit, "worker": worker, "now": values.instant(self.clock.now)}
        name = "take"
        if ageing is not None:
            name, parameters["ageing"] = "take_aged", duration(ageing)
        try:
            taken = await self._taken(connection, await connection.fetch(self.sql(name), parameters), worker)
        except Exception as error:
            if _is_no_text(error):
                # Which rows were taken is not known: those that can be read are the worker's unanswered takes.
                await self._set_aside(connection, worker)
            raise
        return best_first(taken, ageing)

    async def _taken(self, connection: Connection, rows: Rows, worker: WorkerId) -> list[TakenJob]:
        """The jobs in rows that the worker now holds; those that cannot be read are failed."""
        try:
            return values.taken(rows)
        except ValueError:
            await self._set_aside(connection, worker)
            return values.taken_apart(rows)

    async def _set_aside(self, connection: Connection, worker: WorkerId) -> None:
        """Fail what a worker holds and cannot read: each row alone, with what is wrong with it."""
        async with transaction(connection):
            for place, *row, has_dependents in await self._apart(connection, "held", {"worker": worker}, 20):
                problem = values.problem(row)
                if problem is not None:
                    logger.error("job %s of type %s cannot be read and has failed: %s", row[0], row[3], problem)
                    await self._fail_unreadable(connection, place, row, has_dependents, problem)

    async def _fail_unreadable(
        self, connection: Connection, place: int, row: Sequence[Any], has_dependents: Any, problem: str
    ) -> None:
        now, (id, chain_id, chain_index, type_name), before = self._now(), row[:4], row[12]
        error = JobError(type="UnreadableJob", message=f"the row cannot be read: {problem}")
        errors = write_errors(before if isinstance(before, str) else None, error)
        await connection.fetch(self.sql("set_aside"), {"place": place, "errors": errors, "now": now})
        if isinstance(id, str) and isinstance(chain_id, str):
            ended = (id, chain_id, chain_index, type_name, "failed", has_dependents)
            await self._graph.end(connection, [ended], now=now)

    async def _apart(self, connection: Connection, name: str, parameters: dict[str, Any], columns: int) -> Rows:
        return values.put_together(await connection.fetch(values.apart(self.sql(name), columns), parameters))

    async def _read(self, connection: Connection, name: str, parameters: dict[str, Any], columns: int) -> Rows:
        """The rows of a query; where one holds text that is none, cell by cell."""
        try:
            return await connection.fetch(self.sql(name), parameters)
        except Exception as error:
            if not _is_no_text(error):
                raise
        return await self._apart(connection, name, parameters, columns)

    @steps
    async def left_behind(self, connection: Connection, *, types: Sequence[TypeClaim]) -> bool:
        return False  # no row is ever locked by itself

    def work_left(self, *, types: Sequence[TypeClaim]) -> Command[bool]:
        claims = many([(claim.type_name, claim.payload_version) for claim in types])
        parameters = {"claims": claims, "now": self._now()}
        return Command(self.sql("work_left"), parameters, lambda rows: bool(rows[0][0]))

    @steps
    async def promote(self, connection: Connection, *, type_names: Sequence[str], limit: int) -> Promoted:
        parameters: dict[str, Any] = {"type_names": many(list(type_names)), "now": self._now()}
        due, next_at = (await connection.fetch(self.sql("promote_next"), parameters))[0]
        count = 0
        if due:
            count = len(await connection.fetch(self.sql("promote"), {**parameters, "limit": limit}))
        return Promoted(count, _seconds_until(next_at, parameters["now"]))

    @steps
    async def settle(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        *,
        held: TakenJob | None = None,
        impatient: bool = False,
    ) -> Sequence[Change]:
        others = [settlement for settlement in settlements if settlement.next and not settlement.is_plain]
        plain = [settlement for settlement in settlements if settlement.is_plain] if others else settlements
        changes: list[Change] = []
        async with transaction(connection), _all_or_nothing(connection) if others else nullcontext():
            now = self._now()
            if plain:
                changes.extend(await self._settle_plain(connection, plain, now=now))
            for settlement in others:
                changes.extend(await self._settle_with_blockers(connection, settlement, now=now))
            removed = to_remove(settlements, changes)
            if removed:
                await self._graph.delete(connection, removed, cascade=False)
        return changes

    async def _settle_plain(
        self, connection: Connection, settlements: Sequence[Settlement], *, now: int
    ) -> Sequence[Change]:
        holder = settlements[0].holder
        ids = values.texts([settlement.job_id for settlement in settlements])
        given = dict(zip(ids, settlements, strict=True))
        if not [s for s in settlements if not s.only_completes or s.holder != holder]:
            outcomes = many([(s.job_id, s.attempt, s.output) for s in settlements])
            parameters = {"outcomes": outcomes, "holder": holder, "now": now}
            rows = await connection.fetch(self.sql("settle_completed"), parameters)
            completed = [
                Change(given[row[0]].job_id, chain_id, row[3], "settled", JobStatus.COMPLETED)
                for row, chain_id in zip(rows, values.read_ids([row[1] for row in rows]), strict=True)
            ]
            return completed + await self._graph.end(connection, rows, now=now)
        outcomes = many([_outcome(settlement, now) for settlement in settlements])
        rows = await connection.fetch(self.sql("settle"), {"outcomes": outcomes, "now": now})
        next_rows = [_next_row(row, job, now) for row in rows if row[4] == "completed" for job in given[row[0]].next]
        if next_rows:
            await connection.fetch(self.sql("start"), {"jobs": many(next_rows), "now": now})
        chain_ids = values.read_ids([row[1] for row in rows])
        settled = [
            Change(given[row[0]].job_id, chain_id, row[3], "settled", STATUS[row[4]], row[5] and REASON.get(row[5]))
            for row, chain_id in zip(rows, chain_ids, strict=True)
        ]
        ended = [row for row in rows if row[4] == "failed" or given[row[0]].kind == "complete"]
        return settled + await self._graph.end(connection, ended, now=now)

    async def _settle_with_blockers(
        self, connection: Connection, settlement: Settlement, *, now: int
    ) -> Sequence[Change]:
        alone = msgspec.structs.replace(settlement, next=())
        changes = list(await self._settle_plain(connection, [alone], now=now))
        if changes and changes[0].status is JobStatus.COMPLETED:
            _, spread = await start_checked(connection, self.sql, settlement.next, now=now)
            changes.extend(spread)
        return changes

    @steps
    async def lock_or_skip(self, connection: Connection, job_ids: Sequence[JobId]) -> set[JobId]:
        return set()  # whoever writes has locked everything

    def hold_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Command[bool]:
        return self.lock_attempt(job_id=job_id, attempt=attempt, holder=holder).then(lambda _: True)

    def lock_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Command[None]:
        return Command(self.sql("lock_attempt"), {"id": str(job_id)}, partial(refuse_lost, job_id, attempt, holder))

    @steps
    async def lock_current(self, connection: Connection, chain_id: ChainId) -> Job | None:
        async with transaction(connection):
            await connection.fetch(self.sql("lock"), {})
            rows = await self._read(connection, "lock_current", {"chain_id": str(chain_id)}, len(JOB_COLUMNS))
        return values.job(rows[0]) if rows else None

    # -- leases

    @steps
    async def renew(
        self, connection: Connection, *, worker: WorkerId, held: Sequence[HeldAttempt]
    ) -> Sequence[Renewal]:
        parameters = {"held": many([(h.job_id, h.attempt, duration(h.lease)) for h in held]), "worker": worker}
        async with transaction(connection):
            await connection.fetch(self.sql("renew"), {**parameters, "now": self._now()})
            rows = await connection.fetch(self.sql("renewed"), parameters)
        return [Renewal(UUID(row[0]), row[1], row[2] and LossReason(row[2])) for row in rows]

    def report_progress(self, *, worker: WorkerId, reports: Sequence[ProgressReport]) -> Command[None]:
        said = many([(r.job_id, r.attempt, r.fraction, r.note) for r in reports])
        return Command(self.sql("report_progress"), {"reports": said, "worker": worker})

    @steps
    async def reap(
        self,
        connection: Connection,
        *,
        worker: WorkerId,
        type_names: Sequence[str],
        held_here: Sequence[JobId],
        limit: int,
        lease: float,
    ) -> Reaped:
        now = self._now()
        parameters: dict[str, Any] = {
            "worker": worker,
            "type_names": many(list(type_names)),
            "held_here": many(list(held_here)),
            "now": now,
            "later": now + duration(lease / 4),
        }
        expired, next_at = (await connection.fetch(self.sql("reap_next"), parameters))[0]
        if not expired:
            return Reaped([], _seconds_until(next_at, now))
        began = time.monotonic()
        async with transaction(connection):
            waited = time.monotonic() - began
            found = [
                ExpiredLease(*row)
                for row in await connection.fetch(self.sql("expired"), {**parameters, "limit": limit})
            ]
            places = self._ripe(found, waited)
            taking = {"places": many(places), "worker": worker, "until": self._now() + duration(lease)}
            jobs = await self._reap(connection, worker, taking) if places else []
            expired, next_at = (await connection.fetch(self.sql("reap_next"), parameters))[0]
        if len(places) < len(found):
            return Reaped(jobs, LOOK_AGAIN)
        return Reaped(jobs, 0.0 if expired else _seconds_until(next_at, now))

    def _ripe(self, found: Sequence[ExpiredLease], waited: float) -> list[int]:
        if self.clock.now is not None:  # a test says what time it is
            return [lease.place for lease in found]
        return self._watched.ripe(found, waited=waited)

    async def _reap(self, connection: Connection, worker: WorkerId, parameters: dict[str, Any]) -> list[TakenJob]:
        try:
            rows = await connection.fetch(self.sql("reap"), parameters)
        except Exception as error:
            if not _is_no_text(error):
                raise
            await self._set_aside(connection, worker)
            rows = await connection.fetch(self.sql("reaped"), parameters)
        return await self._taken(connection, rows, worker)

    def expire(self, *, worker: WorkerId) -> Command[Expired]:
        return Command(self.sql("expire"), {"worker": worker}, lambda rows: Expired(len(rows), 0))

    def time_out(self, *, worker: WorkerId, overdue: Sequence[TimedOut]) -> Command[Sequence[JobId]]:
        rows = many([(o.job_id, o.attempt, write_error(o.error)) for o in overdue])
        parameters = {"overdue": rows, "worker": worker}
        return Command(self.sql("time_out"), parameters, lambda rows: [UUID(row[0]) for row in rows])

    def give_back(self, *, worker: WorkerId) -> Command[Expired]:
        return Command(self.sql("give_back"), {"worker": worker}, lambda rows: Expired(len(rows), 0))

    @steps
    async def unanswered_takes(
        self, connection: Connection, *, worker: WorkerId, held_here: Sequence[JobId]
    ) -> Sequence[TakenJob]:
        parameters = {"worker": worker, "held_here": many(list(held_here))}
        return await self._taken(connection, await self._read(connection, "unanswered_takes", parameters, 18), worker)

    def lease_commands(self, *, worker: WorkerId) -> LeaseCommands:
        held = {"worker": worker, "held": many([])}
        return LeaseCommands(
            renew=tuple(Command(self.sql(name), held) for name in ("renew", "renewed")),
            expire=self.expire(worker=worker),
            time_out=self.time_out(worker=worker, overdue=()),
            give_back=self.give_back(worker=worker),
        )

    # -- change

    @steps
    async def cancel(
        self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool = False
    ) -> Sequence[Change]:
        async with transaction(connection):
            await self._refuse_missing(connection, chain_ids)
            now, chains = self._now(), set(values.texts(list(chain_ids)))
            if cascade:
                chains |= await self._graph.only_serving(connection, chain_ids)
            rows = await connection.fetch(self.sql("cancel"), {"chain_ids": many(sorted(chains)), "now": now})
            failed = [row for row in rows if row[4] == "failed"]
            spread = await self._graph.end(connection, failed, now=now)
        return [_cancelled(row) for row in rows] + spread

    @steps
    async def retry(self, connection: Connection, chain_ids: Sequence[ChainId]) -> Sequence[Change]:
        async with transaction(connection):
            return await Comeback(connection, self.sql).retry(chain_ids, now=self._now())

    @steps
    async def trigger(self, connection: Connection, chain_ids: Sequence[ChainId]) -> Sequence[Change]:
        async with transaction(connection):
            await self._refuse_missing(connection, chain_ids)
            parameters = {"chain_ids": many(list(chain_ids)), "now": self._now()}
            rows = await connection.fetch(self.sql("trigger"), parameters)
        return [Change(values.some_id(row[0]), values.some_id(row[1]), row[2], row[3]) for row in rows]

    async def _refuse_missing(self, connection: Connection, chain_ids: Sequence[ChainId]) -> None:
        there = await connection.fetch(self.sql("headers"), {"ids": many(list(chain_ids))})
        refuse([Problem("missing", id) for id in {*chain_ids} - {UUID(row[0]) for row in there}])

    @steps
    async def delete(self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool) -> Sequence[Change]:
        async with transaction(connection):
            return await self._graph.delete(connection, chain_ids, cascade=cascade)

    @steps
    async def prune(
        self,
        connection: Connection,
        rules: Sequence[Keeping],
        *,
        place: str = "",
        before: float | None = None,
        chains: int,
        rows: int,
    ) -> Pruned:
        return await Pruning(connection, self.sql, rules, now=self._now()).prune(place, before, chains, rows)

    def count_prunable(self, rules: Sequence[Keeping], *, place: str = "", rows: int) -> Command[Pruned]:
        parameters = {"rules": as_rules(rules), "place": place, "rows": rows, "now": self._now()}
        return Command(self.sql("count_prunable"), parameters, Pruned.counted)

    @steps
    async def take_pruning_turn(
        self, connection: Connection, *, worker: WorkerId, lease: float, walks: str | None, whose: str = ""
    ) -> PruningTurn:
        now = self._now()
        rows = await connection.fetch(self.sql("retention"), {"whose": whose, "worker": worker})
        is_ours, held_until = rows[0] if rows else (False, 0)
        until = now + duration(lease)
        if not is_ours and now < held_until <= now + 2 * duration(lease):
            return PruningTurn(None, (held_until - now) / 1_000_000, now / 1_000_000)
        parameters = {"whose": whose, "worker": worker, "until": until, "walks": walks, "now": now}
        held = await connection.fetch(self.sql("hold_retention"), parameters)
        return PruningTurn(held[0][0].decode(errors="replace") if held else None, lease, now / 1_000_000)

    @steps
    async def pause(self, connection: Connection, type_names: Sequence[str]) -> None:
        async with transaction(connection):
            parameters = {"type_names": many(list(type_names)), "now": self._now()}
            await connection.fetch(self.sql("pause"), parameters)
            await give_up_places(connection, self.sql, type_names=type_names)

    @steps
    async def resume(self, connection: Connection, type_names: Sequence[str]) -> None:
        async with transaction(connection):
            await connection.fetch(self.sql("resume"), {"type_names": many(list(type_names))})
            await wake(connection, self.sql, type_names=type_names)

    # -- limits

    @steps
    async def set_limits(
        self, connection: Connection, rules: Sequence[LimitRule], *, declared: bool
    ) -> Sequence[SetOutcome]:
        async with transaction(connection):
            return await set_limits(connection, self.sql, rules, declared=declared, now=self._now())

    @steps
    async def admit(
        self,
        connection: Connection,
        *,
        after: int = 0,
        most: int | None = None,
        sweep: bool = False,
        past_locks: bool = False,
    ) -> Admitted:
        return await Admission(connection, self.sql, self._now()).admit(most=most, sweep=sweep)

    @steps
    async def limits(self, connection: Connection) -> Sequence[StoredLimit]:
        rows = await self._read(connection, "list_limits", {}, 7)
        return [read_limit(row, values.read_time) for row in rows]

    @steps
    async def limit_uses(
        self, connection: Connection, name: str, *, after: str | None, limit: int
    ) -> Sequence[LimitUse]:
        rows = await self._read(connection, "list_limit_keys", {**keys_of(name, after), "limit": limit}, 4)
        return [LimitUse(key, placed, held, values.some_time(at)) for key, placed, held, at in rows if type(key) is str]

    def placed_jobs(self, limit_key: str, *, limit: int) -> Steps[Sequence[Job]]:
        return self._read_jobs("list_placed", {"key": limit_key, "limit": limit})

    def held_jobs(self, limit_key: str, *, limit: int) -> Steps[Sequence[Job]]:
        return self._read_jobs("list_held", {"key": limit_key, "limit": limit})

    # -- read

    @steps
    async def at_one_moment(self, connection: Connection, look: Operation[T]) -> T:
        """Looked again where others have committed meanwhile: a transaction of ours would keep them from that."""
        if connection.in_transaction:
            return await connection.run(look)
        before = await connection.fetch(self.sql("data_version"), {})
        seen = await connection.run(look)
        for _ in range(_LOOKS - 1):
            after = await connection.fetch(self.sql("data_version"), {})
            if after == before:
                break
            before, seen = after, await connection.run(look)
        return seen

    @steps
    async def paused(self, connection: Connection) -> Sequence[str]:
        rows = await self._read(connection, "list_paused", {}, 1)
        return [name for (name,) in rows if isinstance(name, str)]

    def find_jobs(self, ids: Sequence[JobId]) -> Steps[Sequence[Job]]:
        return self._read_jobs("find_jobs", {"ids": many(list(ids))})

    def find_chains(self, ids: Sequence[ChainId]) -> Steps[Sequence[Chain]]:
        return self._read_chains("find_chains", {"ids": many(list(ids))})

    def ended_chains(self, ids: Sequence[ChainId]) -> Command[dict[ChainId, bool]]:
        def read(rows: Rows) -> dict[ChainId, bool]:
            return {UUID(row[0]): bool(row[1]) for row in rows}

        return Command(self.sql("ended_chains"), {"ids": many(list(ids))}, read)

    def list_jobs(self, filter: Filter, *, after: JobId | None, limit: int) -> Steps[Sequence[Job]]:
        name = "list_indexed_jobs" if filter.indexed else "list_jobs"
        return self._read_jobs(name, self._page(filter, after, limit))

    def list_chains(self, filter: Filter, *, after: ChainId | None, limit: int) -> Steps[Sequence[Chain]]:
        name = "list_indexed_chains" if filter.indexed else "list_chains"
        return self._read_chains(name, {**self._page(filter, after, limit), "indexed_types": None})

    def count_indexed(self, filter: Filter, *, most: int) -> Command[int]:
        return Command(self.sql("count_indexed"), self._page(filter, None, most), first_value)

    def place_below(self, after: JobId | None, *, jobs: int) -> Command[JobId | None]:
        def read(rows: Rows) -> JobId | None:
            return values.some_id(rows[0][0]) if rows else None

        return Command(self.sql("place_below"), {"after": values.cursor(after), "jobs": jobs - 1}, read)

    def _page(self, filter: Filter, after: UUID | None, limit: int) -> dict[str, Any]:
        now = self._now()
        return {
            "type_names": values.some(filter.type_names),
            "indexed_types": values.some(filter.type_names),
            "statuses": values.some(filter.possible),
            "chain_ids": values.some(filter.chain_ids),
            "root_ids": values.some(filter.root_ids),
            "created_from": values.instant(filter.created_from),
            "created_before": values.instant(filter.created_before),
            "created_by": None if filter.older_than is None else now - duration(filter.older_than),
            "created_after": None if filter.newer_than is None else now - duration(filter.newer_than),
            "reasons": values.some(filter.reasons),
            "error_types": values.some(filter.error_types),
            "failed_from": values.instant(filter.failed_from),
            "failed_before": values.instant(filter.failed_before),
            "stored_text": filter.stored_text,
            "after": values.cursor(after),
            "down_to": values.cursor(filter.down_to),
            "newest": filter.newest,
            "limit": limit,
        }

    def list_blocked(self, chain_id: ChainId, *, after: JobId | None, limit: int) -> Steps[Sequence[Job]]:
        parameters = {"chain_id": str(chain_id), "after": values.cursor(after), "limit": limit}
        return self._read_jobs("list_blocked", parameters)

    def list_failed(self, type_name: str, *, limit: int) -> Steps[Sequence[Job]]:
        return self._read_jobs("list_failed", {"type_name": type_name, "limit": limit})

    @steps
    async def _read_jobs(self, connection: Connection, name: str, parameters: dict[str, Any]) -> Sequence[Job]:
        return values.jobs(await self._read(connection, name, parameters, len(JOB_COLUMNS)))

    @steps
    async def _read_chains(self, connection: Connection, name: str, parameters: dict[str, Any]) -> Sequence[Chain]:
        rows = await self._read(connection, name, parameters, 4 + len(JOB_COLUMNS))
        return [values.chain(row) for row in rows]

    def count_jobs(self, type_names: Sequence[str]) -> Command[dict[str, JobCounts]]:
        def read(rows: Rows) -> dict[str, JobCounts]:
            return {name: JobCounts(*counts) for name, *counts in rows}

        return Command(self.sql("count_jobs"), {"type_names": many(list(type_names))}, read)

    def oldest_due(self, type_names: Sequence[str]) -> Command[dict[str, float]]:
        def read(rows: Rows) -> dict[str, float]:
            return {name: max(due / 1_000_000, 0.0) for name, due in rows}

        return Command(self.sql("oldest_due"), {"type_names": many(list(type_names)), "now": self._now()}, read)

    def line_of(
        self, job_id: JobId, *, types: Sequence[tuple[str, int]], ageing: float | None, most: int
    ) -> Command[Line]:
        now = self._now()

        def read(rows: Rows) -> Line:
            is_held, placed, next_at, ahead = rows[0]
            at, next = values.read_time(now), values.some_time(next_at)
            return Line(now=at, is_held=bool(is_held), placed=placed, next_at=next, ahead=ahead)

        parameters = {
            "id": str(job_id),
            "claims": many(list(types)),
            "ageing": None if ageing is None else duration(ageing),
            "most": most,
        }
        return Command(self.sql("line_of"), parameters, read)

    def list_blocking(
        self, job_ids: Sequence[JobId], *, failed: bool, limit: int
    ) -> Command[Sequence[tuple[JobId, ChainId]]]:
        def read(rows: Rows) -> Sequence[tuple[JobId, ChainId]]:
            return [(values.some_id(job), values.some_id(chain)) for job, chain in rows]

        parameters = {"job_ids": many(list(job_ids)), "failed": failed, "limit": limit}
        return Command(self.sql("list_blocking"), parameters, read)

    @steps
    async def due_types(self, connection: Connection, *, most: int = 1000) -> Sequence[DueType]:
        rows = await self._read(connection, "due_types", {"most": most, "now": self._now()}, 4)
        return [
            DueType(name, version, max(due / 1_000_000, 0.0), bool(paused))
            for name, version, due, paused in rows
            if isinstance(name, str) and isinstance(version, int) and isinstance(due, int)
        ]

    @steps
    async def diagnose(self, connection: Connection, *, most: int | None, late: float) -> Diagnosis:
        from onward.state.sqlite.diagnosis import Examination  # only then

        looking = Examination(
            sql=self.sql,
            prefix=self.prefix,
            script=self.migration_sql(),
            now=self._now(),
            newest=self.newest_version,
            most=most,
            late=late,
        )
        return await looking.take(connection, await connection.run(self.schema_version()))

    def cancel_requests(self, job_ids: Sequence[JobId]) -> Command[set[JobId]]:
        parameters = {"ids": many(list(job_ids))}
        return Command(self.sql("cancel_requests"), parameters, lambda rows: {UUID(row[0]) for row in rows})

    @steps
    async def blockers_of(self, connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, list[Blocker]]:
        found: dict[JobId, list[Blocker]] = {}
        rows: Rows = await self._read(connection, "blockers_of", {"job_ids": many(list(job_ids))}, 6)
        for job_id, *row in rows:
            found.setdefault(UUID(job_id), []).append(values.blocker(row))
        return found


def _path(name: str) -> str:
    return os.path.realpath(name) if name else ":memory:"


@asynccontextmanager
async def _all_or_nothing(connection: Connection) -> AsyncIterator[None]:
    """A refusal half-way undoes what came before it, and leaves a transaction of the caller's usable."""
    await connection.script("SAVEPOINT onward_settle;")
    try:
        yield
    except BaseException:
        await connection.script("ROLLBACK TO onward_settle; RELEASE onward_settle;")
        raise
    await connection.script("RELEASE onward_settle;")


def _outcome(settlement: Settlement, now: int) -> tuple[Any, ...]:
    return (
        settlement.job_id,
        settlement.attempt,
        settlement.holder,
        settlement.kind,
        settlement.output,
        settlement.errors,
        settlement.reason,
        values.due(settlement.delay, settlement.at, now),
        settlement.failures,
        settlement.transients,
        settlement.crashes,
        settlement.completed_by,
        settlement.progress and settlement.progress.fraction,
        settlement.progress and settlement.progress.note,
        settlement.stays_in_line,
        settlement.payload_version,
    )


def _next_row(row: Sequence[Any], job: NewJob, now: int) -> tuple[Any, ...]:
    """A continuation, which has its place and its ancestors from the job that was settled."""
    id, chain_id, chain_index, *_, root_id, _ = row
    new = values.new_row(job, now)
    return (new[0], chain_id, chain_index + 1, *new[3:9], id, root_id, job.meta)


def _cancelled(row: Sequence[Any]) -> Change:
    id, chain_id = values.some_id(row[0]), values.some_id(row[1])
    if row[4] == "failed":
        return Change(id, chain_id, row[3], "failed", reason=FailureReason.CANCELLED)
    return Change(id, chain_id, row[3], "cancel_requested")


def _is_no_text(error: Exception) -> bool:
    """Whether the reading of rows failed over text that is none in UTF-8."""
    return "Could not decode to UTF-8" in str(error)


def _seconds_until(moment: int | None, now: int) -> float | None:
    return None if moment is None else (moment - now) / 1_000_000
