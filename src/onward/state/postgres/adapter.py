"""The state contract on Postgres: one statement per method; two where settlements of both kinds come together."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import starmap
from math import sqrt
from operator import attrgetter
from secrets import token_hex
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from onward.errors import (
    BlockerNotFound,
    ChainReferenced,
    DuplicateJobId,
    TransactionUnsuitable,
)
from onward.model import Blocker, Chain, ChainId, Job, JobId, JobStatus, LossReason, WorkerId
from onward.state.command import Command, Operation, Rows, first_value, steps
from onward.state.contract import (
    BEST_FIRST,
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
    Position,
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
    compared,
    keys_of,
    to_remove,
)
from onward.state.driver import Connection, Dialect, transaction
from onward.state.facts import Diagnosis, DueType
from onward.state.figures import FigureStatements
from onward.state.history import HistoryStatements
from onward.state.limits import read_limit
from onward.state.next_in_line import NextInLine
from onward.state.refusals import PROBLEMS, Problem, refuse, refuse_lost
from onward.state.rows import REASON, STATUS, read_blocker, read_chain, read_job, write_error
from onward.state.schedules import ScheduleStatements
from onward.state.statement import Statements, checked_identifier, with_servers_own
from onward.state.workers import WorkerStatements

T = TypeVar("T")
_MOST_BRANCHES = 8
"""Of a statement that has one for each type."""
_MOST_CANDIDATES = 10_000
"""That a take looks at of a type, where others have locked those before; as the statements with branches do."""
_BEGINNING = Position(-(2**31), datetime.min.replace(tzinfo=UTC))
_MOST = 2**31 - 1
"""What an integer column holds at most; only a hand can have written a count so high."""
_MOST_WAKES = 4000
"""Looked at in one admission: of a thousand keys they are often several each."""
_LONGEST_WINDOW = 3e9
"""Seconds, about a century: the server cannot subtract much more from a time."""
_TYPE_NAME, _VERSION, _LEASE, _AFTER = map(attrgetter, ("type_name", "payload_version", "lease", "after"))
_FIRST = "00000000-0000-0000-0000-000000000000"
_MIGRATION_LOCK = 7_036_874_417_766_406
"""One process migrates at a time; the number only has to be ours."""
_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""For a transaction of our own, whatever the role's is by default: said before anything else."""


_ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


def _as_is(value: Any) -> Any:
    return value


