"""The client's calls without an event loop: Flask, Django, scripts."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import Unpack

from onward.client.arguments import (
    Asked,
    Filters,
    asked,
    checked_id,
    checked_limit,
    checked_place,
    filter_of,
    type_names,
)
from onward.client.awaiting import poll
from onward.client.completion import SyncCompletion
from onward.client.handle import SyncChainHandle
from onward.client.health import HealthOptions, Probe
from onward.client.history import HistoryFilters, history_filter
from onward.client.limits import LimitOperations, SyncLimits
from onward.client.listing import every
from onward.client.operations import Operations
from onward.client.pruning import PruneOptions
from onward.client.schedules import ScheduleOperations, SyncSchedules
from onward.client.schema import prepare_schema
from onward.define.job_type import JobType, Step
from onward.define.registry import Registry
from onward.define.request import ChainReference, InputOf, NewChain, StartOptions
from onward.define.schedule import Declared
from onward.errors import ConfigurationError
from onward.lifecycle.effects import Awaited, Posting, ThreadAnnouncer, describe
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store, TransactionBlock
from onward.lifecycle.transaction import as_sync
from onward.model import Blocker, Chain, ChainId, Job, JobId, Page
from onward.notify.contract import Hint, NotifyAdapter
from onward.notify.encoding import merged
from onward.observe import events
from onward.observe.observer import Observers
from onward.operating import Explanation, Health, Stats, WorkerInfo
from onward.state.command import Command
from onward.state.contract import JobCounts, Started, StateAdapter
from onward.state.driver import Driver, run_now

if TYPE_CHECKING:
    from typing import Self

_NOT_OPEN = "the client is not open: use `with app.sync as client:`; each `app.sync` is another client"
I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output


class SyncOnward:
    """An app's calls for code without an event loop, on a sync driver. Made by `app.sync`.

    >>> from onward import Attempt, Onward, job
    >>> @job("greet")
    ... async def greet(attempt: Attempt[str]) -> str:
    ...     return f"hello {attempt.input}"
    >>> app = Onward("memory://", jobs=[greet])
    >>> with app.sync as client:
    ...     chain = client.start(greet, "world")
    ...     client.find_chain(chain.id).status
    <JobStatus.PENDING: 'pending'>
    """

    def __init__(
        self,
        registry: Registry,
        state: StateAdapter,
        driver: Driver,
        notify: NotifyAdapter,
        announcer: ThreadAnnouncer,
        observers: Observers,
        *,
        schedules: Callable[[], Mapping[str, Declared]],
        migrate: bool,
        is_transient: Callable[[BaseException], bool] | None = None,
        ageing: timedelta | None = None,
    ) -> None:
        self._registry = registry
        self._state, self._driver, self._announcer, self._migrate = state, driver, announcer, migrate
        self._store = Store(
            state=state,
            driver=driver,
            notify=notify,
            announcer=_Announcer(driver, notify, announcer, observers),
            observers=observers,
            awaited=Awaited(),
            is_transient=is_transient,
        )
        self._ready = Operations(registry, self._store, poll(self._store))
        self._declared, self._ageing = schedules, ageing
        self._probe = Probe(state, driver, None, registry)
        self._opened_in: int | None = None
        """The process."""

    @property
    def _operations(self) -> Operations:
        if self._opened_in is None:
            raise ConfigurationError(_NOT_OPEN)
        return self._ready  # in a forked child the driver connects anew, or says that it cannot

    # -- life

    def __enter__(self) -> "Self":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect, and check or make the tables."""
        if self._opened_in == os.getpid():
            raise ConfigurationError("this client is already open")
        run_now(self._open())
        self._opened_in = os.getpid()

    async def _open(self) -> None:
        try:
            await self._driver.open()
            try:
                async with self._driver.connection() as connection:
                    await prepare_schema(self._state, connection, migrate=self._migrate)
                    await self._store.learn_identity(connection)
            except BaseException:
                await self._driver.close()
                raise
        except Exception as error:
            self._store.raise_in_words(error, "open the client")
            raise

    def close(self) -> None:
        """Send what has not left yet, and disconnect."""
        self._opened_in = None
        self._announcer.release()
        run_now(self._driver.close())

    # -- transactions

    def transaction(self, connection: object = None) -> AbstractContextManager[Any]:
        """A transaction to write your data and start chains in; on an idle connection of your own if you pass one."""
        return as_sync(TransactionBlock(self._operations.store, connection))

    # -- start

    def start(
        self,
        job_type: JobType[I, O],
        input: InputOf[I],
        *,
        tx: object = None,
        **options: Unpack[StartOptions],
    ) -> SyncChainHandle[O, I]:
        """Start a chain, in the transaction `tx` or alone; the options are those of `Onward.start`."""
        chain = NewChain(job_type=job_type, input=input, **options)
        started = self._start([chain], tx)[0]
        return SyncChainHandle(self._ready, job_type, started.id, started.duplicate)

    def start_many(self, chains: Sequence[NewChain[O]], *, tx: object = None) -> list[SyncChainHandle[O]]:
        """Start chains made by `job_type.with_input(…)`, all or none; returns their handles in order."""
        return [
            SyncChainHandle(self._ready, chain.job_type, answer.id, answer.duplicate)
            for chain, answer in zip(chains, self._start(chains, tx), strict=True)
        ]

    def _start(self, chains: Sequence[NewChain[Any]], tx: object) -> Sequence[Started]:
        operations = self._operations
        return run_now(start_jobs(operations.store, plan_chains(operations.registry, chains), tx=tx))

    def chain(self, job_type: JobType[I, O], id: ChainId) -> SyncChainHandle[O, I]:
        """The handle of a stored chain that began with this type; used for one of another type, it raises."""
        self._registry.entry(job_type)
        return SyncChainHandle(self._ready, job_type, checked_id("id", id))

    # -- change

    @overload
    def complete(
        self, chain: SyncChainHandle[O, I], *, tx: object = None
    ) -> AbstractContextManager[SyncCompletion[I, O]]: ...
    @overload
    def complete(
        self, chain: ChainReference | ChainId, *, tx: object = None
    ) -> AbstractContextManager[SyncCompletion[Any, Any]]: ...
    def complete(
        self, chain: ChainReference | ChainId, *, tx: object = None
    ) -> AbstractContextManager[SyncCompletion[Any, Any]]:
        """Complete the job a chain has come to, without a worker; it is locked within the block."""
        return self._complete(asked("complete", chain), tx)

    @contextmanager
    def _complete(self, chain: Asked, tx: object) -> Iterator[SyncCompletion[Any, Any]]:
        with as_sync(self._operations.complete(chain, tx=tx)) as completion:
            yield SyncCompletion(completion)

    def cancel(self, *chains: ChainReference | ChainId, cascade: bool = False, tx: object = None) -> int:
        """Fail waiting jobs, ask running ones to stop, with `cascade` also what only serves them; returns how many."""
        return run_now(self._operations.cancel(asked("cancel", *chains), cascade=cascade, tx=tx))

    def retry(self, *chains: ChainReference | ChainId, tx: object = None) -> int:
        """Run failed chains again, all or none; returns how many came back."""
        return run_now(self._operations.retry(asked("retry", *chains), tx=tx))

    def trigger(self, *chains: ChainReference | ChainId, tx: object = None) -> int:
        """Run scheduled jobs now; returns how many."""
        return run_now(self._operations.trigger(asked("trigger", *chains), tx=tx))

    def delete(self, *chains: ChainReference | ChainId, cascade: bool = False, tx: object = None) -> int:
        """Delete whole chains; returns how many."""
        return run_now(self._operations.delete(asked("delete", *chains), cascade=cascade, tx=tx))

    def prune(self, *job_types: Step[Any, Any] | str, **options: Unpack[PruneOptions]) -> int:
        """Delete chains that have ended, now, or move them to the history; the options are those of `Onward.prune`.
        Returns how many.
        """
        return run_now(self._operations.prune(type_names(job_types), options))

    def pause(self, *job_types: Step[Any, Any] | str, tx: object = None) -> None:
        """Have workers leave these types alone."""
        run_now(self._operations.pause(type_names(job_types), tx=tx))

    def resume(self, *job_types: Step[Any, Any] | str, tx: object = None) -> None:
        """Have workers take these types again."""
        run_now(self._operations.resume(type_names(job_types), tx=tx))

    # -- read

    def depths(self) -> dict[str, JobCounts]:
        """How many jobs of each type of the app are pending, scheduled, running and failed, and the oldest's age."""
        return run_now(self._operations.depths())

    def stats(self, *, more_than: int | None = None) -> Stats:
        """How every type is doing, and all together: see `Onward.stats`."""
        return run_now(self._operations.stats(more_than=more_than))

    def paused(self, *, tx: object = None) -> Sequence[str]:
        """The types that workers leave alone."""
        return run_now(self._operations.paused(tx=tx))

    def workers(self, *, tx: object = None) -> Sequence[WorkerInfo]:
        """Who works, and what each runs: those that live first. See `Onward.workers`."""
        return run_now(self._operations.workers(tx=tx))

    def health(self, **options: Unpack[HealthOptions]) -> Health:
        """Whether jobs get done; the options are those of `Onward.health`. Hints are not looked at: nobody listens."""
        self._operations  # noqa: B018 - raises if it is not open
        return self._probe.ask_now(options)

    def find_job(self, id: JobId, *, tx: object = None) -> Job | None:
        """A stored job."""
        return run_now(self._operations.find_job(id, tx=tx))

    def find_chain(self, id: ChainId, *, tx: object = None) -> Chain | None:
        """A stored chain."""
        return run_now(self._operations.find_chain(id, tx=tx))

    def explain(self, id: JobId | ChainId, *, tx: object = None) -> Explanation:
        """Why a job is where it is, in a sentence and in facts; of a chain, the job it has come to."""
        return run_now(self._operations.explain(id, ageing=self._ageing, tx=tx))

    def jobs(
        self, *, after: JobId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Page[Job]:
        """A page of jobs, newest first; the filters are those of `Onward.jobs`."""
        wanted = filter_of(filters)
        return run_now(self._operations.jobs(wanted, after=checked_place(after), limit=checked_limit(limit), tx=tx))

    def all_jobs(
        self, *, after: JobId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Iterator[Job]:
        """All jobs, newest first, read in pages of `limit` as they are needed."""
        return every(lambda after: self.jobs(after=after, limit=limit, tx=tx, **filters), after)

    def chains(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Page[Chain]:
        """A page of chains, newest first; the filters are those of `Onward.jobs`."""
        wanted = filter_of(filters)
        return run_now(self._operations.chains(wanted, after=checked_place(after), limit=checked_limit(limit), tx=tx))

    def all_chains(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Iterator[Chain]:
        """All chains, newest first, read in pages of `limit` as they are needed."""
        return every(lambda after: self.chains(after=after, limit=limit, tx=tx, **filters), after)

    def history(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[HistoryFilters]
    ) -> Page[Chain]:
        """A page of moved chains, the last to end first; the filters are those of `Onward.history`."""
        wanted, after, limit = history_filter(filters), checked_place(after), checked_limit(limit)
        return run_now(self._operations.history(wanted, after=after, limit=limit, tx=tx))

    def all_history(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[HistoryFilters]
    ) -> Iterator[Chain]:
        """All moved chains, the last to end first, read in pages of `limit` as they are needed."""
        return every(lambda after: self.history(after=after, limit=limit, tx=tx, **filters), after)

    def history_of(self, id: ChainId, *, tx: object = None) -> Sequence[Job]:
        """The jobs of a chain that was moved to the history, in their order; none, if it is not there."""
        return run_now(self._operations.history_of(id, tx=tx))

    @property
    def schedules(self) -> SyncSchedules:
        """What is started by itself: `list`, `pause`, `resume`, `run`, `change`, `reset`, `forget`."""
        return SyncSchedules(ScheduleOperations(lambda: self._operations, self._declared), self._ready)

    @property
    def limits(self) -> SyncLimits:
        """How many may run, and who does: `list`, `keys`, `holding`, `waiting`, `change`, `reset`."""
        return SyncLimits(LimitOperations(lambda: self._operations))

    def blockers_of(self, job_id: JobId, *, tx: object = None) -> Sequence[Blocker]:
        """The chains a job waits, or waited, for."""
        return run_now(self._operations.blockers_of(job_id, tx=tx))

    def blocked_by(
        self, chain: ChainReference | ChainId, *, after: JobId | None = None, limit: int = 100, tx: object = None
    ) -> Page[Job]:
        """A page of the jobs that wait, or waited, for a chain."""
        of = asked("blocked_by", chain)
        return run_now(self._operations.blocked_by(of, after=checked_place(after), limit=checked_limit(limit), tx=tx))


class _Announcer(Posting):
    """Sends hints with a statement where the database carries them, else in the background."""

    def __init__(
        self, driver: Driver, notify: NotifyAdapter, in_background: ThreadAnnouncer, observers: Observers
    ) -> None:
        self._driver, self._notify, self._in_background, self._observers = driver, notify, in_background, observers

    def post(self, hints: Sequence[Hint]) -> None:
        command = self._notify.command(merged(hints))
        if self._in_background.app_is_open:
            self._in_background.post(hints)
        elif command is not None:
            try:
                run_now(self._run(command))
            except Exception as error:  # noqa: BLE001 - the commit is done, a lost hint is no reason to fail
                self._observers.emit(events.NotifyError(doing="announce", error=describe(error)))
        elif self._notify.crosses_processes and not self._notify.sees_commits:
            self._in_background.post(hints)

    async def _run(self, command: Command[None]) -> None:
        async with self._driver.connection() as connection:
            await connection.run(command)
