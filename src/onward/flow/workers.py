"""The workers of a flow in this process, with their janitor."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType

from onward.errors import ConfigurationError
from onward.flow.events import Reporter
from onward.flow.janitor import Janitor
from onward.flow.options import Checks
from onward.flow.stage import Stage
from onward.flow.store import FlowStore
from onward.flow.worker import FlowWorker
from onward.pacing import Pacing
from onward.run.threads import Threads

_SOONEST_LOOK, _LATEST_LOOK = 0.01, 0.2
_MOST_OFTEN = timedelta(milliseconds=10)


class FlowWorkers:
    """Made by `flow.workers(…)`; use it as `async with`, or `await workers.run()`."""

    def __init__(
        self,
        flow: str,
        stages: Mapping[str, Stage],
        store: FlowStore,
        reporter: Reporter,
        *,
        counts: Mapping[str, int],
        wait: timedelta,
        janitor: timedelta | None,
    ) -> None:
        checks = Checks(f"workers of flow {flow!r}")
        for name, count in counts.items():
            if name not in stages:
                raise ConfigurationError(f"workers for {name!r}: flow {flow!r} has the stages {', '.join(stages)}")
            checks.whole(f"the number for stage {name!r}", count, least=0)
        if janitor is not None:
            checks.duration("janitor", janitor, least=_MOST_OFTEN)
        total = sum(counts.values())
        self._store = store
        self._threads = Threads(max(total, 1), name="onward-flow")
        self._janitor = None if janitor is None else Janitor(flow, store, reporter, janitor)
        expect = None if self._janitor is None else self._janitor.expect
        self.workers = tuple(
            FlowWorker(flow, stages[name], store, self._threads, reporter, wait=wait, expect=expect)
            for name, count in counts.items()
            for _ in range(count)
        )
        self._tasks = asyncio.TaskGroup()
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> "FlowWorkers":
        await self._tasks.__aenter__()
        for worker in self.workers:
            self._tasks.create_task(worker.run(), name=f"onward flow worker {worker.id}")
        if self._janitor is not None:
            self._tasks.create_task(self._janitor.run(), name="onward flow janitor")
        self._tasks.create_task(self._wind_down())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._threads.close(wait=False)

    async def run(self) -> None:
        """Work until stopped, or cancelled."""
        async with self:
            await self._stopping.wait()

    def stop(self, *, grace: timedelta | None = None) -> None:
        """Take no more jobs and let those in hand finish; what still runs after `grace` is given back, uncounted."""
        if grace is not None:
            Checks("stop").duration("grace", grace)
        self._stopping.set()
        for worker in self.workers:
            worker.stop()
            if grace is not None:
                asyncio.get_running_loop().call_later(grace.total_seconds(), worker.give_back)

    async def _wind_down(self) -> None:
        """Wake workers that wait in Redis, again if one began to just after the last look. The janitor goes last."""
        await self._stopping.wait()
        looks = Pacing(_SOONEST_LOOK, _LATEST_LOOK)
        while any(worker.status == "stopping" for worker in self.workers):
            await self._store.server.unblock()
            await asyncio.sleep(next(looks))
        if self._janitor is not None:
            self._janitor.stop()