class PostgresState:
    """Keeps jobs in a schema of a Postgres database."""

    dialect: Dialect = "postgres"
    locks_rows = True
    migrates_unasked = False

    def __init__(self, *, schema: str = "onward") -> None:
        self.schema = checked_identifier(schema, option="schema")
        self.clock: Clock = DatabaseTime()
        self.sql = Statements(
            "onward.state.postgres",
            table=lambda name: f'"{schema}".{name}',
            finish=with_servers_own,
        )
        self.schedules = ScheduleStatements(
            self.sql, now=lambda: self.clock.now, write_time=_as_is, read_time=_as_is, read_id=_as_is
        )
        self.figures = FigureStatements(
            self.sql, now=lambda: self.clock.now, write_id=_as_is, write_names=list, before_survey="by_index"
        )
        self.workers = WorkerStatements(
            self.sql, signs=("sign_life",), now=lambda: self.clock.now, read_time=_as_is, read_id=_as_is
        )
        self.history = HistoryStatements(self.sql, now=lambda: self.clock.now)

    # -- schema

    @property
    def newest_version(self) -> int:
        return self.sql.newest_version()

    def identify(self) -> Command[str]:
        return Command(self.sql("identify"), {}, first_value)

    @steps
    async def schema_version(self, connection: Connection) -> int:
        if not await connection.fetch(self.sql("has_migrations"), {"schema": self.schema}):
            return 0
        return int((await connection.fetch(self.sql("schema_version"), {}))[0][0])

    @steps
    async def migrate(self, connection: Connection) -> Sequence[str]:
        applied: list[str] = []
        async with transaction(connection):
            await connection.fetch(_READ_COMMITTED, {})  # so as to see what was done while it waited for the lock
            await connection.fetch("SELECT pg_catalog.pg_advisory_xact_lock(:lock::bigint)", {"lock": _MIGRATION_LOCK})
            version = await connection.run(self.schema_version())
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

    def start(self, jobs: Sequence[NewJob], *, repeated: bool = False) -> Operation[Sequence[Started]]:
        started: list[Started] = []
        for job in jobs:
            if any(compared(job)):
                return self._start_checked(jobs)
            started.append(Started(job.id, JobStatus.PENDING, False))
        name, columns = ("start", _columns(jobs)) if repeated or not jobs else _plain_start(jobs)
        parameters = {"now": self.clock.now, **columns}
        return Command(self.sql(name), parameters, lambda _: started, "nothing")

    def _start_checked(self, jobs: Sequence[NewJob]) -> Operation[Sequence[Started]]:
        def read(rows: Rows) -> Sequence[Started]:
            _raise_refusal([(row[4], row[1]) for row in rows], jobs)
            by_item = {row[0]: row for row in rows}
            return [_started(job, by_item.get(position)) for position, job in enumerate(jobs)]

        return self._isolated(Command(self.sql("start_checked"), {"items": _items(jobs), "now": self.clock.now}, read))

    @steps
    async def _isolated(self, connection: Connection, command: Command[T]) -> T:
        """Run a statement that refuses to work in REPEATABLE READ. Where that is only the role's default, and the
        transaction would be our own, it gets one that it can work in.
        """
        rows = await connection.fetch(command.sql, command.parameters)
        if connection.in_transaction or not any("isolation" in tuple(row) for row in rows):
            return command.read(rows)
        async with transaction(connection):
            await connection.fetch(_READ_COMMITTED, {})
            return await connection.run(command)

    # -- take, settle

    def take(
        self,
        *,
        types: Sequence[TypeClaim],
        limit: int,
        worker: WorkerId,
        ageing: float | None = None,
        next_in_line: NextInLine | None = None,
    ) -> Operation[Sequence[TakenJob]]:
        are_many = len(types) > _MOST_BRANCHES or ageing is not None
        # Padded to a power of two, so that few different statements exist; a NULL type matches nothing.
        places = len(types) if are_many else 1 << (len(types) - 1).bit_length()
        padding = [None] * (places - len(types))
        claims: dict[str, Any] = {
            "type_names": [*map(_TYPE_NAME, types), *padding],
            "versions": [*map(_VERSION, types), *padding],
            **_leases(types, padding),
            "worker": worker,
            "limit": limit,
            "now": self.clock.now,
        }
        if are_many:
            # With ageing more than a better priority decides who goes before what was seen.
            return self._take_many(types, claims, limit, ageing, next_in_line if ageing is None else None)
        if not any(map(_AFTER, types)):
            return Command(self.sql("take", repeat=places), claims, _best_first)
        ranks, times = list[int | None](), list[datetime | None]()
        for claim in types:
            rank, time = claim.after or _BEGINNING
            ranks.append(rank)
            times.append(time)
        claims |= {"from_ranks": ranks + padding, "from_times": times + padding}
        return Command(self.sql("take_after", repeat=places), claims, _best_first)

    @steps
    async def _take_many(
        self,
        connection: Connection,
        types: Sequence[TypeClaim],
        claims: dict[str, Any],
        limit: int,
        ageing: float | None,
        line: NextInLine | None,
    ) -> Sequence[TakenJob]:
        """Look at a few jobs of each type, and at more if these were too few: most are of one type, or locked."""
        taken = [] if line is None else [*await self._take_seen(connection, claims, limit, line)]
        if len(taken) == limit:
            return taken
        usual, takes = 2 * limit / max(len(types), 1), 1 if line is None else line.takes_ahead
        firsts = [_enough(usual if claim.expected is None else claim.expected * takes) for claim in types]
        parameters = {
            **claims,
            "ageing": ageing,
            "ahead": takes > 1,
            "from_ranks": [claim.after and claim.after.rank for claim in types],
            "from_times": [(claim.after or _BEGINNING).scheduled_at for claim in types],
        }
        sql = self.sql("take_many" if ageing is None else "take_aged")
        while True:
            parameters |= {"firsts": firsts, "limit": limit - len(taken)}
            *rows, (*_, is_more, seen, until) = await connection.fetch(sql, parameters)
            last = [TakenJob(*tuple(row)[:-3]) for row in rows]
            taken += last
            if len(taken) == limit or not is_more or min(firsts) == _MOST_CANDIDATES:
                break
            firsts = [min(first * 4, _MOST_CANDIDATES) for first in firsts]
        if line is not None and len(taken) == limit:
            rank = max((job.rank for job in last), default=0)
            left = seen[sum(job.rank == rank for job in last) :] if seen else ()
            line.saw(left, rank=rank, until=until, limit=limit)
        return best_first(taken, ageing)

    async def _take_seen(
        self, connection: Connection, claims: dict[str, Any], limit: int, line: NextInLine
    ) -> Sequence[TakenJob]:
        """Of those that a take has seen in line, if they are enough: to look at each type takes longer."""
        ids = line.to_try(limit)
        if not ids:
            return ()
        parameters = {**claims, "ids": ids, "rank": line.rank, "until": line.until}
        taken = _best_first(await connection.fetch(self.sql("take_seen"), parameters))
        line.tried(ids, last=taken[-1].id if len(taken) == limit else None, limit=limit)
        return taken

    def promote(self, *, type_names: Sequence[str], limit: int) -> Command[Promoted]:
        parameters = {"type_names": list(type_names), "limit": limit, "now": self.clock.now}
        return Command(self.sql("promote"), parameters, lambda rows: Promoted(*rows[0]))

    def settle(
        self, settlements: Sequence[Settlement], *, held: TakenJob | None = None, impatient: bool = False
    ) -> Operation[Sequence[Change]]:
        if held is not None and (command := self._settle_held(held, settlements[0])) is not None:
            return command
        if any(settlement.remove for settlement in settlements):
            return self._settle_and_remove(settlements, impatient)
        others = [settlement for settlement in settlements if settlement.next and not settlement.is_plain]
        if not others:
            return self._settle_plain(settlements, impatient)
        if len(settlements) == 1:
            return self._continue_checked(others[0], impatient)
        return self._settle_all(settlements, others, impatient)

    @steps
    async def _settle_and_remove(
        self, connection: Connection, settlements: Sequence[Settlement], impatient: bool
    ) -> Sequence[Change]:
        async with transaction(connection):
            kept = [msgspec.structs.replace(settlement, remove=False) for settlement in settlements]
            changes = await connection.run(self.settle(kept, impatient=impatient))
            await connection.run(self.delete(to_remove(settlements, changes), cascade=False))
        return changes

    @steps
    async def _settle_all(
        self, connection: Connection, settlements: Sequence[Settlement], others: Sequence[Settlement], impatient: bool
    ) -> Sequence[Change]:
        """One that is refused must not leave the others settled and unheard of."""
        plain = [settlement for settlement in settlements if settlement.is_plain]
        async with transaction(connection):
            changes = list(await connection.run(self._settle_plain(plain, impatient)))
            for settlement in others:
                changes.extend(await connection.run(self._continue_checked(settlement, impatient)))
        return changes

    def _settle_plain(self, settlements: Sequence[Settlement], impatient: bool) -> Command[Sequence[Change]]:
        ordered = sorted(settlements, key=attrgetter("job_id"))  # so that two batches do not wait for each other
        if ordered and not [s for s in ordered if not s.only_completes or s.holder != ordered[0].holder]:
            return self._settle_completed(ordered, impatient)
        nexts = [settlement.next[0] if settlement.next else None for settlement in ordered]
        return Command(
            self.sql("settle"),
            {
                "now": self.clock.now,
                "impatient": impatient,
                "ids": [s.job_id for s in ordered],
                "attempts": [s.attempt for s in ordered],
                "holders": [s.holder for s in ordered],
                "kinds": [s.kind for s in ordered],
                "outputs": [s.output for s in ordered],
                "versions": [s.payload_version for s in ordered],
                "errors": [s.errors for s in ordered],
                "reasons": [s.reason for s in ordered],
                "delays": [s.delay for s in ordered],
                "ats": [s.at for s in ordered],
                "failures": [s.failures for s in ordered],
                "transients": [min(s.transients, _MOST) for s in ordered],
                "crashes": [min(s.crashes, _MOST) for s in ordered],
                "keep_places": [s.stays_in_line for s in ordered],
                "progress": [s.progress and s.progress.fraction for s in ordered],
                "progress_notes": [s.progress and s.progress.note for s in ordered],
                "completed_by": [s.completed_by for s in ordered],
                "next_ids": [n and n.id for n in nexts],
                "next_type_names": [n and n.type_name for n in nexts],
                "next_versions": [n and n.payload_version for n in nexts],
                "next_ranks": [n and -n.priority for n in nexts],
                "next_limit_keys": [n and n.limit_key for n in nexts],
                "next_inputs": [n and n.input for n in nexts],
                "next_delays": [n and n.delay for n in nexts],
                "next_ats": [n and n.at for n in nexts],
                "next_metas": [n and n.meta for n in nexts],
            },
            _changes,
        )

    def _settle_completed(self, settlements: Sequence[Settlement], impatient: bool) -> Command[Sequence[Change]]:
        return Command(
            self.sql("settle_completed"),
            {
                "now": self.clock.now,
                "impatient": impatient,
                "ids": [s.job_id for s in settlements],
                "attempts": [s.attempt for s in settlements],
                "outputs": [s.output for s in settlements],
                "holder": settlements[0].holder,
                "completed_by": settlements[0].completed_by,
            },
            _changes,
        )

    def _continue_checked(self, settlement: Settlement, impatient: bool) -> Command[Sequence[Change]]:
        def read(rows: Rows) -> Sequence[Change]:
            _raise_refusal([(row[6], row[0]) for row in rows], settlement.next)
            return _changes(rows)

        progress = settlement.progress
        return Command(
            self.sql("continue_checked"),
            {
                "id": settlement.job_id,
                "attempt": settlement.attempt,
                "holder": settlement.holder,
                "completed_by": settlement.completed_by,
                "progress": progress and progress.fraction,
                "progress_note": progress and progress.note,
                "items": _items(settlement.next),
                "impatient": impatient,
                "now": self.clock.now,
            },
            read,
        )

    def _settle_held(self, job: TakenJob, settlement: Settlement) -> Command[Sequence[Change]] | None:
        """For an attempt whose job is held; None where its end takes more than one row, or two."""
        if settlement.remove or settlement.errors or settlement.progress or settlement.payload_version:
            return None
        parameters = {"id": job.id, "attempt": job.attempt, "holder": settlement.holder, "now": self.clock.now}
        if settlement.kind == "complete" and job.chain_index == 0:
            name = "complete_attempt"
            parameters["output"] = settlement.output
        elif settlement.kind == "continue" and settlement.is_plain:
            name, next = "continue_attempt", settlement.next[0]
            parameters |= {
                "next_id": next.id,
                "next_type_name": next.type_name,
                "next_version": next.payload_version,
                "next_rank": -next.priority,
                "next_limit_key": next.limit_key,
                "next_input": next.input,
                "next_delay": next.delay,
                "next_at": next.at,
                "next_meta": next.meta,
            }
        else:
            return None
        changes = [Change(job.id, job.chain_id, job.type_name, "settled", JobStatus.COMPLETED)]
        return Command(self.sql(name), parameters, lambda _: changes, "count")

    def lock_or_skip(self, job_ids: Sequence[JobId]) -> Command[set[JobId]]:
        return Command(self.sql("lock_or_skip"), {"ids": list(job_ids)}, lambda rows: {row[0] for row in rows})

    def hold_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Command[bool]:
        parameters = {"id": job_id, "attempt": attempt, "holder": holder}
        return Command(self.sql("hold_attempt"), parameters, bool, "count")

    def lock_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Command[None]:
        return Command(self.sql("lock_attempt"), {"id": job_id}, partial(refuse_lost, job_id, attempt, holder))

    def lock_current(self, chain_id: ChainId) -> Command[Job | None]:
        parameters = {"chain_id": chain_id}
        return Command(self.sql("lock_current"), parameters, lambda rows: _job(rows[0]) if rows else None)

    # -- leases

    def renew(self, *, worker: WorkerId, held: Sequence[HeldAttempt]) -> Command[Sequence[Renewal]]:
        parameters = {
            "ids": [h.job_id for h in held],
            "attempts": [h.attempt for h in held],
            "leases": [h.lease for h in held],
            "worker": worker,
            "now": self.clock.now,
        }
        return Command(self.sql("renew"), parameters, _renewals)

    def report_progress(self, *, worker: WorkerId, reports: Sequence[ProgressReport]) -> Command[None]:
        parameters = {
            "ids": [report.job_id for report in reports],
            "attempts": [report.attempt for report in reports],
            "fractions": [report.fraction for report in reports],
            "notes": [report.note for report in reports],
            "worker": worker,
        }
        return Command(self.sql("report_progress"), parameters)

    def left_behind(self, *, types: Sequence[TypeClaim]) -> Command[bool]:
        return Command(self.sql("left_behind"), _claimed(types), bool)

    def work_left(self, *, types: Sequence[TypeClaim]) -> Command[bool]:
        claims = {**_claimed(types), "now": self.clock.now}
        return Command(self.sql("work_left"), claims, lambda rows: bool(rows[0][0]))

    def reap(
        self,
        *,
        worker: WorkerId,
        type_names: Sequence[str],
        held_here: Sequence[JobId],
        limit: int,
        lease: float,
    ) -> Command[Reaped]:
        parameters = {
            "worker": worker,
            "type_names": list(type_names),
            "held_here": list(held_here),
            "limit": limit,
            "lease": lease,
            "now": self.clock.now,
        }
        return Command(self.sql("reap"), parameters, _reaped)

    def expire(self, *, worker: WorkerId) -> Command[Expired]:
        return Command(self.sql("expire"), {"worker": worker, "now": self.clock.now}, _expired)

    def time_out(self, *, worker: WorkerId, overdue: Sequence[TimedOut]) -> Command[Sequence[JobId]]:
        parameters = {
            "ids": [o.job_id for o in overdue],
            "attempts": [o.attempt for o in overdue],
            "errors": [write_error(o.error) for o in overdue],
            "worker": worker,
        }
        return Command(self.sql("time_out"), parameters, _first_column)

    def give_back(self, *, worker: WorkerId) -> Command[Expired]:
        return Command(self.sql("give_back"), {"worker": worker}, _expired)

    def unanswered_takes(self, *, worker: WorkerId, held_here: Sequence[JobId]) -> Command[Sequence[TakenJob]]:
        parameters = {"worker": worker, "held_here": list(held_here)}
        return Command(self.sql("unanswered_takes"), parameters, lambda rows: [TakenJob(*row) for row in rows])

    def lease_commands(self, *, worker: WorkerId) -> LeaseCommands:
        return LeaseCommands(
            renew=(self.renew(worker=worker, held=()),),
            expire=self.expire(worker=worker),
            time_out=self.time_out(worker=worker, overdue=()),
            give_back=self.give_back(worker=worker),
        )

    # -- change

    def cancel(self, chain_ids: Sequence[ChainId], *, cascade: bool = False) -> Operation[Sequence[Change]]:
        return self._change("cancel", chain_ids, cascade=cascade)

    def retry(self, chain_ids: Sequence[ChainId]) -> Operation[Sequence[Change]]:
        return self._change("retry", chain_ids)

    def trigger(self, chain_ids: Sequence[ChainId]) -> Operation[Sequence[Change]]:
        return self._change("trigger", chain_ids)

    def _change(self, name: str, chain_ids: Sequence[ChainId], **options: bool) -> Operation[Sequence[Change]]:
        """A row is (job_id, chain_id, type_name, change, reason), or (…, problem, the chain in the way)."""

        def read(rows: Rows) -> Sequence[Change]:
            refuse([Problem(row[3], row[1], row[4]) for row in rows if row[3] in PROBLEMS])
            return [Change(row[0], row[1], row[2], row[3], None, row[4] and REASON.get(row[4])) for row in rows]

        parameters = {"chain_ids": list(chain_ids), "now": self.clock.now, **options}
        return self._isolated(Command(self.sql(name), parameters, read))

    def delete(self, chain_ids: Sequence[ChainId], *, cascade: bool) -> Command[Sequence[Change]]:
        def read(rows: Rows) -> Sequence[Change]:
            references = [(row[0], row[1]) for row in rows if row[2] == "referenced"]
            if references:
                raise ChainReferenced(references)
            return [Change(row[1], row[0], "", "deleted") for row in rows]

        return Command(self.sql("delete"), {"chain_ids": list(chain_ids), "cascade": cascade}, read)

    def prune(
        self, rules: Sequence[Keeping], *, place: str = "", before: float | None = None, chains: int, rows: int
    ) -> Operation[Pruned]:
        parameters = {
            **self._keeping(rules, place),
            "keep_history": _history(rules),
            "before": _storable(before),
            "most_chains": min(chains, _MOST),
            "most_rows": rows,
        }
        return self._isolated(Command(self.sql("prune"), parameters, lambda rows: Pruned(*tuple(rows[0])[:-1])))

    def count_prunable(self, rules: Sequence[Keeping], *, place: str = "", rows: int) -> Command[Pruned]:
        parameters = {**self._keeping(rules, place), "rows": rows}
        return Command(self.sql("count_prunable"), parameters, Pruned.counted)

    def _keeping(self, rules: Sequence[Keeping], place: str) -> dict[str, Any]:
        return {
            "type_names": [rule.type_name for rule in rules],
            "keep_completed": [_storable(rule.completed) for rule in rules],
            "keep_failed": [_storable(rule.failed) for rule in rules],
            "place": UUID(place or _FIRST),
            "now": self.clock.now,
        }

    def take_pruning_turn(
        self, *, worker: WorkerId, lease: float, walks: str | None, whose: str = ""
    ) -> Command[PruningTurn]:
        parameters = {"whose": whose, "worker": worker, "lease": lease, "walks": walks, "now": self.clock.now}
        return Command(self.sql("hold_retention"), parameters, lambda rows: PruningTurn(*rows[0]))

    def pause(self, type_names: Sequence[str]) -> Command[None]:
        return Command(self.sql("pause"), {"type_names": list(type_names), "now": self.clock.now})

    def resume(self, type_names: Sequence[str]) -> Command[None]:
        return Command(self.sql("resume"), {"type_names": list(type_names)})

    # -- limits

    def set_limits(self, rules: Sequence[LimitRule], *, declared: bool) -> Operation[Sequence[SetOutcome]]:
        def read(rows: Rows) -> Sequence[SetOutcome]:
            outcomes = {row[0]: row[1] for row in rows}
            return [outcomes[rule.name] for rule in rules]

        parameters = {
            "names": [rule.name for rule in rules],
            "places": [rule.places for rule in rules],
            "everys": [rule.every for rule in rules],
            "bursts": [rule.burst for rule in rules],
            "figures": [rule.figures for rule in rules],
            "declared": declared,
            "now": self.clock.now,
        }
        return self._isolated(Command(self.sql("set_limits"), parameters, read))

    def admit(
        self, *, after: int = 0, most: int | None = None, sweep: bool = False, past_locks: bool = False
    ) -> Operation[Admitted]:
        def read(rows: Rows) -> Admitted:
            types = {name: count for name, count, *_ in rows if name is not None}
            _, _, reached, next_in, is_paced = rows[-1]
            return Admitted(types, next_in, reached or 0, is_paced)

        parameters = {"after": after, "most": most or _MOST_WAKES, "sweep": sweep, "now": self.clock.now}
        return self._isolated(Command(self.sql("admit"), {**parameters, "past": past_locks}, read))

    def limits(self) -> Command[Sequence[StoredLimit]]:
        return Command(self.sql("list_limits"), {}, lambda rows: [read_limit(row, _as_is) for row in rows])

    def limit_uses(self, name: str, *, after: str | None, limit: int) -> Command[Sequence[LimitUse]]:
        parameters = {**keys_of(name, after), "limit": limit}
        return Command(self.sql("list_limit_keys"), parameters, lambda rows: [LimitUse(*row) for row in rows])

    def placed_jobs(self, limit_key: str, *, limit: int) -> Command[Sequence[Job]]:
        return Command(self.sql("list_placed"), {"key": limit_key, "limit": limit}, _jobs)

    def held_jobs(self, limit_key: str, *, limit: int) -> Command[Sequence[Job]]:
        return Command(self.sql("list_held"), {"key": limit_key, "limit": limit}, _jobs)

    # -- read

    @steps
    async def at_one_moment(self, connection: Connection, look: Operation[T]) -> T:
        if connection.in_transaction:
            return await connection.run(look)
        async with transaction(connection):
            await connection.fetch(_ONE_SNAPSHOT, {})
            return await connection.run(look)

    def paused(self) -> Command[Sequence[str]]:
        return Command(self.sql("list_paused"), {}, _first_column)

    def find_jobs(self, ids: Sequence[JobId]) -> Command[Sequence[Job]]:
        return Command(self.sql("find_jobs"), {"ids": list(ids)}, _jobs)

    def find_chains(self, ids: Sequence[ChainId]) -> Command[Sequence[Chain]]:
        return Command(self.sql("find_chains"), {"ids": list(ids)}, _chains)

    def ended_chains(self, ids: Sequence[ChainId]) -> Command[dict[ChainId, bool]]:
        return Command(self.sql("ended_chains"), {"ids": list(ids)}, lambda rows: {row[0]: row[1] for row in rows})

    def list_jobs(self, filter: Filter, *, after: JobId | None, limit: int) -> Command[Sequence[Job]]:
        name = "list_indexed_jobs" if filter.indexed else "list_jobs"
        return Command(self.sql(name), self._page(filter, after, limit), _jobs)

    def list_chains(self, filter: Filter, *, after: ChainId | None, limit: int) -> Command[Sequence[Chain]]:
        name = "list_indexed_chains" if filter.indexed else "list_chains"
        return Command(self.sql(name), {**self._page(filter, after, limit), "indexed_types": None}, _chains)

    def count_indexed(self, filter: Filter, *, most: int) -> Command[int]:
        return Command(self.sql("count_indexed"), self._page(filter, None, most), first_value)

    def place_below(self, after: JobId | None, *, jobs: int) -> Command[JobId | None]:
        parameters = {"after": after, "jobs": jobs - 1}
        return Command(self.sql("place_below"), parameters, lambda rows: rows[0][0] if rows else None)

    def _page(self, filter: Filter, after: JobId | None, limit: int) -> dict[str, Any]:
        return {
            **msgspec.structs.asdict(filter),
            "statuses": filter.possible,
            "indexed_types": filter.type_names,
            "stored_text": filter.stored_text,
            "after": after,
            "limit": limit,
            "now": self.clock.now,
        }

    def list_blocked(self, chain_id: ChainId, *, after: JobId | None, limit: int) -> Command[Sequence[Job]]:
        return Command(self.sql("list_blocked"), {"chain_id": chain_id, "after": after, "limit": limit}, _jobs)

    def list_failed(self, type_name: str, *, limit: int) -> Command[Sequence[Job]]:
        return Command(self.sql("list_failed"), {"type_name": type_name, "limit": limit}, _jobs)

    def count_jobs(self, type_names: Sequence[str]) -> Command[dict[str, JobCounts]]:
        def read(rows: Rows) -> dict[str, JobCounts]:
            return {name: JobCounts(*counts) for name, *counts in rows}

        return Command(self.sql("count_jobs"), {"type_names": list(type_names)}, read)

    def oldest_due(self, type_names: Sequence[str]) -> Command[dict[str, float]]:
        parameters = {"type_names": list(type_names), "now": self.clock.now}
        return Command(self.sql("oldest_due"), parameters, lambda rows: {row[0]: max(row[1], 0.0) for row in rows})

    def line_of(
        self, job_id: JobId, *, types: Sequence[tuple[str, int]], ageing: float | None, most: int
    ) -> Command[Line]:
        def read(rows: Rows) -> Line:
            now, is_held, placed, next_at, ahead = rows[0]
            return Line(now=now, is_held=is_held, placed=placed, next_at=next_at, ahead=ahead)

        parameters = {
            "id": job_id,
            "type_names": [name for name, _ in types],
            "versions": [version for _, version in types],
            "ageing": ageing,
            "most": most,
            "now": self.clock.now,
        }
        return Command(self.sql("line_of"), parameters, read)

    def list_blocking(
        self, job_ids: Sequence[JobId], *, failed: bool, limit: int
    ) -> Command[Sequence[tuple[JobId, ChainId]]]:
        parameters = {"job_ids": list(job_ids), "failed": failed, "limit": limit}
        return Command(self.sql("list_blocking"), parameters, lambda rows: [(row[0], row[1]) for row in rows])

    @steps
    async def due_types(self, connection: Connection, *, most: int = 1000) -> Sequence[DueType]:
        def read(rows: Rows) -> Sequence[DueType]:
            return [DueType(name, version, max(due, 0.0), paused) for name, version, due, paused in rows]

        look = Command(self.sql("due_types"), {"most": most, "now": self.clock.now}, read)
        if connection.in_transaction:  # somebody's own, whose settings are none of ours
            return await connection.run(look)
        async with transaction(connection):
            await connection.fetch(self.sql("by_index"), {})
            return await connection.run(look)

    @steps
    async def diagnose(self, connection: Connection, *, most: int | None, late: float) -> Diagnosis:
        from onward.state.postgres.diagnosis import Examination  # only then

        anew = PostgresState(schema=f"onward_doctor_{token_hex(8)}")
        looking = Examination(
            sql=self.sql,
            schema=self.schema,
            script="\n".join([anew._bookkeeping(), *(sql for _, _, sql in anew.sql.migrations())]),
            scratch=anew.schema,
            now=self.clock.now,
            newest=self.newest_version,
            most=most,
            late=late,
        )
        return await looking.take(connection, await connection.run(self.schema_version()))

    def cancel_requests(self, job_ids: Sequence[JobId]) -> Command[set[JobId]]:
        return Command(self.sql("cancel_requests"), {"ids": list(job_ids)}, lambda rows: {row[0] for row in rows})

    def blockers_of(self, job_ids: Sequence[JobId]) -> Command[dict[JobId, list[Blocker]]]:
        return Command(self.sql("blockers_of"), {"job_ids": list(job_ids)}, _blockers)


