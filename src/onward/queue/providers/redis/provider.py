"""One queue in Redis."""

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw

from onward.errors import QueueErrorCode
from onward.queue.contract import (
    Provider,
    ProviderFactory,
    StoredJob,
    TakenJob,
    is_permanent,
    reported,
)
from onward.queue.events import Emitter
from onward.queue.model import Capabilities, QueueStats
from onward.queue.options import Options
from onward.queue.providers.grouped import Grouped
from onward.queue.providers.redis import record
from onward.queue.providers.redis.connection import longest_block
from onward.queue.providers.redis.record import Addition, Ending, Record, microseconds, moment
from onward.queue.providers.redis.scripts import QueueKeys, Scripts
from onward.queue.providers.redis.waking import Waking

_pack = msgspec.msgpack.Encoder().encode
_MOST = 1_000
"""Jobs that one call of a script handles, so that others get their turn; what Lua can unpack is a little more."""
_MOST_ADDED = 10_000
"""Jobs of one `add_many` that are added whole or not at all."""
_HELD, _ABSENT = 1, -1
"""Answers about a job that was to be settled."""


def _storable(text: str) -> str:
    """Without lone surrogates, which are not valid Unicode."""
    return text.encode(errors="backslashreplace").decode()


class RedisProvider(Provider):
    """One queue in Redis."""

    name = "redis"
    capabilities = Capabilities(
        delayed_jobs=True,
        priority=True,
        retries=True,
        backoff=True,
        removal=True,
        ordered=True,
        batching=True,
        long_polling=True,
        dead_letters=True,
        lookup=True,
        duplicates=True,
        pausing=True,
        pull=True,
        max_batch_size=_MOST,
    )
    long_poll = timedelta(seconds=30)

    def __init__(
        self, queue_name: str, factory: ProviderFactory[Any], events: Emitter, *, lease: timedelta, keep_completed: int
    ) -> None:
        super().__init__(queue_name, events)
        self.lease = lease
        self._factory, self._hold, self._keep_completed = factory, microseconds(lease), keep_completed
        self._keys = QueueKeys(queue_name)

    async def _open(self) -> None:
        self._client = await self._factory.hold()
        self._run = Scripts(self._client, self._keys)
        self._waking = Waking(self._client, self._keys.wake, longest=longest_block(self._client))
        self._adding = Grouped(self._add_groups, most=_MOST)
        self._settling = Grouped(self._settle, most=_MOST)

    async def _close(self) -> None:
        await self._waking.close()
        await self._adding.close()
        await self._settling.close()
        await self._factory.let_go()

    # -- adding

    @reported(QueueErrorCode.ENQUEUE)
    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        if options.native:
            job, options = record.overridden(job, options)
        duplicate = await self._adding([record.addition(job, options)])
        if duplicate:
            raise self.duplicate(job.id)
        return job

    @reported(QueueErrorCode.ENQUEUE)
    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """All of them or none, up to 10,000: larger numbers are added in parts."""
        jobs = [record.overridden(job, options) if options.native else (job, options) for job, options in jobs]
        additions = [record.addition(job, options) for job, options in jobs]
        for first in range(0, len(additions), _MOST_ADDED):
            [duplicate] = await self._add_groups([additions[first : first + _MOST_ADDED]])
            if duplicate:
                raise self.duplicate(duplicate.decode())
        return [job for job, _ in jobs]

    async def _add_groups(self, groups: Sequence[Sequence[Addition]]) -> Sequence[bytes]:
        duplicates: Sequence[bytes] = await self._run("add", *map(_pack, groups))
        return duplicates

    # -- taking

    @reported(QueueErrorCode.CONNECTION)
    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        if count < 1:
            return []
        loop = asyncio.get_running_loop()
        until, interruptions = loop.time() + wait.total_seconds(), self._waking.interruptions
        while True:
            jobs, due = await self._take(min(count, _MOST))
            left = until - loop.time()
            if jobs or left <= 0 or self._waking.interruptions != interruptions:
                return jobs
            await self._waking.sleep(left if due < 0 else min(left, due / 1_000_000))

    def interrupt(self) -> None:
        if self.is_connected:
            self._waking.interrupt()

    async def _take(self, count: int) -> tuple[list[TakenJob], int]:
        """The jobs, or none and the microseconds until one is due by itself (-1: none is)."""
        token = secrets.token_hex(8)
        now, due, *columns = await self._run("fetch", count, self._hold, token, _MOST)
        at = moment(now)
        return [record.taken(self.queue_name, token, at, *row) for row in zip(*columns, strict=True)], due

    @reported(QueueErrorCode.PROCESSING)
    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        pairs = itertools.chain.from_iterable((job.id, job.lock_token or "") for job in jobs)
        lost = {job_id.decode() for job_id in await self._run("renew", self._hold, *pairs)}
        return [job for job in jobs if job.id in lost]

    # -- settling

    @reported(QueueErrorCode.PROCESSING)
    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        stored: Record = job.native
        text = "" if result is None else bytes(result).decode()
        ending = Ending(job.id, job.lock_token, "completed", text, stored.remove_on_complete)
        if await self._settling(ending) != _HELD:
            raise self.not_active(job.id)

    @reported(QueueErrorCode.PROCESSING)
    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        stored: Record = job.native
        ending = Ending(job.id, job.lock_token, "failed", _storable(str(error)))
        delay: timedelta | None = None
        if job.attempts + 1 < job.max_attempts and not is_permanent(error):
            delay = stored.backoff.delay(job.attempts + 1) if stored.backoff is not None else timedelta()
            ending.outcome = "delayed" if delay else "waiting"
            ending.delay, ending.priority = microseconds(delay), job.priority
        else:
            ending.remove = stored.remove_on_fail
        answer = await self._settling(ending)
        if answer != _HELD:
            raise self.not_found(job.id) if answer == _ABSENT else self.not_active(job.id)
        return delay

    @reported(QueueErrorCode.PROCESSING)
    async def release(self, jobs: Sequence[TakenJob]) -> None:
        # Each goes to the front: the first of them last.
        backwards = jobs[::-1]
        endings = [Ending(job.id, job.lock_token, "released", priority=job.priority) for job in backwards]
        answers = await self._settle(endings) if endings else []
        for job, answer in zip(backwards, answers, strict=True):
            if answer != _HELD:
                raise self.not_active(job.id)

    async def _settle(self, endings: Sequence[Ending]) -> Sequence[int]:
        answers: Sequence[int] = await self._run("settle", self._keep_completed, _pack(endings))
        return answers

    # -- the queue

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def get_job(self, job_id: str) -> StoredJob | None:
        description = await self._run("find", job_id)
        return None if description is None else record.described(self.queue_name, description)

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def pause(self) -> None:
        await self._client.execute_command("HSET", self._keys.meta, "paused", 1)

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def resume(self) -> None:
        await self._run("resume")

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def delete(self) -> None:
        await self._client.execute_command("UNLINK", *self._keys.all)

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def stats(self) -> QueueStats:
        waiting, delayed, active, completed, failed, paused = await self._run("stats")
        return QueueStats(
            waiting=waiting, delayed=delayed, active=active, completed=completed, failed=failed, paused=bool(paused)
        )

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        found = await self._run("dead_letters", limit) if limit > 0 else []
        return [record.described(self.queue_name, description) for description in found]

    @reported(QueueErrorCode.PROVIDER_ERROR)
    async def retry(self, job_id: str) -> None:
        if await self._run("retry", job_id) == 0:
            raise self.not_found(job_id)
