"""The state contract: what every database adapter promises.

Every method is one round trip, whatever the number of jobs (SQLite may need more statements, in one transaction). Every
method is all or nothing; on a connection in a transaction it joins that transaction. A refusal raises after nothing has
been written, and leaves the caller's transaction usable. Time is the database's, unless a test's clock says otherwise.
"""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from onward.model import (
    Blocker,
    Chain,
    ChainId,
    Deduplication,
    FailureReason,
    Job,
    JobError,
    JobId,
    JobStatus,
    LossReason,
    Progress,
    WorkerId,
)
from onward.state.command import Command, Operation, Rows
from onward.state.driver import Dialect
from onward.state.facts import Diagnosis, DueType
from onward.state.figures import FigureStatements
from onward.state.history import HistoryStatements
from onward.state.next_in_line import NextInLine
from onward.state.schedules import ScheduleStatements
from onward.state.workers import WorkerStatements

# gc=False below: there are many of these at a time, and none can be part of a cycle.

T = TypeVar("T")


class Clock(Protocol):
    """Says what time it is, where a test does."""

    @property
    def now(self) -> datetime | None: ...


class DatabaseTime:
    """The clock of all but tests: the database says what time it is."""

    now = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to store."""

    id: JobId
    chain_id: ChainId
    chain_index: int = 0
    type_name: str
    payload_version: int
    input: str
    """JSON text."""
    priority: int = 0
    delay: float = 0.0
    at: datetime | None = None
    origin_id: JobId | None = None
    root_id: JobId
    limit_key: str | None = None
    """The name of its limit, `/`, and what it is limited by: it is held until it has a place there."""
    parent: int | None = None
    """The position, in the same call, of the job that this chain is a blocker of. Parents come first."""
    blockers: tuple[ChainId, ...] = ()
    blocker_types: tuple[str, ...] = ()
    """The types with which those blockers began that were there before: workers pass them by while this is started."""
    runs_anyway: bool = False
    """Run when all blockers have ended, though some failed."""
    deduplication: Deduplication | None = None
    id_is_callers: bool = False
    meta: str | None = None
    """JSON text."""

    @property
    def is_plain(self) -> bool:
        """Whether it can be stored without a look at what is there."""
        return not any(compared(self))


compared = attrgetter("blockers", "deduplication", "id_is_callers")
"""What of a new job is compared with what is there, before it is stored."""


class Started(msgspec.Struct, frozen=True, gc=False):
    """What became of a `NewJob`."""

    id: JobId
    status: JobStatus | None
    """None for a duplicate, and for the blockers of one, which were not started."""
    duplicate: bool


class Position(NamedTuple):
    """A place in the order in which jobs of a type are taken."""

    rank: int
    scheduled_at: datetime


class TypeClaim(msgspec.Struct, frozen=True):
    """A type that a worker takes."""

    type_name: str
    payload_version: int
    lease: float
    after: Position | None = None
    """Pass over waiting jobs of the same rank that come before; an adapter may read them all the same."""
    expected: float | None = None
    """How many of it the take may bring, by what the last ones did; None if that is not known."""


class TakenJob(msgspec.Struct, frozen=True, gc=False):
    """A job that now belongs to a worker."""

    id: JobId
    chain_id: ChainId
    chain_index: int
    type_name: str
    payload_version: int
    input: str
    attempt: int
    failures: int
    transients: int
    crashes: int
    rank: int
    root_id: JobId
    errors: str | None
    """Of the last attempts that failed, as JSON text, newest last."""
    blockers: int
    scheduled_at: datetime
    created_at: datetime
    held_until: float | None = None
    """Seconds from `scheduled_at` until its lease runs out: who knows how long that is knows how long it waited."""
    meta: str | None = None
    """JSON text."""

    @property
    def priority(self) -> int:
        """As the application gave it; higher ones come first, where lower ranks do."""
        return -self.rank


BEST_FIRST = attrgetter("rank", "scheduled_at", "id.int")
"""The order in which `take` returns jobs: that of UUIDs, without their own comparing."""


def best_first(taken: list[TakenJob], ageing: float | None) -> list[TakenJob]:
    """In that order, or in another where waiting counts."""
    if ageing is None:
        taken.sort(key=BEST_FIRST)
    else:
        taken.sort(key=lambda job: (job.scheduled_at.timestamp() + job.rank * ageing, job.scheduled_at, job.id.int))
    return taken


SettlementKind: TypeAlias = Literal["complete", "continue", "requeue", "fail"]


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of an attempt. The fence is (job id, attempt, holder)."""

    job_id: JobId
    attempt: int
    holder: WorkerId | None
    kind: SettlementKind
    output: str | None = None
    payload_version: int | None = None
    """That of the output, where the input was of another; None leaves the job's as it is."""
    errors: str | None = None
    """What to keep of the errors, as JSON text, newest last; None leaves them as they are."""
    reason: FailureReason | None = None
    delay: float = 0.0
    at: datetime | None = None
    failures: int = 0
    """Added to the job's."""
    transients: int = 0
    """The new count."""
    crashes: int = 0
    """The new count."""
    completed_by: WorkerId | None = None
    keep_place: bool = False
    """Of a retry without delay: as if the job had not been taken, it keeps its place in line."""
    progress: Progress | None = None
    """The attempt's last word on it; None leaves it as it is."""
    next: Sequence[NewJob] = ()
    """The continuation, followed by the blockers it starts."""
    remove: bool = False
    """If this ends the chain, delete it in the same transaction; nobody may wait for it."""

    @property
    def stays_in_line(self) -> bool:
        """Whether the job waits again where it did."""
        return self.keep_place and not self.delay and self.at is None

    @property
    def is_plain(self) -> bool:
        """Whether it can be settled together with others."""
        return not self.next or (len(self.next) == 1 and self.next[0].is_plain)

    @property
    def only_completes(self) -> bool:
        """Whether all it says is the output of a chain that its holder has completed."""
        return (
            self.kind == "complete"
            and self.holder is not None
            and self.holder == self.completed_by
            and self.payload_version is None
            and self.errors is None
            and self.progress is None
        )


