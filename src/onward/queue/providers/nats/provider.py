"""One queue in NATS JetStream."""

import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from msgspec import Raw
from nats import errors
from nats.js import errors as js_errors

from onward.errors import QueueRuntimeError
from onward.model import Progress
from onward.queue.contract import (
    KeepsDeadLetters,
    KeepsProgress,
    LooksUp,
    Pulls,
    Removes,
    StoredJob,
    TakenJob,
    in_words,
    unfit,
    why_for_good,
)
from onward.queue.events import Emitter
from onward.queue.model import FULL, QueueFailureReason, QueueJobStatus, QueuePage, QueueStats
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.held import HeldReceipts
from onward.queue.providers.nats.link import Link, refused_in_words
from onward.queue.providers.nats.messages import (
    MESSAGE_ID,
    ONLY_IF_NEW,
    Headers,
    Record,
    State,
    in_header,
    problem_with,
    read,
    record_of,
    size_of,
    stored_job,
    taken_job,
    text_of,
    token,
)
from onward.queue.providers.nats.pulling import NAK, TERMINAL, Arrival, Incoming, after
from onward.queue.providers.nats.store import LEASE, MOST_HEADERS, AlreadyThere, Ended, NatsStore, Notes, Settings
from onward.queue.providers.together import add_each, each

_USUAL_PAYLOAD, _ROOM = 1 << 20, 1 << 16
"""Bytes of a message where the server is not told otherwise, and how many of them are kept for headers."""
_NOTES = 1 << 13
"""Bytes of headers that are kept for what becomes of a job."""
_LONGEST_ID = 400
_PROGRESS = b"+WPI"


