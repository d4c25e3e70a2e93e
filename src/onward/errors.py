"""Every error Onward raises. An error carries its facts as attributes; its message says what to do next.

OnwardError
├── DefinitionError                 the job types do not fit together
├── ConfigurationError              an option, DSN or extra is wrong or missing
│   ├── SchemaMissing               run `onward migrate`
│   ├── LimitNotFound               no limit of this name
│   ├── MissingContext              nothing provides the value a handler asked for
│   └── InvalidKey                  no key to encrypt with
├── PayloadError                    an input or output does not fit its type, or cannot be stored
│   └── DecryptionError             what is stored cannot be decrypted
│       ├── UnknownKey              it was encrypted with a key that is not here
│       ├── PayloadTampered         it was changed, or belongs to another job
│       └── PayloadNotEncrypted     it is plain where nothing plain is accepted
├── StartRefused                    nothing was started
│   ├── UnknownJobType
│   ├── InternalJobType
│   ├── UndeclaredStep              a continuation or blocker that the type does not declare
│   ├── BlockerNotFound
│   ├── BlockerMissing              a blocker that the type requires was not given
│   └── DuplicateJobId
├── TransactionError                the transaction cannot be used for this
│   ├── TransactionOpen
│   ├── TransactionUnsuitable
│   └── TransactionClosed
├── DatabaseError                   the database refused; its client's own error is the cause
│   └── DatabaseUnavailable         it could not do it now: trying again may help
│       └── DatabaseLocked          SQLite: somebody else kept the write lock for too long
├── PhaseError                      prepare and complete called in the wrong order
├── AttemptLost                     the job no longer belongs to this attempt
│   ├── JobTakenByAnotherWorker
│   ├── JobAlreadyCompleted
│   └── JobNotFound
├── ChainError
│   ├── ChainNotFound
│   ├── ChainOfAnotherType          a handle was used that is of another type than its chain
│   ├── ChainFailed
│   ├── ChainReferenced             an unfinished job elsewhere depends on it
│   ├── RetryRefused                nothing was retried
│   │   ├── ChainNotFailed          only failed chains can be retried
│   │   ├── BlockerStillFailed      a chain that it waits for must be retried first
│   │   ├── BlockersDeleted         what it waited for is gone
│   │   └── KeyInUse                a live chain has its deduplication key
│   └── WaitTimeout
├── ScheduleNotFound                no schedule of that name is declared or stored
├── QueueError                      something about a queue or its provider; carries type, code and whether to try again
│   ├── QueueConfigurationError     (also a ConfigurationError) an option or a method that the provider lacks
│   ├── QueueDataError              the data or the id of a job cannot be taken
│   ├── QueueRuntimeError           the provider could not do it now
│   │   └── QueuePartlyAdded        it took some of several jobs
│   ├── QueueNotFound               no such job
│   ├── QueueJobFailed              the job waited for has failed
│   └── QueueWaitTimeout            it had not ended in time
├── FlowError                       multi-stage jobs on Redis
│   ├── FlowDefinitionError         the stages of a flow do not fit together
│   │   └── MissingAttribute        a stage asks for what no stage before it provides
│   ├── FlowPayloadError            attributes or a result do not fit their type
│   ├── FlowKeysTaken               a key or queue in Redis belongs to somebody else
│   ├── FlowUnavailable             Redis is away, or refuses; `retryable` says which
│   ├── FlowFull                    as many jobs wait as may; nothing was started
│   ├── FlowJobExists
│   ├── FlowJobNotFound
│   ├── FlowJobNotFailed            only failed jobs can be retried
│   ├── FlowJobFailed
│   ├── FlowWaitTimeout
│   └── FlowLockLost                the job no longer belongs to this worker
├── HandlerFailed                   what a handler raised in another process, or how that process died
└── HandlerSignal                   raised by handlers to steer their job
    ├── Reschedule
    └── Permanent
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from onward.options import nearest, wrong_time

if TYPE_CHECKING:
    from onward.model import ChainId, FailureReason, Job, JobError, JobId


class OnwardError(Exception):
    """What every error of Onward is."""


def _listed(ids: Iterable[object]) -> str:
    return ", ".join(map(str, ids))


def _below(problems: Iterable[str]) -> str:
    return "".join(f"\n  - {problem}" for problem in problems)


class DefinitionError(OnwardError):
    """The job types do not fit together; lists every problem at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the job types do not fit together:" + _below(problems))