def _claimed(types: Sequence[TypeClaim]) -> dict[str, Any]:
    return {
        "type_names": [*map(_TYPE_NAME, types)],
        "versions": [*map(_VERSION, types)],
    }


def _storable(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, _LONGEST_WINDOW)


def _history(rules: Sequence[Keeping]) -> list[float | None] | None:
    """For how long of each type; None where there is none to keep."""
    kept = [_storable(rule.history) for rule in rules]
    return None if all(each is None for each in kept) else kept


def _leases(types: Sequence[TypeClaim], padding: list[None]) -> dict[str, Any]:
    """That of each type; as one, where all are alike: to find it by name takes long where there are many."""
    leases = [*map(_LEASE, types)]
    if len(set(leases)) == 1:
        return {"lease": leases[0], "leases": []}
    return {"lease": None, "leases": leases + padding}


def _enough(expected: float) -> int:
    """So many that where jobs of many types come in any order, there are seldom more of one."""
    return min(int(expected + 3 * sqrt(expected)) + 3, _MOST_CANDIDATES)


def _best_first(rows: Rows) -> list[TakenJob]:
    return sorted(starmap(TakenJob, rows), key=BEST_FIRST)


def _renewals(rows: Rows) -> list[Renewal]:
    alive = ("renewed", "locked")
    return [Renewal(row[0], row[1], None if row[2] in alive else LossReason(row[2])) for row in rows]


