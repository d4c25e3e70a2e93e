"""The data of jobs, checked and measured once on its way in, and checked again on its way out."""

from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Raw

from onward.define.codec import Codec, Limits, encode_foreign
from onward.define.secrets import MASK, redacted, secrets_of
from onward.errors import DefinitionError, PayloadError, QueueConfigurationError, QueueDataError, QueueErrorCode
from onward.queue.model import QueueJob

T = TypeVar("T")
_NO_LIMIT = 1 << 62


class Payload(Generic[T]):
    """Encodes and decodes the data of one queue's jobs."""

    def __init__(self, kind: Any, *, queue_name: str, max_bytes: int = 0) -> None:
        self._queue_name = queue_name
        self._secrets = secrets_of(kind)
        limits = Limits(bytes=max_bytes or _NO_LIMIT, option="max_job_size")
        try:
            self._codec = Codec(kind, job_type=queue_name, part="data", limits=limits, secrets=self._secrets)
        except DefinitionError as error:
            raise QueueConfigurationError("; ".join(error.problems), queue_name=queue_name, cause=error) from error

    def encode(self, data: T, *, job_id: str | None = None) -> Raw:
        """As JSON; a value that could not be read back is refused before anything is sent."""
        try:
            return Raw(self._codec.encode(data).encode())
        except PayloadError as error:
            raise self._refused(error, job_id) from error

    def decode(self, job: QueueJob[Raw]) -> T:
        """The data of a stored job."""
        try:
            data: T = self._codec.decode(bytes(job.data))
        except PayloadError as error:
            raise self._refused(error, job.id) from error
        return data

    def decoded(self, job: QueueJob[Raw]) -> QueueJob[T]:
        """The same job as users see it."""
        return with_data(job, self.decode(job))

    def shown(self, job: QueueJob[Raw]) -> QueueJob[T]:
        """The same for those who only look: data that does not fit, perhaps why the job failed, stays plain JSON."""
        try:
            return self.decoded(job)
        except QueueDataError:
            return with_data(job, msgspec.json.decode(job.data))

    def masked(self, job: QueueJob[T]) -> Any:
        """The data as plain JSON for those who look, without what is marked `Secret`."""
        plain = self._plain(job)
        return plain if self._secrets is None else self._secrets.masked(plain)

    def error_of(self, job: QueueJob[T]) -> str | None:
        """The message of its last error, without the secrets of its data."""
        if job.error is None or self._secrets is None:
            return job.error
        return redacted(job.error, self._secrets.texts(self._plain(job)))

    def _plain(self, job: QueueJob[T]) -> Any:
        try:
            return msgspec.json.decode(msgspec.json.encode(job.data, enc_hook=encode_foreign))
        except (TypeError, ValueError, RecursionError):
            return MASK  # nobody knows what is secret in it

    def _refused(self, error: PayloadError, job_id: str | None) -> QueueDataError:
        at = f" at {error.field}" if error.field not in ("", "$") else ""
        return QueueDataError(
            f"data{at}: {error.problem}",
            code=QueueErrorCode.VALIDATION,
            queue_name=self._queue_name,
            job_id=job_id,
            cause=error,
        )


def with_data(job: QueueJob[Raw], data: T) -> QueueJob[T]:
    """A stored job with its data and result as users see them; an active one stays active."""
    if isinstance(job.result, Raw):
        return cast(QueueJob[T], msgspec.structs.replace(job, data=data, result=msgspec.json.decode(job.result)))
    return cast(QueueJob[T], msgspec.structs.replace(job, data=data))
