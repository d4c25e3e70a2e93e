"""The state contract on Postgres: one statement per method; two where settlements of both kinds come together."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec

from onward.errors import (
    BlockerNotFound,
    ChainReferenced,
    DuplicateJobId,
    JobAlreadyCompleted,
    JobNotFound,
    JobTakenByAnotherWorker,
    TransactionUnsuitable,
)
from onward.model import Blocker, Chain, ChainId, Job, JobId, JobStatus, LossReason, WorkerId
from onward.state.contract import (
    Change,
    Clock,
    Expired,
    Filter,
    Held,
    JobCounts,
    LeaseStatements,
    NewJob,
    Position,
    ProgressReport,
    Promoted,
    Reaped,
    Renewal,
    Settlement,
    Started,
    TakenJob,
    TimedOut,
    TypeClaim,
    to_remove,
)
from onward.state.driver import Connection, Dialect, Rows, Statement, transaction
from onward.state.refusals import PROBLEMS, Problem, refuse
from onward.state.rows import REASON, STATUS, read_blocker, read_chain, read_job, write_error
from onward.state.statement import Statements, checked_identifier, with_servers_own

_MOST_TO_GO_ON = 16
_BEGINNING = Position(-(2**31), datetime.min.replace(tzinfo=UTC))
_MOST = 2**31 - 1
"""What an integer column holds at most; only a hand can have written a count so high."""
_LONGEST_WINDOW = 3e9
"""Seconds, about a century: the server cannot subtract much more from a time."""
_MIGRATION_LOCK = 7_036_874_417_766_406
"""One process migrates at a time; the number only has to be ours."""
_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""For a transaction of our own, whatever the role's is by default: said before anything else."""


def _as_is(value: Any) -> Any:
    return value


