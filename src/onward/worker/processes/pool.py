"""The processes of a worker: started when there is a job for them, used again, killed when it must not go on."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from onward.define.outcome import Outcome
from onward.define.registry import RegisteredType, Registry
from onward.errors import HandlerFailed
from onward.model import JobError
from onward.observe.logs import log_settings
from onward.worker.attempt import RunningAttempt
from onward.worker.processes.border import outcome_of, task_of
from onward.worker.processes.messages import SIZE, Answer, Begun, FromProcess, Said, Task, framed, read_from_process
from onward.worker.processes.names import handler_names

_PROGRAM = """
import sys, json, os
path, argv, logs = json.loads(sys.argv[1])
sys.path[:] = [place for place in path if os.path.abspath(place) != os.getcwd()]
try:
    import onward.worker.processes.child
except ModuleNotFoundError:
    sys.path[:] = path
from onward.worker.processes.child import main
sys.path[:], sys.argv[:] = path, argv
main(logs)
"""
"""Started with -P: of what lies in the current directory nothing is imported, but what the application imports from
there once it runs, and Onward itself if it is nowhere else."""
_END_WITHIN = 2.0
"""Seconds an idle process has to end by itself."""
_LAST_WORDS = 1.0
"""Seconds to read what a process said before it died, when something it started keeps the connection open."""


class Processes:
    """As many as there are jobs for them at a time, so never more than the worker has slots. One job at a time each.

    `started` and `ended` are told the ids of processes.
    """

    def __init__(
        self,
        registry: Registry,
        types: Sequence[RegisteredType],
        *,
        started: Callable[[int], None],
        ended: Callable[[int], None],
    ) -> None:
        """Raises DefinitionError when a process could not import the handler of one of `types`."""
        self._registry, self._started, self._ended = registry, started, ended
        self._handlers = handler_names([kind for kind in types if kind.runs_in_process])
        self._idle: list[WorkerProcess] = []
        self._watches = asyncio.TaskGroup()

    async def __aenter__(self) -> "Processes":
        await self._watches.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._idle:
            process.dismiss()
        # Not the error: it would cancel the watches, and processes be left behind.
        await self._watches.__aexit__(None, None, None)

    async def run(self, attempt: RunningAttempt, *, begun: Callable[[], None]) -> Outcome[Any]:
        """Have a process run the handler. Whoever cancels this kills the process."""
        task = task_of(attempt, self._handlers, self._registry)
        reused = self._take_idle()
        if reused is not None:
            try:
                return await self._perform(reused, task, attempt, begun)
            except DiedIdle:
                pass  # nobody had noticed yet; the handler has not begun, so another process may run it
        return await self._perform(await self._start(), task, attempt, begun)

    async def _perform(
        self, process: "WorkerProcess", task: Task, attempt: RunningAttempt, begun: Callable[[], None]
    ) -> Outcome[Any]:
        try:
            answer = await process.perform(task, begun=begun, said=attempt.progress)
        except BaseException:
            await process.kill()
            raise
        self._idle.append(process)
        return outcome_of(answer, attempt.kind, self._registry)

    def _take_idle(self) -> "WorkerProcess | None":
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.dismiss()
        return None

    async def _start(self) -> "WorkerProcess":
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                # A session of its own: Ctrl-C in a terminal goes to the worker alone, and with a handler that is
                # killed goes whatever it has started. Started by this thread, whose end would be the end of it too.
                command = [sys.executable, "-P", "-u", "-c", _PROGRAM, json.dumps([sys.path, sys.argv, _how_to_log()])]
                process = await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno(), start_new_session=True)
            except BaseException:
                writer.close()
                raise
        started = WorkerProcess(process, reader, writer)
        self._watches.create_task(self._watch(started))
        try:
            self._started(process.pid)
        except BaseException:
            await started.kill()
            raise
        return started

    async def _watch(self, process: "WorkerProcess") -> None:
        await process.ended()
        self._ended(process.pid)
        process.clean_up()


def _how_to_log() -> Any:
    settings = log_settings()
    return None if settings is None else msgspec.to_builtins(settings)


class DiedIdle(Exception):
    """A process that had run other handlers was gone when it was given another."""


class WorkerProcess:
    """One process and the connection to it."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.pid = process.pid
        self._is_cleaned_up = False
        self._is_new = True

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def perform(
        self, task: Task, *, begun: Callable[[], None], said: Callable[[float, str | None], None]
    ) -> Answer:
        """The answer to a task; HandlerFailed if the process dies over it, DiedIdle if it had died before."""
        is_new, has_begun = self._is_new, False
        self._is_new = False
        try:
            self._writer.write(framed(task))
            await self._writer.drain()
            while True:
                match await self._receive():
                    case Begun():
                        has_begun = True
                        begun()
                    case Said(fraction=fraction, note=note):
                        said(fraction, note)
                        await asyncio.sleep(0)  # others have their turn, however much it says
                    case answer:
                        return answer
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.kill(patience=_LAST_WORDS)
            if not (is_new or has_begun):
                raise DiedIdle from None
            raise HandlerFailed(JobError(type="ProcessDied", message=self._exit_message()), permanent=False) from None

    async def _receive(self) -> FromProcess:
        size = int.from_bytes(await self._reader.readexactly(SIZE), "big")
        return read_from_process(await self._reader.readexactly(size))

    def _exit_message(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"the process of the handler exited with code {code}"
        name = signal.Signals(-code).name
        hint = " (as the system does when memory runs out)" if name == "SIGKILL" else ""
        return f"the process of the handler died with {name}{hint}"

    def dismiss(self) -> None:
        """Tell it to end; it is killed if it does not."""
        self._writer.close()
        asyncio.get_running_loop().call_later(_END_WITHIN, self._kill_group)

    async def kill(self, *, patience: float = 0.0) -> None:
        """End it, and what it has started; returns when it is gone. One that is about to end may do so by itself."""
        if patience:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.ended()
        self._kill_group()
        self._writer.close()
        await self.ended()

    async def ended(self) -> None:
        """Wait until it is gone."""
        await self._process.wait()

    def clean_up(self) -> None:
        """It has died: so does what it has started, and nobody waits for it any longer."""
        self._kill_group()
        self._is_cleaned_up = True
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._writer.close)

    def _kill_group(self) -> None:
        # Not later than that: the system may give the number to others.
        if not self._is_cleaned_up:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
