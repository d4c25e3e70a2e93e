"""The state machine: random operations on an adapter and on the model, over two connections."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onward.errors import OnwardError
from onward.model import Deduplication, FailureReason, JobError, JobStatus, new_id
from onward.state import contract
from onward.state.contract import (
    Filter,
    HeldAttempt,
    Keeping,
    LimitRule,
    NewJob,
    Pruned,
    Settlement,
    TakenJob,
    TypeClaim,
)
from onward.state.driver import Connection, Driver, Fault, run_now
from stateful.model import KEEPS_PLACE, Model, Refused, Row
from support import ClockOf

T = TypeVar("T")
TYPES = ("a", "b")
WORKERS = ("one", "one", "two")
LEASE = 60.0
_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
_ROWS = """SELECT id, chain_id, chain_index, type_name, status, rank, scheduled_at, deferred, attempt, failures,
  transients, crashes, leased_by, leased_until, cancel_requested_at, failure_reason, ended_at, blockers, open_blockers,
  deduplication_key, chain_ended_at, chain_failed, has_dependents, limit_key, admitted_after FROM {job}"""
picks = st.integers(0, 1000)
few = st.integers(1, 3)
types = st.lists(st.sampled_from(TYPES), min_size=1, unique=True)
keys = st.sampled_from([None, None, None, "x", "y"])
delays = st.sampled_from([0.0, 0.0, 0.0, 45.0])
limits = st.sampled_from([None, None, None, "limit/x", "limit/y"])
PLACES = 2


class Steps:
    """How many there were, for the report."""

    taken = 0


class Machine(RuleBasedStateMachine):
    """Subclasses say on what."""

    driver: Driver
    state: Any
    job_table: str
    clear: Callable[[], None]
    row_locks: bool
    lets_go: bool

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(_EPOCH, lets_go=self.lets_go)
        self.open: Model | None = None
        """What the second connection sees in its transaction."""
        self.named: set[UUID] = set()
        """What that transaction has to do with."""
        self.attempts: list[tuple[TakenJob, str]] = []
        self.state.clock = ClockOf(lambda: self.model.now)

    @initialize()
    def connect(self) -> None:
        type(self).clear()
        self._lent = [self.driver.connection() for _ in range(2)]
        self.first, self.second = (run_now(lent.__aenter__()) for lent in self._lent)  # type: ignore[arg-type]
        run_now(self.first.run(self.state.set_limits([LimitRule("limit", places=PLACES)], declared=True)))

    def teardown(self) -> None:
        if hasattr(self, "first"):
            if self.open is not None:
                run_now(self.second.rollback())
            for lent in self._lent:
                run_now(lent.__aexit__(None, None, None))  # type: ignore[arg-type]

    # -- which connection

    def writing(self, pick: int) -> tuple[Connection, Model]:
        """Where the next change is made: in the transaction that is open, or on either connection."""
        if self.open is not None:
            return self.second, self.open
        return (self.first, self.second)[pick % 2], self.model

    def change(
        self, pick: int, ask: Callable[[Connection], Coroutine[Any, Any, T]], predict: Callable[[Model], Any]
    ) -> tuple[T | None, Any]:
        """Ask the database and the model; both answers. Both may refuse."""
        connection, model = self.writing(pick)
        try:
            expected = predict(model)
        except Refused as refused:
            try:
                answer = run_now(ask(connection))
            except OnwardError:
                return None, None
            raise AssertionError(f"not refused: {refused}; it answered {answer!r}") from None
        return run_now(ask(connection)), expected

    def chain(self, pick: int) -> UUID | None:
        """A chain that is there, for whoever writes."""
        chains = (self.open or self.model).chains()
        found = chains[pick % len(chains)] if chains else None
        if found is not None and self.open is not None:
            self._name(found)
        return found

    def _name(self, chain: UUID) -> None:
        """With all that waits for it, or that it waits for, and so on: any of that may be locked with it."""
        model = self.open or self.model
        chains, frontier = set[UUID](), {chain}
        while frontier:
            chains |= frontier
            jobs = [row.id for row in model.rows.values() if row.chain_id in frontier]
            there = {other for job in jobs for other in model.edges.get(job, [])}
            here = {row.chain_id for one in frontier for row in model.waiting_for(one)}
            frontier = (there | here) - chains
        self.named |= {row.id for row in model.rows.values() if row.chain_id in chains}

    # -- start

    @rule(
        pick=picks,
        type_name=st.sampled_from(TYPES),
        key=keys,
        scope=st.sampled_from(["incomplete", "incomplete", "any"]),
        window=st.sampled_from([None, None, timedelta(seconds=50)]),
        delay=delays,
        priority=st.sampled_from([0, 0, 1, -1]),
        there=st.lists(picks, max_size=2),
        fresh=st.integers(0, 2),
        runs_anyway=st.booleans(),
        limit_key=limits,
    )
    def start(
        self,
        pick: int,
        type_name: str,
        key: str | None,
        scope: Any,
        window: timedelta | None,
        delay: float,
        priority: int,
        there: list[int],
        fresh: int,
        runs_anyway: bool,
        limit_key: str | None,
    ) -> None:
        blockers = {chain for n in there if (chain := self.chain(n)) is not None}
        job = _new(
            type_name,
            delay=delay,
            priority=priority,
            deduplication=Deduplication(key, scope=scope, window=window) if key else None,
            runs_anyway=runs_anyway,
            limit_key=limit_key,
        )
        started = [_new(type_name, parent=0, root_id=job.id) for _ in range(fresh if pick % 3 == 0 else 0)]
        job = _with(job, blockers=(*sorted(blockers), *(one.id for one in started)))
        self._start([job, *started], pick)

    @rule(pick=picks, count=few, type_name=st.sampled_from(TYPES), key=keys, limit_key=limits)
    def start_many(self, pick: int, count: int, type_name: str, key: str | None, limit_key: str | None) -> None:
        keyed = Deduplication(key) if key else None
        jobs = [_new(type_name, deduplication=keyed if n % 2 == 0 else None, limit_key=limit_key) for n in range(count)]
        self._start(jobs, pick)

    @rule(pick=picks)
    def start_with_a_blocker_that_is_missing(self, pick: int) -> None:
        there = self.chain(pick)
        blockers = (new_id(), *((there,) if there else ()))
        self._start([_with(_new("a"), blockers=blockers)], pick)

    def _start(self, jobs: list[NewJob], pick: int) -> None:
        answers, expected = self.change(
            pick, lambda connection: connection.run(self.state.start(jobs)), lambda model: model.start(jobs)
        )
        if answers is not None:
            assert [(a.id, a.status, a.duplicate) for a in answers] == expected

    # -- take, and how attempts end

    @precondition(lambda self: self.open is None)
    @rule(pick=picks)
    def admit(self, pick: int) -> None:
        answer, expected = self.change(
            pick, lambda connection: connection.run(self.state.admit()), lambda model: model.admit(PLACES)
        )
        assert answer is not None
        assert answer.types == expected

    @precondition(lambda self: self.open is None)
    @rule(pick=picks, names=types, limit=few, worker=st.sampled_from(WORKERS))
    def take(self, pick: int, names: list[str], limit: int, worker: str) -> None:
        answers, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.take(types=_claims(names), limit=limit, worker=worker)),
            lambda model: model.take(names, limit, worker, LEASE),
        )
        assert answers is not None
        assert [job.id for job in answers] == expected
        self._took(answers, worker)

    def _took(self, answers: Sequence[TakenJob], worker: str) -> None:
        for job in answers:
            row = self.model.rows[job.id]
            told = (job.attempt, job.failures, job.transients, job.crashes, job.rank, job.blockers)
            assert told == (row.attempt, row.failures, row.transients, row.crashes, row.rank, row.blockers)
            self.attempts.append((job, worker))

    @precondition(lambda self: self.open is not None and self.row_locks)
    @rule(names=types)
    def take_beside_a_transaction(self, names: list[str]) -> None:
        assert self.open is not None
        take = self.state.take(types=_claims(names), limit=100, worker="one")
        answers = run_now(self.first.run(take))
        eligible = {row.id for row in self.model.eligible(names)}
        free = {id for id in eligible if id not in self.named and self.open.rows.get(id) == self.model.rows[id]}
        if self.open.paused == self.model.paused:
            assert free <= {job.id for job in answers} <= eligible
        for job in answers:
            assert self.open.rows[job.id] == self.model.rows[job.id], "a row that the transaction has changed"
            self.open.taken(job.id, "one", LEASE)
            self.model.taken(job.id, "one", LEASE)
        self._took(answers, "one")

    @precondition(lambda self: self.open is not None and self.row_locks)
    @rule(type_name=st.sampled_from(TYPES))
    def start_beside_a_transaction(self, type_name: str) -> None:
        assert self.open is not None
        job = _new(type_name)
        run_now(self.first.run(self.state.start([job])))
        self.model.start([job])
        self.open.start([job])

    @precondition(lambda self: self.attempts)
    @rule(
        pick=picks,
        which=st.lists(picks, min_size=1, max_size=3),
        kinds=st.lists(
            st.sampled_from(["complete", "complete", "continue", "requeue", "give back", "fail"]), min_size=3
        ),
        delay=delays,
        there=st.lists(picks, max_size=1),
    )
    def settle(self, pick: int, which: list[int], kinds: list[str], delay: float, there: list[int]) -> None:
        chosen = {job.id: (job, holder) for job, holder in map(self._attempt, which)}
        settlements = []
        for (job, holder), kind in zip(chosen.values(), kinds, strict=False):
            blockers = [chain for n in there if (chain := self.chain(n)) not in (None, job.chain_id)]
            settlements.append(self._settlement(job, holder, kind, delay, blockers))
        if any(self._circular(s) for s in settlements):
            return
        self._settle(pick, settlements)

    def _attempt(self, pick: int) -> tuple[TakenJob, str]:
        """One of the last attempts, or an older one of the same jobs: both are likely."""
        job, holder = self.attempts[-1 - pick % min(len(self.attempts), 6)]
        older = [one for one in self.attempts if one[0].id == job.id]
        return older[pick % len(older)] if pick % 3 == 0 else (job, holder)

    def _settle(self, pick: int, settlements: list[Settlement]) -> None:
        if self.open is not None:
            for settlement in settlements:
                if settlement.job_id in self.open.rows:
                    self._name(self.open.rows[settlement.job_id].chain_id)
                self.named.add(settlement.job_id)
        answers, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.settle(settlements)),
            lambda model: model.settle(settlements),
        )
        assert answers is not None
        found = {(change.job_id, change.kind) for change in answers}
        assert {one for one in found if one[1] == "settled"} == {one for one in expected if one[1] == "settled"}
        if all(settlement.is_plain for settlement in settlements):
            assert found == expected

    def _settlement(
        self, job: TakenJob, holder: str, kind: str, delay: float, blockers: Sequence[Any] = ()
    ) -> Settlement:
        fence: dict[str, Any] = {"job_id": job.id, "attempt": job.attempt, "holder": holder}
        match kind:
            case "complete":
                return Settlement(**fence, kind="complete", output="1", completed_by=holder)
            case "continue":
                next = NewJob(
                    id=new_id(), chain_id=job.chain_id, chain_index=job.chain_index + 1, type_name="b",
                    payload_version=1, input="null", root_id=job.root_id, origin_id=job.id, delay=delay,
                    blockers=tuple(blockers),
                )  # fmt: skip
                return Settlement(**fence, kind="continue", completed_by=holder, next=[next])
            case "requeue":
                return Settlement(**fence, kind="requeue", delay=delay, failures=1, crashes=1, errors="[]")
            case "give back":
                place: dict[str, Any] = {"keep_place": True} if KEEPS_PLACE else {}
                return Settlement(**fence, kind="requeue", **place)
            case _:
                return Settlement(**fence, kind="fail", reason=FailureReason.PERMANENT, errors="[]")

    def _circular(self, settlement: Settlement) -> bool:
        """Whether a continuation would wait for what waits for its own chain: such a chain never ends."""
        model = self.open or self.model
        asked = {b for job in settlement.next for b in job.blockers}
        row = model.rows.get(settlement.job_id)
        reached, frontier = set[UUID](), set(asked)
        while frontier:
            reached |= frontier
            jobs = [r.id for r in model.rows.values() if r.chain_id in frontier]
            frontier = {chain for job in jobs for chain in model.edges.get(job, [])} - reached
        return row is not None and row.chain_id in reached

    @rule(pick=picks, which=picks, kind=st.sampled_from(["complete", "continue"]))
    def complete_without_a_worker(self, pick: int, which: int, kind: str) -> None:
        chain = self.chain(which)
        if chain is None:
            return
        row = (self.open or self.model).current(chain)
        job = run_now(self.writing(pick)[0].run(self.state.lock_current(chain)))
        assert job is not None
        assert job.id == row.id
        assert job.status == row.status
        fenced = TakenJob(*(None,) * 16)  # type: ignore[arg-type]
        fenced = _like(fenced, row, root_id=job.root_id)
        settlement = self._settlement(fenced, row.leased_by, kind, 0.0)  # type: ignore[arg-type]
        self._settle(pick, [_with(settlement, completed_by=None)])

    @precondition(lambda self: self.attempts and self.open is None)
    @rule(
        pick=picks,
        which=picks,
        kind=st.sampled_from(["complete", "complete", "continue", "requeue"]),
        commits=st.sampled_from([True, True, True, False]),
    )
    def end_in_a_phase(self, pick: int, which: int, kind: str, commits: bool) -> None:
        """As a handler's `complete()` does: hold, settle, commit."""
        job, holder = self._attempt(which)
        settlement = self._settlement(job, holder, kind, 0.0)
        connection = (self.first, self.second)[pick % 2]
        held = self.model.holds(settlement)
        try:
            ended = run_now(self._end(connection, job, settlement, holder, commits))
        except OnwardError:
            assert not held
            return
        except Exception as error:
            if self.driver.fault(error) is not Fault.STALE or held:
                raise
            return
        if commits:
            assert ended == held
            self.model.settle([settlement])

    async def _end(
        self, connection: Connection, job: TakenJob, settlement: Settlement, holder: str, commits: bool
    ) -> bool:
        fence: Any = {"job_id": job.id, "attempt": job.attempt, "holder": holder}
        try:
            held = await connection.run(self.state.hold_attempt(**fence), begin=True)
            if not held:
                await connection.run(self.state.lock_attempt(**fence))
            if not commits:
                await connection.rollback()
                return False
            changes = await connection.run(self.state.settle([settlement], held=job if held else None), commit=True)
            return any(change.kind == "settled" for change in changes)
        except BaseException:
            await connection.rollback()
            raise

    # -- leases

    @precondition(lambda self: self.open is None)
    @rule(pick=picks, names=types)
    def promote(self, pick: int, names: list[str]) -> None:
        promoted, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.promote(type_names=names, limit=500)),
            lambda model: model.promote(names),
        )
        assert promoted is not None
        assert promoted.count == expected[0]
        assert (promoted.next_in is None) == (expected[1] is None)
        assert abs((promoted.next_in or 0) - (expected[1] or 0)) < 0.01

    @precondition(lambda self: self.attempts and self.open is None)
    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=3), worker=st.sampled_from(WORKERS))
    def renew(self, pick: int, which: list[int], worker: str) -> None:
        jobs = {job.id: job for job, _ in map(self._attempt, which)}.values()
        held = [HeldAttempt(job.id, job.attempt, LEASE) for job in jobs]
        answers, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.renew(worker=worker, held=held)),
            lambda model: {(j.id, j.attempt): model.renew(j.id, j.attempt, worker, LEASE) for j in jobs},
        )
        assert answers is not None
        assert {(a.job_id, a.attempt): a.lost for a in answers} == expected

    @precondition(lambda self: self.open is None)
    @rule(pick=picks, names=types, worker=st.sampled_from(WORKERS), limit=few, held=st.lists(picks, max_size=2))
    def reap(self, pick: int, names: list[str], worker: str, limit: int, held: list[int]) -> None:
        here = sorted({self.attempts[n % len(self.attempts)][0].id for n in held}) if self.attempts else []
        reaped, expected = self.change(
            pick,
            lambda connection: connection.run(
                self.state.reap(worker=worker, type_names=names, held_here=here, limit=limit, lease=30.0)
            ),
            lambda model: model.reap(worker, names, here, limit, 30.0),
        )
        assert reaped is not None
        assert {job.id for job in reaped.jobs} == set(expected)
        self.attempts += [(job, worker) for job in reaped.jobs]

    @precondition(lambda self: self.open is None)
    @rule(pick=picks, worker=st.sampled_from(WORKERS))
    def expire(self, pick: int, worker: str) -> None:
        expired, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.expire(worker=worker)),
            lambda model: model.expire(worker),
        )
        assert expired is not None
        assert (expired.count, expired.locked) == (expected, 0)

    @precondition(lambda self: self.open is None and hasattr(self.state, "give_back"))
    @rule(pick=picks, worker=st.sampled_from(WORKERS))
    def give_back(self, pick: int, worker: str) -> None:
        given, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.give_back(worker=worker)),
            lambda model: model.give_back(worker),
        )
        assert given is not None
        assert (given.count, given.locked) == (expected, 0)

    @precondition(lambda self: self.attempts and self.open is None and hasattr(self.state, "time_out"))
    @rule(pick=picks, which=picks, worker=st.sampled_from(WORKERS))
    def time_out(self, pick: int, which: int, worker: str) -> None:
        job, _ = self._attempt(which)
        overdue = [contract.TimedOut(job.id, job.attempt, JobError(type="TimeoutError", message="late"))]
        found, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.time_out(worker=worker, overdue=overdue)),
            lambda model: model.time_out(job.id, job.attempt, worker),
        )
        assert found is not None
        assert list(found) == ([job.id] if expected else [])

    @precondition(lambda self: self.open is None)
    @rule(pick=picks, worker=st.sampled_from(WORKERS), held=st.lists(picks, max_size=2))
    def unanswered_takes(self, pick: int, worker: str, held: list[int]) -> None:
        here = sorted({self.attempts[n % len(self.attempts)][0].id for n in held}) if self.attempts else []
        found = run_now(self.first.run(self.state.unanswered_takes(worker=worker, held_here=here)))
        mine = {r.id for r in self.model.rows.values() if r.status == "running" and r.leased_by == worker}
        assert {job.id for job in found} == mine - set(here)

    # -- change

    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=2))
    def cancel(self, pick: int, which: list[int]) -> None:
        self._change(pick, which, self.state.cancel, lambda model, chains: model.cancel(chains))

    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=2))
    def trigger(self, pick: int, which: list[int]) -> None:
        self._change(pick, which, self.state.trigger, lambda model, chains: model.trigger(chains))

    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=2), failed=st.sampled_from([True, True, False]))
    def retry(self, pick: int, which: list[int], failed: bool) -> None:
        model = self.open or self.model
        if failed:
            chains = [c for c in model.chains() if model.header(c).chain_failed]
            which = [model.chains().index(chains[n % len(chains)]) for n in which] if chains else []
        if not KEEPS_PLACE and not self._would_retry(model, which):
            return
        self._change(pick, which, self.state.retry, lambda model, chains: model.retry(chains))

    def _would_retry(self, model: Model, which: list[int]) -> bool:
        """What is refused one day has another answer today."""
        chains = sorted({chain for n in which if (chain := self.chain(n)) is not None})
        try:
            trial = model.copy()
            through = [row for row in trial.rows.values() if row.reason == "blocker" and row.key]
            trial.retry(chains)
        except Refused:
            return False
        return not through and not any(trial._lacks_blockers(row) for row in trial.rows.values())

    def _change(self, pick: int, which: list[int], ask: Any, predict: Callable[[Model, Any], Any]) -> None:
        chains = sorted({chain for n in which if (chain := self.chain(n)) is not None})
        if pick % 17 == 0 and KEEPS_PLACE:
            chains.append(new_id())
        if not chains:
            return
        answers, expected = self.change(
            pick, lambda connection: connection.run(ask(chains)), lambda model: predict(model, chains)
        )
        if answers is not None:
            assert {(change.job_id, change.kind) for change in answers} == expected

    @rule(pick=picks, which=st.lists(picks, min_size=1, max_size=2), cascade=st.booleans())
    def delete(self, pick: int, which: list[int], cascade: bool) -> None:
        chains = sorted({chain for n in which if (chain := self.chain(n)) is not None})
        if self.open is not None:
            self.named |= set(self.open.rows)  # whatever they wait for
        answers, expected = self.change(
            pick,
            lambda connection: connection.run(self.state.delete(chains, cascade=cascade)),
            lambda model: model.delete(chains, cascade=cascade),
        )
        if answers is not None:
            assert {(change.job_id, change.kind) for change in answers} == expected

    @precondition(lambda self: self.open is None)
    @rule(names=types, failed=st.booleans(), rows=st.sampled_from([1, 3, 100]))
    def prune(self, names: list[str], failed: bool, rows: int) -> None:
        rules = [Keeping(name, None if failed else 0.0, 0.0 if failed else None) for name in names]
        batches = [Pruned(0, 0, 0, "", False)]
        while not batches[-1].is_end:
            prune = self.state.prune(rules, place=batches[-1].reached, chains=rows, rows=rows)
            batches.append(run_now(self.first.run(prune)))
        pruned = (sum(batch.chains for batch in batches), sum(batch.jobs for batch in batches))
        assert pruned == self.model.prune(names, failed=failed)

    @rule(pick=picks, names=types, on=st.booleans())
    def pause(self, pick: int, names: list[str], on: bool) -> None:
        ask = self.state.pause if on else self.state.resume

        def predict(model: Model) -> None:
            if on:
                model.pause(names)
            else:
                model.paused -= set(names)

        self.change(pick, lambda connection: connection.run(ask(names)), predict)

    # -- time, and the second connection's transaction

    @rule(seconds=st.sampled_from([0.001, 1.0, 40.0, 90.0]))
    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        if self.open is not None:
            self.open.now = self.model.now

    @precondition(lambda self: self.open is None)
    @rule()
    def begin(self) -> None:
        run_now(self.second.begin())
        self.open, self.named = self.model.copy(), set()

    @precondition(lambda self: self.open is not None)
    @rule()
    def commit(self) -> None:
        assert self.open is not None
        run_now(self.second.commit())
        self.model, self.open = self.open, None

    @precondition(lambda self: self.open is not None)
    @rule()
    def roll_back(self) -> None:
        run_now(self.second.rollback())
        self.open = None

    # -- what must be so

    @rule(pick=picks)
    def read(self, pick: int) -> None:
        """What the first connection is told of everything."""
        ids = self.model.chains()
        ended = run_now(self.first.run(self.state.ended_chains(ids)))
        assert ended == {id: self.model.header(id).chain_ended for id in ids}
        chains = run_now(self.first.run(self.state.find_chains(ids)))
        assert {c.id: c.current.id for c in chains} == {id: self.model.current(id).id for id in ids}
        listed = run_now(self.first.run(self.state.list_jobs(Filter(type_names=["a"]), after=None, limit=1000)))
        assert [job.id for job in listed] == sorted(
            (row.id for row in self.model.rows.values() if row.type_name == "a"), reverse=True
        )
        blockers = run_now(self.first.run(self.state.blockers_of(list(self.model.edges))))
        assert {job: [b.chain_id for b in found] for job, found in blockers.items()} == self.model.edges
        assert set(run_now(self.first.run(self.state.paused()))) == self.model.paused

    @invariant()
    def rows_are_as_predicted(self) -> None:
        if not hasattr(self, "first"):
            return
        Steps.taken += 1
        self._compare(self.first, self.model)
        if self.open is not None:
            self._compare(self.second, self.open)

    def _compare(self, connection: Connection, model: Model) -> None:
        found = {}
        for row in run_now(connection.fetch(_ROWS.format(job=self.job_table), {})):
            id = UUID(str(row[0]))
            found[id] = _seen(tuple(row))
        expected = {id: _shown(row) for id, row in model.rows.items()}
        if found != expected:
            for id in found.keys() | expected.keys():
                assert found.get(id) == expected.get(id), f"job {id}"


