"""What is stored of a queue's job: an envelope, or the input of one of the app's own job types."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Raw

from onward.client.untaken import OF_QUEUES
from onward.define.codec import Codec, Limits
from onward.define.registry import RegisteredType
from onward.errors import PayloadError
from onward.lifecycle.settle import RetryPolicy
from onward.model import Backoff
from onward.queue.contract import StoredJob
from onward.queue.ids import as_uuid, derived_id
from onward.queue.model import FULL
from onward.queue.options import Options, lacking

_AT_ONCE = Backoff(initial=timedelta())


class JobFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job beside its data."""

    id: str
    name: str
    attempts: int | None = 1
    max_stalls: int | None = 3
    """None: the deaths of workers are attempts, as they are for chains."""
    expires_at: datetime | None = None
    backoff: Backoff | None = None
    """None: tried again at once."""
    metadata: Mapping[str, Any] = {}
    remove_on_complete: bool = False
    remove_on_fail: bool = False

    @property
    def policy(self) -> RetryPolicy:
        """When a failed attempt is tried again."""
        return RetryPolicy(backoff=self.backoff or _AT_ONCE, max_attempts=self.attempts)


class _Envelope(msgspec.Struct, frozen=True):
    job: JobFacts
    data: Raw


class _Result(msgspec.Struct, frozen=True):
    taken_at: datetime | None
    result: Raw


class Enveloped:
    """Plain data: the input is `{"job": {…facts}, "data": …}`, the output `{"taken_at": …, "result": …}`.

    What does not fit is a PayloadError, as it is below.
    """

    capabilities = FULL
    versions: tuple[int, ...] = (1,)
    """Of the payload: those that can be read, the one that is written first."""

    def __init__(self, queue_name: str) -> None:
        self.type_name = f"{OF_QUEUES}{queue_name}"
        self._queue_name = queue_name
        self._facts = Codec(JobFacts, job_type=queue_name, part="job", limits=Limits())
        self._decode = msgspec.json.Decoder(_Envelope).decode

    def lacks(self, option: str) -> str | None:
        return lacking(option, self.capabilities)

    def id_of(self, job_id: str) -> UUID | None:
        """The id of the chain of a job; None for one that no job can have."""
        return as_uuid(job_id) or derived_id(self.type_name, job_id)

    def write(self, job: StoredJob, options: Options) -> str:
        facts = JobFacts(
            id=job.id,
            name=job.name,
            attempts=options.attempts,
            max_stalls=options.max_stalls,
            expires_at=job.expires_at,
            backoff=options.backoff,
            metadata=options.metadata,
            remove_on_complete=options.remove_on_complete,
            remove_on_fail=options.remove_on_fail,
        )
        checked = Raw(self._facts.encode(facts).encode())
        return msgspec.json.encode({"job": checked, "data": job.data}).decode()

    def read(self, id: UUID, input: str, version: int) -> tuple[JobFacts, Raw]:
        try:
            envelope = self._decode(input)
        except msgspec.MsgspecError as error:
            raise PayloadError(job_type=self.type_name, part="input", field="$", problem=str(error)) from error
        return envelope.job, envelope.data

    def write_result(self, result: Raw | None, taken_at: datetime | None) -> str:
        return msgspec.json.encode(_Result(taken_at, Raw(b"null") if result is None else result)).decode()

    def read_taken_at(self, output: Any) -> datetime | None:
        return msgspec.convert(output["taken_at"], datetime | None)

    def read_result(self, output: Any) -> Any:
        return output["result"]


class Typed:
    """One of the app's own job types: the input and output are those of the type, and so are its retries and ids."""

    capabilities = msgspec.structs.replace(
        FULL, retries=False, backoff=False, removal=False, stalls=False, ttl=False, keeps=False
    )

    def __init__(self, job_type: RegisteredType) -> None:
        self.type_name, self.versions, self._kind = job_type.name, job_type.versions, job_type

    def lacks(self, option: str) -> str | None:
        match option:
            case "attempts" | "backoff" | "max_stalls":
                return f"{option} per job on the queue of a job type: those of {self.type_name!r} apply"
            case "metadata":
                return "metadata on the queue of a job type: its jobs have an input and no more"
            case _:
                return lacking(option, self.capabilities)

    def id_of(self, job_id: str) -> UUID | None:
        return as_uuid(job_id)

    def write(self, job: StoredJob, options: Options) -> str:
        if job.name != self.type_name:
            self._refuse("name", f"jobs of this queue are of the job type {self.type_name!r}, not {job.name!r}")
        return self._kind.input.bare.encode(self._kind.input.bare.decode(bytes(job.data)))

    def read(self, id: UUID, input: str, version: int) -> tuple[JobFacts, Raw]:
        definition = self._kind.definition
        if version != definition.version:
            input = self._kind.input.bare.encode(self._kind.read_input(input, version, id))
        facts = JobFacts(
            id=str(id),
            name=self.type_name,
            attempts=definition.max_attempts,
            max_stalls=None,
            backoff=self._kind.backoff or Backoff(),
        )
        return facts, Raw(input.encode())

    def write_result(self, result: Raw | None, taken_at: datetime | None) -> str:
        if self._kind.output is None:
            self._refuse("output", "it always continues, so only workers of the app can run it, not a QueueWorker")
        output = self._kind.output.bare
        return output.encode(output.decode(b"null" if result is None else bytes(result)))

    def read_taken_at(self, output: Any) -> datetime | None:
        return None

    def read_result(self, output: Any) -> Any:
        return output

    def _refuse(self, part: str, problem: str) -> NoReturn:
        raise PayloadError(job_type=self.type_name, part=part, field="$", problem=problem)


Form: TypeAlias = Enveloped | Typed
"""How the jobs of one queue are written and read."""
