"""The worker's side of the border: attempts become tasks, answers become outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from onward.define.job_type import JobType
from onward.define.outcome import Done, Next, Outcome, Rescheduled
from onward.define.registry import RegisteredType, Registry
from onward.define.request import BlockerSource, NewChain
from onward.errors import HandlerFailed, InternalJobType, Reschedule
from onward.model import Blocker, ChainId
from onward.worker.attempt import RunningAttempt
from onward.worker.processes.messages import (
    Answer,
    ChainToStart,
    Completed,
    Continued,
    ExistingChain,
    HandlerName,
    Postponed,
    Raised,
    Task,
)


def task_of(attempt: RunningAttempt, handlers: Mapping[str, HandlerName], registry: Registry) -> Task:
    """What a process needs to run this attempt."""
    job, kind = attempt.job, attempt.kind
    is_current = job.payload_version == kind.definition.version
    return Task(
        handler=handlers[kind.name],
        job_type=kind.name,
        # An older version has been brought up to date in the worker, where the upcasters are; the keys are too.
        input=job.input if is_current and kind.input is kind.input.bare else kind.input.bare.encode(attempt.input),
        job_id=job.id,
        chain_id=job.chain_id,
        root_id=job.root_id,
        number=job.attempt,
        failures=job.failures,
        last_error=attempt.last_error,
        blockers=tuple(_brought_up(blocker, registry) for blocker in attempt.blockers),
        blocked_by=tuple(kind.blocked_by),
        limits=kind.input.bare.limits,
        worker=attempt.worker,
        meta=dict(attempt.meta),
        secrets=tuple(attempt.secrets()),
    )


def _brought_up(blocker: Blocker, registry: Registry) -> Blocker:
    kind = registry.get(blocker.current_type_name)
    if kind is None or kind.output is None or blocker.output is None:
        return blocker
    if blocker.payload_version == kind.definition.version and kind.output is kind.output.bare:
        return blocker
    plain = kind.bring_up_output(kind.output.plain(blocker.output, blocker.chain_id), blocker.payload_version)
    return msgspec.structs.replace(blocker, output=msgspec.json.encode(plain).decode())


def outcome_of(answer: Answer, kind: RegisteredType, registry: Registry) -> Outcome[Any]:
    """The outcome; raises what the handler raised, as far as that crosses the border."""
    match answer:
        case Completed(output=output):
            return Done(kind.output.bare.decode(output) if kind.output else None)
        case Continued():
            step = registry.find(answer.step)
            return Next(
                step.step,
                step.input.bare.decode(answer.input),
                delay=answer.delay,
                at=answer.at,
                priority=answer.priority,
                blockers=_blockers(answer.blockers, registry),
                meta=answer.meta,
            )
        case Postponed(raised=True):
            raise Reschedule(delay=answer.delay, at=answer.at)
        case Postponed():
            return Rescheduled(delay=answer.delay, at=answer.at)
        case Raised():
            raise HandlerFailed(answer.error, permanent=answer.permanent)
        case _:
            assert_never(answer)


@dataclass(frozen=True, slots=True)
class _Existing:
    id: ChainId
    job_type: JobType[Any, Any]


def _blockers(sources: Sequence[ExistingChain | ChainToStart], registry: Registry) -> list[BlockerSource]:
    return [_blocker(source, registry) for source in sources]


def _blocker(source: ExistingChain | ChainToStart, registry: Registry) -> BlockerSource:
    kind = registry.find(source.job_type)
    job_type = kind.step
    if not isinstance(job_type, JobType):
        raise InternalJobType(kind.name)
    if isinstance(source, ExistingChain):
        return _Existing(source.id, job_type)
    return NewChain(
        job_type=job_type,
        input=kind.input.bare.decode(source.input),
        id=source.id,
        delay=source.delay,
        at=source.at,
        priority=source.priority,
        blockers=_blockers(source.blockers, registry),
        deduplication=source.deduplication,
        meta=source.meta,
    )