class PostgresState:
    """Keeps jobs in a schema of a Postgres database."""

    dialect: Dialect = "postgres"
    locks_rows = True

    def __init__(self, *, schema: str = "onward") -> None:
        self.schema = checked_identifier(schema, option="schema")
        self.clock: Clock = lambda: None
        self.sql = Statements(
            "onward.state.postgres",
            table=lambda name: f'"{schema}".{name}',
            finish=with_servers_own,
        )

        self._rides: dict[tuple[str, str], str] = {}

    # -- schema

    @property
    def newest_version(self) -> int:
        return self.sql.migrations()[-1][0]

    async def identify(self, connection: Connection) -> str:
        rows = await connection.fetch(self.sql("identify"), {})
        return str(rows[0][0])

    async def schema_version(self, connection: Connection) -> int:
        if not await connection.fetch(self.sql("has_migrations"), {"schema": self.schema}):
            return 0
        rows = await connection.fetch(self.sql("schema_version"), {})
        return int(rows[0][0])

    async def migrate(self, connection: Connection) -> Sequence[str]:
        applied: list[str] = []
        async with transaction(connection):
            await connection.fetch(_READ_COMMITTED, {})  # so as to see what was done while it waited for the lock
            await connection.fetch("SELECT pg_catalog.pg_advisory_xact_lock(:lock::bigint)", {"lock": _MIGRATION_LOCK})
            version = await self.schema_version(connection)
            if not version:
                await connection.script(self._bookkeeping())
            for number, name, sql in self.sql.migrations():
                if number > version:
                    await connection.script(sql + self._record(number, name))
                    applied.append(name)
        return applied

    def migration_sql(self) -> str:
        parts = [sql + self._record(number, name) for number, name, sql in self.sql.migrations()]
        return "\n".join(["BEGIN;", self._bookkeeping(), *parts, "COMMIT;", ""])

    def _bookkeeping(self) -> str:
        return (
            f'CREATE SCHEMA IF NOT EXISTS "{self.schema}";\n'
            f'CREATE TABLE IF NOT EXISTS "{self.schema}".migration (\n'
            "  version integer PRIMARY KEY, name text NOT NULL,\n"
            "  applied_at timestamptz NOT NULL DEFAULT pg_catalog.now());\n"
        )

    def _record(self, number: int, name: str) -> str:
        return f"\nINSERT INTO \"{self.schema}\".migration (version, name) VALUES ({number}, '{name}');\n"

    # -- start

    async def start(
        self,
        connection: Connection,
        jobs: Sequence[NewJob],
        *,
        rider: Statement | None = None,
        repeated: bool = False,
    ) -> Sequence[Started]:
        if all(job.is_plain for job in jobs):
            name, parameters = ("start", _columns(jobs)) if repeated else _plain_start(jobs)
            sql, more = self._ridden(name, rider) if rider else (self.sql(name), {})
            await connection.fetch(sql, {"now": self.clock(), **parameters, **more})
            return [Started(job.id, JobStatus.PENDING, False) for job in jobs]
        rows = await self._isolated(connection, "start_checked", {"items": _items(jobs), "now": self.clock()})
        _raise_refusal([(row[4], row[1]) for row in rows], jobs)
        by_item = {row[0]: row for row in rows}
        return [_started(job, by_item.get(position)) for position, job in enumerate(jobs)]

    async def _isolated(self, connection: Connection, name: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a statement that refuses to work in REPEATABLE READ. Where that is only the role's default, and the
        transaction would be our own, it gets one that it can work in.
        """
        rows = await connection.fetch(self.sql(name), parameters)
        if connection.in_transaction or not any("isolation" in tuple(row) for row in rows):
            return rows
        async with transaction(connection):
            await connection.fetch(_READ_COMMITTED, {})
            return await connection.fetch(self.sql(name), parameters)

    def _ridden(self, name: str, rider: Statement) -> Statement:
        sql, parameters = rider
        if (name, sql) not in self._rides:
            self._rides[name, sql] = f"WITH started AS (\n{self.sql(name)}\n)\n{sql}"
        return self._rides[name, sql], parameters

    # -- take, settle

    async def take(
        self, connection: Connection, *, types: Sequence[TypeClaim], limit: int, worker: WorkerId
    ) -> Sequence[TakenJob]:
        # Padded to a power of two, so that few different statements exist; a NULL type matches nothing.
        places = 1 << (len(types) - 1).bit_length()
        padding = [None] * (places - len(types))
        # Twice as many branches cost more than twice as much: with many types that would outweigh the gain.
        goes_on = places <= _MOST_TO_GO_ON and any(claim.onward_from for claim in types)
        rows = await connection.fetch(
            self.sql("take_after" if goes_on else "take", repeat=places),
            {
                **(_positions(types, padding) if goes_on else {}),
                "type_names": [claim.type_name for claim in types] + padding,
                "versions": [claim.payload_version for claim in types] + padding,
                "leases": [claim.lease for claim in types] + padding,
                "worker": worker,
                "limit": limit,
                "now": self.clock(),
            },
        )
        taken = [TakenJob(*row) for row in rows]
        taken.sort(key=attrgetter("rank", "scheduled_at", "id"))
        return taken

    async def promote(self, connection: Connection, *, type_names: Sequence[str], limit: int) -> Promoted:
        parameters = {"type_names": list(type_names), "limit": limit, "now": self.clock()}
        rows = await connection.fetch(self.sql("promote"), parameters)
        return Promoted(rows[0][0], rows[0][1])

    async def settle(self, connection: Connection, settlements: Sequence[Settlement]) -> Sequence[Change]:
        if not [settlement for settlement in settlements if settlement.remove]:
            return await self._settle(connection, settlements)
        async with transaction(connection):
            changes = await self._settle(connection, settlements)
            await self.delete(connection, to_remove(settlements, changes), cascade=False)
        return changes

    async def _settle(self, connection: Connection, settlements: Sequence[Settlement]) -> Sequence[Change]:
        others = [settlement for settlement in settlements if settlement.next and not settlement.is_plain]
        plain = [settlement for settlement in settlements if settlement.is_plain] if others else [*settlements]
        plain.sort(key=attrgetter("job_id"))
        if not others:
            return await self._settle_plain(connection, plain)
        if not plain and len(others) == 1:
            return await self._continue_checked(connection, others[0])
        # One that is refused must not leave the others settled and unheard of.
        async with transaction(connection):
            changes = list(await self._settle_plain(connection, plain))
            for settlement in others:
                changes.extend(await self._continue_checked(connection, settlement))
        return changes

    async def _settle_completed(self, connection: Connection, settlements: Sequence[Settlement]) -> Sequence[Change]:
        rows = await connection.fetch(
            self.sql("settle_completed"),
            {
                "now": self.clock(),
                "ids": [s.job_id for s in settlements],
                "attempts": [s.attempt for s in settlements],
                "outputs": [s.output for s in settlements],
                "holder": settlements[0].holder,
                "completed_by": settlements[0].completed_by,
            },
        )
        return [_change(row) for row in rows]

    async def _settle_plain(self, connection: Connection, settlements: Sequence[Settlement]) -> Sequence[Change]:
        if settlements and not [s for s in settlements if not s.only_completes or s.holder != settlements[0].holder]:
            return await self._settle_completed(connection, settlements)
        nexts = [settlement.next[0] if settlement.next else None for settlement in settlements]
        rows = await connection.fetch(
            self.sql("settle"),
            {
                "now": self.clock(),
                "ids": [s.job_id for s in settlements],
                "attempts": [s.attempt for s in settlements],
                "holders": [s.holder for s in settlements],
                "kinds": [s.kind for s in settlements],
                "outputs": [s.output for s in settlements],
                "versions": [s.payload_version for s in settlements],
                "errors": [s.errors for s in settlements],
                "reasons": [s.reason for s in settlements],
                "delays": [s.delay for s in settlements],
                "ats": [s.at for s in settlements],
                "failures": [s.failures for s in settlements],
                "transients": [min(s.transients, _MOST) for s in settlements],
                "crashes": [min(s.crashes, _MOST) for s in settlements],
                "keep_places": [s.stays_in_line for s in settlements],
                "progress": [s.progress and s.progress.fraction for s in settlements],
                "progress_notes": [s.progress and s.progress.note for s in settlements],
                "completed_by": [s.completed_by for s in settlements],
                "next_ids": [n and n.id for n in nexts],
                "next_type_names": [n and n.type_name for n in nexts],
                "next_versions": [n and n.payload_version for n in nexts],
                "next_ranks": [n and -n.priority for n in nexts],
                "next_limit_keys": [n and n.limit_key for n in nexts],
                "next_inputs": [n and n.input for n in nexts],
                "next_delays": [n and n.delay for n in nexts],
                "next_ats": [n and n.at for n in nexts],
            },
        )
        return [_change(row) for row in rows]

    async def _continue_checked(self, connection: Connection, settlement: Settlement) -> Sequence[Change]:
        progress = settlement.progress
        rows = await connection.fetch(
            self.sql("continue_checked"),
            {
                "id": settlement.job_id,
                "attempt": settlement.attempt,
                "holder": settlement.holder,
                "completed_by": settlement.completed_by,
                "progress": progress and progress.fraction,
                "progress_note": progress and progress.note,
                "items": _items(settlement.next),
                "now": self.clock(),
            },
        )
        _raise_refusal([(row[6], row[0]) for row in rows], settlement.next)
        return [_change(row) for row in rows]

    async def lock_or_skip(self, connection: Connection, job_ids: Sequence[JobId]) -> set[JobId]:
        rows = await connection.fetch(self.sql("lock_or_skip"), {"ids": list(job_ids)})
        return {row[0] for row in rows}

    def hold_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Statement | None:
        return self.sql("hold_attempt"), {"id": job_id, "attempt": attempt, "holder": holder}

    def end_attempt(self, job: TakenJob, settlement: Settlement) -> Statement | None:
        if settlement.remove or settlement.errors or settlement.progress or settlement.payload_version:
            return None
        fence = {"id": job.id, "attempt": job.attempt, "holder": settlement.holder, "now": self.clock()}
        if settlement.kind == "complete" and job.chain_index == 0:
            return self.sql("complete_attempt"), {**fence, "output": settlement.output}
        if settlement.kind == "continue" and settlement.is_plain:
            next = settlement.next[0]
            return self.sql("continue_attempt"), {
                **fence,
                "next_id": next.id,
                "next_type_name": next.type_name,
                "next_version": next.payload_version,
                "next_rank": -next.priority,
                "next_limit_key": next.limit_key,
                "next_input": next.input,
                "next_delay": next.delay,
                "next_at": next.at,
            }
        return None

    async def lock_attempt(self, connection: Connection, *, job_id: JobId, attempt: int, holder: WorkerId) -> None:
        rows = await connection.fetch(self.sql("lock_attempt"), {"id": job_id})
        if not rows:
            raise JobNotFound(job_id, attempt)
        if tuple(rows[0][:2]) != (attempt, holder):
            ended = rows[0][2] in (JobStatus.COMPLETED, JobStatus.FAILED)
            raise (JobAlreadyCompleted if ended else JobTakenByAnotherWorker)(job_id, attempt)

    async def lock_current(self, connection: Connection, chain_id: ChainId) -> Job | None:
        rows = await connection.fetch(self.sql("lock_current"), {"chain_id": chain_id})
        return _job(rows[0]) if rows else None

    # -- leases

    async def renew(self, connection: Connection, *, worker: WorkerId, held: Sequence[Held]) -> Sequence[Renewal]:
        rows = await connection.fetch(
            self.sql("renew"),
            {
                "ids": [h.job_id for h in held],
                "attempts": [h.attempt for h in held],
                "leases": [h.lease for h in held],
                "worker": worker,
                "now": self.clock(),
            },
        )
        alive = ("renewed", "locked")
        return [Renewal(row[0], row[1], None if row[2] in alive else LossReason(row[2])) for row in rows]

    async def report_progress(
        self, connection: Connection, *, worker: WorkerId, reports: Sequence[ProgressReport]
    ) -> None:
        await connection.fetch(
            self.sql("report_progress"),
            {
                "ids": [report.job_id for report in reports],
                "attempts": [report.attempt for report in reports],
                "fractions": [report.fraction for report in reports],
                "notes": [report.note for report in reports],
                "worker": worker,
            },
        )

    async def left_behind(self, connection: Connection, *, types: Sequence[TypeClaim]) -> bool:
        claims = {
            "type_names": [claim.type_name for claim in types],
            "versions": [claim.payload_version for claim in types],
        }
        return bool((await connection.fetch(self.sql("left_behind"), claims))[0][0])

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
        rows = await connection.fetch(
            self.sql("reap"),
            {
                "worker": worker,
                "type_names": list(type_names),
                "held_here": list(held_here),
                "limit": limit,
                "lease": lease,
                "now": self.clock(),
            },
        )
        jobs = [TakenJob(*tuple(row)[:-1]) for row in rows if row[0] is not None]
        return Reaped(jobs, next((row[-1] for row in rows if row[0] is None), None))

    async def expire(self, connection: Connection, *, worker: WorkerId) -> Expired:
        rows = await connection.fetch(self.sql("expire"), {"worker": worker, "now": self.clock()})
        count, held = rows[0]
        return Expired(count, held - count)

    async def time_out(
        self, connection: Connection, *, worker: WorkerId, overdue: Sequence[TimedOut]
    ) -> Sequence[JobId]:
        parameters = {
            "ids": [o.job_id for o in overdue],
            "attempts": [o.attempt for o in overdue],
            "errors": [write_error(o.error) for o in overdue],
            "worker": worker,
        }
        return [row[0] for row in await connection.fetch(self.sql("time_out"), parameters)]

    async def give_back(self, connection: Connection, *, worker: WorkerId) -> Expired:
        count, held = (await connection.fetch(self.sql("give_back"), {"worker": worker}))[0]
        return Expired(count, held - count)

    async def strays(
        self, connection: Connection, *, worker: WorkerId, held_here: Sequence[JobId]
    ) -> Sequence[TakenJob]:
        parameters = {"worker": worker, "held_here": list(held_here)}
        return [TakenJob(*row) for row in await connection.fetch(self.sql("strays"), parameters)]

    def lease_statements(self) -> LeaseStatements:
        return LeaseStatements((self.sql("renew"),), self.sql("expire"), self.sql("time_out"), self.sql("give_back"))

    # -- change

    async def cancel(
        self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool = False
    ) -> Sequence[Change]:
        return await self._change(connection, "cancel", chain_ids, cascade=cascade)

    async def retry(self, connection: Connection, chain_ids: Sequence[ChainId]) -> Sequence[Change]:
        return await self._change(connection, "retry", chain_ids)

    async def trigger(self, connection: Connection, chain_ids: Sequence[ChainId]) -> Sequence[Change]:
        return await self._change(connection, "trigger", chain_ids)

    async def _change(
        self, connection: Connection, name: str, chain_ids: Sequence[ChainId], **options: bool
    ) -> Sequence[Change]:
        """A row is (job_id, chain_id, type_name, change, reason), or (…, problem, the chain in the way)."""
        parameters = {"chain_ids": list(chain_ids), "now": self.clock(), **options}
        rows = await self._isolated(connection, name, parameters)
        refuse([Problem(row[3], row[1], row[4]) for row in rows if row[3] in PROBLEMS])
        return [Change(row[0], row[1], row[2], row[3], None, row[4] and REASON.get(row[4])) for row in rows]

    async def delete(self, connection: Connection, chain_ids: Sequence[ChainId], *, cascade: bool) -> Sequence[Change]:
        rows = await connection.fetch(self.sql("delete"), {"chain_ids": list(chain_ids), "cascade": cascade})
        references = [(row[0], row[1]) for row in rows if row[2] == "referenced"]
        if references:
            raise ChainReferenced(references)
        return [Change(row[1], row[0], "", "deleted") for row in rows]

    async def pause(self, connection: Connection, type_names: Sequence[str]) -> None:
        await connection.fetch(self.sql("pause"), {"type_names": list(type_names), "now": self.clock()})

    async def resume(self, connection: Connection, type_names: Sequence[str]) -> None:
        await connection.fetch(self.sql("resume"), {"type_names": list(type_names)})

    # -- read

    async def paused(self, connection: Connection) -> Sequence[str]:
        return [row[0] for row in await connection.fetch(self.sql("list_paused"), {})]

    async def find_jobs(self, connection: Connection, ids: Sequence[JobId]) -> Sequence[Job]:
        return [_job(row) for row in await connection.fetch(self.sql("find_jobs"), {"ids": list(ids)})]

    async def find_chains(self, connection: Connection, ids: Sequence[ChainId]) -> Sequence[Chain]:
        return [_chain(row) for row in await connection.fetch(self.sql("find_chains"), {"ids": list(ids)})]

    async def ended_chains(self, connection: Connection, ids: Sequence[ChainId]) -> dict[ChainId, bool]:
        return {row[0]: row[1] for row in await connection.fetch(self.sql("ended_chains"), {"ids": list(ids)})}

    async def list_jobs(
        self, connection: Connection, filter: Filter, *, after: JobId | None, limit: int
    ) -> Sequence[Job]:
        sql = self.sql("list_failed_jobs" if filter.only_failed else "list_jobs")
        return [_job(row) for row in await connection.fetch(sql, _page(filter, after, limit))]

    async def list_chains(
        self, connection: Connection, filter: Filter, *, after: ChainId | None, limit: int
    ) -> Sequence[Chain]:
        sql = self.sql("list_failed_chains" if filter.only_failed else "list_chains")
        return [_chain(row) for row in await connection.fetch(sql, _page(filter, after, limit))]

    async def list_blocked(
        self, connection: Connection, chain_id: ChainId, *, after: JobId | None, limit: int
    ) -> Sequence[Job]:
        parameters = {"chain_id": chain_id, "after": after, "limit": limit}
        return [_job(row) for row in await connection.fetch(self.sql("list_blocked"), parameters)]

    async def list_failed(self, connection: Connection, type_name: str, *, limit: int) -> Sequence[Job]:
        rows = await connection.fetch(self.sql("list_failed"), {"type_name": type_name, "limit": limit})
        return [_job(row) for row in rows]

    async def count_jobs(self, connection: Connection, type_names: Sequence[str]) -> dict[str, JobCounts]:
        rows = await connection.fetch(self.sql("count_jobs"), {"type_names": list(type_names)})
        return {name: JobCounts(*counts) for name, *counts in rows}

    async def blockers_of(self, connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, list[Blocker]]:
        found: dict[JobId, list[Blocker]] = {}
        for job_id, *row in await connection.fetch(self.sql("blockers_of"), {"job_ids": list(job_ids)}):
            found.setdefault(job_id, []).append(_blocker(row))
        return found


def _page(filter: Filter, after: JobId | None, limit: int) -> dict[str, Any]:
    return {**msgspec.structs.asdict(filter), "after": after, "limit": limit}


def _positions(types: Sequence[TypeClaim], padding: list[None]) -> dict[str, Any]:
    positions = [claim.onward_from or _BEGINNING for claim in types]
    return {
        "from_ranks": [position.rank for position in positions] + padding,
        "from_times": [position.scheduled_at for position in positions] + padding,
    }


def _plain_start(jobs: Sequence[NewJob]) -> tuple[str, dict[str, Any]]:
    """The statement that stores these jobs for the least, and its parameters."""
    if len(jobs) == 1:
        return "start_one", {**_shared(jobs[0]), **_own(jobs[0])}
    kinds = {_kind(job) for job in jobs}
    if len(kinds) != 1 or any(job.chain_index for job in jobs):
        return "start", _columns(jobs)
    *_, root_id = kinds.pop()
    rows = {"ids": [job.id for job in jobs], "inputs": [job.input for job in jobs], "root_id": root_id}
    return "start_alike", {**_shared(jobs[0]), **rows}


def _kind(job: NewJob) -> tuple[Any, ...]:
    """What tells the first job of a chain from others, but for id and input; last the root, if another job is it."""
    root_id = None if job.root_id == job.id else job.root_id
    return job.type_name, job.payload_version, job.priority, job.limit_key, job.delay, job.at, job.origin_id, root_id


def _shared(job: NewJob) -> dict[str, Any]:
    """What the first jobs of chains may have in common."""
    return {
        "type_name": job.type_name,
        "payload_version": job.payload_version,
        "rank": -job.priority,
        "limit_key": job.limit_key,
        "delay": job.delay,
        "at": job.at,
        "origin_id": job.origin_id,
    }


def _own(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "chain_id": job.chain_id,
        "chain_index": job.chain_index,
        "input": job.input,
        "root_id": job.root_id,
    }


def _columns(jobs: Sequence[NewJob]) -> dict[str, list[Any]]:
    return {
        "ids": [job.id for job in jobs],
        "chain_ids": [job.chain_id for job in jobs],
        "chain_indexes": [job.chain_index for job in jobs],
        "type_names": [job.type_name for job in jobs],
        "payload_versions": [job.payload_version for job in jobs],
        "ranks": [-job.priority for job in jobs],
        "limit_keys": [job.limit_key for job in jobs],
        "inputs": [job.input for job in jobs],
        "delays": [job.delay for job in jobs],
        "ats": [job.at for job in jobs],
        "origin_ids": [job.origin_id for job in jobs],
        "root_ids": [job.root_id for job in jobs],
    }


def _items(jobs: Sequence[NewJob]) -> str:
    return msgspec.json.encode([_item(position, job) for position, job in enumerate(jobs)]).decode()


def _item(position: int, job: NewJob) -> dict[str, Any]:
    item: dict[str, Any] = {
        "item": position,
        "parent": job.parent,
        "id": job.id,
        "chain_id": job.chain_id,
        "chain_index": job.chain_index,
        "type_name": job.type_name,
        "payload_version": job.payload_version,
        "rank": -job.priority,
        "limit_key": job.limit_key,
        "input": job.input,
        "delay": job.delay,
        "scheduled_at": job.at,
        "origin_id": job.origin_id,
        "root_id": job.root_id,
        "blockers": job.blockers,
        "runs_anyway": job.runs_anyway,
    }
    if job.deduplication is not None:
        window = job.deduplication.window
        item |= {
            "deduplication_key": job.deduplication.key,
            "deduplication_scope": job.deduplication.scope,
            "deduplication_window": None if window is None else min(window.total_seconds(), _LONGEST_WINDOW),
            "deduplication_exclude": list(job.deduplication.exclude),
        }
    return item


def _raise_refusal(verdicts: Sequence[tuple[str | None, JobId | None]], jobs: Sequence[NewJob]) -> None:
    problems = {problem for problem, _ in verdicts} - {None}
    ids = sorted({id for problem, id in verdicts if problem is not None and id is not None})
    if "isolation" in problems:
        raise TransactionUnsuitable(
            "deduplication is not safe in a REPEATABLE READ transaction, which cannot see a chain that was just "
            "started elsewhere: use READ COMMITTED or SERIALIZABLE"
        )
    if "duplicate_id" in problems:
        raise DuplicateJobId(ids)
    if "blocker_not_found" in problems:
        needing = next(job.type_name for job in jobs if set(job.blockers) & set(ids))
        raise BlockerNotFound(job_type=needing, chain_ids=ids)


def _started(job: NewJob, row: Sequence[Any] | None) -> Started:
    if row is None:
        return Started(job.id, None, False)
    return Started(row[1], row[3] and JobStatus(row[3]), row[2])


def _change(row: Sequence[Any]) -> Change:
    """Of (job_id, chain_id, type_name, status, change, reason, …)."""
    return Change(row[0], row[1], row[2], row[4], row[3] and STATUS[row[3]], row[5] and REASON.get(row[5]))


def _job(row: Sequence[Any]) -> Job:
    return read_job(row, _as_is, _as_is)


def _chain(row: Sequence[Any]) -> Chain:
    return read_chain(row, _as_is, _as_is)


def _blocker(row: Sequence[Any]) -> Blocker:
    return read_blocker(row, _as_is)
