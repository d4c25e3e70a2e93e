"""What the state contract promises, as plain dictionaries: the model that databases are compared with.

Written for what was decided (checklist 42 to 49). Where code that is not merged yet does it the old way, a constant
says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from onward.model import Deduplication
from onward.state.contract import NewJob, Settlement

KEEPS_PLACE = "keep_place" in Settlement.__struct_fields__
"""A job given back or reaped keeps its place in line, trigger never makes one later, a cancelled attempt does not
continue, retry refuses and is all or nothing: issue 12, items 21, 24 and 25. They came together."""


LET_GO = datetime(1970, 1, 1, tzinfo=UTC)
"""Until when a lease is held that was let go of."""


@dataclass
class Row:
    """A job."""

    id: UUID
    chain_id: UUID
    chain_index: int
    type_name: str
    status: str
    rank: int
    scheduled_at: datetime
    created_at: datetime
    deferred: bool = False
    attempt: int = 0
    failures: int = 0
    transients: int = 0
    crashes: int = 0
    leased_by: str | None = None
    leased_until: datetime | None = None
    cancel_requested: bool = False
    reason: str | None = None
    blockers: int = 0
    open_blockers: int = 0
    runs_anyway: bool = False
    key: str | None = None
    chain_ended: bool = False
    chain_failed: bool = False
    has_dependents: bool = False
    limit_key: str | None = None
    admitted_after: int | None = None

    @property
    def is_due(self) -> bool:
        return self.status == "pending" and not self.deferred

    @property
    def is_placed(self) -> bool:
        """Whether a job with a limit has a place."""
        return self.status == "running" or (self.is_due and self.admitted_after == self.attempt)

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def place(self) -> tuple[int, datetime, UUID]:
        return self.rank, self.scheduled_at, self.id


class Refused(Exception):
    """The model says no; nothing has changed."""


@dataclass
class Model:
    """All jobs, what they wait for, and what is paused."""

    now: datetime
    rows: dict[UUID, Row] = field(default_factory=dict)
    edges: dict[UUID, list[UUID]] = field(default_factory=dict)
    """The chains a job waits, or waited, for."""
    paused: set[str] = field(default_factory=set)
    lets_go: bool = False
    """Whether `expire` lets go of leases for good, where those that merely ran out are watched for a while."""

    def copy(self) -> "Model":
        rows = {id: replace(row) for id, row in self.rows.items()}
        edges = {job: list(chains) for job, chains in self.edges.items()}
        return Model(self.now, rows, edges, set(self.paused), self.lets_go)

    # -- reading

    def header(self, chain_id: UUID) -> Row:
        return self.rows[chain_id]

    def chains(self) -> list[UUID]:
        return sorted(row.id for row in self.rows.values() if row.chain_index == 0)

    def current(self, chain_id: UUID) -> Row:
        return max((r for r in self.rows.values() if r.chain_id == chain_id), key=lambda row: row.chain_index)

    def waiting_for(self, chain_id: UUID) -> list[Row]:
        return [self.rows[job] for job, chains in self.edges.items() if chain_id in chains]

    # -- start

    def start(self, jobs: Sequence[NewJob]) -> list[tuple[UUID, str | None, bool]]:
        """The answers: id, status, duplicate."""
        actual: dict[UUID, UUID] = {}
        skipped: set[int] = set()
        answers: dict[int, tuple[UUID, str | None, bool]] = {}
        fresh: list[tuple[int, NewJob]] = []
        before = set(self.rows)
        for position, job in enumerate(jobs):
            if job.parent in skipped:
                skipped.add(position)
                answers[position] = (job.id, None, False)
                continue
            winner = self._winner(job)
            actual[job.id] = winner or job.id
            if winner is not None:
                skipped.add(position)
                answers[position] = (winner, None, winner != job.id)
                continue
            self.rows[job.id] = self._new(job)
            fresh.append((position, job))
        waits = {job.id: [actual.get(b, b) for b in job.blockers] for _, job in fresh}
        if any(b not in self.rows or self.rows[b].chain_index for chains in waits.values() for b in chains):
            self.rows = {id: row for id, row in self.rows.items() if id in before}
            raise Refused("a blocker is missing")
        for position, job in reversed(fresh):
            row = self.rows[job.id]
            self._wait(row, waits[job.id], job.runs_anyway)
            answers[position] = (row.id, row.status, False)
        return [answers[position] for position in range(len(jobs))]

    def _winner(self, job: NewJob) -> UUID | None:
        wanted = job.deduplication
        if wanted is None:
            return None
        found = [row.id for row in self.rows.values() if self._duplicates(row, job.type_name, wanted)]
        return max(found, default=None)

    def _duplicates(self, row: Row, type_name: str, wanted: Deduplication) -> bool:
        return (
            row.key == wanted.key
            and row.type_name == type_name
            and row.chain_index == 0
            and (wanted.scope == "any" or not row.chain_ended)
            and (wanted.window is None or row.created_at > self.now - wanted.window)
            and row.id not in wanted.exclude
        )

    def _new(self, job: NewJob) -> Row:
        due = job.at or self.now + timedelta(seconds=job.delay)
        return Row(
            id=job.id,
            chain_id=job.chain_id,
            chain_index=job.chain_index,
            type_name=job.type_name,
            status="pending",
            rank=-job.priority,
            scheduled_at=due,
            created_at=self.now,
            deferred=due > self.now,
            key=job.deduplication.key if job.deduplication else None,
            limit_key=job.limit_key,
        )

    def _wait(self, row: Row, chains: Sequence[UUID], runs_anyway: bool) -> None:
        """Have a new job wait for chains."""
        if not chains:
            return
        self.edges[row.id] = list(chains)
        row.blockers, row.runs_anyway = len(chains), runs_anyway
        headers = [self.header(chain) for chain in chains]
        for header in headers:
            header.has_dependents = True
        row.open_blockers = sum(not header.chain_ended for header in headers)
        if any(header.chain_failed for header in headers) and not runs_anyway:
            self._fail(row, "blocker")
            if row.chain_index:
                self._spread([row.chain_id])
        elif row.open_blockers:
            row.status, row.deferred = "blocked", False

    def _fail(self, row: Row, reason: str) -> None:
        row.status, row.reason, row.deferred = "failed", reason, False
        self._end(row.chain_id, failed=True)

    def _end(self, chain_id: UUID, *, failed: bool) -> None:
        header = self.header(chain_id)
        header.chain_ended, header.chain_failed = True, failed

    def _spread(self, ended: Iterable[UUID]) -> set[tuple[UUID, str]]:
        """Chains have ended: unblock, or fail, what waited for them; what happened to which job."""
        happened: set[tuple[UUID, str]] = set()
        frontier = set(ended)
        while frontier:
            failing: set[UUID] = set()
            waiting = [row for job, chains in self.edges.items() if frontier & set(chains) for row in [self.rows[job]]]
            for row in [row for row in waiting if row.status == "blocked"]:
                over = [chain for chain in self.edges[row.id] if chain in frontier]
                row.open_blockers -= len(over)
                late = row.scheduled_at > self.now
                row.scheduled_at = max(row.scheduled_at, self.now)
                if any(self.header(chain).chain_failed for chain in over) and not row.runs_anyway:
                    self._fail(row, "blocker")
                    failing.add(row.chain_id)
                    happened.add((row.id, "failed"))
                elif row.open_blockers <= 0:
                    row.status, row.deferred = "pending", late
                    happened.add((row.id, "scheduled" if late else "unblocked"))
            frontier = failing
        return happened

    # -- take

    def eligible(self, types: Sequence[str]) -> list[Row]:
        """What a worker would take, best first."""
        claims = set(types) - self.paused
        found = [r for r in self.rows.values() if r.is_due and r.type_name in claims]
        found = [r for r in found if r.limit_key is None or r.is_placed]
        return sorted(found, key=lambda row: row.place)

    def take(self, types: Sequence[str], limit: int, worker: str, lease: float) -> list[UUID]:
        taken = self.eligible(types)[:limit]
        for row in taken:
            self.taken(row.id, worker, lease)
        return [row.id for row in taken]

    def taken(self, id: UUID, worker: str, lease: float) -> None:
        row = self.rows[id]
        row.status, row.attempt, row.leased_by = "running", row.attempt + 1, worker
        row.leased_until = self.now + timedelta(seconds=lease)

    def admit(self, places: int) -> dict[str, int]:
        """Give free places to held jobs; how many of each type."""
        admitted: dict[str, int] = {}
        limited = [row for row in self.rows.values() if row.limit_key is not None]
        for key in {row.limit_key for row in limited}:
            rows = [row for row in limited if row.limit_key == key]
            free = max(places - sum(row.is_placed for row in rows), 0)
            held = [r for r in rows if r.is_due and not r.is_placed and r.type_name not in self.paused]
            for row in sorted(held, key=lambda row: row.place)[:free]:
                row.admitted_after, row.scheduled_at = row.attempt, max(row.scheduled_at, self.now)
                admitted[row.type_name] = admitted.get(row.type_name, 0) + 1
        return admitted

    def pause(self, types: Sequence[str]) -> None:
        self.paused |= set(types)
        for row in self.rows.values():
            if row.limit_key is not None and row.is_due and row.type_name in types:
                row.admitted_after = None if row.is_placed else row.admitted_after

    def promote(self, types: Sequence[str]) -> tuple[int, float | None]:
        mine = [r for r in self.rows.values() if r.status == "pending" and r.deferred and r.type_name in types]
        due = [row for row in mine if row.scheduled_at <= self.now]
        for row in due:
            row.deferred = False
        later = [(row.scheduled_at - self.now).total_seconds() for row in mine if row.scheduled_at > self.now]
        return len(due), min(later, default=None)

    # -- settle

    def holds(self, settlement: Settlement) -> bool:
        """Whether an attempt may still say how it ended."""
        row = self.rows.get(settlement.job_id)
        return (
            row is not None
            and not row.ended
            and row.attempt == settlement.attempt
            and row.leased_by == settlement.holder
        )

    def settle(self, settlements: Sequence[Settlement]) -> set[tuple[UUID, str]]:
        """What happened to which job."""
        happened: set[tuple[UUID, str]] = set()
        ended: list[UUID] = []
        plain = [s for s in settlements if s.is_plain]
        for settlement in [*plain, *(s for s in settlements if not s.is_plain)]:
            if not settlement.is_plain and ended:
                happened |= self._spread(ended)
                ended = []
            if self.holds(settlement):
                happened.add((settlement.job_id, "settled"))
                ended += self._settle_one(settlement, happened)
        return happened | self._spread(ended)

    def _settle_one(self, settlement: Settlement, happened: set[tuple[UUID, str]]) -> list[UUID]:
        """The chain, if it has ended."""
        row = self.rows[settlement.job_id]
        kind = settlement.kind
        row.leased_by = row.leased_until = None
        row.open_blockers, row.deferred = 0, False
        row.failures += settlement.failures
        row.transients, row.crashes = settlement.transients, settlement.crashes
        if row.cancel_requested and (kind == "requeue" or (kind == "continue" and KEEPS_PLACE)):
            self._fail(row, "cancelled")
            return [row.chain_id]
        if kind == "requeue":
            self._again(row, settlement)
            return []
        if kind == "fail":
            self._fail(row, str(settlement.reason))
            return [row.chain_id]
        row.status, row.reason = "completed", None
        if kind == "complete":
            self._end(row.chain_id, failed=False)
            return [row.chain_id]
        self.start(settlement.next)
        following = self.rows[settlement.next[0].id]
        if following.status == "failed":
            happened.add((following.id, "failed"))
        return []

    def _again(self, row: Row, settlement: Settlement) -> None:
        due = settlement.at or self.now + timedelta(seconds=settlement.delay)
        row.status, row.reason = "pending", settlement.reason
        if KEEPS_PLACE and settlement.stays_in_line:  # type: ignore[attr-defined, unused-ignore]
            row.scheduled_at = min(row.scheduled_at, self.now)
        else:
            row.scheduled_at, row.deferred = due, due > self.now

    # -- leases

    def renew(self, id: UUID, attempt: int, worker: str, lease: float) -> str | None:
        """Why it was lost, or None."""
        row = self.rows.get(id)
        if row is None:
            return "not_found"
        if row.attempt == attempt and row.leased_by == worker:
            row.leased_until = self.now + timedelta(seconds=lease)
            return "cancelled" if row.cancel_requested else None
        return "already_completed" if row.ended else "taken_by_another_worker"

    def reap(self, worker: str, types: Sequence[str], held: Sequence[UUID], limit: int, lease: float) -> list[UUID]:
        expired = [
            row
            for row in self.rows.values()
            if row.status == "running" and row.type_name in types and row.id not in held and _past(row, self.now)
        ]
        reaped = sorted(expired, key=lambda row: (row.leased_until, row.id))[:limit]
        for row in reaped:
            row.leased_by, row.leased_until = worker, self.now + timedelta(seconds=lease)
        return [row.id for row in reaped]

    def expire(self, worker: str) -> int:
        live = [row for row in self._held(worker) if self.lets_go or not _past(row, self.now)]
        for row in live:
            row.leased_until = LET_GO if self.lets_go else self.now - timedelta(milliseconds=1)
        return len(live)

    def give_back(self, worker: str) -> int:
        given = [row for row in self._held(worker) if not row.cancel_requested]
        for row in given:
            row.status, row.deferred, row.leased_by, row.leased_until = "pending", False, None, None
        return len(given)

    def time_out(self, id: UUID, attempt: int, worker: str) -> bool:
        """Whether it could be let go of."""
        found = [row for row in self._held(worker) if row.id == id and row.attempt == attempt]
        for row in found:
            row.leased_until = LET_GO
        return bool(found)

    def _held(self, worker: str) -> list[Row]:
        """What a worker holds and nobody has let go of."""
        mine = [row for row in self.rows.values() if row.status == "running" and row.leased_by == worker]
        return [row for row in mine if row.leased_until != LET_GO]

    # -- change

    def cancel(self, chains: Sequence[UUID]) -> set[tuple[UUID, str]]:
        happened: set[tuple[UUID, str]] = set()
        failing: list[UUID] = []
        self._require(chains)
        for chain in sorted(set(chains) & set(self.rows)):
            row = self.current(chain)
            if row.ended:
                continue
            row.cancel_requested = True
            if row.status == "running":
                happened.add((row.id, "cancel_requested"))
                continue
            self._fail(row, "cancelled")
            failing.append(chain)
            happened.add((row.id, "failed"))
        return happened | self._spread(failing)

    def trigger(self, chains: Sequence[UUID]) -> set[tuple[UUID, str]]:
        self._require(chains)
        rows = [self.current(chain) for chain in set(chains) & set(self.rows)]
        pending = [row for row in rows if row.status == "pending"]
        for row in pending:
            row.scheduled_at = min(row.scheduled_at, self.now) if KEEPS_PLACE else self.now
            row.deferred = False
        return {(row.id, "triggered") for row in pending}

    def retry(self, chains: Sequence[UUID]) -> set[tuple[UUID, str]]:
        self._require(chains)
        wanted = sorted(set(chains) & set(self.rows))
        dependents = self._failed_through(wanted)
        coming = [*wanted, *(row.chain_id for row in dependents)]
        for chain in wanted:
            self._require_retryable(chain, wanted, coming)
        for chain in coming:
            header = self.header(chain)
            header.chain_ended = header.chain_failed = False
        for chain in wanted:
            row = self.current(chain)
            row.failures = row.transients = row.crashes = 0
            row.cancel_requested, row.scheduled_at = False, self.now
        back = [*(self.current(chain) for chain in wanted), *dependents]
        for row in back:
            row.open_blockers = self._open(row)
            row.status, row.reason = ("blocked" if row.open_blockers else "pending"), None
            row.deferred, row.admitted_after = False, None
        for row in self.rows.values():
            if row.status == "blocked" and set(coming) & set(self.edges.get(row.id, [])):
                row.open_blockers = self._open(row)
        return {(row.id, "blocked" if row.open_blockers else "retried") for row in back}

    def _open(self, row: Row) -> int:
        return sum(not self.header(chain).chain_ended for chain in self.edges.get(row.id, []))

    def _require(self, chains: Sequence[UUID]) -> None:
        if any(chain not in self.rows or self.rows[chain].chain_index for chain in chains):
            raise Refused("a chain is missing")

    def _require_retryable(self, chain: UUID, wanted: Sequence[UUID], coming: Sequence[UUID]) -> None:
        row, header = self.current(chain), self.header(chain)
        if row.status != "failed":
            raise Refused("not failed")
        if self._key_holder(header) or any(
            self.header(twin).key == header.key and self.header(twin).type_name == header.type_name
            for twin in wanted
            if twin != chain and header.key
        ):
            raise Refused("a live chain has the key")
        if self._lacks_blockers(row):
            raise Refused("a blocker was deleted")
        failed = [c for c in self.edges.get(row.id, []) if self.header(c).chain_failed and c not in coming]
        if failed and not row.runs_anyway:
            raise Refused("a blocker is still failed")

    def _key_holder(self, header: Row) -> bool:
        return header.key is not None and any(
            row.key == header.key
            and row.type_name == header.type_name
            and row.chain_index == 0
            and row.id != header.id
            and not row.chain_ended
            for row in self.rows.values()
        )

    def _lacks_blockers(self, row: Row) -> bool:
        return not row.runs_anyway and row.blockers > len(self.edges.get(row.id, []))

    def _failed_through(self, chains: Sequence[UUID]) -> list[Row]:
        """What failed only through these chains, or through what did."""
        found: list[Row] = []
        back, frontier = set(chains), set(chains)
        while frontier:
            more = self._newest_of_keys([r for r in self.rows.values() if self._comes_back(r, frontier, back)])
            found += more
            frontier = {row.chain_id for row in more}
            back |= frontier
        return found

    def _newest_of_keys(self, rows: Iterable[Row]) -> list[Row]:
        """Of several with one key only one can live: the newest."""
        chosen: dict[object, Row] = {}
        for row in sorted(rows, key=lambda row: row.chain_id):
            header = self.header(row.chain_id)
            chosen[(header.type_name, header.key) if header.key else row.id] = row
        return list(chosen.values())

    def _comes_back(self, row: Row, frontier: set[UUID], back: set[UUID]) -> bool:
        waits = self.edges.get(row.id, [])
        header = self.header(row.chain_id)
        taken = header.key is not None and any(
            self.header(c).key == header.key and self.header(c).type_name == header.type_name for c in back
        )
        return (
            row.status == "failed"
            and row.reason == "blocker"
            and bool(frontier & set(waits))
            and row.chain_id not in back
            and not any(self.header(c).chain_failed and c not in back for c in waits)
            and not self._lacks_blockers(row)
            and not taken
            and not self._key_holder(header)
        )

    def delete(self, chains: Sequence[UUID], *, cascade: bool) -> set[tuple[UUID, str]]:
        doomed = {chain for chain in chains if chain in self.rows and not self.rows[chain].chain_index}
        more = set(doomed) if cascade else set()
        while more:
            jobs = [row.id for row in self.rows.values() if row.chain_id in more]
            more = {chain for job in jobs for chain in self.edges.get(job, [])} - doomed
            doomed |= more
        for job, waits in self.edges.items():
            row = self.rows[job]
            if doomed & set(waits) and row.chain_id not in doomed and not row.ended:
                raise Refused("somebody waits for it")
        return {(id, "deleted") for id in self._remove(doomed)}

    def prune(self, type_names: Sequence[str], *, failed: bool) -> tuple[int, int]:
        """What has ended well, or failed, and nothing unfinished waits for; how many chains and jobs."""
        needed = {chain for job, waits in self.edges.items() if not self.rows[job].ended for chain in waits}
        headers = [self.rows[chain] for chain in self.chains() if chain not in needed]
        doomed = {h.id for h in headers if h.chain_ended and h.type_name in type_names and h.chain_failed == failed}
        return len(doomed), len(self._remove(doomed))

    def _remove(self, doomed: set[UUID]) -> set[UUID]:
        gone = {row.id for row in self.rows.values() if row.chain_id in doomed}
        self.rows = {id: row for id, row in self.rows.items() if id not in gone}
        left = {job: [c for c in waits if c not in doomed] for job, waits in self.edges.items() if job not in gone}
        self.edges = {job: waits for job, waits in left.items() if waits}
        return gone


def _past(row: Row, now: datetime) -> bool:
    return row.leased_until is not None and row.leased_until < now
