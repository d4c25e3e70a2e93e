"""What a queue has in its streams, read and written."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec
from nats import errors
from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors

from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import QueueJobStatus, QueueStats
from onward.queue.providers.nats.link import Link
from onward.queue.providers.nats.streams import (
    JOB,
    LAST_NUMBER,
    ONLY_IF_NEW,
    STATE,
    State,
    Streams,
    fitted,
    in_header,
    own_headers,
    read_state,
    stored_job,
    text_of,
)
from onward.queue.providers.together import each

_WRONG_LAST_SEQUENCE = 10071
_TRIES = 5
"""How often something is noted of a job of which others note something at the same time."""
_INCONSISTENT = "NATS does not say the same twice of what is known of the job"
MOST_HEADERS = (1 << 16) - 1
"""Bytes of headers that JetStream takes with a message, however large that may be."""


class AlreadyThere(Exception):
    """A message of this subject, or of this id, is there already."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far a consumer has come: what has a greater number was not delivered to anybody."""

    sequence: int

    def includes(self, raw: api.RawStreamMsg) -> bool:
        return (raw.seq or 0) <= self.sequence


@dataclass(frozen=True, slots=True)
class Noted:
    """What is stored of a job, and the number of that note: 0 where there is none."""

    state: State | None = None
    number: int = 0


def size_of(data: bytes, headers: Mapping[str, str]) -> int:
    """As the server counts, or a little more."""
    return len(data) + 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