ChangeKind: TypeAlias = Literal[
    "settled", "unblocked", "scheduled", "failed", "cancel_requested", "retried", "blocked", "triggered", "deleted"
]
"""`scheduled`: unblocked before its time has come."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a job, for hints and events."""

    job_id: JobId
    chain_id: ChainId
    type_name: str
    kind: ChangeKind
    status: JobStatus | None = None
    reason: FailureReason | None = None
    """Why it failed, if it did."""


class Reaped(msgspec.Struct, frozen=True):
    """Jobs whose holder is gone, now held by the reaper, and when to look again."""

    jobs: Sequence[TakenJob]
    next_in: float | None
    """Seconds until it is worth looking again: 0 if there were more than asked for; else until the next lease of others
    runs out, or a quarter of the reaper's lease where one has run out and cannot be had (its row is locked, or it is
    held here); None if others hold nothing. Never negative."""


class Expired(msgspec.Struct, frozen=True):
    """How many leases of a dead worker ran out, and how many a transaction still locks."""

    count: int
    locked: int


class LeaseCommands(msgspec.Struct, frozen=True):
    """What the methods of the same name run, for a process that only keeps leases: it puts in its own values."""

    renew: tuple[Command[Any], ...]
    """Several make one transaction; the last one answers."""
    expire: Command[Any]
    time_out: Command[Any]
    give_back: Command[Any]


class TimedOut(msgspec.Struct, frozen=True):
    """An attempt that did not end in time, and whose worker is too stuck to say so."""

    job_id: JobId
    attempt: int
    error: JobError


class Promoted(msgspec.Struct, frozen=True):
    """How many scheduled jobs became due, and when the next one will."""

    count: int
    next_in: float | None


class Renewal(msgspec.Struct, frozen=True):
    """What became of a lease."""

    job_id: JobId
    attempt: int
    lost: LossReason | None
    """None: renewed, or about to be settled by its holder."""


class HeldAttempt(msgspec.Struct, frozen=True):
    """An attempt whose lease is to be renewed."""

    job_id: JobId
    attempt: int
    lease: float


class ProgressReport(msgspec.Struct, frozen=True):
    """How far a running attempt has come."""

    job_id: JobId
    attempt: int
    fraction: float
    note: str | None