def _new(type_name: str, **fields: Any) -> NewJob:
    id = new_id()
    fields = {"chain_id": id, "root_id": id, **fields}
    return NewJob(id=id, type_name=type_name, payload_version=1, input="null", **fields)


def _with(value: Any, **fields: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(value, **fields)


def _like(taken: TakenJob, row: Row, *, root_id: UUID) -> TakenJob:
    fields: Any = {"id": row.id, "chain_id": row.chain_id, "chain_index": row.chain_index, "attempt": row.attempt}
    changed: TakenJob = _with(taken, root_id=root_id, **fields)
    return changed


def _claims(names: Sequence[str]) -> list[TypeClaim]:
    return [TypeClaim(name, 1, LEASE) for name in names]


def _instant(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value)


def _seen(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of the table as `_shown` shows one of the model."""
    (
        _, chain, index, type_name, status, rank, scheduled, deferred, attempt, failures, transients, crashes, by,
        until, cancel, reason, ended, blockers, open_blockers, key, chain_ended, chain_failed, dependents,
        limit_key, admitted_after,
    ) = row  # fmt: skip
    waits = status in ("pending", "running", "blocked")
    return (
        UUID(str(chain)), index, type_name, status, rank, attempt, failures, transients, crashes, by,
        None if until is None else _instant(until), reason if status == "failed" else None, ended is not None, blockers,
        cancel is not None, key, chain_ended is not None, bool(chain_failed), bool(dependents),
        _instant(scheduled) if waits else None, bool(deferred) if status == "pending" else None,
        open_blockers if waits else None, limit_key, admitted_after,
    )  # fmt: skip


def _shown(row: Row) -> tuple[Any, ...]:
    waits = row.status in ("pending", "running", "blocked")
    return (
        row.chain_id, row.chain_index, row.type_name, row.status, row.rank, row.attempt, row.failures, row.transients,
        row.crashes, row.leased_by, row.leased_until, row.reason if row.status == "failed" else None, row.ended,
        row.blockers, row.cancel_requested, row.key, row.chain_ended, row.chain_failed, row.has_dependents,
        row.scheduled_at if waits else None, row.deferred if row.status == "pending" else None,
        row.open_blockers if waits else None, row.limit_key, row.admitted_after,
    )  # fmt: skip


__all__ = ["JobStatus", "Machine", "Steps"]