def _reaped(rows: Rows) -> Reaped:
    jobs = [TakenJob(*tuple(row)[:-1]) for row in rows if row[0] is not None]
    return Reaped(jobs, next((row[-1] for row in rows if row[0] is None), None))


def _expired(rows: Rows) -> Expired:
    count, held = rows[0]
    return Expired(count, held - count)


def _first_column(rows: Rows) -> list[Any]:
    return [row[0] for row in rows]


def _plain_start(jobs: Sequence[NewJob]) -> tuple[str, dict[str, Any]]:
    """The statement that stores these jobs for the least, and its parameters."""
    job = jobs[0]
    shared = {
        "type_name": job.type_name,
        "payload_version": job.payload_version,
        "rank": -job.priority,
        "limit_key": job.limit_key,
        "delay": job.delay,
        "at": job.at,
        "origin_id": job.origin_id,
        "meta": job.meta,
    }
    if len(jobs) == 1:
        place = {"chain_id": job.chain_id, "chain_index": job.chain_index, "root_id": job.root_id}
        return "start_one", {**shared, **place, "id": job.id, "input": job.input}
    kinds = {_kind(job) for job in jobs}
    if len(kinds) != 1 or any(job.chain_index for job in jobs):
        return "start", _columns(jobs)
    *_, root_id = kinds.pop()
    rows = {"ids": [job.id for job in jobs], "inputs": [job.input for job in jobs], "root_id": root_id}
    return "start_alike", {**shared, **rows}