class LimitRule(msgspec.Struct, frozen=True):
    """How many jobs of a key may run at a time, and how often one may start."""

    name: str
    """As it stands before the `/` of a job's `limit_key`; it has none itself."""
    places: int | None = None
    every: float | None = None
    """Seconds."""
    burst: int = 1
    """How many may start at once after a pause."""

    @property
    def figures(self) -> str:
        """What it says, as text: the same for the same."""
        return msgspec.json.encode((self.places, self.every, self.burst)).decode()

    def as_said(self, figures: str) -> "LimitRule":
        """The rule of this name that says so."""
        return LimitRule(self.name, *msgspec.json.decode(figures, type=tuple[int | None, float | None, int]))


SetOutcome: TypeAlias = Literal["changed", "kept", "outdated", "unknown"]
"""What became of a rule: set; it is declared as it was all along; it is what was declared before the last change,
minutes ago; there is none of this name to change."""


class StoredLimit(msgspec.Struct, frozen=True):
    """A limit as it is."""

    rule: LimitRule
    declared: str | None
    """The `figures` that code declared last."""
    declared_at: datetime | None
    changed_at: datetime | None
    """When it was changed at run time; None: it is as declared."""
    problem: str | None = None
    """What of it cannot be read."""


class LimitUse(msgspec.Struct, frozen=True):
    """What goes on at a key of a limit."""

    key: str
    placed: int
    """Running, or about to be taken."""
    held: int
    """Not more than a thousand are counted."""
    next_at: datetime | None
    """The next slot of its rate, while jobs are held for it."""


class Admitted(msgspec.Struct, frozen=True):
    """What an admission has done."""

    types: dict[str, int]
    """How many jobs of which types may be taken now."""
    next_in: float | None
    """Seconds until another look is worth it, at most one while jobs are held; None: somebody will tell."""
    reached: int
    """Pass it to the next one as `after`."""
    is_paced: bool
    """Whether some limit has a rate: what it has let in must not be taken without another look."""


class JobCounts(msgspec.Struct, frozen=True):
    """How many jobs of one type are where; those that are blocked or have completed are not counted."""

    pending: int = 0
    scheduled: int = 0
    """Pending, but not yet due."""
    running: int = 0
    failed: int = 0
    oldest: float = 0.0
    """Seconds for which the oldest that is pending has been due, where that was asked."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is in its line, at a moment."""

    now: datetime
    """The database's time."""
    is_held: bool
    """Whether it waits for a place of its limit."""
    placed: int
    """How many have a place there."""
    next_at: datetime | None
    """The next slot of that limit's rate, while jobs are held for it."""
    ahead: int
    """How many come before it: of those that are held there, or of those that wait for a worker."""


class Keeping(msgspec.Struct, frozen=True):
    """How many seconds chains that began with a type are kept after their end; None: for ever."""

    type_name: str
    completed: float | None
    failed: float | None
    history: float | None = None
    """For how many they are then kept in the history, counted from their end too; None: they are deleted."""


class Pruned(msgspec.Struct, frozen=True):
    """How many chains a batch has deleted or moved, of how many jobs, and where the next one begins."""

    completed: int
    failed: int
    jobs: int
    reached: str
    """A place in the order of ids, for the database that named it; the first of all is ""."""
    is_end: bool
    moved: int = 0
    """How many of the chains are in the history now."""

    @property
    def chains(self) -> int:
        return self.completed + self.failed

    @classmethod
    def counted(cls, rows: Rows) -> "Pruned":
        """What would be, of a row of (completed, failed, following)."""
        completed, failed, following = rows[0]
        return cls(completed, failed, 0, following or "", following is None)


