"""Queues that BullMQ keeps in one Redis: one of them, and what makes several on one connection."""

import asyncio
import base64
import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import msgspec
from msgspec import Raw

from onward.model import Progress
from onward.queue.checks import ProviderArguments
from onward.queue.contract import StoredJob, Stores, TakenJob, in_words, is_permanent, unfit
from onward.queue.events import Emitter
from onward.queue.model import (
    FULL,
    KEEP_COMPLETED,
    KEEP_FAILED,
    LARGEST_JOB,
    ActiveJob,
    Keep,
    QueueHealth,
    QueueJobStatus,
    QueuePage,
    QueueStats,
)
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.bullmq.native import GIVE_BACK, Job, Queue, UnrecoverableError, Worker, is_gone, is_refusal
from onward.queue.providers.bullmq.translation import (
    MOST_URGENT,
    STATUS,
    from_native,
    kept,
    milliseconds_in,
    problem_with_id,
    retry_backoff,
    to_native,
)
from onward.queue.providers.bullmq.waking import Wakeup
from onward.queue.providers.redis.connection import check_target, hopeless, longest_block, open_client
from onward.queue.providers.together import one_by_one
from onward.redis.connection import Redis, RedisCluster, exceptions
from onward.redis.scripts import run

_MOST_ADDED = 500
"""Jobs that one transaction adds, so that others get their turn."""
_MOST_PURGED = 1_000
_GOODBYE = 1.0
"""Seconds that the last words may take."""
_LISTS: dict[QueueJobStatus, tuple[str, ...]] = {
    QueueJobStatus.WAITING: ("waiting", "paused", "prioritized", "waiting-children"),
    QueueJobStatus.DELAYED: ("delayed",),
    QueueJobStatus.ACTIVE: ("active",),
    QueueJobStatus.COMPLETED: ("completed",),
    QueueJobStatus.FAILED: ("failed",),
}
_CLEANED: dict[QueueJobStatus, tuple[str, ...]] = {**_LISTS, QueueJobStatus.WAITING: ("wait", "paused", "prioritized")}