class ConfigurationError(OnwardError):
    """An option, address or extra is wrong or missing."""


class LimitNotFound(ConfigurationError):
    """Neither the app nor its database has a limit of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"no limit {name!r}{nearest(name, known)}: app.limits.list() has those there are")


def require(*problems: str | None) -> None:
    """Raise a ConfigurationError for the first problem there is, as the functions of `options` tell them."""
    for problem in problems:
        if problem is not None:
            raise ConfigurationError(problem)


class SchemaMissing(ConfigurationError):
    """The database does not have Onward's tables in the version this code needs."""

    def __init__(self, *, found: int, needed: int, where: str) -> None:
        self.found, self.needed, self.where = found, needed, where
        if found > needed:
            advice = f"is at version {found}, newer than this code knows ({needed}): upgrade the onward package"
        else:
            state = f"is at version {found}" if found else "has no Onward tables"
            advice = f"{state}, version {needed} is needed: run `onward migrate` or pass migrate=True"
        super().__init__(f"{where} {advice}")


class MissingContext(ConfigurationError):
    """A handler asked for a value that no middleware of its slice and no resource of its worker provides."""

    def __init__(self, *, kind: type[object], job_type: str, available: Sequence[type[object]]) -> None:
        self.kind, self.job_type, self.available = kind, job_type, tuple(available)
        names = ", ".join(dict.fromkeys(one.__name__ for one in available)) or "nothing"
        super().__init__(
            f"nothing provides {kind.__name__} to job type {job_type!r}, which has {names} here: yield one from "
            "middleware of its slice, or pass app.worker(resources=[…])"
        )


class PayloadError(OnwardError):
    """An input or output does not fit its type, or cannot be stored."""

    def __init__(self, *, job_type: str, part: str, field: str, problem: str) -> None:
        self.job_type, self.part, self.field, self.problem = job_type, part, field, problem
        at = f" at {field}" if field and field != "$" else ""
        super().__init__(f"{part} of job type {job_type!r}{at}: {problem}")


class InvalidKey(ConfigurationError):
    """What was given to `onward.crypto.Encryption` is no key to encrypt with. The message does not contain it."""


class DecryptionError(PayloadError):
    """What is stored cannot be decrypted. A job with such an input fails alone, and can be retried."""

    _problem: ClassVar[str]

    def __init__(self, *, job_type: str, part: str, key_id: str | None = None) -> None:
        self.key_id = key_id
        super().__init__(job_type=job_type, part=part, field="$", problem=self._problem.format(key_id=key_id))


class UnknownKey(DecryptionError):
    """It was encrypted with a key that this app was not given."""

    _problem = "encrypted with key {key_id!r}, which is not here: add it to the Encryption of the app or type"


class PayloadTampered(DecryptionError):
    """It was changed since it was encrypted, or belongs to another job."""

    _problem = "encrypted with key {key_id!r}, and was changed since, or moved here from another job"


class PayloadNotEncrypted(DecryptionError):
    """It is stored in plain text, and the Encryption accepts none."""

    _problem = "not encrypted, and accept_plain=False"


class StartRefused(OnwardError):
    """Nothing was started, and the transaction is still usable."""


class UnknownJobType(StartRefused):
    """The app was built without this job type."""

    def __init__(self, job_type: str, known: Iterable[str] = ()) -> None:
        self.job_type = job_type
        super().__init__(
            f"job type {job_type!r} is not among the jobs of this app: add it to Onward(jobs=[…])"
            f"{nearest(job_type, known)}"
        )


class InternalJobType(StartRefused):
    """An internal type can only be reached by continuing."""

    def __init__(self, job_type: str) -> None:
        self.job_type = job_type
        super().__init__(
            f"job type {job_type!r} is internal: continue to it from another job, or define it without internal=True"
        )


class UndeclaredStep(StartRefused):
    """A continuation or blocker that the type does not declare."""

    def __init__(self, *, job_type: str, step: str, option: str) -> None:
        self.job_type, self.step, self.option = job_type, step, option
        super().__init__(f"job type {job_type!r} does not declare {step!r}: add it to {option}=[…] of {job_type!r}")


