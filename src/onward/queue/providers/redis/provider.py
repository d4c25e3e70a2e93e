"""Queues in Redis: one of them, and what makes several on one connection."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import msgspec
from msgspec import Raw

from onward.errors import QueueErrorCode, QueueRuntimeError
from onward.model import Progress
from onward.queue.checks import ProviderArguments, is_named
from onward.queue.contract import StoredJob, Stores, TakenJob, in_words, why_for_good
from onward.queue.events import Emitter
from onward.queue.model import (
    FULL,
    KEEP_COMPLETED,
    KEEP_FAILED,
    LARGEST_JOB,
    Keep,
    QueueFailureReason,
    QueueHealth,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.grouped import Grouped
from onward.queue.providers.redis import record
from onward.queue.providers.redis.connection import check_target, hopeless, left, longest_block, open_client
from onward.queue.providers.redis.record import Addition, Ending, Record, microseconds, moment
from onward.queue.providers.redis.scripts import MOVED, Moved, Scripts, Taken, Waking, keys_of, moved_in_words
from onward.redis.connection import Target

_pack = msgspec.msgpack.Encoder().encode
_MOST = 1_000
"""Jobs that one call of a script handles, so that others get their turn; what Lua can unpack is a little more."""
_MOST_BYTES = 1 << 20
"""What goes together in one call, so that what is large, and may be too large, goes alone."""
_MOST_ADDED = 10_000
"""Jobs of one `add_many` that are added whole or not at all."""
_HELD, _ABSENT = 1, -1
"""Answers about a job that was to be settled."""
_GOODBYE = 1.0
"""Seconds that the last words may take."""
_SHORTEST = 0.002
"""Seconds: Redis before 7.0.8 took less for ever."""
_NAMED_EVERY = 1.0
_HEARD_OF = 5_000_000
"""Microseconds: an idle worker asks more often than that."""


class RedisProvider(Provider, Stores):
    """One queue in Redis."""

    name = "redis"
    capabilities = msgspec.structs.replace(FULL, max_job_size=LARGEST_JOB, max_batch_size=_MOST)
    long_poll = timedelta(seconds=30)

    def __init__(self, queue_name: str, factory: "Redis", events: Emitter) -> None:
        super().__init__(queue_name, events)
        self.lease = factory.lease
        self._factory, self._hold = factory, microseconds(factory.lease)
        completed, failed = factory.keep_completed, factory.keep_failed
        self._keep_failed = (failed.count, microseconds(failed.age))
        self._keep = (completed.count, microseconds(completed.age), *self._keep_failed)
        self._keys = keys_of(queue_name)

    async def _open(self) -> None:
        self._client = await self._factory.hold()
        self._run = Scripts(self._client, self._keys, on_moved=self._tell_moved)
        self._waking = Waking(self._take, self._give_back, longest=longest_block(self._client))
        self._adding = Grouped(self._add_groups, most=_MOST, size=len, most_size=_MOST_BYTES)
        self._settling = Grouped(self._settle, most=_MOST, size=lambda ending: len(ending.text), most_size=_MOST_BYTES)
        self._consumer = secrets.token_hex(8)
        self._fetches = itertools.count()
        self._named = -inf
        self._lost: dict[str, float] = {}
        """Tokens of fetches that were not answered, and until when the server may still carry them out."""

    async def _close(self) -> None:
        await self._waking.close()
        await self._adding.close()
        await self._settling.close()
        await self._say_goodbye()
        await self._factory.let_go()

    async def _say_goodbye(self) -> None:
        """Give back what was lost on the way, and be no worker any more; if that is soon done."""
        with suppress(Exception):
            async with asyncio.timeout(_GOODBYE):
                if self._lost:
                    await self._take(0)
                if next(self._fetches):
                    await self._client.execute_command("ZREM", self._keys["workers"], self._consumer)

    def hopeless(self, error: BaseException) -> str | None:
        return hopeless(error) or super().hopeless(error)

    # -- adding

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        if options.native:
            job, options = record.overridden(job, options)
        addition = record.addition(job, options)
        if addition.is_plain and self._adding.is_idle:
            is_new = await self._adding.alone(self._run("add_one", addition.id, addition.record))
        else:
            is_new = not await self._adding(_pack([addition]))
        if not is_new:
            raise self.duplicate(job.id)
        return job

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """All of them or none, up to 10,000: larger numbers are added in parts."""
        jobs = [record.overridden(job, options) if options.native else (job, options) for job, options in jobs]
        ready = [(job, record.addition(job, options)) for job, options in jobs]
        return await self.add_in_parts(ready, _MOST_ADDED, self._add_all)

    async def _add_all(self, ready: Sequence[tuple[StoredJob, Addition]]) -> list[StoredJob]:
        [duplicate] = await self._add_groups([_pack([addition for _, addition in ready])])
        if duplicate:
            raise self.duplicate(duplicate.decode())
        return [job for job, _ in ready]

    async def _add_groups(self, groups: Sequence[bytes]) -> Sequence[bytes]:
        duplicates: Sequence[bytes] = await self._run("add", *groups)
        return duplicates

    # -- taking

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        if count < 1:
            return []
        loop = asyncio.get_running_loop()
        until, interruptions = loop.time() + wait.total_seconds(), self._waking.interruptions
        count = min(count, _MOST)
        jobs, due = await self._take(count)
        while not jobs and self._waking.interruptions == interruptions and (left := until - loop.time()) > 0:
            taken = await self._waking.take(count, left if due < 0 else min(left, due / 1_000_000))
            if taken is None and self._waking.interruptions == interruptions:
                taken = await self._take(count)
            jobs, due = taken or ([], due)
        return jobs

    def interrupt(self) -> None:
        if self.is_connected:
            self._waking.interrupt()

    async def _take(self, count: int, after: float = 0.0) -> Taken:
        """At once, or when a token has come; or none has for so many seconds."""
        token, lost = f"{self._consumer}:{next(self._fetches)}", self._lost_now()
        self._lost[token] = inf
        try:
            now, due, ended, missing, *columns = await self._run(
                "fetch",
                count,
                self._hold,
                token,
                _MOST,
                self._name_if_due(),
                *self._keep_failed,
                *lost,
                behind=("BLPOP", self._keys["wake"], max(after, _SHORTEST)) if after > 0 else None,
            )
        except BaseException:
            # It may have been carried out, or will be: the jobs are given back by the fetches to come.
            self._lost[token] = time.monotonic() + self._hold / 1_000_000
            raise
        del self._lost[token]
        self._tell(ended, missing)
        at, jobs = moment(now), list[TakenJob]()
        for row in zip(*columns, strict=True):
            try:
                jobs.append(record.taken(self.queue_name, token, at, row))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                await self._fail_unreadable(record.unreadable(self.queue_name, token, at, row[0]), error)
        has_dropped = len(jobs) < len(columns[0]) or len(missing) > 0
        return jobs, 0 if has_dropped else due

    async def _give_back(self, jobs: Sequence[TakenJob]) -> None:
        """Nobody here wants them any more. If that fails, too, they are lost like those of an answer that was."""
        try:
            await self._settle([_released(job) for job in jobs[::-1]])
        except BaseException as error:
            until = time.monotonic() + self._hold / 1_000_000
            self._lost |= {job.lock_token: until for job in jobs if job.lock_token is not None}
            if not isinstance(error, Exception):
                raise

    def _name_if_due(self) -> str:
        """Who asks, once a second: that is how the server knows its workers."""
        now = time.monotonic()
        if now - self._named < _NAMED_EVERY:
            return ""
        self._named = now
        return self._consumer

    def _lost_now(self) -> list[str]:
        """Tokens of fetches that were not answered; another fetch may be under way, on the same provider."""
        now = time.monotonic()
        self._lost = {token: until for token, until in self._lost.items() if until > now}
        return [token for token, until in self._lost.items() if until < inf]

    def _tell_moved(self, moved: Sequence[Moved]) -> None:
        for words in map(moved_in_words, moved):
            error = QueueRuntimeError(words, code=QueueErrorCode.PROVIDER_ERROR, queue_name=self.queue_name)
            self.events.trouble(error, str(error))

    def _tell(self, ended: Sequence[Any], missing: Sequence[bytes]) -> None:
        for description in ended:
            self.on_ended(record.described(self.queue_name, description))
        for job_id in missing:
            error = self.not_found(job_id.decode(errors="replace"))
            self.events.trouble(error, f"{error} It stood in line without a record: was it evicted?")

    async def _fail_unreadable(self, job: TakenJob, error: Exception) -> None:
        """What something else has written: it fails alone."""
        words = f"its record cannot be read: {error}"
        await self._settle([Ending(job.id, job.lock_token, "failed", words, QueueFailureReason.PERMANENT)])
        ended = {"attempts": 1, "error": words, "reason": QueueFailureReason.PERMANENT}
        self.on_ended(msgspec.structs.replace(job, status=QueueJobStatus.FAILED, **ended))

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        pairs = itertools.chain.from_iterable((job.id, job.lock_token or "") for job in jobs)
        lost = {job_id.decode() for job_id in await self._run("renew", self._hold, self._consumer, *pairs)}
        return [job for job in jobs if job.id in lost]

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        await self._run("report", job.id, job.lock_token or "", msgspec.json.encode(progress))

    # -- settling

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        text = "" if result is None else bytes(result).decode()
        ending = Ending(job.id, job.lock_token, "completed", text, remove=job.native.remove_on_complete)
        if await self._settling(ending) != _HELD:
            raise self.not_active(job.id)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        stored: Record = job.native
        reason = why_for_good(job, error)
        ending = Ending(job.id, job.lock_token, "failed", in_words(error), reason or "")
        delay: timedelta | None = None
        if reason is None:
            delay = stored.backoff.delay(job.attempts + 1) if stored.backoff is not None else timedelta()
            ending.outcome = "delayed" if delay else "waiting"
            ending.delay, ending.priority = microseconds(delay), job.priority
        else:
            ending.remove = stored.remove_on_fail
        answer = await self._settling(ending)
        if answer != _HELD:
            raise self.not_found(job.id) if answer == _ABSENT else self.not_active(job.id)
        return delay

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        # Each goes to the front: the first of them last.
        backwards = jobs[::-1]
        answers = await self._settle([_released(job) for job in backwards]) if jobs else []
        for job, answer in zip(backwards, answers, strict=True):
            if answer != _HELD:
                raise self.not_active(job.id)

    async def _settle(self, endings: Sequence[Ending]) -> Sequence[int]:
        answers: Sequence[int] = await self._run("settle", *self._keep, _pack(endings))
        return answers

    # -- the queue

    async def get_job(self, job_id: str) -> StoredJob | None:
        description = await self._run("find", job_id)
        return None if description is None else record.described(self.queue_name, description)

    async def pause(self) -> None:
        await self._client.execute_command("HSET", self._keys["meta"], "paused", 1)

    async def resume(self) -> None:
        await self._run("resume")

    async def delete(self) -> None:
        keys = self._keys.values()
        await self._client.execute_command("UNLINK", *keys, *(key + MOVED.encode() for key in keys))

    async def stats(self) -> QueueStats:
        return (await self._numbers())[0]

    async def health(self) -> QueueHealth:
        stats, workers = await self._numbers()
        return QueueHealth.of(stats, active_workers=workers)

    async def _numbers(self) -> tuple[QueueStats, int]:
        lately = max(self._hold, _HEARD_OF)
        waiting, delayed, active, completed, failed, paused, workers = await self._run("stats", lately)
        stats = QueueStats(
            waiting=waiting, delayed=delayed, active=active, completed=completed, failed=failed, paused=bool(paused)
        )
        return stats, workers

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        return (await self.jobs(QueueJobStatus.FAILED, after=None, limit=limit)).items if limit > 0 else []

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        following, found = await self._run("list", status, after or "", limit)
        jobs = [record.described(self.queue_name, description) for description in found]
        return QueuePage(items=jobs, next=following.decode() or None)

    def is_page(self, status: QueueJobStatus, after: str) -> bool:
        if status in (QueueJobStatus.WAITING, QueueJobStatus.ACTIVE):
            return super().is_page(status, after)
        at, _, job_id = after.partition("/")
        return super().is_page(status, at) and is_named(job_id)

    async def retry(self, job_id: str) -> None:
        if await self._run("retry", job_id) == 0:
            raise self.not_found(job_id)

    async def remove(self, job_id: str) -> None:
        answer = await self._run("remove", job_id)
        if answer < 1:
            raise self.not_found(job_id) if answer == _ABSENT else self.held(job_id)

    async def purge(self, status: QueueJobStatus, older_than: timedelta) -> int:
        if status not in (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED):
            return await super().purge(status, older_than)
        removed, last = 0, _MOST
        while last == _MOST:
            last = await self._run("purge", status, microseconds(older_than), _MOST)
            removed += last
        return removed


def _released(job: TakenJob) -> Ending:
    return Ending(job.id, job.lock_token, "released", priority=job.priority)


class Redis(ProviderFactory[Any]):
    """Queues in Redis, each in a few keys of its own: `Queue("emails", provider=Redis("redis://localhost"))`.

    Give an address with options for the `redis` package (`Redis(url, password=…, ssl_ca_certs=…)`; one node's with
    `cluster=True` for a Redis Cluster), or a client: a `redis.asyncio.Redis` lends its settings, not its connections; a
    `RedisCluster` is used as it is and stays open.

    `lease` is how long a job stays with a worker that is not heard of; workers renew it as long as a handler runs.
    `keep_completed` and `keep_failed` say how many finished jobs of each queue are kept and for how long, to be looked
    up, retried, and for their ids to be refused. `max_job_size` is how many bytes of JSON the data of a job may have.

    >>> Redis("redis://localhost:6379/0").for_queue("emails").capabilities.dead_letters
    True
    """

    def __init__(
        self,
        target: Target,
        *,
        cluster: bool = False,
        lease: timedelta = timedelta(seconds=30),
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
        max_job_size: int = LARGEST_JOB,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("Redis")
        check_target(arguments, target, client_options)
        arguments.flag("cluster", cluster)
        arguments.duration("lease", lease, least=timedelta(seconds=1))
        arguments.keeps(keep_completed, keep_failed, max_job_size)
        self._target, self._cluster, self._options = target, cluster, client_options
        self._arguments, self._max_job_size = arguments, max_job_size
        self.lease, self.keep_completed, self.keep_failed = lease, keep_completed, keep_failed

    def for_queue(self, queue_name: str) -> RedisProvider:
        if "{" in queue_name or "}" in queue_name:
            name = "the name of a queue, which is the hash tag of its keys,"
            self._arguments.refuse(name, "without braces", queue_name)
        provider = RedisProvider(queue_name, self, self.events_of(queue_name))
        return provider.declare(max_job_size=self._max_job_size)

    async def _open(self) -> Any:
        return await open_client(self._target, cluster=self._cluster, options=self._options)

    async def _close(self, connection: Any) -> None:
        await left(connection, self._target)