class PruningTurn(msgspec.Struct, frozen=True):
    """Whether a worker is the one that prunes."""

    walks: str | None
    """What whoever had the turn before left there about how far it came; None: another has it."""
    next_in: float
    """Seconds until the turn is over."""
    now: float
    """The database's time, in seconds since 1970."""
    has_old_history: bool = False
    """Whether there is a part of the history that nobody wants any more."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs or chains to list; None means any."""

    type_names: Sequence[str] | None = None
    statuses: Sequence[JobStatus] | None = None
    chain_ids: Sequence[ChainId] | None = None
    root_ids: Sequence[JobId] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    reasons: Sequence[FailureReason] | None = None
    """Only what failed, and for one of these."""
    error_types: Sequence[str] | None = None
    """Only what failed, and with a last error of one of these types."""
    failed_from: datetime | None = None
    failed_before: datetime | None = None
    older_than: float | None = None
    """Only what was created at least so many seconds ago, by the database's clock."""
    newer_than: float | None = None
    error_text: str | None = None
    """Only what has this in a stored error: its type, its message or its traceback; ASCII letters in either case."""
    among: int | None = None
    """How many jobs may be looked at for a page: whoever asks for it makes `down_to` of this."""
    down_to: JobId | None = None
    """Look no further than the job with this id."""
    indexed: bool = False
    """Look through the indexes of what waits, runs and failed: of those alone, in `statuses`; or of chains, where jobs
    are listed by `chain_ids`. Worth it where they are few: all are read, and sorted."""
    newest: int | None = None
    """With `indexed`, of jobs: look at so many of them and no more, the newest; so it is quick where they are many."""

    @property
    def possible(self) -> Sequence[JobStatus] | None:
        """The statuses that can match: where it is said how jobs failed, no other."""
        if all(each is None for each in (self.reasons, self.error_types, self.failed_from, self.failed_before)):
            return self.statuses
        return [status for status in self.statuses or [JobStatus.FAILED] if status is JobStatus.FAILED]

    @property
    def only_live(self) -> bool:
        """Whether nothing can match but what is in an index: what waits and is not blocked, runs, or failed."""
        return self.possible is not None and not {JobStatus.BLOCKED, JobStatus.COMPLETED} & set(self.possible)

    @property
    def stored_text(self) -> str | None:
        """The error's text as it stands in JSON."""
        return None if self.error_text is None else msgspec.json.encode(self.error_text)[1:-1].decode()