class BlockerNotFound(StartRefused):
    """A chain given as a blocker does not exist, or was deleted."""

    def __init__(self, *, job_type: str, chain_ids: "Sequence[ChainId]") -> None:
        self.job_type, self.chain_ids = job_type, tuple(chain_ids)
        super().__init__(
            f"cannot start {job_type!r}: its blockers do not exist (never started, rolled back or deleted): "
            + _listed(chain_ids)
        )


class BlockerMissing(StartRefused):
    """A type was started without a blocker that it requires."""

    def __init__(self, *, job_type: str, missing: Sequence[str]) -> None:
        self.job_type, self.missing = job_type, tuple(missing)
        names = _listed(map(repr, missing))
        super().__init__(f"{job_type!r} requires blockers that were not given: pass a chain of {names} in blockers=[…]")


class DuplicateJobId(StartRefused):
    """The id given is taken."""

    def __init__(self, job_ids: "Sequence[JobId]") -> None:
        self.job_ids = tuple(job_ids)
        super().__init__(f"id already taken: {_listed(job_ids)}; omit id= or use deduplication=")


class TransactionError(OnwardError):
    """The transaction cannot be used for this."""


class TransactionOpen(TransactionError):
    """A call without `tx=` while an Onward transaction is open here: it would wait for, or escape, that transaction."""


class TransactionUnsuitable(TransactionError):
    """What was passed as `tx=` is not a usable transaction on the app's database."""


class TransactionClosed(TransactionError):
    """A statement on a transaction whose block has ended, or which the application has ended or closed itself."""


class DatabaseError(OnwardError):
    """The database refused what Onward asked of it. `__cause__` is what its client raised.

    Errors of your own statements, through `tx.execute` and its like, are not wrapped.
    """

    def __init__(self, message: str, *, doing: str, fault: str | None = None) -> None:
        self.doing, self.fault = doing, fault
        super().__init__(message)


class DatabaseUnavailable(DatabaseError):
    """The database could not do it now, also when tried again: unreachable, read-only, full, overloaded."""


class DatabaseLocked(DatabaseUnavailable):
    """SQLite lets one connection write at a time, and another one did not end its transaction."""

    def __init__(self, *, path: str, waited: float) -> None:
        self.path, self.waited = path, waited
        super().__init__(
            f"waited {waited:.0f} s for the write lock of {path}. Either a transaction of this program is open: pass "
            "it as tx=, or end it before this call. Or another process holds the file: end its transaction. "
            "Onward(lock_timeout=…) says how long to wait",
            doing="write",
            fault="timeout",
        )


class PhaseError(OnwardError):
    """`prepare()` and `complete()` called in the wrong order, twice, or after the attempt ended."""


class AttemptLost(OnwardError):
    """The job no longer belongs to this attempt; nothing it does can change the job."""

    def __init__(self, job_id: "JobId", attempt: int) -> None:
        self.job_id, self.attempt = job_id, attempt
        super().__init__(f"{self.__doc__} (job {job_id}, attempt {attempt})")


class JobTakenByAnotherWorker(AttemptLost):
    """The lease ran out and the job was taken again."""


class JobAlreadyCompleted(AttemptLost):
    """The job has already ended."""


class JobNotFound(AttemptLost):
    """The job does not exist, or was deleted."""


class ChainError(OnwardError):
    """Something about a stored chain."""


class ChainNotFound(ChainError):
    """No chain has this id."""

    def __init__(self, chain_ids: "Sequence[ChainId]") -> None:
        self.chain_ids = tuple(chain_ids)
        super().__init__(f"no chain with id {_listed(chain_ids)}: never committed, or deleted")


class ChainOfAnotherType(ChainError):
    """The chain did not begin with the type of the handle; nothing was changed."""

    def __init__(self, *, chain_id: "ChainId", expected: str, found: str) -> None:
        self.chain_id, self.expected, self.found = chain_id, expected, found
        super().__init__(
            f"chain {chain_id} is of type {found!r}, not {expected!r}: do not go on with an id that came from outside; "
            "a bare id, without a handle, is not checked"
        )


