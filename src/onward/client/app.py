"""The front door of the library: an app is a database and the jobs that run on it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from typing_extensions import Unpack

from onward.client.arguments import Filters, asked, checked_id, checked_limit, checked_place, filter_of, type_names
from onward.client.awaiting import Awaiting
from onward.client.completion import Completion
from onward.client.handle import ChainHandle
from onward.client.health import HealthOptions, Probe
from onward.client.history import HistoryFilters, history_filter
from onward.client.limits import LimitOperations, Limits
from onward.client.listing import Listing
from onward.client.operations import Operations
from onward.client.pruning import PruneOptions
from onward.client.schedules import ScheduleOperations, Schedules
from onward.client.schema import opened_before_fork, prepare_schema
from onward.client.sync import SyncOnward
from onward.connect import Connected, connect
from onward.crypto import Encryption
from onward.define.attempt import SyncTransaction, Transaction
from onward.define.codec import Limits as PayloadLimits
from onward.define.job_type import JobType, Step, wrong_encryption, wrong_retention
from onward.define.middleware import Middleware, Resource
from onward.define.registry import RegisteredType, Registry
from onward.define.request import ChainReference, InputOf, NewChain, StartOptions
from onward.define.schedule import Declared, Schedule, declared
from onward.define.slice import Slice
from onward.errands import to_the_end
from onward.errors import ConfigurationError, DefinitionError, require
from onward.lifecycle.effects import (
    Announcer,
    Awaited,
    BackgroundAnnouncer,
    Posting,
    ThreadAnnouncer,
    describe,
)
from onward.lifecycle.pruning import kept_by, refuse_history
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store, TransactionBlock
from onward.model import Blocker, Chain, ChainId, Job, JobId, Page, Retention
from onward.notify.contract import NotifyAdapter
from onward.observe import events
from onward.observe.logs import LogObserver
from onward.observe.observer import Observer, Observers
from onward.operating import Explanation, Health, Stats, WorkerInfo
from onward.options import (
    LONGEST_NAME,
    wrong_duration,
    wrong_flag,
    wrong_function,
    wrong_iterable,
    wrong_number,
    wrong_several,
    wrong_text,
)
from onward.state.contract import JobCounts
from onward.state.driver import NO_SYNC_DRIVER, Driver, run_now
from onward.state.process import Process
from onward.state.statement import checked_identifier
from onward.worker.chores import Chore, Chores
from onward.worker.figures import TendFigures
from onward.worker.maintenance import Scans
from onward.worker.middleware import opened, wrong_resources
from onward.worker.options import WorkerKeywords, WorkerOptions, wrong_ageing
from onward.worker.pruning import Pruning
from onward.worker.rehearsal import Rehearsal, rehearse
from onward.worker.schedules import StartScheduled
from onward.worker.worker import Worker

if TYPE_CHECKING:
    from typing import Self


I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output
T = TypeVar("T")


DEFAULT_RETENTION = Retention()
_NEVER_CLOSED = (
    "the app was opened in an event loop that has ended, and never closed: use `async with app`, or "
    "`await app.close()` before its loop ends"
)
_ANOTHER_LOOP = (
    "the app was opened in another event loop, perhaps of another thread, and its connections belong to that: use it "
    "there (asyncio.run_coroutine_threadsafe), use app.sync, or open another app here"
)
_ON_SYNC = "this app is built on a sync engine or pool: use app.sync"


class Onward:
    """Background jobs that commit with your data.

    >>> import asyncio
    >>> from onward import Attempt, Onward, job
    >>> @job("greet")
    ... async def greet(attempt: Attempt[str]) -> str:
    ...     return f"hello {attempt.input}"
    >>> async def main() -> str:
    ...     app = Onward("memory://", jobs=[greet])
    ...     async with app, app.worker():
    ...         chain = await app.start(greet, "world")
    ...         return await chain.wait()
    >>> asyncio.run(main())
    'hello world'
    """

    def __init__(
        self,
        target: Any,
        *,
        jobs: Iterable[Step[Any, Any] | Slice],
        schedules: Iterable[Schedule[Any]] = (),
        migrate: bool | None = None,
        schema: str = "onward",
        prefix: str = "onward_",
        notify: NotifyAdapter | None = None,
        observers: Iterable[Observer] | None = None,
        max_payload: int = 1024 * 1024,
        pool_size: int = 10,
        pgbouncer: bool = False,
        lock_timeout: timedelta | None = timedelta(seconds=30),
        resources: Sequence[Resource] = (),
        required_middleware: Sequence[Middleware] = (),
        is_transient: Callable[[BaseException], bool] | None = None,
        encryption: Encryption | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        ageing: timedelta | None = None,
        version: str | None = None,
    ) -> None:
        """`target` is an address, a pool, an engine or a sessionmaker. `pgbouncer`: it is behind a transaction pooler.

        `schedules` start chains by themselves, in whatever worker of the app.
        `resources` and `required_middleware` are those of every worker of the app, also of `onward worker`.
        `is_transient` tells errors of the database that are worth another try, beside those the driver knows.
        `lock_timeout`: how long calls wait for the one write lock of a SQLite file; None: for ever.
        `encryption`: of payloads, for the types that do not say otherwise. `retention`: how long workers leave chains
        that have ended in the database, likewise; None keeps them.
        `ageing`: how long a job must have waited to be taken before a new one whose priority is higher by one; None:
        those of higher priority always come first.
        `version`: of your code, to be told by `app.workers()`; None: what the variable ONWARD_CODE_VERSION says.
        Nothing is connected until `async with app` or `app.open()`.
        """
        require(
            wrong_number("max_payload", max_payload, least=1),
            wrong_number("pool_size", pool_size, least=1),
            None if lock_timeout is None else wrong_duration("lock_timeout", lock_timeout),
            None if migrate is None else wrong_flag("migrate", migrate),
            wrong_flag("pgbouncer", pgbouncer),
            wrong_iterable("schedules", schedules, of="schedules"),
            None if observers is None else wrong_iterable("observers", observers, of="observers"),
            wrong_resources(resources),
            wrong_several("required_middleware", required_middleware, of="middleware"),
            None if is_transient is None else wrong_function("is_transient", is_transient, of="of an error"),
            wrong_encryption(encryption),
            wrong_retention(retention),
            wrong_ageing(ageing),
            None if version is None else wrong_text("version", version, most=LONGEST_NAME),
        )
        for name, value in (("schema", schema), ("prefix", prefix)):
            checked_identifier(value, option=name)
        payload_limits = PayloadLimits(bytes=max_payload)
        self.registry = Registry(jobs, limits=payload_limits, encryption=encryption, retention=retention)
        self._connect = partial(
            connect,
            target,
            schema=schema,
            prefix=prefix,
            pool_size=pool_size,
            pgbouncer=pgbouncer,
            lock_timeout=None if lock_timeout is None else lock_timeout.total_seconds(),
        )
        self.state, self.driver, suggested, self.place = self._connect()
        self._is_transient, self._ageing = is_transient, ageing
        self.pgbouncer = pgbouncer
        """Whether it was made for a transaction pooler."""
        self._version = version or (os.environ.get("ONWARD_CODE_VERSION") or "")[:LONGEST_NAME] or None
        self._resources, self._required_middleware = tuple(resources), tuple(required_middleware)
        self._migrate = self.state.migrates_unasked if migrate is None else migrate
        self._observers = Observers((LogObserver(),) if observers is None else observers)
        self._notify, self._own_notify = notify or suggested, notify is None
        self._awaited = Awaited()
        self._announcer = BackgroundAnnouncer(self._notify, self._observers)
        self._from_threads = ThreadAnnouncer(
            self._notify, self._observers, self._announcer, changed=self._hints_changed
        )
        self._store = self._make_store(self.driver, self._announcer)
        self._awaiting = Awaiting(self._store, self._notify, self._announcer)
        self._operations = Operations(self.registry, self._store, self._awaiting.wait)
        self._sync_driver = self._driver_for_threads()
        self._probe = self._make_probe()
        self._scans: Scans = {}
        self._given_schedules = tuple(schedules)
        refuse_history(self.registry, self.state)
        self._plan_chores()
        self._stack: AsyncExitStack | None = None
        self._opening = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which it was opened last: what it has opened belongs to it."""
        self._opened_in: int | None = None
        """The process."""
        _check_transaction_types(self.registry, self.driver)

    # -- life

    async def __aenter__(self) -> "Self":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and check or make the tables."""
        self._refuse_after_fork()
        if not self._opening.acquire(blocking=False):
            raise ConfigurationError(
                "the app is just being opened by another task or thread: open it once, and share it"
            )
        try:
            await self._open()
        finally:
            self._opening.release()

    async def _open(self) -> None:
        if self._stack is not None:
            raise ConfigurationError(
                _NEVER_CLOSED if self._loop is not None and self._loop.is_closed() else "the app is already open"
            )
        if not self.driver.is_async:
            raise ConfigurationError(_ON_SYNC)
        async with AsyncExitStack() as stack:
            try:
                await self.driver.open()
                stack.push_async_callback(self.driver.close)
                await self._prepare_schema()
            except Exception as error:
                self._store.raise_in_words(error, "open the app")
                raise
            await self._open_for_threads(stack)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await asyncio.to_thread(self._from_threads.release)
            await self._notify.open(tasks, self._hints_changed)
            stack.push_async_callback(self._notify.close)
            self._announcer.start(tasks)
            stack.push_async_callback(self._announcer.close)
            self._awaiting.start(tasks)
            stack.push_async_callback(self._awaiting.close)
            self._scans.clear()
            self._chores.reset()
            self._probe = self._make_probe()
            self._stack, self._loop = stack.pop_all(), asyncio.get_running_loop()
            self._opened_in, self._operations.tasks = Process.id, tasks

    async def close(self) -> None:
        """Send what has not left yet, and disconnect."""
        if self._stack is not None:
            self._refuse_after_fork()
            if self._loop is not asyncio.get_running_loop():
                is_over = self._loop is None or self._loop.is_closed()
                raise ConfigurationError(_NEVER_CLOSED if is_over else f"close() in vain: {_ANOTHER_LOOP}")
            stack, self._stack, self._opened_in = self._stack, None, None
            await to_the_end(stack.aclose())

    def _here(self) -> Operations:
        """What it can do, if it is open, in this process and in the event loop that runs here."""
        if self._opened_in != Process.id:
            self._refuse_after_fork()
            state = "is not open" if self._loop is None else "was closed"
            raise ConfigurationError(f"the app {state}: use `async with app:` around this call")
        if asyncio._get_running_loop() not in (None, self._loop):
            raise ConfigurationError(_ANOTHER_LOOP)
        return self._operations

    def _refuse_after_fork(self) -> None:
        """Raise in a child of the process in which the app is open."""
        if self._opened_in is not None and self._opened_in != Process.id:
            raise ConfigurationError(opened_before_fork("the app", self._opened_in))

    def _driver_for_threads(self) -> Driver | None:
        """For `def` handlers; without one, neither connections nor the time to import another library are spent."""
        if not self.driver.is_async:
            return self.driver
        wanted = any(not kind.step.signature.is_async for kind in self.registry.handled())
        return self.driver.sync_sibling() if wanted else None

    async def _open_for_threads(self, stack: AsyncExitStack) -> None:
        store = self._sync_store()
        if store is None:
            return
        # In a thread: it waits for its server, and the loop may have other things to do meanwhile. Whoever is cancelled
        # is told when it is open, and closes it.
        stack.push_async_callback(asyncio.to_thread, self._close_sync_driver, store.driver)
        try:
            await to_the_end(asyncio.to_thread(self._open_sync_driver, store.driver))
        except Exception as error:
            store.raise_in_words(error, "open the app")
            raise

    def _open_sync_driver(self, driver: Driver) -> None:
        run_now(driver.open())

    def _close_sync_driver(self, driver: Driver) -> None:
        run_now(driver.close())

    async def migrate(self) -> Sequence[str]:
        """Bring the tables to the newest version; returns the migrations applied. Several may do so at once."""
        async with self.driver.connection() as connection:
            return await connection.run(self.state.migrate())

    async def _prepare_schema(self) -> None:
        async with self.driver.connection() as connection:
            await prepare_schema(self.state, connection, migrate=self._migrate)
            await self._store.learn_identity(connection)

    def _make_store(self, driver: Driver, announcer: Announcer) -> Store:
        return Store(
            state=self.state,
            driver=driver,
            notify=self._notify,
            announcer=announcer,
            observers=self._observers,
            awaited=self._awaited,
            is_transient=self._is_transient,
        )

    def _make_probe(self) -> Probe:
        return Probe(self.state, self.driver, self._notify, self.registry)

    def _plan_chores(self) -> None:
        self._schedules = declared(self.registry, self._given_schedules)
        chores: list[Chore] = []
        if self._schedules:
            chores.append(StartScheduled(self._store, self.registry, self._notify, self._schedules))
        if kept_by(self.registry):
            chores.append(Pruning(self._store, lambda: kept_by(self.registry)))
        chores.append(TendFigures(self._store))
        self._chores = Chores(self._store, chores)

    # -- transactions

    def transaction(self, connection: object = None) -> AbstractAsyncContextManager[Any]:
        """A transaction to write your data and start chains in; on an idle connection of your own if you pass one.

        It gives an `onward.Transaction`, or the object of the library the app was built on.
        """
        return TransactionBlock(self._here().store, connection)

    # -- start

    async def start(
        self,
        job_type: JobType[I, O],
        input: InputOf[I],
        *,
        tx: object = None,
        **options: Unpack[StartOptions],
    ) -> ChainHandle[O, I]:
        """Start a chain, in the transaction `tx` or alone.

        Options: `id` of the chain; `delay` or `at`, when it may begin; `priority`, of which the higher is taken first;
        `blockers`, the chains it waits for; `deduplication`.
        """
        chain = NewChain(job_type=job_type, input=input, **options)
        jobs = plan_chains(self._here().registry, [chain])
        started = (await start_jobs(self._store, jobs, tx=tx))[0]
        return ChainHandle(self._here, job_type, started.id, started.duplicate)

    async def start_many(self, chains: Sequence[NewChain[O]], *, tx: object = None) -> list[ChainHandle[O]]:
        """Start chains made by `job_type.with_input(…)`, all or none; returns their handles in order."""
        jobs = plan_chains(self._here().registry, chains)
        started = await start_jobs(self._store, jobs, tx=tx)
        return [
            ChainHandle(self._here, chain.job_type, answer.id, answer.duplicate)
            for chain, answer in zip(chains, started, strict=True)
        ]

    def chain(self, job_type: JobType[I, O], id: ChainId) -> ChainHandle[O, I]:
        """The handle of a stored chain that began with this type; used for one of another type, it raises."""
        self.registry.entry(job_type)
        return ChainHandle(self._here, job_type, checked_id("id", id))

    # -- change

    @overload
    def complete(
        self, chain: ChainHandle[O, I], *, tx: object = None
    ) -> AbstractAsyncContextManager[Completion[I, O]]: ...
    @overload
    def complete(
        self, chain: ChainReference | ChainId, *, tx: object = None
    ) -> AbstractAsyncContextManager[Completion[Any, Any]]: ...
    def complete(
        self, chain: ChainReference | ChainId, *, tx: object = None
    ) -> AbstractAsyncContextManager[Completion[Any, Any]]:
        """Complete the job a chain has come to, without a worker; it is locked within the block."""
        return self._here().complete(asked("complete", chain), tx=tx)

    async def cancel(self, *chains: ChainReference | ChainId, cascade: bool = False, tx: object = None) -> int:
        """Fail waiting jobs at once and ask running ones to stop; an output that commits first wins.

        Returns how many chains changed.

        With `cascade` also the chains they wait for, and so on, as far as nothing else unfinished waits for those.
        """
        return await self._here().cancel(asked("cancel", *chains), cascade=cascade, tx=tx)

    async def retry(self, *chains: ChainReference | ChainId, tx: object = None) -> int:
        """Run failed chains again, all or none; jobs that failed only through them wait again. Returns how many."""
        return await self._here().retry(asked("retry", *chains), tx=tx)

    async def trigger(self, *chains: ChainReference | ChainId, tx: object = None) -> int:
        """Run scheduled jobs now; returns how many."""
        return await self._here().trigger(asked("trigger", *chains), tx=tx)

    async def delete(self, *chains: ChainReference | ChainId, cascade: bool = False, tx: object = None) -> int:
        """Delete whole chains, with `cascade` also the chains they wait for; returns how many."""
        return await self._here().delete(asked("delete", *chains), cascade=cascade, tx=tx)

    async def prune(self, *job_types: Step[Any, Any] | str, **options: Unpack[PruneOptions]) -> int:
        """Delete chains that have ended, now, or move them to the history, as workers do in the background; returns how
        many.

        Those that began with these types, or with any of the app's, and are older than their retention says, or than
        `older_than`. Options: `status`, completed or failed; `limit`, how many at most; `progress`, called with the
        number so far after each batch; `dry_run`, only count. Each batch is committed; what something unfinished waits
        for is kept.
        """
        return await self._here().prune(type_names(job_types), options)

    async def pause(self, *job_types: Step[Any, Any] | str, tx: object = None) -> None:
        """Have workers leave these types alone; what runs goes on."""
        await self._here().pause(type_names(job_types), tx=tx)

    async def resume(self, *job_types: Step[Any, Any] | str, tx: object = None) -> None:
        """Have workers take these types again."""
        await self._here().resume(type_names(job_types), tx=tx)

    # -- read

    async def depths(self) -> dict[str, JobCounts]:
        """How many jobs of each type of the app are pending, scheduled, running and failed, and the oldest's age."""
        return await self._here().depths()

    async def stats(self, *, more_than: int | None = None) -> Stats:
        """How every type is doing, those that the app does not know included, and all together: how many are blocked,
        pending, scheduled, running and failed, each counted up to `more_than`; the oldest that waits; what was started,
        completed, failed and retried in each minute of the last hour; and how long jobs waited and ran in it.

        Unless told, it counts up to 10,000, or as far as it comes in some milliseconds: `Stats.more_than` says how far.

        >>> import asyncio
        >>> from onward import Attempt, Onward, job
        >>> @job("greet")
        ... async def greet(attempt: Attempt[str]) -> str:
        ...     return f"hello {attempt.input}"
        >>> async def main() -> int:
        ...     async with Onward("memory://", jobs=[greet]) as app:
        ...         await app.start(greet, "world")
        ...         return (await app.stats()).types["greet"].pending
        >>> asyncio.run(main())
        1
        """
        return await self._here().stats(more_than=more_than)

    async def paused(self, *, tx: object = None) -> Sequence[str]:
        """The types that workers leave alone."""
        return await self._here().paused(tx=tx)

    async def workers(self, *, tx: object = None) -> Sequence[WorkerInfo]:
        """Who works, and what each runs: those that live first, then those that died within a day.

        Workers of all apps on the database. One that is killed counts as dead when its child process has seen that
        (`onward worker`, `guardian="process"`), else a minute after its last sign of life.

        >>> import asyncio
        >>> from onward import Attempt, Onward, job
        >>> @job("greet", version=2)
        ... async def greet(attempt: Attempt[str]) -> str:
        ...     return f"hello {attempt.input}"
        >>> async def main() -> None:
        ...     async with Onward("memory://", jobs=[greet], version="1.4") as app, app.worker(concurrency=5):
        ...         for worker in await app.workers():
        ...             print(worker.state, worker.version, dict(worker.types), worker.concurrency, len(worker.running))
        >>> asyncio.run(main())
        alive 1.4 {'greet': (2,)} 5 0
        """
        return await self._here().workers(tx=tx)

    async def health(self, **options: Unpack[HealthOptions]) -> Health:
        """Whether jobs get done: the database answers, its tables are right, hints arrive, workers live and take what
        waits, and nothing waits for longer than `max_age`, or than `max_ages` says for its type.

        A database that is away, or does not answer within `timeout` (5 s), is a finding. It is looked at once a second
        at the most, however many ask. An app that is not open is connected for the look, and makes no tables.

        >>> import asyncio
        >>> from datetime import timedelta
        >>> from onward import Attempt, Onward, job
        >>> @job("greet")
        ... async def greet(attempt: Attempt[str]) -> str:
        ...     return f"hello {attempt.input}"
        >>> async def main() -> None:
        ...     async with Onward("memory://", jobs=[greet]) as app, app.worker():
        ...         health = await app.health(max_age=timedelta(minutes=5))
        ...         print(health.healthy, [finding.name for finding in health.findings])
        >>> asyncio.run(main())
        True ['database', 'schema', 'hints', 'workers', 'types', 'age']
        """
        if not self.driver.is_async:
            raise ConfigurationError(_ON_SYNC)
        if self._opened_in is None:
            anew = self.reached_anew()
            notify = anew.notify if self._own_notify else None
            return await Probe(anew.state, anew.driver, notify, self.registry).ask(options, is_open=False)
        self._here()
        return await self._probe.ask(options)

    async def find_job(self, id: JobId, *, tx: object = None) -> Job | None:
        """A stored job."""
        return await self._here().find_job(id, tx=tx)

    async def find_chain(self, id: ChainId, *, tx: object = None) -> Chain | None:
        """A stored chain."""
        return await self._here().find_chain(id, tx=tx)

    async def explain(self, id: JobId | ChainId, *, tx: object = None) -> Explanation:
        """Why a job is where it is, in a sentence and in facts; of a chain, the job it has come to.

        >>> import asyncio
        >>> from onward import JobType, Onward
        >>> approve = JobType("orders.approve", input=int, output=bool)
        >>> async def main() -> None:
        ...     async with Onward("memory://", jobs=[approve]) as app:
        ...         chain = await app.start(approve, 7)
        ...         told = await app.explain(chain.id)
        ...         print(told.why, "-", told.sentence)
        >>> asyncio.run(main())  # doctest: +NORMALIZE_WHITESPACE
        awaits_completion - It awaits completion: its type 'orders.approve' has no handler, and app.complete(…) is to
        end it.
        """
        return await self._here().explain(id, ageing=self._ageing, tx=tx)

    def jobs(
        self, *, after: JobId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Listing[Job]:
        """Jobs, newest first: `await` it for a page of `limit`, the next one begins `after=page.next`; or go through
        all of them with `async for`.

        Filters: `types`, `status` (one or several), `chains`, `root_id`, `created_from`, `created_before`; for what
        failed: `reason` and `error_type`, that of the last error (one or several), `failed_from`, `failed_before`;
        `older_than` and `newer_than`, by the database's clock; `error_text`, anywhere in the stored errors.
        `among`: look through no more than so many jobs for a page; it may be short, and still have a next one.
        """
        wanted = filter_of(filters)
        here = self._here
        return _listing(lambda place: here().jobs(wanted, after=place, limit=limit, tx=tx), after, limit)

    async def newest_failed(self, *, most: int = 5_000, **filters: Unpack[Filters]) -> tuple[Sequence[Job], bool]:
        """The jobs that failed, newest first, all at once; `most` of them are looked at, and it says whether those are
        all that there are. Filters: those of `jobs`.

        >>> from onward import Onward
        >>> async def reasons(app: Onward) -> set[str]:
        ...     failed, is_all = await app.newest_failed(error_text="declined")
        ...     return {job.last_error.type for job in failed if job.last_error}
        """
        require(wrong_number("most", most, least=1, most=1_000_000))
        return await self._here().newest_failed(filter_of(filters), most=most)

    def chains(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[Filters]
    ) -> Listing[Chain]:
        """Chains, newest first, by the type they began with and the status of the job they have come to.

        Filters, pages and iteration: those of `jobs`.
        """
        wanted = filter_of(filters)
        here = self._here
        return _listing(lambda place: here().chains(wanted, after=place, limit=limit, tx=tx), after, limit)

    def history(
        self, *, after: ChainId | None = None, limit: int = 100, tx: object = None, **filters: Unpack[HistoryFilters]
    ) -> Listing[Chain]:
        """Chains that were moved to the history as their retention says, the last to end first: a page, or all, as
        `chains` does. On Postgres only.

        Filters: `types` they began with, `status` (completed, failed), `ended_from`, `ended_before`, and `chains`, by
        id or handle: those are on one page.

        >>> from datetime import timedelta
        >>> from onward import Attempt, Onward, Retention, job
        >>> @job("greet")
        ... async def greet(attempt: Attempt[str]) -> str:
        ...     return f"hello {attempt.input}"
        >>> app = Onward(
        ...     "postgresql://localhost/shop", jobs=[greet], retention=Retention(history=timedelta(days=365))
        ... )
        >>> async def failed_ones(app: Onward) -> list[object]:
        ...     return [chain.current.last_error async for chain in app.history(types=[greet], status="failed")]
        """
        wanted = history_filter(filters)
        here = self._here
        return _listing(lambda place: here().history(wanted, after=place, limit=limit, tx=tx), after, limit)

    async def history_of(self, id: ChainId, *, tx: object = None) -> Sequence[Job]:
        """The jobs of a chain that was moved to the history, in their order; none, if it is not there."""
        return await self._here().history_of(id, tx=tx)

    async def blockers_of(self, job_id: JobId, *, tx: object = None) -> Sequence[Blocker]:
        """The chains a job waits, or waited, for."""
        return await self._here().blockers_of(job_id, tx=tx)

    def blocked_by(
        self, chain: ChainReference | ChainId, *, after: JobId | None = None, limit: int = 100, tx: object = None
    ) -> Listing[Job]:
        """The jobs that wait, or waited, for a chain, newest first: a page, or all, as `jobs` does."""
        of = asked("blocked_by", chain)
        here = self._here
        return _listing(lambda place: here().blocked_by(of, after=place, limit=limit, tx=tx), after, limit)

    @property
    def schedules(self) -> Schedules:
        """What is started by itself: `list`, `pause`, `resume`, `run`, `change`, `reset`, `forget`."""
        return Schedules(ScheduleOperations(self._here, lambda: self._schedules), self._here)

    @property
    def limits(self) -> Limits:
        """How many may run, and who does: `list`, `keys`, `holding`, `waiting`, `change`, `reset`."""
        return Limits(LimitOperations(self._here))

    # -- work

    def worker(self, *, jobs: Iterable[Step[Any, Any]] | None = None, **options: Unpack[WorkerKeywords]) -> Worker:
        """A worker for the types that have a handler, or for `jobs` only. Use it as `async with app.worker():`.

        It runs `concurrency` jobs at a time: one, unless you say more. It looks for jobs whenever it is told of some,
        and every `poll`: 60 s, or 1 s where nobody can tell it. When it stops, those that run have `grace`, 30 s.
        Leases (`lease`: 60 s) are renewed by a thread, or by a child process (`guardian="process"`), which also keeps
        them while something holds the GIL, and gives them back at once when this process is killed. An event loop
        blocked for longer than `stall`, 1 s, is logged. `backoff` is that of the types without one, and `name` the
        first part of the worker's identity. `resources` are opened when it starts and closed when it has stopped;
        handlers get them by type. Every slice it works for must have `required_middleware`, the very instances, in
        this order. `ageing` is the app's, unless you say otherwise. With `burst` it stops by itself when nothing is
        left: no job of its types runs, here or elsewhere, and none is due, but for those that are paused.
        """
        checked = WorkerOptions(**options)
        types = self.registry.handled() if jobs is None else _chosen(self.registry, jobs)
        if self.is_open:
            self._here()
        return Worker(
            registry=self.registry,
            store=self._store,
            sync_store=self._sync_store(),
            notify=self._notify,
            types=types,
            options=replace(
                checked,
                resources=(*self._resources, *checked.resources),
                required_middleware=(*self._required_middleware, *checked.required_middleware),
                ageing=checked.ageing or self._ageing,
            ),
            scans=self._scans,
            chores=self._chores,
            version=self._version,
        )

    async def rehearse(self, id: JobId) -> Rehearsal:
        """Run the handler of a stored job here, with its stored input, in a transaction that is rolled back.

        What it does elsewhere is done. The job is not touched: it is neither taken nor settled.
        """
        store = self._here().store
        async with opened(self._resources) as provided:
            return await rehearse(self.registry, store, self._sync_store(), checked_id("id", id), provided)

    def _sync_store(self) -> Store | None:
        if self._sync_driver is None:
            return None
        return self._make_store(self._sync_driver, _FromThread(self._announcer))

    @property
    def sync(self) -> SyncOnward:
        """The same app for code without an event loop: `with app.sync as client: client.start(…)`."""
        driver = self.driver.sync_sibling() if self.driver.is_async else self.driver
        if driver is None:
            raise ConfigurationError(f"app.sync needs a sync driver for this database: {NO_SYNC_DRIVER}")
        return SyncOnward(
            self.registry,
            self.state,
            driver,
            self._notify,
            self._from_threads,
            self._observers,
            schedules=lambda: self._schedules,
            migrate=self._migrate,
            is_transient=self._is_transient,
            ageing=self._ageing,
        )

    # -- for what is built on an app

    @property
    def is_open(self) -> bool:
        return self._stack is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it was opened in."""
        return self._loop if self.is_open else None

    @property
    def store(self) -> Store:
        """Runs operations on the app's database."""
        return self._store

    def reached_anew(self) -> Connected:
        """Another way to the same database: who looks at it beside an app that is not open must not close what that
        opens at the same moment.
        """
        return self._connect()

    @property
    def notify(self) -> NotifyAdapter:
        """Carries the app's hints."""
        return self._notify

    @property
    def declared_schedules(self) -> Mapping[str, Declared]:
        """What its code declares, by name."""
        return self._schedules

    def register(self, *jobs: Step[Any, Any] | Slice, resources: Sequence[Resource] = ()) -> None:
        """Add job types, and the resources of their handlers, for workers that are made from now on."""
        require(wrong_resources(resources))
        with self.registry.adding(jobs):
            _check_transaction_types(self.registry, self.driver)
            refuse_history(self.registry, self.state)
            self._plan_chores()
        self._resources = (*self._resources, *resources)

    # -- hints

    def _hints_changed(self, error: Exception | None) -> None:
        if error is None:
            self._observers.emit(events.NotifyRecovered())
        else:
            self._observers.emit(events.NotifyError(doing="listen", error=describe(error)))


def _listing(look: Callable[[UUID | None], Awaitable[Page[T]]], after: UUID | None, limit: int) -> Listing[T]:
    """Checked when it is asked for, read when it is awaited."""
    checked_limit(limit)
    return Listing(look, checked_place(after))


class _FromThread(Posting):
    def __init__(self, announcer: BackgroundAnnouncer) -> None:
        self.post = announcer.post_from_thread


def _check_transaction_types(registry: Registry, driver: Driver) -> None:
    """A handler that says what it expects as `tx` must get it; one with the default may never open a phase."""
    expected = driver.transaction_type or Transaction
    problems: list[str] = []
    for kind in registry.handled():
        said = kind.step.signature.transaction
        given = expected if kind.step.signature.is_async == driver.is_async else SyncTransaction
        if said not in (None, Transaction, given):
            names = [getattr(one, "__name__", str(one)) for one in (said, given)]
            problems.append(f"{kind.name}: its handler expects {names[0]} as tx, but this app hands out {names[1]}")
    if problems:
        raise DefinitionError(problems)


def _chosen(registry: Registry, jobs: Iterable[Step[Any, Any]]) -> list[RegisteredType]:
    require(wrong_iterable("jobs", jobs, of="job types"))
    chosen = [registry.step(step) for step in jobs]
    idle = [kind.name for kind in chosen if kind.step.run is None]
    if idle:
        raise ConfigurationError(f"no handler: {', '.join(idle)}; a worker cannot run these types")
    return chosen
