"""The registry: every job type of an app, checked together and ready for use."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from onward.crypto import Encryption
from onward.define.codec import Codec, Limits
from onward.define.job_type import UNSET_RETENTION, UNSET_TIMEOUT, Definition, JobType, Required, Step, Upcaster
from onward.define.limit import TypeLimit, limit_problems, limits_of
from onward.define.middleware import Middleware, middleware_problems, needs_event_loop
from onward.define.outputs import may_hold, name_of
from onward.define.sealing import Guard, PayloadCodec, SealedCodec, Sealing
from onward.define.secrets import Secrets, secrets_of
from onward.define.slice import Slice
from onward.errors import (
    ConfigurationError,
    DefinitionError,
    InternalJobType,
    PayloadError,
    StartRefused,
    UndeclaredStep,
    UnknownJobType,
)
from onward.model import Backoff, ChainId, JobId, Retention
from onward.options import given

DEFAULT_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class RegisteredType:
    """A job type in its registry."""

    step: Step[Any, Any]
    definition: Definition
    input: PayloadCodec
    output: PayloadCodec | None
    """None for a type that always continues."""
    encryption: Encryption | None
    retention: Retention | None
    """Of the chains that begin with it."""
    guard: Guard | None
    """None for a type that has neither encryption nor secrets."""
    continues_to: frozenset[str]
    blocked_by: frozenset[str]
    required: frozenset[str]
    """Those of `blocked_by` without a chain of which no job of the type is started."""
    versions: tuple[int, ...]
    """The payload versions it can read, the current one first."""
    limits: tuple[TypeLimit, ...]
    """In the order in which its jobs come by a place of each."""

    @cached_property
    def name(self) -> str:
        return self.definition.name

    @property
    def backoff(self) -> Backoff | None:
        own = self.definition.slice.backoff if self.definition.slice else None
        return self.definition.backoff or own

    @property
    def lease(self) -> timedelta | None:
        own = self.definition.slice.lease if self.definition.slice else None
        return self.definition.lease or own

    @cached_property
    def middleware(self) -> Sequence[Middleware]:
        return self.definition.slice.middleware if self.definition.slice else ()

    @cached_property
    def runs_in_thread(self) -> bool:
        return not self.step.signature.is_async and not self.runs_in_process

    @cached_property
    def runs_in_process(self) -> bool:
        return self.definition.executor == "process"

    @cached_property
    def timeout(self) -> timedelta | None:
        return DEFAULT_TIMEOUT if self.definition.timeout == UNSET_TIMEOUT else self.definition.timeout

    @cached_property
    def time_limit(self) -> float | None:
        """The timeout in seconds."""
        return None if self.timeout is None else self.timeout.total_seconds()

    def read_input(self, text: str | bytes, version: int, job_id: JobId) -> Any:
        """The input in stored text, brought up from an older version if need be."""
        if version == self.definition.version:
            return self.input.decode(text, job_id)
        plain = self.input.plain(text, job_id)
        for step in range(version, self.definition.version):
            upcaster = self.definition.upcasters.get(step)
            if upcaster is None:
                problem = f"it is of version {version}: register how it comes up with @….upcast({step})"
                raise PayloadError(job_type=self.name, part="input", field="$", problem=problem)
            plain = self._bring_up(upcaster, plain, part="input")
        return self.input.bare.decode(msgspec.json.encode(plain))

    def read_output(self, text: str | bytes, version: int, chain_id: ChainId) -> Any:
        """The output in stored text, brought up from the version of the job that completed."""
        if self.output is None:
            raise PayloadError(job_type=self.name, part="output", field="$", problem="this type has no output")
        if version == self.definition.version:
            return self.output.decode(text, chain_id)
        plain = self.output.plain(text, chain_id)
        try:
            return self.output.bare.decode(msgspec.json.encode(self.bring_up_output(plain, version)))
        except PayloadError as error:
            raise self._with_advice(error, version) from None

    def bring_up_output(self, plain: Any, version: int) -> Any:
        """The output in plain JSON data as this version of the type has it; unchanged where nothing is registered."""
        for step in range(version, self.definition.version):
            upcaster = self.definition.output_upcasters.get(step)
            plain = plain if upcaster is None else self._bring_up(upcaster, plain, part="output")
        return plain

    def _bring_up(self, upcaster: Upcaster, plain: Any, *, part: str) -> Any:
        """An upcaster that wants to end the program, as sys.exit() does, has only failed at this payload."""
        try:
            return upcaster(plain)
        except (Exception, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            problem = f"its upcaster raised {type(error).__name__}: {error}"
            raise PayloadError(job_type=self.name, part=part, field="$", problem=problem) from error

    def _with_advice(self, error: PayloadError, version: int) -> PayloadError:
        missing = [n for n in range(version, self.definition.version) if n not in self.definition.output_upcasters]
        if not missing:
            return error
        advice = f"it is of version {version}: register how it comes up with @….upcast_output({missing[0]})"
        return PayloadError(
            job_type=error.job_type, part=error.part, field=error.field, problem=f"{error.problem}; {advice}"
        )

    def may_continue_to(self, step: str) -> None:
        """Raise unless declared."""
        if step not in self.continues_to:
            raise UndeclaredStep(job_type=self.name, step=step, option="continues_to")

    def may_be_blocked_by(self, step: str) -> None:
        """Raise unless declared."""
        if step not in self.blocked_by:
            raise UndeclaredStep(job_type=self.name, step=step, option="blocked_by")


class Registry(Mapping[str, RegisteredType]):
    """Job types by name."""

    def __init__(
        self,
        jobs: Iterable[Step[Any, Any] | Slice],
        *,
        limits: Limits | None = None,
        encryption: Encryption | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.limits, self._encryption, self._retention = limits or Limits(), encryption, retention
        self._types: dict[str, RegisteredType] = {}
        self.add(jobs)

    def add(self, jobs: Iterable[Step[Any, Any] | Slice]) -> None:
        """More types, checked together with those that are there; a DefinitionError leaves it as it was."""
        new = _steps(jobs)
        steps = [*(registered.step for registered in self._types.values()), *new]
        problems = _problems(steps)
        types: dict[str, RegisteredType] = {}
        for step in steps:
            try:
                types[step.name] = register(step, self.limits, self._encryption_of(step), self._retention)
            except DefinitionError as error:
                problems.extend(error.problems)
        problems.extend(_middleware_problems(types.values()))
        problems.extend(limit_problems(limit for kind in types.values() for limit in kind.limits))
        if problems:
            raise DefinitionError(problems)
        self._types = types

    @contextmanager
    def adding(self, jobs: Iterable[Step[Any, Any] | Slice]) -> Iterator[None]:
        """More types, taken back if the block refuses them."""
        before = self._types
        self.add(jobs)
        try:
            yield
        except BaseException:
            self._types = before
            raise

    def _encryption_of(self, step: Step[Any, Any]) -> Encryption | None:
        own = step.definition.encryption
        return self._encryption if own is None else own or None

    def guard_of(self, name: str) -> Guard | None:
        """That of the type of this name, if there is one."""
        found = self._types.get(name)
        return None if found is None else found.guard

    def __getitem__(self, name: str) -> RegisteredType:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def find(self, name: str) -> RegisteredType:
        """The type of this name, or UnknownJobType."""
        try:
            return self._types[name]
        except KeyError:
            raise UnknownJobType(name, self._types) from None

    def step(self, step: Step[Any, Any]) -> RegisteredType:
        """The registered type of what a caller passed."""
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StartRefused(f"{given('job_type', step)}: expected the job type itself, as @job makes it")
        return self.find(step.name)

    def entry(self, step: Step[Any, Any]) -> RegisteredType:
        """The type, if a chain may begin with it."""
        asked: Any = step
        known = isinstance(asked, Step) and self._types.get(asked.definition.name)
        found = known or self.step(asked)
        if found.definition.internal:
            raise InternalJobType(step.name)
        return found

    def handled(self) -> Sequence[RegisteredType]:
        """The types that have a handler."""
        return [registered for registered in self._types.values() if registered.step.run is not None]


def register(
    step: Step[Any, Any], limits: Limits, encryption: Encryption | None = None, retention: Retention | None = None
) -> RegisteredType:
    """The type on its own, with its codecs."""
    signature, definition = step.signature, step.definition
    sealing, secrets, output_secrets = Sealing(step.name, encryption), secrets_of(*signature.marked_input), None
    output: Codec | None = None
    if signature.may_complete:
        output_secrets = secrets_of(*signature.marked_output)
        output = Codec(signature.output, job_type=step.name, part="output", limits=limits, secrets=output_secrets)
    input = Codec(signature.input, job_type=step.name, part="input", limits=limits, secrets=secrets)
    return RegisteredType(
        step=step,
        definition=definition,
        input=_sealed(input, sealing, secrets),
        output=_sealed(output, sealing, output_secrets) if output else None,
        encryption=encryption,
        retention=retention if definition.retention is UNSET_RETENTION else definition.retention,
        guard=Guard(sealing, secrets, output_secrets) if encryption or secrets or output_secrets else None,
        continues_to=frozenset(map(_name, definition.continues_to)),
        blocked_by=frozenset(map(_name, definition.blocked_by)),
        required=frozenset(_name(one) for one in definition.blocked_by if isinstance(one, Required)),
        limits=limits_of(step.name, definition.limit),
        versions=tuple(_readable_versions(definition.version, definition.upcasters)),
    )


def _sealed(codec: Codec, sealing: Sealing, secrets: Secrets | None) -> PayloadCodec:
    return SealedCodec(codec, sealing, secrets) if sealing.encryption or secrets else codec


def _readable_versions(version: int, upcasters: Mapping[int, Upcaster]) -> Iterator[int]:
    yield version
    while version - 1 in upcasters:
        version -= 1
        yield version


def _name(step: Step[Any, Any] | Required | str) -> str:
    if isinstance(step, Required):
        return _name(step.job_type)
    return step if isinstance(step, str) else step.name


def _steps(jobs: Any) -> list[Step[Any, Any]]:
    """The types among what an app is given, those of slices included."""
    if isinstance(jobs, Step | Slice | str) or not isinstance(jobs, Iterable):
        raise ConfigurationError(f"{given('jobs', jobs)}: expected a list of job types and slices")
    items = list(jobs)
    strange = [item for item in items if not isinstance(item, Step | Slice)]
    if strange:
        raise DefinitionError([_strange(item) for item in strange])
    return [step for item in items for step in (item.steps if isinstance(item, Slice) else [item])]


def _strange(item: object) -> str:
    if callable(item):
        return f'{getattr(item, "__qualname__", item)} is no job type: write @job("name") above it'
    return f"{given('jobs', item)}: expected a job type, as @job makes it, or a Slice"


def _problems(steps: Sequence[Step[Any, Any]]) -> list[str]:
    by_name = {step.name: step for step in steps}
    problems = [
        f"{name}: defined {len(places)} times: at {' and at '.join(places)}"
        for name, places in _places(steps).items()
        if len(places) > 1
    ]
    for step in steps:
        definition, signature = step.definition, step.signature
        for target in map(_name, definition.continues_to):
            if target not in by_name:
                problems.append(f"{step.name}: continues to {target!r}, which is not among the jobs of this app")
            elif signature.may_continue and not may_hold(signature.output, by_name[target].signature.output):
                promised, found = map(name_of, (signature.output, by_name[target].signature.output))
                problems.append(f"{step.name}: promises {promised}, but continues to {target!r}, which gives {found}")
        for blocker in map(_name, definition.blocked_by):
            if blocker not in by_name:
                problems.append(f"{step.name}: blocked by {blocker!r}, which is not among the jobs of this app")
            elif not isinstance(by_name[blocker], JobType):
                problems.append(f"{step.name}: blocked by {blocker!r}, which is internal and so never begins a chain")
        if step.run is not None and definition.executor == "process" and signature.is_async:
            problems.append(f'{step.name}: executor="process" needs a def handler')
        if step.run is not None and definition.continues_to and not signature.may_continue:
            problems.append(f"{step.name}: declares continues_to, but its handler returns no Next or Outcome")
        if step.run is not None and not signature.may_complete and not definition.continues_to:
            problems.append(f"{step.name}: its handler always continues, but continues_to is empty")
    problems.extend(f"{name}: internal, and no entry type leads to it" for name in _unreachable(by_name))
    return problems


def _middleware_problems(types: Iterable[RegisteredType]) -> list[str]:
    types = [kind for kind in types if kind.middleware]
    slices = dict.fromkeys(kind.definition.slice for kind in types)
    problems = [f"slice {s.prefix!r}: {problem}" for s in slices if s for problem in middleware_problems(s.middleware)]
    for kind in types:
        if kind.runs_in_thread:
            problems.extend(
                f"{kind.name}: its def handler runs in a thread, but {hook} needs an event loop: use @contextmanager"
                for hook in needs_event_loop(kind.middleware)
            )
    return problems


def _places(steps: Sequence[Step[Any, Any]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for step in steps:
        places.setdefault(step.name, []).append(step.place)
    return places


def _unreachable(by_name: Mapping[str, Step[Any, Any]]) -> list[str]:
    reached = {name for name, step in by_name.items() if not step.definition.internal}
    todo = list(reached)
    while todo:
        for target in map(_name, by_name[todo.pop()].definition.continues_to):
            if target in by_name and target not in reached:
                reached.add(target)
                todo.append(target)
    return sorted(set(by_name) - reached)
