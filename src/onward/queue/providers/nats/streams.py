"""The streams behind a queue: their names, their subjects, and how they are made."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote

from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.model import KEEP_COMPLETED, KEEP_FAILED, Keep
from onward.queue.providers.nats.native import JetStreamContext, api, js_errors

Storage: TypeAlias = Literal["file", "memory"]

LEASE = timedelta(seconds=30)
"""What a queue is made with where nothing else is said."""
_REMEMBERED = timedelta(minutes=2)
"""How long the server knows the ids it was given, whatever became of the jobs."""
_NAME_IN_USE = 10058
_NOT_AS_IT_IS_WANTED = (10052, 10074)
"""A configuration that cannot be, and more replicas than there are servers."""
_STATE_AGE = timedelta(days=60)
"""What is left behind by a worker that died in the wrong moment goes after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How streams are made; `None` is as they are, or the default for new ones."""

    prefix: str = "onward"
    lease: timedelta | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    replicas: int = 1
    storage: Storage = "file"


def token(text: str) -> str:
    """As a part of a subject or of a stream's name."""
    return quote(text, safe="").replace(".", "%2E")


def text_of(subject: str) -> str:
    """What the last part of a subject stands for."""
    return unquote(subject.rpartition(".")[2])


class Streams:
    """Of one queue: jobs that wait or run, those that are delayed, what is known of those that were taken before, and
    those that have ended."""

    def __init__(self, queue_name: str, settings: Settings) -> None:
        self._settings, self._queue = settings, token(queue_name)
        self.queue_name = queue_name
        self.jobs, self.state = self._stream("jobs"), self._stream("state")
        self.completed, self.failed = self._stream("completed"), self._stream("failed")

    @property
    def keeps_completed(self) -> bool:
        keep = self._settings.keep_completed
        return keep is None or keep.count > 0

    @property
    def keeps_failed(self) -> bool:
        keep = self._settings.keep_failed
        return keep is None or keep.count > 0

    def _stream(self, kind: str) -> str:
        # NATS 2.9 takes the name of a stream for a format string: a percent sign breaks every acknowledgement.
        return f"{self._settings.prefix}-{kind}-{self._queue.replace('%', '=')}"

    def subject(self, kind: str, job_id: str) -> str:
        """Of one job: `job`, `later`, `state`, `completed` or `failed`."""
        return f"{self._settings.prefix}.{self._queue}.{kind}.{token(job_id)}"

    def subjects(self, kind: str) -> str:
        return f"{self._settings.prefix}.{self._queue}.{kind}.*"

    async def declare(self, jetstream: JetStreamContext) -> timedelta:
        """Have them all; how long the server gives a worker that is not heard of."""
        settings = self._settings
        await self._have(
            jetstream,
            self.jobs,
            subjects=[self.subjects("job"), self.subjects("later")],
            retention=api.RetentionPolicy.WORK_QUEUE,
            duplicate_window=_REMEMBERED.total_seconds(),
        )
        await self._have(
            jetstream,
            self.state,
            subjects=[self.subjects("state")],
            max_msgs_per_subject=1,
            max_age=_STATE_AGE.total_seconds(),
        )
        await self._have_kept(jetstream, self.completed, "completed", settings.keep_completed, KEEP_COMPLETED)
        await self._have_kept(jetstream, self.failed, "failed", settings.keep_failed, KEEP_FAILED)
        await self._have_consumer(jetstream, "later")
        return await self._have_consumer(jetstream, "job")

    async def _have_kept(
        self, jetstream: JetStreamContext, name: str, kind: str, keep: Keep | None, default: Keep
    ) -> None:
        wanted = keep or default
        limits = {"max_msgs": wanted.count, "max_age": wanted.age.total_seconds()}
        info = await self._have(
            jetstream, name, subjects=[self.subjects(kind)], max_msgs_per_subject=1, **_unlimited_is_not_zero(limits)
        )
        if keep is not None and not _keeps(info.config, limits):
            await jetstream.update_stream(info.config, **_unlimited_is_not_zero(limits))

    async def _have(self, jetstream: JetStreamContext, name: str, **config: Any) -> api.StreamInfo:
        try:
            return await jetstream.stream_info(name)
        except js_errors.NotFoundError:
            pass
        try:
            return await jetstream.add_stream(
                name=name,
                storage=api.StorageType(self._settings.storage),
                num_replicas=self._settings.replicas,
                allow_direct=True,
                **config,
            )
        except js_errors.APIError as error:
            if error.err_code == _NAME_IN_USE:  # somebody else was faster
                return await jetstream.stream_info(name)
            if isinstance(error, js_errors.BadRequestError) or error.err_code in _NOT_AS_IT_IS_WANTED:
                raise self._refused(name, error) from error
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
            filter_subject=self.subjects(kind),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=wanted.total_seconds(),
            # How often a job is tried is counted per job; those that wait for an attempt are unacknowledged, too.
            max_deliver=-1,
            max_ack_pending=-1,
        )
        return wanted

    def _refused(self, name: str, error: js_errors.APIError) -> QueueConfigurationError:
        return QueueConfigurationError(
            f"NATS does not make the stream {name!r}: {error.description}",
            code=QueueErrorCode.INVALID_OPTION,
            queue_name=self.queue_name,
            cause=error,
        )

    async def delete(self, jetstream: JetStreamContext) -> None:
        for name in (self.jobs, self.state, self.completed, self.failed):
            with suppress(js_errors.NotFoundError):
                await jetstream.delete_stream(name)


def _unlimited_is_not_zero(limits: dict[str, Any]) -> dict[str, Any]:
    """To JetStream 0 is no limit: who keeps none publishes none, and what is there goes with the next one.

    And it does not remember ids for longer than messages.
    """
    age = max(limits["max_age"], 0.1)
    return {
        "max_msgs": max(limits["max_msgs"], 1),
        "max_age": age,
        "duplicate_window": min(age, _REMEMBERED.total_seconds()),
    }


def _keeps(config: api.StreamConfig, limits: dict[str, Any]) -> bool:
    wanted = _unlimited_is_not_zero(limits)
    return (config.max_msgs, config.max_age) == (wanted["max_msgs"], wanted["max_age"])