class StateAdapter(Protocol):
    """Keeps jobs in a database."""

    dialect: Dialect
    clock: Clock
    """Set by tests to move time."""
    locks_rows: bool
    """Whether writers wait for each other's rows only. If not, all wait for one lock, which says nothing about them."""
    migrates_unasked: bool
    """Whether an app makes and updates the tables when it opens, unless told not to."""
    schedules: ScheduleStatements
    figures: FigureStatements
    workers: WorkerStatements

    @property
    def history(self) -> HistoryStatements | None:
        """None: chains that are pruned can only be deleted."""
        ...

    # -- schema
    def schema_version(self) -> Operation[int]:
        """The version of the tables; 0 when there are none."""
        ...

    def migrate(self) -> Operation[Sequence[str]]:
        """Bring the tables to the newest version; the migrations applied. Safe beside others doing the same."""
        ...

    def migration_sql(self) -> str:
        """All migrations as a script."""
        ...

    @property
    def newest_version(self) -> int: ...

    def identify(self) -> Operation[str]:
        """Names the database a connection leads to, to tell the app's own from another."""
        ...

    # -- start
    def start(self, jobs: Sequence[NewJob], *, repeated: bool = False) -> Operation[Sequence[Started]]:
        """Store jobs; answers in their order. Raises BlockerNotFound or DuplicateJobId with nothing stored.

        `repeated`: the same start may just be committing, its answer having been lost; plain jobs that are there stay
        as they are.
        """
        ...

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
        """Claim the best pending jobs for `worker`, best first. Committed at once; never taken twice.

        `next_in_line`: what the last takes of the same types have seen, to begin with, and for this one to say what it
        sees. As with `after`, jobs of the same rank that come before and came up later may be passed over. An adapter
        may make nothing of it.

        With `ageing` one step of priority counts as much as so many seconds of waiting; without, more than any.

        A row that cannot be read fails alone, here and in `reap` and `unanswered_takes`; listings
        show it with its problem.
        """
        ...

    def left_behind(self, *, types: Sequence[TypeClaim]) -> Operation[bool]:
        """Whether a `take` that has just brought too few jobs passed some over because they were locked."""
        ...

    def work_left(self, *, types: Sequence[TypeClaim]) -> Operation[bool]:
        """Whether there is anything to work on: jobs that could be taken, now or when a limit has a place, or that run.

        What is blocked, scheduled for later, paused, or of another version, is not to be worked on. One snapshot: what
        goes on from a job that runs is never missed.
        """
        ...

    def promote(self, *, type_names: Sequence[str], limit: int) -> Operation[Promoted]:
        """Let scheduled jobs whose time has come be taken."""
        ...

    def settle(
        self, settlements: Sequence[Settlement], *, held: TakenJob | None = None, impatient: bool = False
    ) -> Operation[Sequence[Change]]:
        """End attempts; a stale one changes nothing and has no "settled" among the changes.

        `held`: there is one, whose job was held when the transaction began and is as it was. To settle that takes less;
        if it is stale nonetheless, the statement fails, which the driver calls `Fault.STALE`.

        `impatient`: where rows are locked, rather fail (`Fault.TIMEOUT`) than wait long for somebody's lock, also on a
        connection whose session says nothing of it. For the rest of the transaction, which is our own.

        One that somebody wants cancelled fails, unless it fails anyway or completes the chain.
        """
        ...

    def lock_or_skip(self, job_ids: Sequence[JobId]) -> Operation[set[JobId]]:
        """Lock these jobs, and the chains they are part of, until the transaction ends, so that `settle` need not wait
        for them; those that others have locked are skipped, and returned.
        """
        ...

    def hold_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Operation[bool]:
        """Lock the job for its attempt until the transaction ends; False: that takes the closer look of `lock_attempt`.

        Raises AttemptLost where it sees that the job is another's.
        """
        ...

    def lock_attempt(self, *, job_id: JobId, attempt: int, holder: WorkerId) -> Operation[None]:
        """Lock the job for its attempt until the transaction ends. Raises AttemptLost when it is another's."""
        ...

    def lock_current(self, chain_id: ChainId) -> Operation[Job | None]:
        """Lock the job a chain has come to until the transaction ends."""
        ...

    # -- leases
    def renew(self, *, worker: WorkerId, held: Sequence[HeldAttempt]) -> Operation[Sequence[Renewal]]:
        """Renew leases, skipping rows that are locked: their holder is settling them."""
        ...

    def report_progress(self, *, worker: WorkerId, reports: Sequence[ProgressReport]) -> Operation[None]:
        """Write how far running attempts have come; reports of stale ones are dropped."""
        ...

    def reap(
        self,
        *,
        worker: WorkerId,
        type_names: Sequence[str],
        held_here: Sequence[JobId],
        limit: int,
        lease: float,
    ) -> Operation[Reaped]:
        """Take over expired leases for `worker`, to be settled as crashes; never those in `held_here`."""
        ...

    def expire(self, *, worker: WorkerId) -> Operation[Expired]:
        """Let all leases of a worker run out that is known to be dead, skipping rows that are locked."""
        ...

    def time_out(self, *, worker: WorkerId, overdue: Sequence[TimedOut]) -> Operation[Sequence[JobId]]:
        """Let go of attempts and keep why among their errors, skipping rows that are locked; those it could."""
        ...

    def give_back(self, *, worker: WorkerId) -> Operation[Expired]:
        """Let all jobs of a worker be taken again, uncounted, skipping rows that are locked."""
        ...

    def unanswered_takes(self, *, worker: WorkerId, held_here: Sequence[JobId]) -> Operation[Sequence[TakenJob]]:
        """What `worker` holds beside `held_here`: taken, but the answer was lost on its way."""
        ...

    def lease_commands(self, *, worker: WorkerId) -> LeaseCommands:
        """What these methods run, of a worker that holds nothing yet."""
        ...

    # -- change
    def cancel(self, chain_ids: Sequence[ChainId], *, cascade: bool = False) -> Operation[Sequence[Change]]:
        """Fail waiting jobs, ask running ones to stop. Raises ChainNotFound with nothing changed.

        With `cascade` also the chains that these wait for, and so on, as far as nothing else unfinished waits for them.
        """
        ...

    def retry(self, chain_ids: Sequence[ChainId]) -> Operation[Sequence[Change]]:
        """Bring failed chains back, and what failed only through them. Raises ChainNotFound and RetryRefused, with
        nothing changed.

        A job that cannot come back (its blockers were deleted, a live chain has its key) stays failed when a blocker of
        it is retried.
        """
        ...

    def trigger(self, chain_ids: Sequence[ChainId]) -> Operation[Sequence[Change]]:
        """Run scheduled jobs now; one that is due keeps its place. Raises ChainNotFound with nothing changed."""
        ...

    def delete(self, chain_ids: Sequence[ChainId], *, cascade: bool) -> Operation[Sequence[Change]]:
        """Delete whole chains; those that do not exist are no change. Raises ChainReferenced with nothing deleted."""
        ...

    def prune(
        self, rules: Sequence[Keeping], *, place: str = "", before: float | None = None, chains: int, rows: int
    ) -> Operation[Pruned]:
        """Delete whole chains that have been kept for long enough, in the order of their ids from `place` on.

        Those that have a history are moved there, whole, by the same transaction, unless they are too old for it too.

        None that something unfinished waits for, and none that somebody has locked. At most so many `chains`, with
        about so many `rows` of all tables, unless a chain alone has more; ten times as many are read.

        `before`: no further than to the ids that were made so many seconds ago, as far as they tell.
        """
        ...

    def count_prunable(self, rules: Sequence[Keeping], *, place: str = "", rows: int) -> Operation[Pruned]:
        """How many chains `prune` would delete among the next so many rows, were none of them locked. Changes nothing,
        and counts no jobs.
        """
        ...

    def take_pruning_turn(
        self, *, worker: WorkerId, lease: float, walks: str | None, whose: str = ""
    ) -> Operation[PruningTurn]:
        """Have the turn for `lease` seconds, if it is nobody else's, and leave there how far one came.

        `whose`: of which app, since each prunes what it knows.
        """
        ...

    def pause(self, type_names: Sequence[str]) -> Operation[None]:
        """Let workers leave these types alone."""
        ...

    def resume(self, type_names: Sequence[str]) -> Operation[None]:
        """Let workers take these types again."""
        ...

    # -- limits
    def set_limits(self, rules: Sequence[LimitRule], *, declared: bool) -> Operation[Sequence[SetOutcome]]:
        """Set rules, as code declares them or at run time; in their order, what became of each.

        What code declares counts when it is new. Jobs that run go on; those that have a place and do not run yet are
        held again where a rule changed.
        """
        ...

    def admit(
        self, *, after: int = 0, most: int | None = None, sweep: bool = False, past_locks: bool = False
    ) -> Operation[Admitted]:
        """Give free places to held jobs, in a transaction of its own, and look at `most` keys for that; None: at as
        many as is good.

        Keys are looked at for which something has happened since; which of that it need not see again, `after` says.
        With `sweep` all keys, beginning with these, as every now and then anyway. With `past_locks` a key that somebody
        has locked, where keys can be, is looked at later; otherwise this waits for it, but not for long, and fails.
        """
        ...

    def limits(self) -> Operation[Sequence[StoredLimit]]:
        """By name."""
        ...

    def limit_uses(self, name: str, *, after: str | None, limit: int) -> Operation[Sequence[LimitUse]]:
        """The keys of a limit with jobs that have a place or are held, in the order of the keys."""
        ...

    def placed_jobs(self, limit_key: str, *, limit: int) -> Operation[Sequence[Job]]:
        """Those that have a place."""
        ...

    def held_jobs(self, limit_key: str, *, limit: int) -> Operation[Sequence[Job]]:
        """Those that wait for a place, the next one first."""
        ...

    # -- read
    def at_one_moment(self, look: Operation[T]) -> Operation[T]:
        """Have a look that takes several statements see what was committed at one moment, or, in a transaction of the
        caller's, what that sees. Where others commit all the time, SQLite gives up on it."""
        ...

    def paused(self) -> Operation[Sequence[str]]: ...

    def find_jobs(self, ids: Sequence[JobId]) -> Operation[Sequence[Job]]:
        """The jobs that exist, in no particular order."""
        ...

    def find_chains(self, ids: Sequence[ChainId]) -> Operation[Sequence[Chain]]:
        """The chains that exist, in no particular order."""
        ...

    def ended_chains(self, ids: Sequence[ChainId]) -> Operation[dict[ChainId, bool]]:
        """Of the chains that exist, whether they have ended."""
        ...

    def list_jobs(self, filter: Filter, *, after: JobId | None, limit: int) -> Operation[Sequence[Job]]:
        """Newest first, beginning below `after`."""
        ...

    def list_chains(self, filter: Filter, *, after: ChainId | None, limit: int) -> Operation[Sequence[Chain]]:
        """Newest first, beginning below `after`."""
        ...

    def count_indexed(self, filter: Filter, *, most: int) -> Operation[int]:
        """How many jobs have one of the filter's statuses, and one of its types, as far as there are indexes of them;
        counted up to `most`."""
        ...

    def place_below(self, after: JobId | None, *, jobs: int) -> Operation[JobId | None]:
        """The id of the last of so many jobs, newest first, beginning below `after`; None if there are fewer."""
        ...

    def list_blocked(self, chain_id: ChainId, *, after: JobId | None, limit: int) -> Operation[Sequence[Job]]:
        """The jobs that wait, or waited, for a chain, newest first."""
        ...

    def list_failed(self, type_name: str, *, limit: int) -> Operation[Sequence[Job]]:
        """The failed jobs of a type, the last to fail first."""
        ...

    def count_jobs(self, type_names: Sequence[str]) -> Operation[dict[str, JobCounts]]:
        """How many jobs of each of these types are where. Reads as many index entries as it counts.

        What is blocked or has completed is not counted: that would read the whole table.
        """
        ...

    def oldest_due(self, type_names: Sequence[str]) -> Operation[dict[str, float]]:
        """For how many seconds the oldest pending job of each of these types has been due; types without one are
        missing. Reads as many index entries as there are versions and priorities.
        """
        ...

    def line_of(
        self, job_id: JobId, *, types: Sequence[tuple[str, int]], ageing: float | None, most: int
    ) -> Operation[Line]:
        """Where a job is in line, as whoever takes these types and versions goes through it; `ageing` as `take` has it.

        Nothing is counted beyond `most`. Of a job that does not wait, or does not exist, the time.
        """
        ...

    def list_blocking(
        self, job_ids: Sequence[JobId], *, failed: bool, limit: int
    ) -> Operation[Sequence[tuple[JobId, ChainId]]]:
        """The chains that jobs wait for and that have not ended, or those that have `failed`: each with its job, by
        the job and in the order given when it was started."""
        ...

    def due_types(self, *, most: int = 1000) -> Operation[Sequence[DueType]]:
        """The types that have jobs which are due, of whatever code, by name and version. However many jobs there are,
        it reads a few index entries for each: of what is held by limits, one for each key.
        """
        ...

    def diagnose(self, *, most: int | None, late: float) -> Operation[Diagnosis]:
        """What there is to see of the database for whoever judges it. It changes nothing, and takes seconds at most.

        For rows that are not as they should be it looks through the newest `most` of a table; None: through all,
        however long that takes. A lease, or a job that is held, is `late` after so many seconds.
        What this role may not see, or what takes too long, is told in `unseen`.
        """
        ...

    def cancel_requests(self, job_ids: Sequence[JobId]) -> Operation[set[JobId]]:
        """Those of the jobs given, which run, that somebody wants cancelled."""
        ...

    def blockers_of(self, job_ids: Sequence[JobId]) -> Operation[dict[JobId, list[Blocker]]]:
        """What jobs wait, or waited, for, in the order given when they were started."""
        ...


def keys_of(name: str, after: str | None = None) -> dict[str, str]:
    """The bounds of the keys of a limit, behind one of them: nothing comes between a text and itself with chr(1), and
    "0" comes after "/".
    """
    return {"first": f"{name}/" if after is None else f"{after}\1", "until": f"{name}0"}


def to_remove(settlements: Sequence[Settlement], changes: Sequence[Change]) -> list[ChainId]:
    """The chains that have ended with these settlements and are not to be kept."""
    removing = {s.job_id for s in settlements if s.remove and s.kind != "continue"}
    if not removing:
        return []
    ended = (JobStatus.COMPLETED, JobStatus.FAILED)
    return [c.chain_id for c in changes if c.kind == "settled" and c.status in ended and c.job_id in removing]
