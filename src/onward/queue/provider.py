"""What all providers share: their life, and their errors. A role that one lacks is refused here, and what its native
client raises is put in our words. One is bound to one queue; a factory makes several on one connection."""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

import msgspec

from onward.errors import (
    QueueConfigurationError,
    QueueDataError,
    QueueError,
    QueueErrorCode,
    QueueNotFound,
    QueuePartlyAdded,
    QueueRuntimeError,
)
from onward.queue.contract import (
    JoinsTransactions,
    KeepsDeadLetters,
    KeepsProgress,
    Lists,
    LooksUp,
    Pauses,
    Pulls,
    Pushes,
    Removes,
    StoredJob,
    is_permanent,
    root_of,
)
from onward.queue.events import Emitter, Failed
from onward.queue.model import Capabilities, QueueHealth, QueueJob, QueueStats
from onward.queue.options import Options, lacking
from onward.queue.providers.grouped import in_parts

E = TypeVar("E", QueueConfigurationError, QueueDataError, QueueRuntimeError)
I = TypeVar("I")  # noqa: E741 - an item
N = TypeVar("N")
R = TypeVar("R")
_Call = Callable[..., Coroutine[Any, Any, Any]]

_ROLES: Mapping[str, type] = {
    "pull": Pulls,
    "push": Pushes,
    "transactions": JoinsTransactions,
    "progress": KeepsProgress,
    "lookup": LooksUp,
    "pausing": Pauses,
    "dead_letters": KeepsDeadLetters,
    "listing": Lists,
    "remove": Removes,
}
"""Capabilities that are nothing but a role."""
_CODES: Mapping[str, QueueErrorCode] = {
    **dict.fromkeys(("add", "add_many", "add_within"), QueueErrorCode.ENQUEUE),
    **dict.fromkeys(("fetch", "process"), QueueErrorCode.CONNECTION),
    **dict.fromkeys(("ack", "nack", "release", "renew", "report_progress"), QueueErrorCode.PROCESSING),
    **dict.fromkeys(("delete", "stats", "health", "get_job", "pause", "resume"), QueueErrorCode.PROVIDER_ERROR),
    **dict.fromkeys(("dead_letters", "retry", "jobs", "remove", "purge"), QueueErrorCode.PROVIDER_ERROR),
}
"""The calls of a provider, with the code of what its native client raises there."""


def _reported(call: _Call, code: QueueErrorCode) -> _Call:
    """A call of a provider: SHUTDOWN when it is not connected, and what the native client raises gets this code."""

    @functools.wraps(call)
    async def checked(provider: "Provider", /, *args: Any, **kwargs: Any) -> Any:
        if not provider.is_connected:
            raise provider.shut_down()
        provider.check_loop()
        try:
            return await call(provider, *args, **kwargs)
        except QueueError:
            raise
        except Exception as error:
            subject = args[0] if args else None
            job_id = subject.id if isinstance(subject, QueueJob) else subject if isinstance(subject, str) else None
            raise provider.failure(f"{provider.name}: {call.__name__}() failed", error, code, job_id) from error

    return checked