class BullMQProvider(Provider, Stores):
    """One queue of BullMQ's."""

    name = "bullmq"
    capabilities = msgspec.structs.replace(FULL, ttl=False, max_job_size=LARGEST_JOB)
    long_poll = timedelta(seconds=30)

    def __init__(self, queue_name: str, factory: "BullMQ", events: Emitter) -> None:
        super().__init__(queue_name, events)
        self.lease = factory.lock
        self._factory = factory
        # As Node.js names the connections of its workers: both sides count the workers of the other.
        self._workers = f"{factory.prefix}:{base64.b64encode(queue_name.encode()).decode()}"

    async def _open(self) -> None:
        self._client = await self._factory.hold()
        common = {"connection": self._client, "prefix": self._factory.prefix, "skipVersionCheck": True}
        self._queue = Queue(self.queue_name, common)
        # BullMQ's worker, without its loop: that one cannot be given more concurrency while it is busy, stops renewing
        # locks when the first of several jobs ends after `close`, fails jobs whose completion did not get through, and
        # prints.
        self._worker = Worker(
            self.queue_name,
            None,
            {
                **common,
                "lockDuration": milliseconds_in(self._factory.lock),
                "stalledInterval": milliseconds_in(self._factory.stalled_interval),
                "maxStalledCount": self._factory.max_stalled,
                "runRetryDelay": 1000,
                "settings": {"backoffStrategy": _of_another},
            },
        )
        self._wakeup = Wakeup(self._client, self._worker.keys["marker"], name=f"{self._workers}:w:{self._worker.id}")
        self._block = longest_block(self._client)
        self._tokens = itertools.count(1)
        self._due = self._limited = 0.0
        self._checked = -inf
        self._lost: dict[str, float] = {}
        """Tokens of jobs that may have been taken although the answer did not come, and until when that may happen."""
        self._interrupted = self._closed = False

    async def _close(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(_GOODBYE):
                await self._give_back_lost()
        self._closed = True
        await self._wakeup.close()
        await self._factory.let_go()

    def hopeless(self, error: BaseException) -> str | None:
        return hopeless(error) or super().hopeless(error)

    # -- adding

    def lacks(self, option: str, value: Any) -> str | None:
        if option == "max_stalls":
            most = self._factory.max_stalled
            words = f"{value} stalls for this job: BullMQ(max_stalled={most}) decides for its workers"
            return None if value == most else words
        return super().lacks(option, value)

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        new = self._new(job, options)
        try:
            [added] = await self._add([new], scripts_are_known=True)
        except exceptions.NoScriptError:  # a server that was started anew; nothing was added
            [added] = await self._add([new])
        if isinstance(added, Exception):
            raise added
        return added

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """500 in one transaction; when an id is taken, the others of its transaction are added all the same."""
        return await self.add_in_parts([self._new(job, options) for job, options in jobs], _MOST_ADDED, self._add)

    async def _add(self, jobs: Sequence[Any], *, scripts_are_known: bool = False) -> list[StoredJob | Exception]:
        """What was added, or why it was not. BullMQ answers alike for a job it added and for one that was there: within
        one transaction we ask first."""
        async with self._client.pipeline(transaction=True) as pipe:
            for job in jobs:
                pipe.exists(self._queue.toKey(job.id))
                await self._queue.scripts.addJob(job, pipe)
            if scripts_are_known:
                pipe.scripts.clear()  # saves the question whether the server has them, a round trip
            answers = await pipe.execute()
        return [self._added(*one) for one in zip(jobs, answers[::2], answers[1::2], strict=True)]

    def _added(self, job: Any, existed: int, answer: Any) -> StoredJob | Exception:
        if isinstance(answer, int):
            refusal: Exception = self._queue.scripts.finishedErrors({"code": answer, "parentKey": job.parentKey})
            return refusal
        if existed or answer != job.id:  # the latter by the native option `deduplication`
            return self.duplicate(answer)
        return self._in_our_words(job, QueueJobStatus.DELAYED if job.delay else QueueJobStatus.WAITING)

    def _new(self, job: StoredJob, options: Options) -> Any:
        problem = problem_with_id(job.id, self._queue.keys)
        if options.priority > MOST_URGENT:
            problem = f"priority must be at most {MOST_URGENT} on bullmq, got: {options.priority}"
        if problem is not None:
            raise unfit(job, problem)
        try:
            native = to_native(job, options)
        except (TypeError, ValueError, OverflowError) as error:
            raise unfit(job, f"metadata must be JSON: {error}") from error
        return Job(self._queue, job.name, msgspec.json.decode(job.data), native)

    # -- taking

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait.total_seconds()
        self._interrupted = False
        while count > 0 and not self._closed:
            await self._give_back_lost()
            await self._check_stalled_if_due()
            taken = await one_by_one(self._next, count)
            left = until - loop.time()
            if self._interrupted:
                await self._wakeup.close()  # and be no worker any more, unless somebody asks again
            if taken or left <= 0 or self._interrupted:
                return taken
            await self._wait(left)
        return []

    async def _next(self) -> TakenJob | None:
        while True:
            token = f"{self._worker.id}:{next(self._tokens)}"
            self._lost[token] = time.monotonic() + self._factory.lock.total_seconds()
            fields, job_id, limited, due = await self._worker.backend.moveToActive(token, self._worker.opts)
            del self._lost[token]
            job = await self._worker.nextJobFromJobData(fields, job_id, limited or 0, due or 0, token)
            self._limited, self._due = (limited or 0) / 1000, (due or 0) / 1000
            if job is None:
                return None
            job.opts.setdefault("removeOnComplete", kept(self._factory.keep_completed))
            job.opts.setdefault("removeOnFail", kept(self._factory.keep_failed))
            if not job.deferredFailure:
                stored = self._in_our_words(job, QueueJobStatus.ACTIVE)
                return ActiveJob(**msgspec.structs.asdict(stored), lock_token=token, native=job)
            # Stalled too often: BullMQ leaves it to whoever takes it next to say so.
            await job.moveToFailed(UnrecoverableError(job.deferredFailure), token)
            self.on_ended(self._in_our_words(job, QueueJobStatus.FAILED))

    async def _wait(self, longest: float) -> None:
        """Until there may be a job, or woken, or some seconds: what comes without a marker is found after that."""
        longest = min(longest, self._block)
        if self._limited:
            await self._wakeup.sleep(min(longest, self._limited))
        elif self._due:
            await self._wakeup.listen(min(longest, self._due - time.time()))
        else:
            await self._wakeup.listen(longest)

    def interrupt(self) -> None:
        if self.is_connected:
            self._interrupted = True
            self._wakeup.wake()

    async def _give_back_lost(self) -> None:
        """Put back what was taken although the answer did not come: nobody runs it."""
        now = time.monotonic()
        self._lost = {token: until for token, until in self._lost.items() if until > now}
        if not self._lost:
            return
        ids: list[Any] = await self._client.lrange(self._worker.keys["active"], 0, -1)
        locks = [f"{self._worker.backend.toKey(job_id)}:lock" for job_id in ids]
        held: list[Any] = await self._client.mget(locks) if locks else []
        for job_id, token in zip(ids, held, strict=True):
            if token in self._lost:
                await self._put_back(job_id, token)

    async def _check_stalled_if_due(self) -> None:
        now = time.monotonic()
        if now - self._checked >= self._factory.stalled_interval.total_seconds():
            self._checked = now
            opts = self._worker.opts
            await self._worker.backend.moveStalledJobsToWait(opts["maxStalledCount"], opts["stalledInterval"])

    # -- settling

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        value = None if result is None else msgspec.json.decode(result)
        try:
            await job.native.moveToCompleted(value, job.lock_token)
        except TypeError as error:
            if is_refusal(error):
                raise self.not_active(job.id) from error
            raise
        self._wakeup.wake()  # no marker comes when a limit for the whole queue has room again

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        native, message = job.native, in_words(error)
        native.opts["backoff"] = retry_backoff(native.opts.get("backoff"), native.attemptsMade + 1)
        told: Any = UnrecoverableError(message) if is_permanent(error) else RuntimeError(message)
        try:
            await _fail(native, told, job.lock_token, error)
        except TypeError as refusal:
            if is_gone(refusal):
                raise self.not_found(job.id) from refusal
            if is_refusal(refusal):
                raise self.not_active(job.id) from refusal
            raise
        self._wakeup.wake()
        return None if native.finishedOn else timedelta(milliseconds=native.delay)

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        """To the front of the line, uncounted."""
        lost = [job for job in jobs if not await self._put_back(job.id, job.lock_token or "")]
        if lost:
            raise self.not_active(lost[0].id)

    async def _put_back(self, job_id: str, token: str) -> bool:
        """Whether the token still held it."""
        names = ("active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker", "events")
        keys = self._worker.keys
        words = [*(keys[name] for name in names), job_id, token, self._worker.backend.toKey(job_id)]
        answer = await run(self._client.execute_command, GIVE_BACK, len(names), *words)
        if answer < 0:
            return False
        await self._client.zadd(keys["marker"], {"0": 0})  # the script wakes nobody for a job with a priority
        return True

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        ids, tokens = [job.id for job in jobs], [job.lock_token for job in jobs]
        lost = await self._worker.backend.extendLocks(ids, tokens, milliseconds_in(self._factory.lock))
        return [job for job in jobs if job.id in lost]

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        """BullMQ asks for no lock here: one that was lost a moment ago may still be heard."""
        await job.native.updateProgress(msgspec.to_builtins(progress))

    # -- the queue

    async def get_job(self, job_id: str) -> StoredJob | None:
        if job_id in self._queue.keys:
            return None
        scripts = self._queue.scripts
        states = ("completed", "failed", "delayed", "active", "wait", "paused", "waiting-children", "prioritized")
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self._queue.toKey(job_id))
            pipe.zscore(self._queue.keys["delayed"], job_id)
            await scripts.commands["getStateV2"](keys=scripts.getKeys(states), args=[job_id], client=pipe)
            fields, score, state = await pipe.execute()
        if not fields or state not in STATUS:
            return None
        # The score is the instant in milliseconds, with twelve more bits to keep order.
        due = None if score is None else score // 4096
        return self._in_our_words(Job.fromJSON(self._queue, fields, job_id), STATUS[state], due)

    def _in_our_words(self, job: Any, status: QueueJobStatus, due: float | None = None) -> StoredJob:
        return from_native(job, self.queue_name, status, due, max_stalls=self._factory.max_stalled)

    async def pause(self) -> None:
        await self._queue.pause()

    async def resume(self) -> None:
        while await self._queue.resume():
            pass  # in parts, where an older BullMQ moved thousands of jobs away when it paused

    async def delete(self) -> None:
        """Jobs that run lose their lock: their handlers are cancelled, and their outcome is refused."""
        await self._queue.obliterate(force=True)

    async def stats(self) -> QueueStats:
        states = ["waiting", "paused", "prioritized", "waiting-children", "delayed", "active", "completed", "failed"]
        *waiting, delayed, active, completed, failed = await self._queue.backend.getCounts(states)
        return QueueStats(
            waiting=sum(waiting),
            delayed=delayed,
            active=active,
            completed=completed,
            failed=failed,
            paused=await self._queue.isPaused(),
        )

    async def health(self) -> QueueHealth:
        return QueueHealth.of(await self.stats(), active_workers=await self._active_workers())

    async def _active_workers(self) -> int | None:
        try:
            clients = await self._client.client_list()
        except exceptions.ResponseError:  # not allowed, or not there
            return None
        names: list[str] = [client["name"] for client in clients]
        return sum(name == self._workers or name.startswith(f"{self._workers}:w:") for name in names)

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        jobs = await self._queue.getFailed(0, limit - 1) if limit > 0 else []
        return [self._in_our_words(job, QueueJobStatus.FAILED) for job in jobs]

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        """Waiting ones by BullMQ's own lists: those without its priority first."""
        oldest_first = status not in (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED)
        first = skipped = int(after or 0)
        states, found = _LISTS[status], list[Any]()
        for state, count in zip(states, await self._queue.backend.getCounts(list(states)), strict=True):
            if skipped < count and len(found) <= limit:
                last = skipped + limit - len(found)
                found += await self._queue.getJobs([state], skipped, last, oldest_first)
            skipped = max(skipped - count, 0)
        items = [self._in_our_words(job, status) for job in found[:limit]]
        return QueuePage(items=items, next=str(first + limit) if len(found) > limit else None)

    async def remove(self, job_id: str) -> None:
        if await self.get_job(job_id) is None:
            raise self.not_found(job_id)
        if not await self._queue.remove(job_id):
            raise self.held(job_id)

    async def purge(self, status: QueueJobStatus, older_than: timedelta) -> int:
        """BullMQ's own: by when jobs finished, or were added."""
        age, removed, last = milliseconds_in(older_than), 0, _MOST_PURGED
        for state in _CLEANED[status]:
            while last == _MOST_PURGED:
                last = len(await self._queue.clean(age, _MOST_PURGED, state))
                removed += last
            last = _MOST_PURGED
        return removed

    async def retry(self, job_id: str) -> None:
        job = None if job_id in self._queue.keys else await self._queue.getJob(job_id)
        if job is None:
            raise self.not_found(job_id)
        try:
            await job.retry("failed", {"resetAttemptsMade": True, "resetAttemptsStarted": True})
        except TypeError as error:
            if is_refusal(error):
                raise self.not_found(job_id) from error
            raise


