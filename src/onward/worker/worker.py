"""The worker: takes jobs for its free slots, runs their handlers, has their outcomes settled."""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType

from onward.define.registry import RegisteredType, Registry
from onward.errands import to_the_end
from onward.lifecycle.effects import Effects
from onward.lifecycle.store import Store
from onward.model import LossReason, WorkerId
from onward.notify.contract import Hint, HintKind, NotifyAdapter
from onward.observe import events
from onward.run.threads import Threads
from onward.worker.attempts import Attempts, Runner
from onward.worker.chores import Chores
from onward.worker.connections import Reserved
from onward.worker.guardian.blocked import End
from onward.worker.maintenance import Scans
from onward.worker.middleware import opened
from onward.worker.options import WorkerOptions
from onward.worker.presence import Presence
from onward.worker.processes.pool import Processes
from onward.worker.progress import ProgressBoard
from onward.worker.source import JobSource
from onward.worker.stall import StallWatch
from onward.worker.worked_types import worked_types

_SETTLE_AFTER_GRACE = 5.0
_CUT_OFF_AFTER_GRACE = 3.0
"""Seconds after which connections are cut off on which the database still has not answered."""
_LAST_LOOK = 1.0
_LEAVE_WITHIN = 1.0
"""Seconds after which those are cut off that wait for an answer beside the jobs, when all jobs have ended."""
_LOOK_WHETHER_DONE = 0.25
_SAY_STOPPING_AFTER = 0.25
"""Seconds: whoever has stopped by then need not have others told that he is about to."""