class ChainFailed(ChainError):
    """The chain waited for has failed."""

    def __init__(
        self,
        *,
        chain_id: "ChainId",
        job_id: "JobId",
        job_type: str,
        reason: "FailureReason",
        error: "JobError | None",
        blocker: "ChainFailed | None" = None,
    ) -> None:
        self.chain_id, self.job_id, self.job_type, self.reason, self.error = chain_id, job_id, job_type, reason, error
        self.blocker = blocker
        """That of the chain through which it failed, where the reason is a blocker."""
        detail = f": {error.type}: {error.message}" if error else f": {blocker}" if blocker else ""
        super().__init__(f"chain {chain_id} failed at {job_type!r} (job {job_id}), reason {reason}{detail}")


class ChainReferenced(ChainError):
    """Unfinished jobs elsewhere depend on the chains to delete."""

    def __init__(self, references: "Sequence[tuple[ChainId, JobId]]") -> None:
        self.references = tuple(references)
        listing = ", ".join(f"{chain} (needed by job {job})" for chain, job in references)
        super().__init__(
            f"not deleted, unfinished jobs depend on: {listing}; delete those chains too, or wait for them"
        )


class RetryRefused(ChainError):
    """Nothing was retried, and the transaction is still usable."""


class ChainNotFailed(RetryRefused):
    """Only a failed chain can be retried."""

    def __init__(self, chain_ids: "Sequence[ChainId]") -> None:
        self.chain_ids = tuple(chain_ids)
        super().__init__(f"not failed, so nothing to retry: {_listed(chain_ids)}")


class BlockerStillFailed(RetryRefused):
    """A chain that the job waits for has failed; retrying that one brings this one back, too."""

    def __init__(self, chain_id: "ChainId", blockers: "Sequence[ChainId]") -> None:
        self.chain_id, self.blockers = chain_id, tuple(blockers)
        super().__init__(
            f"chain {chain_id} waits for chains that have failed: retry those, and it comes back: {_listed(blockers)}"
        )


class BlockersDeleted(RetryRefused):
    """A chain that the job waited for was deleted, and with it the output that the job was to see."""

    def __init__(self, chain_ids: "Sequence[ChainId]") -> None:
        self.chain_ids = tuple(chain_ids)
        super().__init__(
            f"blockers of these chains were deleted, with their outputs: start them anew instead: {_listed(chain_ids)}"
        )


class KeyInUse(RetryRefused):
    """Another chain of the type has the deduplication key and has not ended; there may be only one."""

    def __init__(self, chain_id: "ChainId", live: "ChainId") -> None:
        self.chain_id, self.live = chain_id, live
        super().__init__(
            f"chain {live} has the deduplication key of {chain_id} and has not ended: wait for it, or cancel it first"
        )


class WaitTimeout(ChainError):
    """The chain had not ended in time; it goes on."""

    def __init__(
        self, chain_id: "ChainId", timeout: timedelta, *, job: "Job | None" = None, detail: str = "it goes on running"
    ) -> None:
        self.chain_id, self.timeout, self.job = chain_id, timeout, job
        super().__init__(f"chain {chain_id} has not ended within {timeout.total_seconds():g} s; {detail}")


class QueueErrorCode(StrEnum):
    """What went wrong with a queue, for programs."""

    UNSUPPORTED_FEATURE = "UNSUPPORTED_FEATURE"
    INVALID_OPTION = "INVALID_OPTION"
    VALIDATION = "VALIDATION"
    DUPLICATE = "DUPLICATE"
    ENQUEUE = "ENQUEUE"
    CONNECTION = "CONNECTION"
    PROCESSING = "PROCESSING"
    PROVIDER_ERROR = "PROVIDER_ERROR"
    SHUTDOWN = "SHUTDOWN"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    JOB_FAILED = "JOB_FAILED"
    TIMEOUT = "TIMEOUT"


