"""A rehearsal: the handler of a stored job runs once more, in transactions of which nothing is kept."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from onward.define.registry import RegisteredType, Registry
from onward.errors import ConfigurationError, JobNotFound, Reschedule, TransactionClosed, TransactionError
from onward.lifecycle import settle
from onward.lifecycle.store import Store
from onward.lifecycle.transaction import NothingElse, OpenTransaction, open_here
from onward.model import Blocker, Job, JobId, new_id
from onward.observe.running import current_attempt
from onward.state.contract import Filter, Settlement, TakenJob
from onward.state.driver import Connection, run_now
from onward.worker.attempt import RunningAttempt
from onward.worker.connections import Reserved
from onward.worker.phases import PhaseFailure, PhaseKind, Stage, Workplace, check_order
from onward.worker.processes.attempt import ProcessAttempt
from onward.worker.processes.border import task_of
from onward.worker.processes.messages import HandlerName, Said
from onward.worker.progress import ProgressBoard

_WORKER = "dry-run"
_MOST_STARTED = 100
ONLY_INSIDE = "a dry run can only undo what is done in prepare() or complete(), with tx=tx"
_OUTSIDE = NothingElse(ONLY_INSIDE)
"""While the handler runs outside of its phases: what would be committed by itself cannot be undone."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What a handler did, and how it ended; nothing of it is stored."""

    job: Job
    kind: RegisteredType
    statements: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What it sent through `tx`."""
    is_recorded: bool = True
    """Not where `tx` is an object of the client library's own, such as a session: nobody heard its statements."""
    started: Sequence[Job] = ()
    """The jobs that it started in its transactions."""
    settlement: Settlement | None = None
    """How the job would have been settled."""
    error: BaseException | None = None
    """What the handler raised, but for `Reschedule`, which is an outcome."""
    ended_by_hand: bool = False
    """Whether the handler ended its transaction itself, so that what it had committed cannot be undone."""


class _Recorded:
    """A connection that remembers the statements of the user's transaction."""

    def __init__(self, link: Connection, statements: list[tuple[str, dict[str, Any]]]) -> None:
        self._link, self._statements = link, statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def execute(self, sql: str, parameters: dict[str, Any]) -> int:
        self._statements.append((sql, parameters))
        return await self._link.execute(sql, parameters)

    async def query(self, sql: str, parameters: dict[str, Any]) -> Any:
        self._statements.append((sql, parameters))
        return await self._link.query(sql, parameters)


class RehearsedPhases:
    """Stands in for `Phases`: one transaction from the first step to the last, so that each phase sees what was written
    before it; then it is rolled back. The job is neither held nor settled.
    """

    stage: Stage = "fresh"
    failure: PhaseFailure | None = None
    ended_by_hand = False
    tx: OpenTransaction | None = None
    _lending: AbstractAsyncContextManager[Any] | None = None

    def __init__(self, store: Store, statements: list[tuple[str, dict[str, Any]]]) -> None:
        self.store, self._statements = store, statements

    async def begin(self) -> OpenTransaction:
        """The transaction, whether it is there or not."""
        if self.tx is None:
            lending = self.store.driver.connection()
            link = await lending.__aenter__()
            self._lending = lending
            await link.begin()
            self.tx = OpenTransaction(cast(Any, _Recorded(link, self._statements)), self.store.transactions)
        return self.tx

    async def enter(self, phase: PhaseKind) -> OpenTransaction:
        if self.stage != "fresh":
            check_order(self.stage, phase)
        self.stage = "inside"
        return await self.begin()

    async def leave(self, phase: PhaseKind, error: BaseException | None) -> None:
        self.stage = "ended" if phase == "complete" else "prepared"
        if error is None:
            assert self.tx is not None
            try:
                self.tx.check()
                if phase == "prepare":
                    await self.tx.link.flush()
            except BaseException as ended:
                await self._fail(ended)
                raise
            self.stage = "completed" if phase == "complete" else self.stage
        else:
            await self._fail(error)

    async def _fail(self, error: BaseException) -> None:
        self.failure = PhaseFailure(error, error, "handler")
        await self.discard()

    async def settle(self, settlement: Settlement) -> Settlement:
        if self.tx is not None:
            await self.tx.link.flush()
        return settlement

    async def discard(self) -> None:
        tx, self.tx = self.tx, None
        lending, self._lending = self._lending, None
        try:
            if tx is not None:
                self._look(tx)
                await tx.rollback()
        finally:
            if lending is not None:
                await lending.__aexit__(None, None, None)

    def _look(self, tx: OpenTransaction) -> None:
        try:
            tx.link.check()
        except TransactionClosed:
            self.ended_by_hand = True
        except TransactionError:  # the database has rolled it back
            pass