class Worker:
    """Runs the jobs of an app. Made by `app.worker(…)`; use it as `async with`, or `await worker.run()`."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        sync_store: Store | None,
        notify: NotifyAdapter,
        types: Sequence[RegisteredType],
        options: WorkerOptions,
        scans: Scans,
        chores: Chores,
        version: str | None = None,
    ) -> None:
        self.options = options
        self.id: WorkerId = f"{options.name or f'{socket.gethostname()}-{os.getpid()}'}-{os.urandom(4).hex()}"
        self._store, self._notify, self._chores = store, notify, chores
        self._types = worked_types(types, options, store, sync_store)
        self._taking = Reserved(store.driver)
        self._progress = ProgressBoard(store, self.id, self._taking)
        self._presence = Presence(store, self.id, version=version, types=self.readable, concurrency=options.concurrency)
        self._attempts = Attempts(
            self.id,
            self._types,
            registry,
            store,
            notify,
            self._progress,
            options,
            end=lambda: self.when_blocked,
            presence=self._presence,
        )
        self._settler = self._attempts.settler
        self._guardian = guardian = self._attempts.guardian
        self._processes = Processes(registry, types, started=guardian.add_process, ended=guardian.remove_process)
        self._source = JobSource(self._attempts, store, notify, options, self._taking, scans, chores)
        self._beside: list[Reserved] = []
        """The connections of what it does beside its jobs."""
        self._tasks: asyncio.TaskGroup | None = None
        self.when_blocked: End | None = None
        """Ends the process, from another thread, when its loop is blocked beyond a timeout; None: not ours to end."""
        self.stuck = self._attempts.stuck.found
        """Set when a handler that was told to stop still runs a grace period later: its slot is lost to the process."""

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types whose jobs it takes."""
        return tuple(self._types)

    @property
    def readable(self) -> dict[str, tuple[int, ...]]:
        """By their names, the versions of a payload that it can read."""
        return {name: worked.registered.versions for name, worked in self._types.items()}

    # -- life

    async def __aenter__(self) -> "Worker":
        ready = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self.run(ready=ready), name=f"onward worker {self.id}")
        try:
            await ready.wait()
        except BaseException as error:
            # Cancelled by the group, because the worker failed before it was ready: let the group say why.
            try:
                await self._tasks.__aexit__(type(error), error, error.__traceback__)
            except BaseExceptionGroup as group:
                if len(group.exceptions) == 1:
                    raise group.exceptions[0] from None
                raise
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._tasks is not None
        await self._tasks.__aexit__(None, None, None)

    def stop(self) -> None:
        """Take no more jobs and let those running finish; after the grace period they are given back."""
        if self._source.loop.is_stopping:
            return
        self._store.observers.emit(events.WorkerStopping(worker=self.id, running=self._source.loop.busy))
        self._source.stop()
        loop = asyncio.get_running_loop()
        loop.call_later(_SAY_STOPPING_AFTER, self._guardian.say_stopping)
        loop.call_later(self.options.grace.total_seconds(), self.give_back)

    def give_back(self) -> None:
        """Stop working at once: cancel the handlers, so that other workers can take their jobs."""
        self.stop()  # else it would take them itself
        self._settler.give_up(within=_SETTLE_AFTER_GRACE)
        for attempt in self._attempts:
            attempt.cancel(LossReason.STOPPING)
        asyncio.get_running_loop().call_later(_CUT_OFF_AFTER_GRACE, self._cut_off)

    def _cut_off(self) -> None:
        """What still waits for a database that does not answer is given up: the worker is to end."""
        self._taking.cut_off()
        _cut_off(self._beside)
        for attempt in self._attempts:
            attempt.phases.cut_off()

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Work until stopped."""
        observers = self._store.observers
        async with opened(self.options.resources) as self._attempts.workplace.provided:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                if observers.wants(events.WorkerStarted):
                    concurrency = self.options.concurrency
                    observers.emit(
                        events.WorkerStarted(worker=self.id, type_names=self.type_names, concurrency=concurrency)
                    )
                if ready is not None:
                    ready.set()
                await self._work()
            # What was left to this worker, or only it had seen coming, is for others to look at.
            self._store.release(Effects(hints=[Hint(HintKind.DEFERRED, self.type_names[0])]))
            observers.emit(events.WorkerStopped(worker=self.id))

    async def _open(self, stack: AsyncExitStack) -> None:
        listening = self._notify.listen(types=(*self.type_names, *self._chores.names), lost=True, awaited=True)
        self._source.listener = await stack.enter_async_context(listening)
        stack.push_async_callback(self._taking.close)
        threads = Threads(self.options.concurrency, name="onward-handler")
        stack.callback(threads.close)
        stack.push_async_callback(self._presence.leave, self._taking)
        await self._presence.appear(self._taking)
        self._guardian.start()
        stack.push_async_callback(self._guardian.stop)
        await stack.enter_async_context(self._processes)
        self._runner = Runner(
            self._attempts,
            self._store.observers,
            threads,
            self._processes,
            is_cancelled=lambda: self._source.loop.is_cancelled,
        )
        self._source.run_piece = self._runner.run
        if self.options.stall is not None:
            watch = StallWatch(self.options.stall.total_seconds(), self._attempts.running_in)
            stack.enter_context(watch.watching())

    async def _work(self) -> None:
        self._beside = []
        async with asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(self._settler.run(whatever_comes=True))
            beside = [
                tasks.create_task(work)
                for work in (
                    self._progress.run(),
                    self._chores.run(self._beside),
                    self._source.limited.look_ahead(self._beside),
                )
            ]
            if self.options.burst:
                beside.append(tasks.create_task(self._stop_when_nothing_is_left()))
            try:
                # In a task of its own: whatever wakes it would have to come by everybody who waits here for its end.
                await tasks.create_task(self._source.loop.run())
            finally:
                for task in beside:
                    task.cancel()
                asyncio.get_running_loop().call_later(_LEAVE_WITHIN, _cut_off, self._beside)
                # A group that is cancelled, perhaps once more, would cancel this task too, and leave what was given
                # back leased.
                await to_the_end(self._settle_the_rest(settling))

    async def _stop_when_nothing_is_left(self) -> None:
        while self._source.loop.busy or await self._source.has_work():  # noqa: ASYNC110 - others may run something
            await asyncio.sleep(_LOOK_WHETHER_DONE)
        self.stop()

    async def _settle_the_rest(self, settling: asyncio.Task[None]) -> None:
        """Within seconds: what is not settled then is left to its lease."""
        with suppress(Exception):  # so is what an unanswered take has brought
            async with asyncio.timeout(_LAST_LOOK):
                await self._source.settle_unanswered()
        self._settler.give_up(within=_SETTLE_AFTER_GRACE)
        self._settler.close()
        await asyncio.wait([settling])

    async def trouble(self, *, within: float) -> str | None:
        """Why it cannot take jobs at this moment, in words; None: it can. The database may take `within` seconds."""
        if self._source.loop.is_stopping:
            return "the worker is stopping"
        state = self._store.state
        try:
            async with asyncio.timeout(within):
                found = await self._taking.run(state.schema_version())
        except Exception as error:  # noqa: BLE001 - it is told, without what might be secret in it
            return f"the database does not answer ({type(error).__name__})"
        if found < state.newest_version:
            return f"the tables have version {found}, and this code needs {state.newest_version}: run `onward migrate`"
        refusal = self._source.refusal  # such as a server that takes no writes any more
        return None if refusal is None else f"no jobs can be taken ({type(refusal).__name__})"

    # -- handlers that do not stop

    async def wait_for_others(self) -> None:
        """Wait until everything but stuck handlers is done and settled."""
        await self._attempts.stuck.wait_for_others()
        await self._settler.idle.wait()

    async def leave_stuck(self) -> list[str]:
        """Settle the jobs of handlers that do not stop as if they had, and name their types.

        The process must end next: they still run.
        """
        return await self._attempts.stuck.leave(self._settler, self._runner.after_cancel)


def _cut_off(connections: Sequence[Reserved]) -> None:
    for reserved in connections:
        reserved.cut_off()