class NatsStore:
    """Of one queue."""

    def __init__(self, link: Link, streams: Streams) -> None:
        self._link, self.streams = link, streams

    async def declare(self) -> float:
        """Have all streams; the lease in seconds."""
        return (await self.streams.declare(await self._link.streams())).total_seconds()

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
        return in_header(fitted(state, await self._room(data, {**headers, STATE: ""})))

    async def note(self, job_id: str, state: State, *, after: int) -> int:
        """Write down what is known of a job; `AlreadyThere` when the last note of it is another than that one."""
        headers = {LAST_NUMBER: str(after)}
        headers[STATE] = await self._fitted(state, b"", headers)
        return await self.publish(self.streams.subject("state", job_id), b"", headers)

    async def forget_state(self, job_id: str) -> None:
        await self._purge(self.streams.state, self.streams.subject("state", job_id))

    async def end(self, kind: str, job_id: str, message: Msg, state: State, *, with_headers: bool = True) -> None:
        """Note that it completed, or failed; `MaxPayloadError` where the result, or the headers, leave no room."""
        headers = own_headers(message.headers) if with_headers else {}
        if state.result is None:
            headers[STATE] = await self._fitted(state, message.data, headers)
        else:
            headers[STATE] = in_header(state)
        await self.publish(self.streams.subject(kind, job_id), message.data, headers)

    async def revive(self, raw: api.RawStreamMsg, record: str) -> None:
        """From the failed ones to those that wait; harmless when it waits already."""
        job_id = text_of(raw.subject or "")
        try:
            headers = {**own_headers(raw.headers), JOB: record, **ONLY_IF_NEW}
            await self.publish(self.streams.subject("job", job_id), raw.data or b"", headers)
        except AlreadyThere:
            pass
        await self._purge(self.streams.failed, self.streams.subject("failed", job_id))

    async def remove_ended(self, job_id: str) -> bool:
        """From what is kept; whether it was there."""
        found = False
        for kind, stream in (("completed", self.streams.completed), ("failed", self.streams.failed)):
            subject = self.streams.subject(kind, job_id)
            if await self.get(stream, subject) is not None:
                await self._purge(stream, subject)
                found = True
        return found

    async def remove_unended(self, raw: api.RawStreamMsg) -> None:
        await (await self._link.streams()).delete_msg(self.streams.jobs, raw.seq or 0)
        await self.forget_state(text_of(raw.subject or ""))

    async def clear(self, stream: str) -> int:
        """Remove everything from it; how much that was."""
        jetstream = await self._link.streams()
        count = (await jetstream.stream_info(stream)).state.messages
        await jetstream.purge_stream(stream)
        return count

    async def _purge(self, stream: str, subject: str) -> None:
        await (await self._link.streams()).purge_stream(stream, subject=subject)

    # -- reading

    async def get(self, stream: str, subject: str) -> api.RawStreamMsg | None:
        """The message of that subject."""
        try:
            return await (await self._link.streams()).get_msg(stream, subject=subject, direct=True)
        except (js_errors.NotFoundError, errors.NoRespondersError):
            return None
        except errors.TimeoutError:
            # Nobody answers for a stream that does not exist.
            if await self._exists(stream):
                raise
            await self.declare()
            return None

    async def _exists(self, stream: str) -> bool:
        try:
            await (await self._link.streams()).stream_info(stream)
        except js_errors.NotFoundError:
            return False
        return True

    async def noted(self, job_id: str) -> Noted:
        raw = await self.get(self.streams.state, self.streams.subject("state", job_id))
        return Noted() if raw is None else Noted(read_state(raw.headers), raw.seq or 0)

    async def unended(self, job_id: str) -> api.RawStreamMsg | None:
        """Delayed, waiting or running."""
        # In this order it is not missed when its time comes between the two questions.
        for kind in ("later", "job"):
            raw = await self.get(self.streams.jobs, self.streams.subject(kind, job_id))
            if raw is not None:
                return raw
        return None

    async def consumer_made(self, kind: str) -> str | None:
        """When that was made who answers requests for messages; none where there is nobody."""
        try:
            info = await (await self._link.streams()).consumer_info(self.streams.jobs, kind)
        except js_errors.NotFoundError:
            return None
        return str(info.created)

    async def delivered(self) -> Delivered:
        info = await (await self._link.streams()).consumer_info(self.streams.jobs, "job")
        return Delivered(info.delivered.stream_seq if info.delivered is not None else 0)

    async def as_job(self, raw: api.RawStreamMsg, delivered: Delivered) -> StoredJob:
        """A job that has not ended, with where it is."""
        subject = raw.subject or ""
        if subject == self.streams.subject("later", text_of(subject)):
            status, state = QueueJobStatus.DELAYED, State()
        elif not delivered.includes(raw):
            status, state = QueueJobStatus.WAITING, State()
        else:
            found = (await self.noted(text_of(subject))).state
            if found is not None and found.of != raw.seq:
                found = None
            status, state = _status_of(found), found or State()
        return stored_job(subject, raw.headers, raw.data, self.streams.queue_name, status, state)

    async def ended(self, job_id: str) -> StoredJob | None:
        for kind, stream in (("completed", self.streams.completed), ("failed", self.streams.failed)):
            raw = await self.get(stream, self.streams.subject(kind, job_id))
            if raw is not None:
                return self._as_ended(raw, kind)
        return None

    def _as_ended(self, raw: api.RawStreamMsg, kind: str) -> StoredJob:
        status = QueueJobStatus(kind)
        return stored_job(
            raw.subject or "", raw.headers, raw.data, self.streams.queue_name, status, read_state(raw.headers)
        )

    async def newest(self, kind: str, before: int | None, limit: int) -> list[tuple[int, StoredJob]]:
        """Those that have ended, from the end of their stream on, with their numbers."""
        stream = self.streams.completed if kind == "completed" else self.streams.failed
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
        jetstream, subjects = await self._link.streams(), self.streams.subjects("*")
        while True:
            try:
                raw = await jetstream.get_msg(
                    self.streams.jobs, seq=after + 1, subject=subjects, direct=True, next=True
                )
            except js_errors.NotFoundError:
                return
            after = raw.seq or 0
            yield raw

    async def counts(self) -> QueueStats:
        jetstream = await self._link.streams()
        job, later = await each(partial(jetstream.consumer_info, self.streams.jobs), ("job", "later"))
        completed, failed = await each(jetstream.stream_info, (self.streams.completed, self.streams.failed))
        return QueueStats(
            waiting=job.num_pending or 0,
            active=job.num_ack_pending or 0,
            delayed=(later.num_pending or 0) + (later.num_ack_pending or 0),
            completed=completed.state.messages,
            failed=failed.state.messages,
        )

    async def delete(self) -> None:
        await self.streams.delete(await self._link.streams())


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