class ScheduleNotFound(OnwardError):
    """No schedule of that name is declared by this app, or stored."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"there is no schedule {name!r}{nearest(name, known)}")


class QueueError(OnwardError):
    """Something about a queue or its provider. `retryable` says whether the same call may succeed later."""

    type: str = "QueueError"

    def __init__(
        self,
        message: str,
        *,
        code: QueueErrorCode,
        queue_name: str | None = None,
        job_id: str | None = None,
        retryable: bool = False,
        cause: BaseException | None = None,
    ) -> None:
        self.code, self.queue_name, self.job_id, self.retryable = code, queue_name, job_id, retryable
        self.cause = self.__cause__ = cause
        super().__init__(f"[Queue:{queue_name}] {message}" if queue_name is not None else message)


class QueueConfigurationError(QueueError, ConfigurationError):
    """An option is wrong, or the provider lacks the method asked for."""

    type = "ConfigurationError"

    def __init__(
        self,
        message: str,
        *,
        code: QueueErrorCode = QueueErrorCode.INVALID_OPTION,
        queue_name: str | None = None,
        job_id: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message, code=code, queue_name=queue_name, job_id=job_id, cause=cause)


class QueueDataError(QueueError):
    """The data or the id of a job cannot be taken; nothing was sent."""

    type = "DataError"


class QueueRuntimeError(QueueError):
    """The provider could not do it; `cause` is what its client raised."""

    type = "RuntimeError"


class QueuePartlyAdded(QueueRuntimeError):
    """`add_many` took some jobs and not others: `added` has the ids of those that are known to be in the queue.

    Adding all of them again would add those twice: add the others.
    """

    def __init__(
        self, message: str, *, added: Sequence[str], queue_name: str, cause: BaseException | None = None
    ) -> None:
        self.added = added
        super().__init__(message, code=QueueErrorCode.ENQUEUE, queue_name=queue_name, cause=cause)


class QueueNotFound(QueueError):
    """What was asked for does not exist."""

    type = "NotFoundError"

    def __init__(self, *, queue_name: str, resource_id: str, resource_type: str = "job") -> None:
        self.resource_id, self.resource_type = resource_id, resource_type
        super().__init__(
            f"no {resource_type} with id {resource_id!r}: never added, removed, or finished and not kept",
            code=QueueErrorCode.JOB_NOT_FOUND,
            queue_name=queue_name,
            job_id=resource_id if resource_type == "job" else None,
        )


class QueueJobFailed(QueueError):
    """The job waited for has failed."""

    type = "JobFailedError"

    def __init__(self, *, queue_name: str, job_id: str, reason: str | None, error: str | None) -> None:
        self.reason, self.error = reason, error
        because = f" ({reason})" if reason is not None else ""
        super().__init__(
            f"job {job_id!r} has failed{because}: {error or 'nothing is known of why'}",
            code=QueueErrorCode.JOB_FAILED,
            queue_name=queue_name,
            job_id=job_id,
        )


class QueueWaitTimeout(QueueError):
    """The job had not ended in time; it goes on."""

    type = "TimeoutError"

    def __init__(self, *, queue_name: str, job_id: str, timeout: timedelta) -> None:
        self.timeout = timeout
        super().__init__(
            f"job {job_id!r} has not ended within {timeout.total_seconds():g} s; it goes on",
            code=QueueErrorCode.TIMEOUT,
            queue_name=queue_name,
            job_id=job_id,
            retryable=True,
        )


class FlowError(OnwardError):
    """Something about a flow: multi-stage jobs on Redis."""


class FlowDefinitionError(FlowError):
    """The stages of a flow do not fit together; lists every problem at once."""

    def __init__(self, flow: str, problems: Sequence[str]) -> None:
        self.flow, self.problems = flow, tuple(problems)
        super().__init__(f"the stages of flow {flow!r} do not fit together:{_below(problems)}")


class MissingAttribute(FlowDefinitionError):
    """A stage asks for an attribute that a job may come without; `stage` and `attribute` are those of the first."""

    def __init__(
        self, flow: str, problems: Sequence[str], *, stage: str, attribute: str, available: Sequence[str]
    ) -> None:
        self.stage, self.attribute, self.available = stage, attribute, tuple(available)
        super().__init__(flow, problems)


class FlowPayloadError(FlowError):
    """Attributes or a result do not fit their type, or cannot be stored."""

    def __init__(self, *, flow: str, stage: str, part: str, field: str, problem: str) -> None:
        self.flow, self.stage, self.part, self.field, self.problem = flow, stage, part, field, problem
        where = f"stage {stage!r} of flow {flow!r}" if stage else f"flow {flow!r}"
        at = f" at {field}" if field else ""
        super().__init__(f"{part} of {where}{at}: {problem}")


class FlowKeysTaken(FlowError):
    """A key that the flow needs is there already, and is not the flow's."""

    def __init__(self, flow: str, *, key: str, owner: str, advice: str) -> None:
        self.flow, self.key, self.owner = flow, key, owner
        super().__init__(f"flow {flow!r} cannot use {key}, which {owner}: {advice}")


