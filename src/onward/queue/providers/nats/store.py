"""The streams behind a queue: jobs that wait or run, those that are delayed, what is known of those that were taken
before, and those that have ended."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
from nats import errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js import errors as js_errors

from onward.errors import QueueConfigurationError
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, Keep, QueueJobStatus, QueueStats
from onward.queue.providers.nats.link import Link
from onward.queue.providers.nats.messages import (
    LAST_NUMBER,
    ONLY_IF_NEW,
    Record,
    State,
    fitted,
    in_header,
    own_headers,
    read,
    size_of,
    stored_job,
    text_of,
    token,
)
from onward.queue.providers.together import each

Storage: TypeAlias = Literal["file", "memory"]
Ended: TypeAlias = Literal["completed", "failed"]

LEASE = timedelta(seconds=30)
"""What a queue is made with where nothing else is said."""
MOST_HEADERS = (1 << 16) - 1
"""Bytes of headers that JetStream takes with a message, however large that may be."""
_REMEMBERED = timedelta(minutes=2).total_seconds()
"""How long the server knows the ids it was given, whatever became of the jobs."""
_STATE_AGE = timedelta(days=60).total_seconds()
"""What is left behind by a worker that died in the wrong moment goes after this."""
_NAME_IN_USE, _WRONG_LAST_SEQUENCE = 10058, 10071
_NOT_AS_IT_IS_WANTED = (10052, 10074)
"""A configuration that cannot be, and more replicas than there are servers."""
_TRIES = 5
"""How often something is noted of a job of which others note something at the same time."""
_INCONSISTENT = "NATS does not say the same twice of what is known of the job"


class AlreadyThere(Exception):
    """A message of this subject, or of this id, is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How streams are made; `None` is as they are, or the default for new ones."""

    prefix: str = "onward"
    lease: timedelta | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    replicas: int = 1
    storage: Storage = "file"

    def keeps(self, kind: Ended) -> bool:
        keep = self.keep_completed if kind == "completed" else self.keep_failed
        return keep is None or keep.count > 0


@dataclass(frozen=True, slots=True)
class Noted:
    """What is stored of a job, and the number of that note: 0 where there is none."""

    state: State | None = None
    number: int = 0


class NatsStore:
    """Of one queue."""

    def __init__(self, link: Link, queue_name: str, settings: Settings) -> None:
        self._link, self._queue_name, self._settings = link, queue_name, settings
        self._queue = token(queue_name)
        self.jobs, self._state = self._stream("jobs"), self._stream("state")

    def _stream(self, kind: str) -> str:
        # NATS 2.9 takes the name of a stream for a format string: a percent sign breaks every acknowledgement.
        return f"{self._settings.prefix}-{kind}-{self._queue.replace('%', '=')}"

    def subject(self, kind: str, job_id: str) -> str:
        """Of one job: `job`, `later`, `state`, `completed` or `failed`."""
        return f"{self._settings.prefix}.{self._queue}.{kind}.{token(job_id)}"

    def _subjects(self, kind: str) -> str:
        return f"{self._settings.prefix}.{self._queue}.{kind}.*"

    async def declare(self) -> timedelta:
        """Have all streams; how long the server gives a worker that is not heard of."""
        jetstream = await self._link.streams()
        work_queue = api.RetentionPolicy.WORK_QUEUE
        await self._have(jetstream, "jobs", "job", "later", retention=work_queue, duplicate_window=_REMEMBERED)
        await self._have(jetstream, "state", "state", max_msgs_per_subject=1, max_age=_STATE_AGE)
        await self._have_kept(jetstream, "completed", self._settings.keep_completed, KEEP_COMPLETED)
        await self._have_kept(jetstream, "failed", self._settings.keep_failed, KEEP_FAILED)
        await self._have_consumer(jetstream, "later")
        return await self._have_consumer(jetstream, "job")

    async def _have_kept(self, jetstream: JetStreamContext, kind: Ended, keep: Keep | None, default: Keep) -> None:
        limits = _limits(keep or default)
        config = (await self._have(jetstream, kind, kind, max_msgs_per_subject=1, **limits)).config
        if keep is not None and (config.max_msgs, config.max_age) != (limits["max_msgs"], limits["max_age"]):
            await jetstream.update_stream(config, **limits)

    async def _have(self, jetstream: JetStreamContext, stream: str, *kinds: str, **config: Any) -> api.StreamInfo:
        name = self._stream(stream)
        try:
            return await jetstream.stream_info(name)
        except js_errors.NotFoundError:
            pass
        try:
            return await jetstream.add_stream(
                name=name,
                subjects=[self._subjects(kind) for kind in kinds],
                storage=api.StorageType(self._settings.storage),
                num_replicas=self._settings.replicas,
                allow_direct=True,
                **config,
            )
        except js_errors.APIError as error:
            if error.err_code == _NAME_IN_USE:  # somebody else was faster
                return await jetstream.stream_info(name)
            if isinstance(error, js_errors.BadRequestError) or error.err_code in _NOT_AS_IT_IS_WANTED:
                problem = f"NATS does not make the stream {name!r}: {error.description}"
                raise QueueConfigurationError(problem, queue_name=self._queue_name, cause=error) from error
            raise

    async def _have_consumer(self, jetstream: JetStreamContext, kind: str) -> timedelta:
        lease = self._settings.lease
        try:
            config = (await jetstream.consumer_info(self.jobs, kind)).config
            if lease is None or config.ack_wait == lease.total_seconds():
                return timedelta(seconds=config.ack_wait or 0)
        except js_errors.NotFoundError:
            pass
        wanted = lease or LEASE
        await jetstream.add_consumer(
            self.jobs,
            durable_name=kind,
            filter_subject=self._subjects(kind),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=wanted.total_seconds(),
            # How often a job is tried is counted per job; those that wait for an attempt are unacknowledged, too.
            max_deliver=-1,
            max_ack_pending=-1,
        )
        return wanted

    async def delete(self) -> None:
        jetstream = await self._link.streams()
        for kind in ("jobs", "state", "completed", "failed"):
            with suppress(js_errors.NotFoundError):
                await jetstream.delete_stream(self._stream(kind))

    # -- writing

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """Returns its number when it is stored; `AlreadyThere` when the headers ask for what is not so."""
        if await self._room(data, headers) < 0:
            # The server would end the connection for that, with whatever others do on it; the client looks at the data.
            raise errors.MaxPayloadError
        try:
            answer = await self._link.request(subject, data, headers)
        except errors.NoRespondersError:
            await self.declare()  # somebody deleted the queue
            answer = await self._link.request(subject, data, headers)
        said = json.loads(answer.data)
        if "error" in said:
            if said["error"].get("err_code") == _WRONG_LAST_SEQUENCE:
                raise AlreadyThere
            raise js_errors.APIError.from_error(said["error"])
        if said.get("duplicate"):
            raise AlreadyThere
        return int(said["seq"])

    async def _room(self, data: bytes, headers: Mapping[str, str]) -> int:
        """How many bytes more of headers the server takes."""
        most = (await self._link.client()).max_payload
        return min(most - size_of(data, headers), MOST_HEADERS - size_of(b"", headers))

    async def _fitted(self, state: State, data: bytes, headers: Mapping[str, str]) -> str:
        """As the header that goes with these."""
        return in_header(fitted(state, await self._room(data, {**headers, State.header: ""})))

    async def note(self, job_id: str, state: State, *, after: int) -> int:
        """Write down what is known of a job; `AlreadyThere` when the last note of it is another than that one."""
        headers = {LAST_NUMBER: str(after)}
        headers[State.header] = await self._fitted(state, b"", headers)
        return await self.publish(self.subject("state", job_id), b"", headers)

    async def forget_state(self, job_id: str) -> None:
        await self._purge("state", job_id)

    async def end(self, kind: Ended, job_id: str, message: Msg, state: State, *, with_headers: bool = True) -> None:
        """Note that it completed, or failed; `MaxPayloadError` where the result, or the headers, leave no room."""
        headers = own_headers(message.headers) if with_headers else {}
        if state.result is None:
            headers[State.header] = await self._fitted(state, message.data, headers)
        else:
            headers[State.header] = in_header(state)
        await self.publish(self.subject(kind, job_id), message.data, headers)

    async def revive(self, raw: api.RawStreamMsg, record: Record) -> None:
        """From the failed ones to those that wait; harmless when it waits already."""
        job_id = text_of(raw.subject)
        try:
            headers = {**own_headers(raw.headers), Record.header: in_header(record), **ONLY_IF_NEW}
            await self.publish(self.subject("job", job_id), raw.data or b"", headers)
        except AlreadyThere:
            pass
        await self._purge("failed", job_id)

    async def remove_ended(self, job_id: str) -> bool:
        """From what is kept; whether it was there."""
        kinds = [kind for kind in ("completed", "failed") if await self.get(kind, job_id) is not None]
        for kind in kinds:
            await self._purge(kind, job_id)
        return bool(kinds)

    async def remove_unended(self, raw: api.RawStreamMsg) -> None:
        await (await self._link.streams()).delete_msg(self.jobs, raw.seq or 0)
        await self.forget_state(text_of(raw.subject))

    async def clear(self, kind: str) -> int:
        """Remove all that have ended that way; how many they were."""
        jetstream = await self._link.streams()
        count = (await jetstream.stream_info(self._stream(kind))).state.messages
        await jetstream.purge_stream(self._stream(kind))
        return count

    async def _purge(self, kind: str, job_id: str) -> None:
        await (await self._link.streams()).purge_stream(self._stream(kind), subject=self.subject(kind, job_id))

    # -- reading

    async def get(self, kind: str, job_id: str) -> api.RawStreamMsg | None:
        """The message of that subject."""
        stream = self.jobs if kind in ("job", "later") else self._stream(kind)
        jetstream = await self._link.streams()
        try:
            return await jetstream.get_msg(stream, subject=self.subject(kind, job_id), direct=True)
        except (js_errors.NotFoundError, errors.NoRespondersError):
            return None
        except errors.TimeoutError:
            # Nobody answers for a stream that does not exist.
            try:
                await jetstream.stream_info(stream)
            except js_errors.NotFoundError:
                await self.declare()
                return None
            raise

    async def noted(self, job_id: str) -> Noted:
        raw = await self.get("state", job_id)
        return Noted() if raw is None else Noted(read(State, raw.headers), raw.seq or 0)

    async def unended(self, job_id: str) -> api.RawStreamMsg | None:
        """Delayed, waiting or running."""
        # In this order it is not missed when its time comes between the two questions.
        for kind in ("later", "job"):
            raw = await self.get(kind, job_id)
            if raw is not None:
                return raw
        return None

    async def consumer_made(self, kind: str) -> str | None:
        """When that was made who answers requests for messages; none where there is nobody."""
        try:
            info = await (await self._link.streams()).consumer_info(self.jobs, kind)
        except js_errors.NotFoundError:
            return None
        return str(info.created)

    async def delivered(self) -> int:
        """How far their consumer has come: what has a greater number was not delivered to anybody."""
        info = await (await self._link.streams()).consumer_info(self.jobs, "job")
        return info.delivered.stream_seq if info.delivered is not None else 0

    async def as_job(self, raw: api.RawStreamMsg, delivered: int) -> StoredJob:
        """A job that has not ended, with where it is."""
        job_id = text_of(raw.subject)
        if raw.subject == self.subject("later", job_id):
            status, state = QueueJobStatus.DELAYED, State()
        elif (raw.seq or 0) > delivered:
            status, state = QueueJobStatus.WAITING, State()
        else:
            found = (await self.noted(job_id)).state
            if found is not None and found.of != raw.seq:
                found = None
            status, state = _status_of(found), found or State()
        return stored_job(raw, self._queue_name, status, state)

    async def ended(self, job_id: str) -> StoredJob | None:
        for kind in ("completed", "failed"):
            raw = await self.get(kind, job_id)
            if raw is not None:
                return self._as_ended(raw, kind)
        return None

    def _as_ended(self, raw: api.RawStreamMsg, kind: str) -> StoredJob:
        return stored_job(raw, self._queue_name, QueueJobStatus(kind), read(State, raw.headers))

    async def newest(self, kind: str, before: int | None, limit: int) -> list[tuple[int, StoredJob]]:
        """Those that have ended, from the end of their stream on, with their numbers."""
        stream = self._stream(kind)
        state = (await (await self._link.streams()).stream_info(stream)).state
        number, found = state.last_seq if before is None else before - 1, list[tuple[int, StoredJob]]()
        while len(found) < limit and number >= max(state.first_seq, 1):
            lowest = max(state.first_seq, number - limit + 1, 1)
            came = await each(partial(self._at, stream), range(number, lowest - 1, -1))
            found += [(raw.seq or 0, self._as_ended(raw, kind)) for raw in came if raw is not None]
            number = lowest - 1
        return found[:limit]

    async def _at(self, stream: str, number: int) -> api.RawStreamMsg | None:
        try:
            return await (await self._link.streams()).get_msg(stream, seq=number, direct=True)
        except js_errors.NotFoundError:
            return None

    async def all_unended(self, after: int) -> AsyncIterator[api.RawStreamMsg]:
        """In their order."""
        jetstream, subjects = await self._link.streams(), self._subjects("*")
        while True:
            try:
                raw = await jetstream.get_msg(self.jobs, seq=after + 1, subject=subjects, direct=True, next=True)
            except js_errors.NotFoundError:
                return
            after = raw.seq or 0
            yield raw

    async def counts(self) -> QueueStats:
        jetstream = await self._link.streams()
        job, later = await each(partial(jetstream.consumer_info, self.jobs), ("job", "later"))
        completed, failed = await each(jetstream.stream_info, (self._stream("completed"), self._stream("failed")))
        return QueueStats(
            waiting=job.num_pending or 0,
            active=job.num_ack_pending or 0,
            delayed=(later.num_pending or 0) + (later.num_ack_pending or 0),
            completed=completed.state.messages,
            failed=failed.state.messages,
        )


def _limits(keep: Keep) -> dict[str, Any]:
    """To JetStream 0 is no limit: who keeps none publishes none, and what is there goes with the next one.

    And it does not remember ids for longer than messages.
    """
    age = max(keep.age.total_seconds(), 0.1)
    return {"max_msgs": max(keep.count, 1), "max_age": age, "duplicate_window": min(age, _REMEMBERED)}


def _status_of(state: State | None) -> QueueJobStatus:
    """Of one that was delivered."""
    if state is None or state.is_open:
        return QueueJobStatus.ACTIVE
    is_early = state.due_at is not None and state.due_at > datetime.now(UTC)
    return QueueJobStatus.DELAYED if is_early else QueueJobStatus.WAITING


class Notes:
    """What is known of the jobs that are held here: how often they were taken before, and how that ended."""

    def __init__(self, store: NatsStore, not_active: Callable[[str], Exception]) -> None:
        self._store, self._not_active = store, not_active
        self._newest = 0
        self._known: dict[str, Noted] = {}
        """By receipt: what is stored of those for which something is."""

    def of(self, job: TakenJob) -> State:
        known = self._known.get(job.receipt_handle or "", Noted()).state
        return known or State(attempts=job.attempts, stalls=job.stalls, error=job.error, processed_at=job.processed_at)

    def keep_only(self, receipts: Iterable[str]) -> None:
        """Of jobs that are not here any more, nothing is known."""
        here = set(receipts)
        self._known = {receipt: noted for receipt, noted in self._known.items() if receipt in here}

    def drop(self, job: TakenJob) -> bool:
        """Whether anything was known."""
        return self._known.pop(job.receipt_handle or "", None) is not None

    async def counted(self, message: Msg) -> State:
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

    async def write(self, message: Msg, state: State) -> None:
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
                        raise self._not_active(job_id) from None
                    if there.state.delivery < state.delivery and after == 0:
                        state = _on_top_of(there.state, state)
                after = there.number  # of an earlier job with this id, or ours: its answer was lost
            else:
                self._known[message.reply] = Noted(state, number)
                return
        raise TimeoutError(_INCONSISTENT)


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
