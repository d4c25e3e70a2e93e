"""The program of a process that runs handlers, one at a time, until its worker closes the connection or dies."""

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec

from onward.define.codec import Limits
from onward.define.job_type import Definition, Step
from onward.define.meta import encode_meta
from onward.define.outcome import Done, Next, Outcome, Rescheduled
from onward.define.registry import RegisteredType, register
from onward.define.request import BlockerSource, NewChain
from onward.define.signature import read_signature
from onward.errors import Permanent, PhaseError, Reschedule
from onward.lifecycle.effects import describe
from onward.lifecycle.settle import encode_output
from onward.observe.logs import LogSettings
from onward.observe.running import current_attempt
from onward.state.rows import read_meta
from onward.worker.processes.attempt import ProcessAttempt
from onward.worker.processes.messages import (
    SIZE,
    Answer,
    Begun,
    ChainToStart,
    Completed,
    Continued,
    ExistingChain,
    FromProcess,
    HandlerName,
    Postponed,
    Raised,
    Task,
    framed,
    read_task,
)
from onward.worker.processes.names import find

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(logs: Any = None) -> None:
    """Serve the worker at the other end of standard input, which is a socket; `logs`: its `LogSettings`."""
    if logs is not None:
        msgspec.convert(logs, LogSettings).apply()
    with socket.socket(fileno=os.dup(0)) as connection:
        # Handlers and what they start have nothing to read there.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _outlive_signals()
        _end_with_parent()
        Server(connection).serve()


def _outlive_signals() -> None:
    """A stop is for the worker to manage, also when everybody gets the signal. What a handler forks hears it again."""
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    os.register_at_fork(after_in_child=restore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, this is not inherited by the programs that a handler starts."""


def _end_with_parent() -> None:
    # Elsewhere the end of the connection tells, unless the handler keeps every other thread from running.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


class Server:
    """Runs tasks in the main thread while another listens, to notice at once when the worker is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input = connection.makefile("rb")
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._busy = False
        self._saying = threading.Lock()
        self._handlers: dict[tuple[str, HandlerName], RegisteredType] = {}

    def serve(self) -> None:
        """Until there is nobody to serve."""
        threading.Thread(target=self._listen, name="onward-worker-connection", daemon=True).start()
        while (task := self._tasks.get()) is not None:
            answer = self._answer(task)
            self._busy = False
            self._say(answer)

    def _listen(self) -> None:
        while len(size := self._input.read(SIZE)) == SIZE:
            data = self._input.read(length := int.from_bytes(size, "big"))
            if len(data) < length:
                break  # the worker died over it
            self._busy = True
            self._tasks.put(read_task(data))
        if self._busy:
            os.killpg(0, signal.SIGKILL)
        self._tasks.put(None)

    def _say(self, message: FromProcess) -> None:
        with self._saying:
            self._connection.sendall(framed(message))

    def _answer(self, task: Task) -> Answer:
        attempt = ProcessAttempt(task, None, self._say)
        current_attempt.set(attempt)
        try:
            kind = self._kind(task)
            attempt.input = kind.input.bare.decode(task.input)
            run: Callable[..., Any] | None = kind.step.run
            assert run is not None
            self._say(Begun())
            return _encoded(kind, run(attempt), task)
        except Reschedule as error:
            return Postponed(delay=error.delay, at=error.at, raised=True)
        except Exception as error:  # noqa: BLE001 - around the user's handler
            return Raised(error=describe(error), permanent=isinstance(error, Permanent))

    def _kind(self, task: Task) -> RegisteredType:
        key = task.job_type, task.handler
        if key not in self._handlers:
            self._handlers[key] = register(_step(task), task.limits)
        return self._handlers[key]


def _step(task: Task) -> Step[Any, Any]:
    found = find(task.handler)
    if isinstance(found, Step):
        return found
    assert callable(found)
    # A plain function there, of which `job(…)(function)` made the type.
    signature = read_signature(task.job_type, found, {})
    step: Step[Any, Any] = Step(Definition(name=task.job_type), input=signature.input, output=signature.output)
    step.run, step.signature = found, signature
    return step


def _encoded(kind: RegisteredType, returned: Any, task: Task) -> Answer:
    outcome: Outcome[Any] = returned if isinstance(returned, Outcome) else Done(returned)
    if isinstance(outcome, Done):
        return Completed(encode_output(kind, outcome.output, task.chain_id))
    if isinstance(outcome, Next):
        return Continued(
            step=outcome.step.name,
            input=_input(outcome.step, outcome.input, task.limits),
            delay=outcome.delay,
            at=outcome.at,
            priority=outcome.priority,
            meta=_meta(outcome.meta, outcome.step.name),
            blockers=tuple(_blocker(blocker, task.limits) for blocker in outcome.blockers),
        )
    if isinstance(outcome, Rescheduled):
        return Postponed(delay=outcome.delay, at=outcome.at, raised=False)
    raise PhaseError(f"{kind.name!r} returned {outcome!r}; return an output, Done(…) or attempt.continue_with(…)")


def _input(step: Step[Any, Any], value: Any, limits: Limits) -> str:
    return register(step, limits).input.bare.encode(value)


def _meta(given: Any, job_type: str) -> dict[str, Any] | None:
    """As it can be sent; what cannot be is said here, where it was given."""
    return None if given is None else read_meta(encode_meta(given, job_type))


def _blocker(source: BlockerSource, limits: Limits) -> ExistingChain | ChainToStart:
    if not isinstance(source, NewChain):
        return ExistingChain(source.job_type.name, source.id)
    return ChainToStart(
        job_type=source.job_type.name,
        input=_input(source.job_type, source.input, limits),
        id=source.id,
        delay=source.delay,
        at=source.at,
        priority=source.priority,
        blockers=tuple(_blocker(blocker, limits) for blocker in source.blockers),
        deduplication=source.deduplication,
        meta=_meta(source.meta, source.job_type.name),
    )