class FlowUnavailable(FlowError):
    """Redis did not do what was asked; `__cause__` is what its client raised."""

    def __init__(self, flow: str, *, doing: str, retryable: bool, cause: BaseException) -> None:
        self.flow, self.doing, self.retryable = flow, doing, retryable
        advice = (
            "Redis is away, fails over or is full: try again later"
            if retryable
            else "trying again will not help: look at the address, the credentials, and what they may do"
        )
        super().__init__(f"flow {flow!r} cannot {doing}: {type(cause).__name__}: {cause}; {advice}")


class FlowFull(FlowError):
    """As many jobs wait at the first stage as may; nothing was started."""

    def __init__(self, flow: str, *, stage: str, waiting: int, limit: int) -> None:
        self.flow, self.stage, self.waiting, self.limit = flow, stage, waiting, limit
        super().__init__(
            f"{waiting} jobs wait at stage {stage!r} of flow {flow!r}, {limit} may (max_waiting=): "
            "start it later, or add workers"
        )


class FlowJobExists(FlowError):
    """The id given is taken."""

    def __init__(self, flow: str, job_id: str) -> None:
        self.flow, self.job_id = flow, job_id
        super().__init__(f"flow {flow!r} has a job {job_id!r} already: omit id=, or delete that one first")


class FlowJobNotFound(FlowError):
    """No job has this id: never started, expired or deleted."""

    def __init__(self, flow: str, job_id: str) -> None:
        self.flow, self.job_id = flow, job_id
        super().__init__(f"flow {flow!r} has no job {job_id!r}: never started, expired (keep=) or deleted")


class FlowJobNotFailed(FlowError):
    """Only a failed job can be retried."""

    def __init__(self, flow: str, job_id: str) -> None:
        self.flow, self.job_id = flow, job_id
        super().__init__(f"job {job_id!r} of flow {flow!r} has not failed, so there is nothing to retry")


class FlowJobFailed(FlowError):
    """The job waited for has failed."""

    def __init__(self, flow: str, job_id: str, *, stage: str, message: str, reason: str) -> None:
        self.flow, self.job_id, self.stage, self.message, self.reason = flow, job_id, stage, message, reason
        super().__init__(f"job {job_id} of flow {flow!r} failed at stage {stage!r}: {message}")


class FlowWaitTimeout(FlowError):
    """The job had not ended in time; it goes on."""

    def __init__(self, flow: str, job_id: str, timeout: timedelta) -> None:
        self.flow, self.job_id, self.timeout = flow, job_id, timeout
        super().__init__(
            f"job {job_id} of flow {flow!r} has not ended within {timeout.total_seconds():g} s; it goes on"
        )


class FlowLockLost(FlowError):
    """The job no longer belongs to this worker: its result would be dropped."""

    def __init__(self, flow: str, job_id: str, *, stage: str) -> None:
        self.flow, self.job_id, self.stage = flow, job_id, stage
        super().__init__(
            f"the lock of job {job_id} at stage {stage!r} of flow {flow!r} is lost: it ran out (lock=), or the job "
            "was deleted; stop working on it"
        )


class HandlerFailed(OnwardError):
    """A handler with `executor="process"` raised, or its process died; middleware sees it, `error` says what it was."""

    def __init__(self, error: "JobError", *, permanent: bool) -> None:
        self.error, self.permanent = error, permanent
        super().__init__(f"{error.type}: {error.message}")


class HandlerSignal(OnwardError):
    """Raised by handlers to steer their job."""


class Reschedule(HandlerSignal):
    """Roll the open phase back and run the job again later, without counting a failure."""

    def __init__(self, *, delay: timedelta | None = None, at: datetime | None = None) -> None:
        require(wrong_time(delay, at))
        self.delay, self.at = delay, at
        super().__init__("rescheduled")


class Permanent(HandlerSignal):
    """Fail the job for good: retrying cannot help."""