class HomeLoop:
    """The event loop that connections were made in, and a lock in it. Nothing that waits in one works in another."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.changing = asyncio.Lock()

    @property
    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def has_ended(self) -> bool:
        """Whether that loop is over, and all that was open in it with it."""
        return self._loop is not None and self._loop.is_closed()

    @property
    def is_changing_elsewhere(self) -> bool:
        """Whether another loop is about to open something, or to close it."""
        return not self.is_here and not self.has_ended and self.changing.locked()

    def move_in(self) -> None:
        """From now on it is the one that runs."""
        if not self.is_here:
            self._loop, self.changing = asyncio.get_running_loop(), asyncio.Lock()


class Provider:
    """One queue at a backend. Subclasses implement `add`, `delete`, `stats`, `_open`, `_close` and the roles of
    `onward.queue.contract` that they name beside this class. Errors of the native client may leave any of these calls:
    they are told in our words."""

    name: str
    """As in `provider_options` and in warnings: "redis"."""
    capabilities: Capabilities = Capabilities()
    """A subclass says which options it honours; what follows from its roles is added."""
    lease: timedelta | None = None
    """How long a job stays with a holder that does not `renew`; `None`: as long as the holder's connection lives."""
    long_poll: timedelta = timedelta()
    """How long a worker's `fetch` waits, where long polling is a capability."""
    is_bound_to_loop: bool = True
    """Whether what it opens works in one event loop only."""

    was_open: bool = False
    """Whether the backend let us in: one that does not later on is on its way up or down, or will be told otherwise."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, code in _CODES.items():
            if name in vars(cls):
                setattr(cls, name, _reported(vars(cls)[name], code))

    def __init__(self, queue_name: str, events: Emitter | None = None) -> None:
        self.queue_name = queue_name
        self.events = events or Emitter(queue_name)
        """Who listens to `queue.*` events; shared by every queue and worker of this name on one factory."""
        self.on_ended: Callable[[StoredJob], object] = self._log_ended
        """Called with a job that `fetch` or `process` found to have failed without anybody running it."""
        self.declare(**{capability: isinstance(self, role) for capability, role in _ROLES.items()})
        self.events.sharers.add(self)
        self._holders = 0
        self._home = HomeLoop()

    def declare(self, **capabilities: Any) -> Self:
        """Say what it can do where that is not the same for all of its kind."""
        self.capabilities = msgspec.structs.replace(self.capabilities, **capabilities)
        return self

    def role(self, wanted: type[R], feature: str) -> R:
        """The same in that role; UNSUPPORTED_FEATURE when it has it not."""
        if not isinstance(self, wanted):
            raise self.unsupported(feature)
        return self

    # -- life: a queue and a worker may hold one provider; it opens for the first and closes after the last

    @property
    def is_connected(self) -> bool:
        return self._holders > 0

    async def connect(self) -> None:
        """Be ready; a second holder finds it open."""
        if self._is_left_behind():
            self._holders = 0
        if self._holders == 0 and not self._home.is_changing_elsewhere:
            self._home.move_in()
        else:
            self.check_loop()
        async with self._home.changing:
            if self._holders == 0:
                await self._open_reported()
            self._holders += 1

    async def _open_reported(self) -> None:
        try:
            await self._open()
            self.was_open = True
        except QueueError:
            raise
        except Exception as error:
            raise self.failure(f"cannot connect to {self.name}", error, QueueErrorCode.CONNECTION) from error

    async def disconnect(self, *, everyone: bool = False) -> None:
        """Let go, or close it for every queue and worker of this name on the same factory; harmless when nobody
        holds it."""
        if everyone:
            for other in list(self.events.sharers):
                if other is not self:
                    await other._let_go(everyone=True)
        await self._let_go(everyone=everyone)

    def check_loop(self) -> None:
        """Refuse what would wait for ever: a call from another event loop than the one it was connected in."""
        if self.is_bound_to_loop and not self._home.is_here:
            raise self.elsewhere(has_ended=self._home.has_ended)

    def _is_left_behind(self) -> bool:
        """Whether it was connected in an event loop that ended since: nothing is left to close."""
        return self.is_bound_to_loop and self._holders > 0 and self._home.has_ended

    async def _let_go(self, *, everyone: bool) -> None:
        if self._is_left_behind():
            self._holders = 0
        if self._holders > 0:
            self.check_loop()
        async with self._home.changing:
            if self._holders == 0:
                return
            self._holders = 0 if everyone else self._holders - 1
            if self._holders == 0:
                await self._close()

    async def _open(self) -> None: ...

    async def _close(self) -> None: ...

    # -- what every one does

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        """Store it; the answer is what was stored. An id that is taken is DUPLICATE, where the backend can know."""
        raise NotImplementedError

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        """Store several, in as few round trips as the backend allows. When it took some and not others it raises
        QueuePartlyAdded, which names the former; any other error means that none was added, or that nobody knows."""

        async def add(part: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
            return [await self.add(job, options) for job, options in part]

        return await self.add_in_parts(jobs, 1, add)

    async def add_in_parts(
        self,
        jobs: Sequence[I],
        most: int,
        add: Callable[[Sequence[I]], Awaitable[Sequence[StoredJob | Exception]]],
        *,
        size: Callable[[I], int] = lambda job: 0,
        most_size: int = 0,
    ) -> list[StoredJob]:
        """Have `add` store so many at a time: it answers for each what was stored, or why it was not; or it raises when
        it stored none of them. What becomes of that is as `add_many` promises."""
        added: list[StoredJob] = []
        for part in in_parts(jobs, most=most, size=size, most_size=most_size):
            answers: Sequence[StoredJob | Exception]
            try:
                answers = await add(part)
            except Exception as error:  # noqa: BLE001 - raised below
                answers = [error]
            added += [answer for answer in answers if not isinstance(answer, Exception)]
            refused = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if refused is not None and added:
                raise self.partly_added(added, len(jobs), refused) from refused
            if refused is not None:
                raise refused
        return added

    def lacks(self, option: str, value: Any) -> str | None:
        """What is not supported if a job is added with this option, in words; `None`: it is honoured."""
        return lacking(option, self.capabilities)

    async def delete(self) -> None:
        """Remove the queue with everything in it."""
        raise NotImplementedError

    async def stats(self) -> QueueStats:
        """How many jobs are where."""
        raise NotImplementedError

    async def health(self) -> QueueHealth:
        """Whether the queue is being worked off."""
        return QueueHealth.of(await self.stats())

    # -- errors

    def unsupported(self, feature: str) -> QueueConfigurationError:
        problem = f"{self.name} does not support {feature}; ask queue.capabilities first"
        return self._error(QueueConfigurationError, problem, QueueErrorCode.UNSUPPORTED_FEATURE)

    def shut_down(self) -> QueueRuntimeError:
        problem = f"{self.name} is not connected: connect() first, and do not use it after disconnect()"
        return self._error(QueueRuntimeError, problem, QueueErrorCode.SHUTDOWN)

    def elsewhere(self, *, has_ended: bool) -> QueueConfigurationError:
        problem = elsewhere(self.name, has_ended=has_ended)
        return self._error(QueueConfigurationError, problem, QueueErrorCode.INVALID_OPTION)

    def duplicate(self, job_id: str) -> QueueDataError:
        problem = f"a job with id {job_id!r} is already there"
        return self._error(QueueDataError, problem, QueueErrorCode.DUPLICATE, job_id)

    def not_active(self, job_id: str) -> QueueRuntimeError:
        problem = f"job {job_id!r} is not active: it ended, or its lock passed to another worker"
        return self._error(QueueRuntimeError, problem, QueueErrorCode.PROCESSING, job_id)

    def held(self, job_id: str) -> QueueRuntimeError:
        problem = f"job {job_id!r} is being run: wait until it has ended"
        return self._error(QueueRuntimeError, problem, QueueErrorCode.PROCESSING, job_id)

    def _error(self, kind: type[E], problem: str, code: QueueErrorCode, job_id: str | None = None) -> E:
        return kind(problem, code=code, queue_name=self.queue_name, job_id=job_id)

    def not_found(self, job_id: str) -> QueueNotFound:
        return QueueNotFound(queue_name=self.queue_name, resource_id=job_id)

    def partly_added(self, added: Sequence[StoredJob], wanted: int, error: Exception) -> QueuePartlyAdded:
        return QueuePartlyAdded(
            f"{self.name} took {len(added)} of {wanted} jobs: {error}",
            added=[job.id for job in added],
            queue_name=self.queue_name,
            cause=error,
        )

    def failure(
        self, what: str, error: Exception, code: QueueErrorCode, job_id: str | None = None
    ) -> QueueRuntimeError:
        """What the native client raised, in our words."""
        hopeless = self.hopeless(error)
        return QueueRuntimeError(
            f"{what}: {hopeless or f'{type(error).__name__}: {error}'}",
            code=code,
            queue_name=self.queue_name,
            job_id=job_id,
            retryable=hopeless is None and not is_permanent(error),
            cause=error,
        )

    def hopeless(self, error: BaseException) -> str | None:
        """What is wrong, in words, when the same call can never succeed: a password, an address that does not exist."""
        if isinstance(root_of(error), socket.gaierror):
            return f"there is no such host: {error}"
        return None

    def _log_ended(self, job: StoredJob) -> None:
        """Nobody works here: it is told to the log."""
        self.events.emit(Failed.of(job, worker_id=""))


def elsewhere(what: str, *, has_ended: bool) -> str:
    """Why something cannot be used in this event loop."""
    if has_ended:
        return (
            f"{what} was connected in an event loop that has ended, and never disconnected: use `async with queue`, or "
            "`await queue.disconnect()` before its loop ends"
        )
    return (
        f"{what} is connected in another event loop: give each thread, or each loop, a provider object, queues and "
        "workers of its own"
    )


class ProviderFactory(Generic[N]):
    """Providers for many queues on one native connection, opened for the first of them and closed after the last."""

    def __init__(self) -> None:
        self._events: dict[str, Emitter] = {}
        self._connection: N | None = None
        self._holders = 0
        self._home = HomeLoop()

    def for_queue(self, queue_name: str) -> Provider:
        """A provider bound to that queue."""
        raise NotImplementedError

    async def _open(self) -> N:
        raise NotImplementedError

    async def _close(self, connection: N) -> None:
        raise NotImplementedError

    def events_of(self, queue_name: str) -> Emitter:
        """Who listens to `queue.*` events of that queue."""
        return self._events.setdefault(queue_name, Emitter(queue_name))

    async def hold(self) -> N:
        """The connection, for a provider that opens."""
        if self._home.has_ended:
            self._connection, self._holders = None, 0  # what was open has ended with its loop
        if self._connection is None and not self._home.is_changing_elsewhere:
            self._home.move_in()
        elif not self._home.is_here:
            raise QueueConfigurationError(elsewhere(type(self).__name__, has_ended=False))
        async with self._home.changing:
            if self._connection is None:
                self._connection = await self._open()
            self._holders += 1
            return self._connection

    async def let_go(self) -> None:
        """For a provider that closes."""
        async with self._home.changing:
            self._holders -= 1
            if self._holders == 0 and self._connection is not None:
                connection, self._connection = self._connection, None
                await self._close(connection)