class NatsProvider(Provider, Pulls, LooksUp, KeepsDeadLetters, Removes, KeepsProgress):
    """One queue in NATS JetStream."""

    name = "nats"
    capabilities = msgspec.structs.replace(FULL, priority=False, max_job_size=_USUAL_PAYLOAD - _ROOM)

    def __init__(
        self,
        queue_name: str,
        factory: ProviderFactory[Link],
        events: Emitter,
        *,
        settings: Settings,
        wait: timedelta,
    ) -> None:
        super().__init__(queue_name, events)
        self._factory, self._settings = factory, settings
        self.long_poll, self.lease = wait, LEASE
        self.declare(long_polling=wait > timedelta())

    async def _open(self) -> None:
        self._link = await self._factory.hold()
        try:
            self._store = NatsStore(self._link, self.queue_name, self._settings)
            self.lease = await self._store.declare()
            self._max_payload = (await self._link.client()).max_payload
        except BaseException:
            await self._factory.let_go()
            raise
        self._held = HeldReceipts(self, self.lease)
        self._notes = Notes(self._store, self.not_active)
        self._incoming = Incoming(self._link, self._store)
        self.declare(max_job_size=self._max_payload - _ROOM)

    async def _close(self) -> None:
        for arrival in await self._incoming.close():
            await self._return_unrun(arrival)
        await self._factory.let_go()

    def hopeless(self, error: BaseException) -> str | None:
        return None if self.was_open else refused_in_words(error) or super().hopeless(error)

    # -- adding

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        return await self._add((job, options, self._headers(job, options)))

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        ready = [(job, options, self._headers(job, options)) for job, options in jobs]  # before anything is sent
        return await add_each(self, self._add, ready)

    async def _add(self, ready: tuple[StoredJob, Options, Headers]) -> StoredJob:
        job, options, headers = ready
        subject = self._store.subject("later" if options.delay else "job", job.id)
        try:
            await self._store.publish(subject, bytes(job.data), headers)
        except AlreadyThere as error:
            raise self.duplicate(job.id) from error
        return job

    def _headers(self, job: StoredJob, options: Options) -> Headers:
        native = dict(options.native)
        theirs = native.pop("headers", {})
        problem = problem_with(theirs)
        if problem is not None:
            raise unfit(job, problem)
        headers = {
            Record.header: in_header(record_of(job, options)),
            MESSAGE_ID: token(job.id),
            **ONLY_IF_NEW,
            **theirs,
        }
        size = size_of(bytes(job.data), headers)
        if native:
            raise unfit(job, f'provider_options["nats"] has headers, and nothing else: {", ".join(native)}')
        if len(token(job.id)) > _LONGEST_ID:
            raise unfit(job, f"the id of a job has at most {_LONGEST_ID} characters on NATS, as in an URL")
        if size > self._max_payload - _ROOM // 2:
            most = self._max_payload - _ROOM // 2
            raise unfit(job, f"the job has {size:,} bytes with its metadata; NATS takes {most:,}")
        size, most = size_of(b"", headers), MOST_HEADERS - _NOTES
        if size > most:
            words = f"the job's metadata and headers have {size:,} bytes; they may have {most:,}: NATS takes 64 KiB"
            raise unfit(job, f"{words} of headers, of which some are kept for what becomes of the job")
        return headers

    # -- taking

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        arrivals = await self._incoming.some(count, wait.total_seconds()) if count > 0 else []
        return await self._begun(self._incoming.spare, arrivals) if arrivals else []

    def interrupt(self) -> None:
        if self.is_connected:
            self._incoming.interrupt()

    async def _begun(self, spare: deque[Arrival], arrivals: Sequence[Arrival]) -> list[TakenJob]:
        """Their jobs. What could not be looked into, or is not handed to anybody after all, is kept for the next."""
        begun: dict[int, TakenJob | None] = {}
        troubles: list[Exception] = []

        async def begin(arrival: Arrival) -> None:
            try:
                begun[id(arrival)] = await self._job_of(arrival)
            except Exception as error:  # noqa: BLE001 - the others may be fine
                troubles.append(error)

        here = [*self._held.receipts, *(arrival.message.reply for arrival in (*arrivals, *spare))]
        self._notes.keep_only(here)
        try:
            await each(begin, arrivals)
        except BaseException:
            spare.extend(one for one in arrivals if id(one) not in begun or begun[id(one)] is not None)
            raise
        jobs: list[TakenJob] = []
        for arrival in arrivals:
            job = begun.get(id(arrival))
            if job is not None:
                self._held.take([arrival.message.reply], arrival.at)
                jobs.append(job)
        spare.extend(arrival for arrival in arrivals if id(arrival) not in begun)
        if troubles and not jobs:
            raise troubles[0]
        return jobs

    async def _job_of(self, arrival: Arrival) -> TakenJob | None:
        """None where it fails instead of being run, or was here for too long already."""
        message = arrival.message
        if time.monotonic() >= arrival.at + self._seconds:
            return None  # the server gives it to somebody again
        state = await self._notes.counted(message)
        job = taken_job(message, self.queue_name, state)
        if job.stalls > job.max_stalls:
            words = f"its worker died, or did not renew its lease, {job.stalls} times in all"
            await self._end_unrun(job, state, QueueFailureReason.STALLED, words)
            return None
        if job.expires_at is not None and job.expires_at <= datetime.now(UTC):
            words = f"nobody began it before {job.expires_at}"
            await self._end_unrun(job, state, QueueFailureReason.EXPIRED, words)
            return None
        return job

    @property
    def _seconds(self) -> float:
        return (self.lease or LEASE).total_seconds()

    async def _end_unrun(self, job: TakenJob, state: State, reason: QueueFailureReason, words: str) -> None:
        state = msgspec.structs.replace(state, is_open=False, reason=reason, error=words, ended_at=datetime.now(UTC))
        await self._bury(job, state)
        self.on_ended(stored_job(job.native, self.queue_name, QueueJobStatus.FAILED, state))

    async def _return_unrun(self, arrival: Arrival) -> None:
        """As it was: nobody has seen it."""
        message = arrival.message
        job_id = text_of(message.subject)
        try:
            if message.subject == self._store.subject("job", job_id):
                state = await self._notes.counted(message)
                await self._notes.write(message, msgspec.structs.replace(state, is_open=False))
            await self._answer(message.reply, NAK)
        except Exception as error:  # noqa: BLE001 - told; its lease runs out
            self.events.trouble(error, f"job {job_id!r} could not be given back: {error}")

    # -- settling

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        with self._held.settling(job):
            if self._settings.keeps("completed") and not read(Record, job.native.headers).remove_on_complete:
                await self._note_completed(job, result)
            await self._tell(job, TERMINAL)
            await self._forget(job)

    async def _note_completed(self, job: TakenJob, result: Raw | None) -> None:
        state = msgspec.structs.replace(
            self._notes.of(job),
            is_open=False,
            ended_at=datetime.now(UTC),
            result=None if result is None else msgspec.json.decode(result),
        )
        try:
            await self._end("completed", job, state)
        except errors.MaxPayloadError as error:
            # The work is done: a result that cannot be kept must not do it again.
            self.events.trouble(error, f"the result of job {job.id!r} is too large for NATS, and is not kept")
            await self._end("completed", job, msgspec.structs.replace(state, result=None))

    async def _end(self, kind: Ended, job: TakenJob, state: State) -> None:
        try:
            await self._store.end(kind, self._key(job), job.native, state)
        except errors.MaxPayloadError as error:
            if state.result is not None:
                raise
            # Another program's job, for ours have room: it ends all the same.
            self.events.trouble(error, f"the headers of job {job.id!r} leave no room for its outcome, and are not kept")
            await self._store.end(kind, self._key(job), job.native, state, with_headers=False)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        with self._held.settling(job) as until:
            now = datetime.now(UTC)
            state = msgspec.structs.replace(
                self._notes.of(job), attempts=job.attempts + 1, is_open=False, error=in_words(error), processed_at=now
            )
            reason = why_for_good(job, error)
            if reason is not None:
                await self._bury(job, msgspec.structs.replace(state, reason=reason, ended_at=now))
                return None
            backoff = read(Record, job.native.headers).backoff
            delay = timedelta() if backoff is None else backoff.delay(state.attempts)
            await self._notes.write(job.native, msgspec.structs.replace(state, due_at=now + delay if delay else None))
            await self._give_back(job, until, after(delay.total_seconds()))
            return delay

    async def _bury(self, job: TakenJob, state: State) -> None:
        """Noted before it is removed: dying in between does both again, and ends with the same."""
        if self._settings.keeps("failed") and not read(Record, job.native.headers).remove_on_fail:
            await self._end("failed", job, state)
        await self._tell(job, TERMINAL)
        await self._forget(job)

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        await each(self._release, [job for job in jobs if self._held.has(job)])

    async def _release(self, job: TakenJob) -> None:
        with self._held.settling(job) as until:
            await self._notes.write(job.native, msgspec.structs.replace(self._notes.of(job), is_open=False))
            await self._give_back(job, until, NAK)

    async def _give_back(self, job: TakenJob, until: float, word: bytes) -> None:
        """Whoever is too late by now says nothing: that would take it from somebody else."""
        if time.monotonic() < until:
            await self._tell(job, word)
        self._notes.drop(job)

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        return await self._held.renew(jobs, partial(each, self._is_renewed))

    async def _is_renewed(self, job: TakenJob) -> bool:
        try:
            await self._tell(job, _PROGRESS)
        except QueueRuntimeError:
            return False
        return True

    async def report_progress(self, job: TakenJob, progress: Progress) -> None:
        if self._held.has(job):
            state = msgspec.structs.replace(self._notes.of(job), progress=progress, is_open=True)
            try:
                await self._notes.write(job.native, state)
            except QueueRuntimeError:
                self._held.drop(job)

    def _key(self, job: TakenJob) -> str:
        """What its subject stands for: the id, unless another program says otherwise in a header."""
        return text_of(job.native.subject)

    async def _forget(self, job: TakenJob) -> None:
        """Nothing is left of what was known of one that has ended; if that fails, it goes by its age."""
        if self._notes.drop(job) or job.native.metadata.num_delivered > 1:
            try:
                await self._store.forget_state(self._key(job))
            except Exception as error:  # noqa: BLE001 - told; the job itself has ended
                self.events.trouble(error, f"what was known of job {job.id!r} stays for a while: {error}")

    async def _tell(self, job: TakenJob, word: bytes) -> None:
        """How it is with a job that is held; PROCESSING where somebody deleted the queue, or its consumer."""
        try:
            await self._answer(job.receipt_handle, word)
        except errors.NoRespondersError:
            if await self._store.consumer_made("job") is not None:
                raise  # it moves to another server
            raise self.not_active(job.id) from None

    async def _answer(self, receipt: str | None, word: bytes) -> None:
        """Returns when the server has understood. May be repeated."""
        await self._link.request(receipt or "", word)

    # -- the queue

    async def get_job(self, job_id: str) -> StoredJob | None:
        # In this order it is not missed when it ends between the two questions.
        raw = await self._store.unended(job_id)
        if raw is not None:
            return await self._store.as_job(raw, await self._store.delivered())
        return await self._store.ended(job_id)

    async def stats(self) -> QueueStats:
        try:
            return await self._store.counts()
        except js_errors.NotFoundError:
            await self._store.declare()  # somebody deleted the queue
            return await self._store.counts()

    async def delete(self) -> None:
        await self._store.delete()

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        return [job for _, job in await self._store.newest("failed", None, limit)] if limit > 0 else []

    async def retry(self, job_id: str) -> None:
        raw = await self._store.get("failed", job_id)
        if raw is None:
            raise self.not_found(job_id)
        record = msgspec.structs.replace(read(Record, raw.headers), scheduled_for=None, expires_at=None)
        await self._store.revive(raw, record)

    async def jobs(self, status: QueueJobStatus, *, after: str | None, limit: int) -> QueuePage[Raw]:
        if status in (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED):
            found = await self._store.newest(status.value, None if after is None else int(after), limit + 1)
        else:
            found = await self._unended(status, int(after or 0), limit + 1)
        more = len(found) > limit
        return QueuePage(items=[job for _, job in found[:limit]], next=str(found[limit - 1][0]) if more else None)

    async def _unended(self, status: QueueJobStatus, after: int, limit: int) -> list[tuple[int, StoredJob]]:
        delivered, found = await self._store.delivered(), list[tuple[int, StoredJob]]()
        async for raw in self._store.all_unended(after):
            job = await self._store.as_job(raw, delivered)
            if job.status is status:
                found.append((raw.seq or 0, job))
                if len(found) == limit:
                    break
        return found

    async def remove(self, job_id: str) -> None:
        raw = await self._store.unended(job_id)
        if raw is not None:
            job = await self._store.as_job(raw, await self._store.delivered())
            if job.status is QueueJobStatus.ACTIVE:
                raise self.held(job_id)
            await self._store.remove_unended(raw)
        elif not await self._store.remove_ended(job_id):
            raise self.not_found(job_id)

    async def purge(self, status: QueueJobStatus, older_than: timedelta) -> int:
        if older_than or status not in (QueueJobStatus.COMPLETED, QueueJobStatus.FAILED):
            return await super().purge(status, older_than)
        return await self._store.clear(status)