async def rehearse(
    registry: Registry, store: Store, sync_store: Store | None, job_id: JobId, provided: tuple[object, ...]
) -> Rehearsal:
    """Run the handler of a stored job with its stored input. Takes no lease, writes nothing, settles nothing."""
    found = await store.read(store.state.find_jobs([job_id]))
    if not found:
        raise JobNotFound(job_id, 0)
    job, kind = found[0], registry.find(found[0].type_name)
    if kind.step.run is None:
        raise ConfigurationError(f"{kind.name} has no handler in this app")
    blockers = (await store.read(store.state.blockers_of([job_id]))).get(job_id, [])
    on_loop = kind.step.signature.is_async or kind.runs_in_process
    own = store if on_loop or sync_store is None else sync_store
    rehearsal = Rehearsal(job=job, kind=kind, is_recorded=own.driver.transaction_type is None)
    attempt = _attempt(job, kind, registry, own, blockers, provided)
    attempt.phases = cast(Any, phases := RehearsedPhases(own, rehearsal.statements))
    asked = asyncio.current_task()
    is_cancelled = lambda: asked is not None and asked.cancelling() > 0  # noqa: E731
    work = _perform(attempt, phases, rehearsal, registry, is_cancelled=is_cancelled)
    if on_loop:
        async with asyncio.TaskGroup() as tasks:  # one of its own, which a handler may cancel
            tasks.create_task(work)
    else:
        await asyncio.to_thread(run_now, work)
    return rehearsal


def _attempt(
    job: Job,
    kind: RegisteredType,
    registry: Registry,
    store: Store,
    blockers: Sequence[Blocker],
    provided: tuple[object, ...],
) -> RunningAttempt:
    taken = TakenJob(
        id=job.id,
        chain_id=job.chain_id,
        chain_index=job.chain_index,
        type_name=job.type_name,
        payload_version=job.payload_version,
        input=msgspec.json.encode(job.input).decode(),
        attempt=job.attempt + 1,
        failures=job.failures,
        transients=0,
        crashes=0,
        rank=-job.priority,
        root_id=job.root_id,
        errors=msgspec.json.encode(job.errors).decode() if job.errors else None,
        blockers=len(blockers),
        scheduled_at=job.scheduled_at,
        created_at=job.created_at,
        meta=msgspec.json.encode(job.meta).decode() if job.meta else None,
    )
    progress = ProgressBoard(store, _WORKER, Reserved(store.driver))  # which nobody has write
    workplace = Workplace(worker=_WORKER, registry=registry, progress=progress, provided=provided)
    return RunningAttempt(taken, kind, store, workplace, blockers)


async def _perform(
    attempt: RunningAttempt,
    phases: RehearsedPhases,
    rehearsal: Rehearsal,
    registry: Registry,
    *,
    is_cancelled: Callable[[], bool],
) -> None:
    """In the task, or the thread, of the handler."""
    job, began = attempt.job, new_id()
    running, mark = current_attempt.set(attempt), open_here.set(_OUTSIDE)
    try:
        await phases.begin()
        attempt.input = attempt.kind.read_input(job.input, job.payload_version, job.id)
        run = partial(_as_in_a_process, registry) if attempt.kind.runs_in_process else None
        rehearsal.settlement = await attempt.perform(run)
        rehearsal.started = await _started(phases.store, await phases.begin(), job, since=began)
    except KeyboardInterrupt:
        raise
    except Reschedule as outcome:
        rehearsal.settlement = settle.rescheduled(job, _WORKER, outcome)
    except BaseException as error:
        if is_cancelled():
            raise
        rehearsal.error = error
    finally:
        current_attempt.reset(running)
        open_here.reset(mark)
        await phases.discard()
        rehearsal.ended_by_hand = phases.ended_by_hand


async def _as_in_a_process(registry: Registry, attempt: RunningAttempt) -> Any:
    """In a thread here, where the debugger is, with an attempt that can do what it could in a process."""
    run, nowhere = attempt.kind.step.run, {attempt.kind.name: HandlerName("", "")}
    assert run is not None
    return await asyncio.to_thread(run, ProcessAttempt(task_of(attempt, nowhere, registry), attempt.input, _hear))


def _hear(said: Said) -> None:
    """Progress, which is kept nowhere."""


async def _started(store: Store, tx: OpenTransaction, job: TakenJob, *, since: JobId) -> list[Job]:
    """The youngest of the job's family: those it has started, unless their ids were chosen by hand."""
    young = Filter(root_ids=[job.root_id], down_to=since)
    found = await tx.link.run(store.state.list_jobs(young, after=None, limit=_MOST_STARTED))
    return [one for one in reversed(found) if one.id != job.id]