async def _fail(native: Any, told: Any, token: str | None, error: BaseException) -> None:
    try:
        raise error  # BullMQ keeps the traceback of what is being handled
    except BaseException:  # noqa: BLE001 - whatever the handler raised
        await native.moveToFailed(told, token)


def _of_another(failures: int, kind: str, error: object, job: Any) -> int:
    """The wait for a strategy that a Node.js program has for itself: its delay, if it names one."""
    return int(job.opts["backoff"].get("delay") or 0)


class BullMQ(ProviderFactory[Any]):
    """Queues that Node.js programs share: `Queue("emails", provider=BullMQ("redis://localhost"))`.

    Give an address with options for the `redis` package (`BullMQ(url, password=…, ssl_ca_certs=…)`), or a client of one
    server, which lends its settings, not its connections. `prefix` begins every key, as in BullMQ's own options.

    A worker that is not heard of for `lock` loses its jobs; the next worker that looks for such jobs, every
    `stalled_interval`, puts them back. One that was lost more than `max_stalled` times fails, whatever its attempts.
    `keep_completed` and `keep_failed` say how many finished jobs of each queue are kept and for how long, unless a job
    says otherwise. `max_job_size` is how many bytes of JSON the data of a job may have.

    >>> BullMQ("redis://localhost:6379/0").for_queue("emails").capabilities.keeps
    True
    """

    def __init__(
        self,
        target: str | Redis,
        *,
        prefix: str = "bull",
        lock: timedelta = timedelta(seconds=30),
        stalled_interval: timedelta = timedelta(seconds=30),
        max_stalled: int = 3,
        keep_completed: Keep = KEEP_COMPLETED,
        keep_failed: Keep = KEEP_FAILED,
        max_job_size: int = LARGEST_JOB,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("BullMQ")
        given: object = target
        if isinstance(given, RedisCluster):
            arguments.refuse_because("target must be an address or a client of one server, not of a cluster")
        check_target(arguments, target, client_options)
        arguments.one_of("prefix", prefix, lambda value: isinstance(value, str) and bool(value), "a non-empty string")
        arguments.duration("lock", lock, least=timedelta(seconds=1))
        arguments.duration("stalled_interval", stalled_interval, least=timedelta(milliseconds=1))
        arguments.whole("max_stalled", max_stalled, least=0)
        arguments.keeps(keep_completed, keep_failed, max_job_size)
        self._arguments, self._max_job_size = arguments, max_job_size
        self._target, self._options = target, client_options
        self.prefix, self.lock, self.stalled_interval, self.max_stalled = prefix, lock, stalled_interval, max_stalled
        self.keep_completed, self.keep_failed = keep_completed, keep_failed

    def for_queue(self, queue_name: str) -> BullMQProvider:
        if ":" in queue_name:
            self._arguments.refuse("the name of a queue", "without ':'", queue_name)
        provider = BullMQProvider(queue_name, self, self.events_of(queue_name))
        return provider.declare(max_job_size=self._max_job_size)

    async def _open(self) -> Any:
        return await open_client(self._target, options=self._options, decode_responses=True)

    async def _close(self, connection: Any) -> None:
        await connection.aclose()
