"""The flow: stages that jobs pass through, on Redis."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar, Unpack

from onward.define.secrets import Secrets, redacted, secrets_of
from onward.define.signature import caller_names
from onward.errors import (
    ConfigurationError,
    FlowDefinitionError,
    FlowJobFailed,
    FlowJobNotFailed,
    FlowJobNotFound,
    FlowWaitTimeout,
)
from onward.flow.attributes import as_text
from onward.flow.check import check
from onward.flow.events import FlowObserver, Reporter
from onward.flow.keys import Keys, settings
from onward.flow.options import KEEP_DONE, KEEP_FAILED, Checks, Keep, as_keep
from onward.flow.retrying import ask
from onward.flow.server import Server
from onward.flow.stage import Handler, Stage, StageOptions, read_signature
from onward.flow.starting import Starting
from onward.flow.store import FlowStore
from onward.flow.views import FlowJob, Positions
from onward.flow.workers import FlowWorkers
from onward.pacing import Pacing
from onward.redis.connection import RedisCluster, Target

I = TypeVar("I", default=Any)  # noqa: E741 - the input
H = TypeVar("H", bound=Handler)
_SOONEST_LOOK, _LATEST_LOOK = 0.02, 0.5
_SHORTEST_WAIT = timedelta(milliseconds=10)


class Flow(Generic[I]):
    """Jobs that pass through stages, each with its own handlers and workers.

        flow = Flow("access", "redis://localhost", input=Request)

        @flow.stage("check", next="grant")
        async def check(job: Request) -> Checked: ...

        async with flow, flow.workers({"check": 4}):
            job_id = await flow.start(Request(user="ann"))

    `redis` is an address, or a `redis.asyncio` client whose settings are used for connections of the flow's own.
    """

    def __init__(
        self,
        name: str,
        redis: Target,
        *,
        input: type[I] | None = None,
        first: str | None = None,
        cluster: bool | None = None,
        index: Iterable[str] = (),
        keep: Keep | timedelta = KEEP_DONE,
        keep_failed: Keep | timedelta = KEEP_FAILED,
        max_waiting: int | None = None,
        wait: timedelta = timedelta(seconds=3),
        observers: Sequence[FlowObserver] = (),
    ) -> None:
        """`first` is the stage where jobs begin; `cluster` whether the address is of a cluster; `index` names
        attributes for `find`; `keep` and `keep_failed` say what is kept of jobs that have ended; `max_waiting` how many
        may wait at the first stage; `wait` how long a worker blocks in Redis; `observers` are told events."""
        checks = Checks(f"flow {name!r}")
        checks.name(name)
        checks.target("redis", redis)
        if cluster is not None:
            checks.flag("cluster", cluster)
        if cluster is False and isinstance(redis, RedisCluster):
            raise ConfigurationError("cluster=False with a RedisCluster: there the names of keys need hash tags")
        if first is not None:
            checks.text("first", first)
        if max_waiting is not None:
            checks.whole("max_waiting", max_waiting, least=1)
        checks.duration("wait", wait, least=_SHORTEST_WAIT)  # Redis takes 0 for ever
        checks.functions("observers", observers)
        self.name, self._checks = name, checks
        self._redis, self._input, self._first = redis, input, first
        self._tagged = isinstance(redis, RedisCluster) if cluster is None else cluster
        self._indexed = frozenset(checks.texts("index", index))
        self._keep, self._keep_failed = as_keep(checks, "keep", keep), as_keep(checks, "keep_failed", keep_failed)
        self._max_waiting, self._wait = max_waiting, wait
        self._stages: dict[str, Stage] = {}
        self._reporter = Reporter(observers)
        self._opened: FlowStore | None = None

    # -- define

    def stage(self, name: str, **options: Unpack[StageOptions]) -> Callable[[H], H]:
        """Make a function the handler of a stage; it stays a function. The first stage defined is where jobs begin.

        `next`, `goto` and `children` say where jobs may go, `collect` the attribute for the results of children;
        `timeout` is the time a handler is given, `lock` how soon the job of a dead worker is taken from it;
        `max_retries` and `max_stalls` say how often either may happen, with `backoff` between; `delay`, `priorities`
        and `rate` when, and in which order, jobs begin.
        """
        checks = Checks(f"stage {name!r} of flow {self.name!r}")
        checks.name(name)
        if name in self._stages:
            raise FlowDefinitionError(self.name, [f"there are two stages {name!r}"])
        local_names = caller_names(1)
        options["goto"] = checks.texts("goto", options.get("goto", ()))

        def decorate(handler: H) -> H:
            signature = read_signature(self.name, name, handler, local_names)
            stage = Stage(name=name, handler=handler, signature=signature, **options)
            stage.check(self.name)
            self._stages[name] = stage
            return handler

        return decorate

    def check(self) -> None:
        """Raise a FlowDefinitionError unless the stages fit together; `async with flow` does so first."""
        if not self._stages:
            raise FlowDefinitionError(self.name, ["there is no stage: @flow.stage('…') makes one"])
        check(self.name, self._stages, self._first_stage, self._input_type, self._indexed)

    @property
    def _first_stage(self) -> str:
        return self._first or next(iter(self._stages))

    @property
    def _input_type(self) -> Any:
        if self._input is not None or self._first_stage not in self._stages:
            return self._input
        return self._stages[self._first_stage].signature.attributes

    # -- life

    async def __aenter__(self) -> "Flow[I]":
        if self._opened is not None:
            raise ConfigurationError(f"flow {self.name!r} is open already")
        self.check()
        keys = Keys(self.name, tagged=self._tagged)
        server = Server(
            self._redis,
            clustered=self._tagged,
            name=f"onward-{self.name}-{secrets.token_hex(4)}",
            key=keys.job(""),
            blocks=self._wait.total_seconds(),
        )
        told = settings(keys, self._stages, indexed=self._indexed, keep=self._keep, keep_failed=self._keep_failed)
        store = FlowStore(self.name, server, keys, told)
        try:
            await ask(self.name, "open", server.open, patience=0)
            await ask(self.name, "open", store.open)
        except BaseException:
            await server.close()
            raise
        has_priorities = any(stage.priorities for stage in self._stages.values())
        self._starting = Starting(self.name, self._first_stage, self._input_type, has_priorities=has_priorities)
        self._opened = store
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store, self._opened = self._store, None
        await self._reporter.settle()
        await store.server.close()

    @property
    def _store(self) -> FlowStore:
        if self._opened is None:
            raise ConfigurationError(f"flow {self.name!r} is not open: use it inside `async with flow`")
        return self._opened

    def workers(
        self, counts: Mapping[str, int] | int = 1, *, janitor: timedelta | None = timedelta(seconds=1)
    ) -> FlowWorkers:
        """Workers for this process: so many for every stage, or for those named. `janitor` is how often it looks."""
        if not isinstance(counts, Mapping):
            counts = dict.fromkeys(self._stages, counts)
        return FlowWorkers(
            self.name,
            self._stages,
            self._store,
            self._reporter,
            counts=counts,
            wait=self._wait,
            janitor=janitor,
        )

    # -- start

    async def start(
        self,
        input: I | Mapping[str, Any],
        *,
        id: str | None = None,
        correlation_id: str | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
    ) -> str:
        """Start a job at the first stage; returns its id. The correlation id is the job's own unless you have one."""
        [job_id] = await self._start([input], id=id, correlation_id=correlation_id, delay=delay, priority=priority)
        return job_id

    async def start_many(
        self,
        inputs: Iterable[I | Mapping[str, Any]],
        *,
        correlation_id: str | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
    ) -> list[str]:
        """Start jobs, all or none, in one round trip; returns their ids."""
        self._checks.several("inputs", inputs)
        return await self._start(list(inputs), correlation_id=correlation_id, delay=delay, priority=priority)

    async def _start(self, inputs: Sequence[Any], **options: Any) -> list[str]:
        store = self._store
        jobs = self._starting.jobs(inputs, **options)
        if jobs:
            await ask(self.name, "start", lambda: store.start(jobs, max_waiting=self._max_waiting))
        return [job.id for job in jobs]

    # -- ask and steer

    async def get(self, job_id: str) -> FlowJob:
        """The job as it is stored now."""
        self._checks.text("job_id", job_id)
        store = self._store
        job = await ask(self.name, "get", lambda: store.get(job_id))
        if job is None:
            raise FlowJobNotFound(self.name, job_id)
        return job

    @property
    def stages(self) -> Mapping[str, Sequence[str]]:
        """The names of its stages, each with those that a job, or a child of it, may enter from there."""
        return {name: stage.leads_to for name, stage in self._stages.items()}

    def masked(self, job: FlowJob) -> Mapping[str, Any]:
        """The attributes of a job for those who look: what is marked `Secret` is masked."""
        masked: Mapping[str, Any] = self._secrets.masked(dict(job.attributes)) if self._secrets else job.attributes
        return masked

    def error_of(self, job: FlowJob) -> str | None:
        """The message of a job's error, without the secrets of its attributes."""
        if job.error is None or self._secrets is None:
            return job.error
        return redacted(job.error, self._secrets.texts(dict(job.attributes)))

    @property
    def _secrets(self) -> Secrets | None:
        """A name that is secret at one stage is secret at all of them."""
        kinds = [kind for stage in self._stages.values() for kind in stage.signature.types]
        return secrets_of(*kinds, *([] if self._input is None else [self._input]))

    async def wait(self, job_id: str, *, timeout: timedelta) -> FlowJob:
        """The job when it has ended well; raises FlowJobFailed or FlowWaitTimeout. It looks now and then."""
        self._checks.duration("timeout", timeout)
        looks, limit = Pacing(_SOONEST_LOOK, _LATEST_LOOK, factor=1.5), asyncio.timeout(timeout.total_seconds())
        try:
            async with limit:
                while (job := await self.get(job_id)).status == "open":
                    pause = next(looks)
                    await asyncio.sleep(pause)
        except TimeoutError:
            if not limit.expired():
                raise
            raise FlowWaitTimeout(self.name, job_id, timeout) from None
        if job.status == "failed":
            raise FlowJobFailed(
                self.name, job_id, stage=job.failed_queue or "", message=job.error or "", reason=job.reason or ""
            )
        return job

    async def find(self, attribute: str, value: Any, *, limit: int = 100) -> list[FlowJob]:
        """Jobs by the value of an attribute named in `index=[…]`, those that have ended first, while they are kept."""
        self._checks.whole("limit", limit, least=1)
        if attribute not in self._indexed:
            raise ConfigurationError(f"flow {self.name!r} has no index of {attribute!r}: Flow(index=[{attribute!r}])")
        store, text = self._store, as_text(msgspec.json.encode(value))
        return await ask(self.name, "find", lambda: store.find(attribute, text, limit))

    async def positions(self, *, limit: int = 1000) -> Positions:
        """Where every job is, at one moment: counts of all, and up to `limit` jobs of each stage and place."""
        self._checks.whole("limit", limit, least=0)
        store, order = self._store, tuple(self._stages)
        return await ask(self.name, "look", lambda: store.positions(order, limit))

    async def retry(self, job_id: str) -> None:
        """Put a failed job back into the stage it failed in, with all its retries.

        A parent that failed because of it waits for it again; one of several failed children when the last is retried.
        """
        self._checks.text("job_id", job_id)
        store, token = self._store, secrets.token_hex(8)
        if await ask(self.name, "retry", lambda: store.retry(job_id, token)) is None:
            raise FlowJobNotFailed(self.name, (await self.get(job_id)).id)

    async def delete(self, job_id: str) -> int:
        """Remove a job and its children from every list, index and lock; returns how many are gone.

        A handler that runs it is not stopped, and what it returns is dropped. A parent that waits for it fails.
        """
        self._checks.text("job_id", job_id)
        store = self._store
        removed, ended = await ask(self.name, "delete", lambda: store.delete(job_id), patience=0)
        self._reporter.tell_ended(self.name, ended)
        return removed