def _kind(job: NewJob) -> tuple[Any, ...]:
    """What tells the first job of a chain from others, but for id and input; last the root, if another job is it."""
    root_id = None if job.root_id == job.id else job.root_id
    due = job.priority, job.limit_key, job.delay, job.at
    return job.type_name, job.payload_version, *due, job.origin_id, job.meta, root_id


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
        "metas": [job.meta for job in jobs],
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
        "meta": job.meta,
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


def _changes(rows: Rows) -> list[Change]:
    """Of (job_id, chain_id, type_name, status, change, reason, …)."""
    return [
        Change(row[0], row[1], row[2], row[4], row[3] and STATUS[row[3]], row[5] and REASON.get(row[5])) for row in rows
    ]


def _job(row: Sequence[Any]) -> Job:
    return read_job(row, _as_is, _as_is)


def _jobs(rows: Rows) -> list[Job]:
    return [read_job(row, _as_is, _as_is) for row in rows]


def _chains(rows: Rows) -> list[Chain]:
    return [read_chain(row, _as_is, _as_is) for row in rows]


def _blockers(rows: Rows) -> dict[JobId, list[Blocker]]:
    found: dict[JobId, list[Blocker]] = {}
    for job_id, *row in rows:
        found.setdefault(job_id, []).append(read_blocker(row, _as_is))
    return found
