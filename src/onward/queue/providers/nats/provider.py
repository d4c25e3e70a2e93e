"""One queue in NATS JetStream."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from msgspec import Raw

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
    unfit,
    why_for_good,
)
from onward.queue.events import Emitter
from onward.queue.model import FULL, QueueFailureReason, QueueJobStatus, QueuePage, QueueStats
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.held import Held
from onward.queue.providers.nats.link import Link, refused_in_words
from onward.queue.providers.nats.messages import (
    JOB,
    MESSAGE_ID,
    ONLY_IF_NEW,
    Headers,
    State,
    in_header,
    problem_with,
    read_record,
    record_of,
    stored_job,
    taken_job,
    words_of,
)
from onward.queue.providers.nats.native import Msg, errors, js_errors
from onward.queue.providers.nats.pulling import Arrival, NoAnswer, Pulling
from onward.queue.providers.nats.store import MOST_HEADERS, AlreadyThere, Noted, Store, size_of
from onward.queue.providers.nats.streams import LEASE, Streams, text_of, token
from onward.queue.providers.together import add_each, each

_USUAL_PAYLOAD, _ROOM = 1 << 20, 1 << 16
"""Bytes of a message where the server is not told otherwise, and how many of them are kept for headers."""
_NOTES = 1 << 13
"""Bytes of headers that are kept for what becomes of a job."""
_LONGEST_ID = 400
_LOOK = 0.5
"""Seconds between looks at those that are delayed."""
_AT_A_TIME = 500
_NAK, _TERMINAL, _PROGRESS = b"-NAK", b"+ACK", b"+WPI"
_DELETING = 1.0
"""Seconds in which the server has deleted a queue."""
_TRIES = 5
"""How often something is noted of a job of which others note something at the same time."""
_INCONSISTENT = "NATS does not say the same twice of what is known of the job"


class NatsProvider(Provider, Pulls, LooksUp, KeepsDeadLetters, Removes, KeepsProgress):
    """One queue in NATS JetStream."""

    name = "nats"
    capabilities = msgspec.structs.replace(FULL, priority=False, max_job_size=_USUAL_PAYLOAD - _ROOM)

    def __init__(self, streams: Streams, factory: ProviderFactory[Link], events: Emitter, *, wait: timedelta) -> None:
        super().__init__(streams.queue_name, events)
        self._streams, self._factory = streams, factory
        self.long_poll, self.lease = wait, LEASE
        self.declare(long_polling=wait > timedelta())
        self._was_open = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Whatever is left of a connection whose event loop ended before it was closed is worth nothing."""
        self._next_look, self._newest = 0.0, 0
        self._interruptions = 0
        self._deleted_at: float | None = None
        self._pulling: dict[str, Pulling] = {}
        self._turn = asyncio.Lock()
        self._known: dict[str, Noted] = {}
        """Of jobs that are held, by receipt: what is stored of those for which something is."""

    async def _open(self) -> None:
        self._link = await self._factory.hold()
        self._begin_anew()
        try:
            self._store = Store(self._link, self._streams)
            self.lease = timedelta(seconds=await self._store.declare())
            self._max_payload = (await self._link.client()).max_payload
        except BaseException:
            await self._factory.let_go()
            raise
        self._held = Held(self, self.lease)
        self.declare(max_job_size=self._max_payload - _ROOM)
        self._was_open = True

    async def _close(self) -> None:
        for pulling in self._pulling.values():
            await pulling.close()
            for arrival in pulling.spare:
                await self._return_unrun(arrival)
        self._pulling.clear()
        self._known.clear()
        await self._factory.let_go()

    def hopeless(self, error: BaseException) -> str | None:
        """Once it let us in, a server that does not is on its way up or down, or will be told otherwise."""
        return None if self._was_open else refused_in_words(error) or super().hopeless(error)

    # -- adding

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        return await self._add((job, options, self._headers(job, options)))

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        ready = [(job, options, self._headers(job, options)) for job, options in jobs]  # before anything is sent
        return await add_each(self, self._add, ready)

    async def _add(self, ready: tuple[StoredJob, Options, Headers]) -> StoredJob:
        job, options, headers = ready
        subject = self._streams.subject("later" if options.delay else "job", job.id)
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
        headers = {JOB: in_header(record_of(job, options)), MESSAGE_ID: token(job.id), **ONLY_IF_NEW, **theirs}
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
        interruptions = self._interruptions
        if count < 1 or await self._is_being_deleted(wait):
            return []
        pulling = await self._puller("job")
        try:
            arrivals = await self._arrivals(pulling, count, wait.total_seconds(), interruptions)
        except NoAnswer:
            self._deleted_at = time.monotonic()
            return []
        return await self._begun(pulling, arrivals)

    async def _is_being_deleted(self, wait: timedelta) -> bool:
        """Somebody deleted the queue: it is made again, and not before that is over.

        The server tells of it when it begins, and removes files that have the same names as those of a new one.
        """
        if self._deleted_at is None:
            return False
        missing = self._deleted_at + _DELETING - time.monotonic()
        if missing > 0:
            await asyncio.sleep(min(missing, wait.total_seconds()))
            return True
        await self._store.declare()
        self._deleted_at = None
        return False

    async def _arrivals(self, pulling: Pulling, count: int, wait: float, interruptions: int) -> list[Arrival]:
        await self._look_at_delayed()
        arrivals = await pulling.some(count)
        # Who was interrupted before it came to wait does not wait.
        if not arrivals and wait > 0 and self._interruptions == interruptions:
            arrivals = await pulling.one(wait, every=_LOOK / 2, meanwhile=self._look_at_delayed)
            if arrivals and count > 1:
                arrivals += await self._rest(pulling, arrivals, count - 1)
        return arrivals

    async def _rest(self, pulling: Pulling, first: list[Arrival], count: int) -> list[Arrival]:
        try:
            return await pulling.some(count)
        except BaseException:
            pulling.spare.extend(first)
            raise

    def interrupt(self) -> None:
        self._interruptions += 1
        for pulling in self._pulling.values():
            pulling.interrupt()

    async def _puller(self, kind: str) -> Pulling:
        client = await self._link.client()
        async with self._turn:
            old = self._pulling.get(kind)
            if old is None or old.client is not client:
                subject = f"{self._link.api}.CONSUMER.MSG.NEXT.{self._streams.jobs}.{kind}"
                pulling = Pulling(self._link, client, subject, lambda: self._store.consumer_made(kind))
                await pulling.open()
                self._pulling[kind] = pulling
                if old is not None:
                    pulling.spare = old.spare  # shared, for something may be on its way there
                    await old.close()
            return self._pulling[kind]

    async def _begun(self, pulling: Pulling, arrivals: Sequence[Arrival]) -> list[TakenJob]:
        """Their jobs. What could not be looked into, or is not handed to anybody after all, is kept for the next."""
        ended: set[int] = set()
        troubles: list[Exception] = []
        jobs: list[TakenJob] = []

        async def begin(arrival: Arrival) -> None:
            try:
                job = await self._job_of(arrival)
            except Exception as error:  # noqa: BLE001 - the others may be fine
                troubles.append(error)
                return
            ended.add(id(arrival))
            if job is not None:
                jobs.append(job)

        self._forget_strangers(pulling, arrivals)
        try:
            await each(begin, arrivals)
        except BaseException:
            began = {job.receipt_handle for job in jobs}
            pulling.spare.extend(a for a in arrivals if id(a) not in ended or a.message.reply in began)
            raise
        pulling.spare.extend(arrival for arrival in arrivals if id(arrival) not in ended)
        if troubles and not jobs:
            raise troubles[0]
        for arrival in arrivals:
            self._held.take([job.receipt_handle or "" for job in jobs if job.native is arrival.message], arrival.at)
        order = {arrival.message.reply: number for number, arrival in enumerate(arrivals)}
        return sorted(jobs, key=lambda job: order[job.receipt_handle or ""])

    def _forget_strangers(self, pulling: Pulling, arrivals: Sequence[Arrival]) -> None:
        """Of jobs that are not here any more, nothing is known."""
        here = {*self._held.receipts, *(arrival.message.reply for arrival in (*arrivals, *pulling.spare))}
        self._known = {receipt: state for receipt, state in self._known.items() if receipt in here}

    async def _job_of(self, arrival: Arrival) -> TakenJob | None:
        """None where it fails instead of being run, or was here for too long already."""
        message = arrival.message
        if time.monotonic() >= arrival.at + self._seconds:
            return None  # the server gives it to somebody again
        state = await self._counted(message)
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

    async def _counted(self, message: Msg) -> State:
        """What is known of it, with the death of whoever had it last, unless it is known how that ended. Once only.

        It is noted at once: whoever had it last, and says only now how that ended, is told that it is too late; if
        that was said a moment earlier, it is counted here.
        """
        if self._is_new(message):
            return _taken(message, State())
        known = self._known.get(message.reply, Noted()).state
        if known is not None:
            return known
        job_id = text_of(message.subject)
        for _ in range(_TRIES):
            before = await self._store.noted(job_id)
            if before.state is None and message.metadata.num_delivered == 1:
                return _taken(message, State())
            state = _taken(message, before.state or State(is_open=True))
            with suppress(AlreadyThere):
                number = await self._store.note(job_id, state, after=before.number)
                self._known[message.reply] = Noted(state, number)
                return state
        raise TimeoutError(_INCONSISTENT)

    def _is_new(self, message: Msg) -> bool:
        """Whether it comes for the first time. New ones come in their order, with the number 1.

        NATS 2.9 says 1 of others, too: when a request for messages expires just as one is to be delivered again, it
        takes its last step back, and delivers as new what it has delivered before.
        """
        number = message.metadata.sequence.stream
        is_new = message.metadata.num_delivered == 1 and number > self._newest
        self._newest = max(number, self._newest)
        return is_new

    async def _note(self, message: Msg, state: State) -> None:
        """Write down how it is with a job that is held; PROCESSING where somebody else has got it meanwhile."""
        job_id, state = text_of(message.subject), _of(message, state)
        after = self._known.get(message.reply, Noted()).number
        for _ in range(_TRIES):
            try:
                number = await self._store.note(job_id, state, after=after)
            except AlreadyThere:
                there = await self._store.noted(job_id)
                if there.state is not None and there.state.of == state.of:
                    if there.state.delivery > state.delivery:
                        raise self.not_active(job_id) from None
                    if there.state.delivery < state.delivery and after == 0:
                        state = _on_top_of(there.state, state)
                after = there.number  # of an earlier job with this id, or ours: its answer was lost
            else:
                self._known[message.reply] = Noted(state, number)
                return
        raise TimeoutError(_INCONSISTENT)

    @property
    def _seconds(self) -> float:
        return (self.lease or LEASE).total_seconds()

    async def _end_unrun(self, job: TakenJob, state: State, reason: QueueFailureReason, words: str) -> None:
        state = msgspec.structs.replace(state, is_open=False, reason=reason, error=words, ended_at=datetime.now(UTC))
        await self._bury(job, state)
        message: Msg = job.native
        self.on_ended(
            stored_job(message.subject, message.headers, message.data, self.queue_name, QueueJobStatus.FAILED, state)
        )

    async def _return_unrun(self, arrival: Arrival) -> None:
        """As it was: nobody has seen it."""
        message = arrival.message
        job_id = text_of(message.subject)
        try:
            if message.subject == self._streams.subject("job", job_id):
                state = await self._counted(message)
                await self._note(message, msgspec.structs.replace(state, is_open=False))
            await self._answer(message.reply, _NAK)
        except Exception as error:  # noqa: BLE001 - told; its lease runs out
            self.events.trouble(error, f"job {job_id!r} could not be given back: {error}")

    # -- those that are delayed

    async def _look_at_delayed(self) -> None:
        """Let those wait whose time has come."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        pulling = await self._puller("later")
        while True:
            arrivals = await pulling.some(_AT_A_TIME)
            await each(self._move_if_due, arrivals)
            if len(arrivals) < _AT_A_TIME:
                return

    async def _move_if_due(self, arrival: Arrival) -> None:
        message = arrival.message
        record = read_record(message.headers)
        missing = (record.scheduled_for - datetime.now(UTC)).total_seconds() if record.scheduled_for else 0.0
        if missing > 0:
            self._next_look = min(self._next_look, time.monotonic() + missing)
            await self._answer(message.reply, _after(missing))
            return
        job_id = text_of(message.subject)
        # Its id is remembered as that of one whose time has come: dying before the next line does not move it twice.
        headers = {**(message.headers or {}), MESSAGE_ID: f"{token(job_id)} is due", **ONLY_IF_NEW}
        with suppress(AlreadyThere):
            await self._store.publish(self._streams.subject("job", job_id), message.data, headers)
        await self._answer(message.reply, _TERMINAL)

    # -- settling

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        with self._held.settling(job):
            if self._streams.keeps_completed and not read_record(job.native.headers).remove_on_complete:
                await self._note_completed(job, result)
            await self._tell(job, _TERMINAL)
            await self._forget(job)

    async def _note_completed(self, job: TakenJob, result: Raw | None) -> None:
        state = msgspec.structs.replace(
            self._state_of(job),
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

    async def _end(self, kind: str, job: TakenJob, state: State) -> None:
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
                self._state_of(job), attempts=job.attempts + 1, is_open=False, error=words_of(error), processed_at=now
            )
            reason = why_for_good(job, error)
            if reason is not None:
                await self._bury(job, msgspec.structs.replace(state, reason=reason, ended_at=now))
                return None
            backoff = read_record(job.native.headers).backoff
            delay = timedelta() if backoff is None else backoff.delay(state.attempts)
            await self._note(job.native, msgspec.structs.replace(state, due_at=now + delay if delay else None))
            await self._give_back(job, until, _after(delay.total_seconds()))
            return delay

    async def _bury(self, job: TakenJob, state: State) -> None:
        """Noted before it is removed: dying in between does both again, and ends with the same."""
        if self._streams.keeps_failed and not read_record(job.native.headers).remove_on_fail:
            await self._end("failed", job, state)
        await self._tell(job, _TERMINAL)
        await self._forget(job)

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        await each(self._release, [job for job in jobs if self._held.has(job)])

    async def _release(self, job: TakenJob) -> None:
        with self._held.settling(job) as until:
            await self._note(job.native, msgspec.structs.replace(self._state_of(job), is_open=False))
            await self._give_back(job, until, _NAK)

    async def _give_back(self, job: TakenJob, until: float, word: bytes) -> None:
        """Whoever is too late by now says nothing: that would take it from somebody else."""
        if time.monotonic() < until:
            await self._tell(job, word)
        self._known.pop(job.receipt_handle or "", None)

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
            state = msgspec.structs.replace(self._state_of(job), progress=progress, is_open=True)
            try:
                await self._note(job.native, state)
            except QueueRuntimeError:
                self._held.drop(job)

    def _key(self, job: TakenJob) -> str:
        """What its subject stands for: the id, unless another program says otherwise in a header."""
        return text_of(job.native.subject)

    def _state_of(self, job: TakenJob) -> State:
        known = self._known.get(job.receipt_handle or "", Noted()).state
        return known or State(attempts=job.attempts, stalls=job.stalls, error=job.error, processed_at=job.processed_at)

    async def _forget(self, job: TakenJob) -> None:
        """Nothing is left of what was known of one that has ended; if that fails, it goes by its age."""
        if self._known.pop(job.receipt_handle or "", None) is not None or job.native.metadata.num_delivered > 1:
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
        raw = await self._store.get(self._streams.failed, self._streams.subject("failed", job_id))
        if raw is None:
            raise self.not_found(job_id)
        record = msgspec.structs.replace(read_record(raw.headers), scheduled_for=None, expires_at=None)
        await self._store.revive(raw, in_header(record))

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
        return await self._store.clear(
            self._streams.completed if status is QueueJobStatus.COMPLETED else self._streams.failed
        )


def _of(message: Msg, state: State) -> State:
    """About this delivery of it."""
    sequence = message.metadata.sequence
    return msgspec.structs.replace(state, of=sequence.stream, delivery=sequence.consumer)


def _taken(message: Msg, before: State) -> State:
    """What is known of a job that has come, from what was before."""
    now = _of(message, before)
    if now == before and now.is_open:
        return now  # it was counted, and the answer to that was lost
    if before.of not in (0, now.of):  # an earlier job had this id
        now = _of(message, State(is_open=message.metadata.num_delivered > 1))
    return msgspec.structs.replace(now, stalls=now.stalls + now.is_open, is_open=True, due_at=None)


def _on_top_of(before: State, state: State) -> State:
    """What was noted of a job that came as if for the first time, and what there was of it all the same."""
    return msgspec.structs.replace(
        state,
        attempts=before.attempts + state.attempts,
        stalls=before.stalls + before.is_open + state.stalls,
    )


def _after(seconds: float) -> bytes:
    """The word for: give it to somebody then."""
    return _NAK + b" " + json.dumps({"delay": int(seconds * 1e9)}).encode() if seconds > 0 else _NAK
