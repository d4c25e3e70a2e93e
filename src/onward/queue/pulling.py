"""A worker's jobs where it asks for them: as many as it has free slots, and each is told how it ended."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from onward.pacing import happens
from onward.queue.contract import Pulls, TakenJob
from onward.queue.handler import Handler
from onward.queue.hands import Hands, Hold, hold_of, run_beside
from onward.queue.running import JobOutcome, Running, Told
from onward.queue.settling import settle
from onward.queue.several import Several
from onward.run.loop import SlotLoop
from onward.run.threads import Threads

Piece: TypeAlias = Sequence[TakenJob]
_DEFAULT_BATCH = 100
_LAST_TRY = 1.0
"""Seconds to give jobs back in when the worker is cancelled."""
_WITHOUT_LEASE = 30.0
"""Seconds that an outcome is told again where jobs are held as long as a connection lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How a worker asks for jobs."""

    batch: bool
    batch_size: int | None
    poll: float
    error_backoff: float


class Pulling:
    """The source of the slot loop: a piece is the jobs of one call of the handler, one or a batch."""

    def __init__(
        self,
        hands: Hands,
        providers: Mapping[str, Pulls],
        weights: Mapping[str, int],
        handler: Handler[Any],
        threads: Threads,
        how: Fetching,
        *,
        concurrency: int,
    ) -> None:
        self._hands, self._providers, self._handler, self._threads = hands, providers, handler, threads
        self._source: Pulls | Several = next(iter(providers.values()))
        if len(providers) > 1:
            self._source = Several(providers, weights)
        self._how = how
        self._held_until: dict[Hold, float] = {}
        """When the lease of a job ends, if nothing renews it."""
        self._woken, self._stopped = asyncio.Event(), asyncio.Event()
        self._look_again = False
        self._loop: SlotLoop[Piece] = SlotLoop(self, concurrency=concurrency)

    @property
    def is_stopping(self) -> bool:
        return self._loop.is_stopping

    def stop(self) -> None:
        self._loop.stop()

    def set_concurrency(self, concurrency: int) -> None:
        self._loop.set_concurrency(concurrency)

    async def run(self, ready: asyncio.Event) -> None:
        """Until stopped, and the last handler has returned."""
        ready.set()
        await run_beside(self._loop.run(), [self._renew(name) for name in self._providers])

    # -- what the loop asks for

    async def fill(self, free: int) -> Sequence[Piece]:
        size = self._how.batch_size or _DEFAULT_BATCH
        wanted = free * size if self._how.batch else min(free, self._how.batch_size or free)
        count = min(wanted, self._source.capabilities.max_batch_size or wanted)
        began = time.monotonic()
        jobs = await self._source.fetch(count, self._source.long_poll)
        self._look_again = len(jobs) == count or self._source.capabilities.long_polling
        self._note_leases(jobs, began)
        step = size if self._how.batch else 1
        return [jobs[first : first + step] for first in range(0, len(jobs), step)]

    async def hand_back(self, work: Sequence[Piece]) -> None:
        await self._release(itertools.chain.from_iterable(work))

    async def wait(self) -> None:
        has_room = self._loop.free > 0
        if not (has_room and self._look_again):
            await happens(self._woken, within=self._how.poll if has_room else None)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()
        if self._loop.is_stopping:
            self._stopped.set()
            self._source.interrupt()

    async def recover(self, error: Exception) -> None:
        self._hands.report(error)
        await happens(self._stopped, within=self._how.error_backoff)

    async def run_piece(self, piece: Piece) -> None:
        running = self._hands.begin(piece, is_cancelled=lambda: self._loop.is_cancelled)
        try:
            outcomes = await running.run(self._handler, self._threads, batch=self._how.batch)
            if running.told is Told.STOPPING:
                await self._release(piece)
            elif len(outcomes) == 1:
                await self._settle(running, outcomes[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for outcome in outcomes:
                        tasks.create_task(self._settle(running, outcome))
        except Exception as error:  # noqa: BLE001 - told as queue.error; the job stays with the provider
            self._hands.report(error)
        except asyncio.CancelledError:
            # The worker is cancelled. What was begun is given back, if that is soon done.
            with suppress(Exception):
                async with asyncio.timeout(_LAST_TRY):
                    await self._release(piece)
            raise
        finally:
            self._hands.end(running)
            for job in piece:
                self._held_until.pop(hold_of(job), None)

    # -- outcomes

    async def _settle(self, running: Running, outcome: JobOutcome) -> None:
        job = outcome.job
        await self._hands.reporting.send(job.id)
        try:
            delay = await settle(
                self._providers[job.queue_name],
                outcome,
                until=lambda: self._held_until.get(hold_of(job), 0.0),
                is_over=running.is_over,
                report=self._hands.report,
            )
        except Exception as error:  # noqa: BLE001 - told as queue.error; the job stays with the provider
            self._hands.report(error)
        else:
            running.settled(outcome, delay)

    async def _release(self, jobs: Iterable[TakenJob]) -> None:
        for name, group in itertools.groupby(sorted(jobs, key=_queue_of), key=_queue_of):
            await self._providers[name].release(list(group))

    # -- leases

    def _note_leases(self, jobs: Iterable[TakenJob], began: float) -> None:
        """A lease is counted from when it was asked for: never longer than the provider counts it."""
        for job in jobs:
            lease = self._hands.provider_of(job).lease
            self._held_until[hold_of(job)] = began + (_WITHOUT_LEASE if lease is None else lease.total_seconds())

    async def _renew(self, queue_name: str) -> None:
        provider, lease = self._providers[queue_name], self._hands.providers[queue_name].lease
        while lease is not None:
            await asyncio.sleep(lease.total_seconds() / 3)
            held = {hold_of(job): job for job in self._hands.jobs if job.queue_name == queue_name}
            began = time.monotonic()
            try:
                lost = await provider.renew(list(held.values())) if held else []
            except Exception as error:  # noqa: BLE001 - told as queue.error; tried again before the locks run out
                self._hands.report(error)
                continue
            for job in lost:
                held.pop(hold_of(job), None)
                self._lose(job)
            # Those that were settled meanwhile are not among the jobs any more.
            self._note_leases([job for job in self._hands.jobs if hold_of(job) in held], began)

    def _lose(self, lost: TakenJob) -> None:
        """One whose handler has returned is being settled, or was while we asked: that tells, if it must."""
        for running in self._hands.running:
            if any(hold_of(job) == hold_of(lost) for job in running.jobs) and running.lose(lost.id):
                self._hands.report(self._hands.provider_of(lost).not_active(lost.id))


def _queue_of(job: TakenJob) -> str:
    return job.queue_name
