"""The guardian as a child process: renews while this process is stuck, and gives the leases back when it is killed."""

import asyncio
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias
from uuid import UUID

from onward.errands import to_the_end
from onward.lifecycle.effects import storable
from onward.lifecycle.store import Store
from onward.model import JobError, JobId, LossReason, WorkerId
from onward.notify.contract import Hint, HintKind, NotifyAdapter
from onward.observe import events
from onward.pacing import Pacing
from onward.state.command import Command
from onward.state.driver import Address
from onward.state.statement import spell
from onward.worker.guardian.blocked import Watch
from onward.worker.guardian.contract import Told
from onward.worker.guardian.leases import Deadlines, Leases
from onward.worker.guardian.table import Shape, TableFull, Writer
from onward.worker.guardian.thread import ThreadGuardian
from onward.worker.guardian.worker_loop import WorkerLoop
from onward.worker.presence import SIGNING, Presence

logger = logging.getLogger("onward.worker")
Child: TypeAlias = "subprocess.Popen[bytes]"
_PROGRAM = Path(__file__).parent / "child" / "__main__.py"
_PROCESSES = 512
_STARTING = 5.0
"""Seconds a child has to come up before it counts as stuck."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Seconds until another child is started after one has ended."""
_HEALTHY = 60.0
"""Seconds after which a child has proved itself: should it end, the next one starts soon."""
_MOST_STACK = 3_000
_RENEWING = "renew leases"
_WAITED_LATELY = 1.0
"""Seconds for which a child that waits for the write lock of a file is taken to be still waiting."""
_STOPPING = 3.0
"""Seconds it has to end before it is killed."""


class ProcessGuardian:
    """A child process renews; a thread here hears what it says. Should it end, a thread guardian stands in for it until
    another child has come up.

    The thread, and not the event loop: a handler that blocks the loop must not keep the leases of a dead child waiting.
    """

    _child: "Child | None" = None
    _listening: threading.Thread | None = None
    _fallback: ThreadGuardian | None = None

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        address: Address,
        notify: NotifyAdapter,
        *,
        shortest: float,
        longest: float,
        concurrency: int,
        lost: Told,
        watch: Watch,
        presence: Presence,
    ) -> None:
        self._store, self._worker, self._address, self._notify = store, worker, address, notify
        self._shortest, self._longest, self._lost = shortest, longest, lost
        self._watch, self._presence, self._stack = watch, presence, ""
        # A slot, an outcome to be settled, one that waits for a lock: three for each job that can run at a time.
        self._shape = Shape(leases=3 * concurrency + 16, processes=_PROCESSES)
        self.leases = Leases(table_is_full=self._cannot_hold_all)
        self._deadlines = Deadlines(self.leases, shortest=shortest)
        self._trouble: str | None = None
        """Why the child was killed."""
        self._kill_at: float | None = None
        """Set when stopping."""
        self._stopped = threading.Event()
        self._failed_at: float | None = None
        """When the child last said that it could not renew."""
        self._holds_too_many = False
        """More leases than a child can be told of: another one would not help."""

    # -- called from the worker's loop

    def _cannot_hold_all(self) -> None:
        self._holds_too_many = True
        self._kill("cannot hold so many leases")

    def check_now(self) -> None:
        fallback = self._fallback
        if fallback is not None:
            fallback.check_now()
        else:
            self._say(b"check\n")

    def say_stopping(self) -> None:
        self._presence.is_stopping, self._presence.next_sign = True, 0.0
        if self.leases.table is not None:
            self.leases.table.stopping(time.monotonic())
        self.check_now()

    def add_process(self, pid: int) -> None:
        if self.leases.table is not None:
            try:
                self.leases.table.add_process(pid)
            except TableFull:
                logger.warning("process %d will not be killed should worker %s die: too many", pid, self._worker)

    def remove_process(self, pid: int) -> None:
        if self.leases.table is not None:
            self.leases.table.remove_process(pid)

    def start(self) -> None:
        observers = self._store.observers
        loop, let_go = asyncio.get_running_loop(), self.leases.let_go
        worker_loop = WorkerLoop(loop, let_go=let_go, lost=self._lost, observers=observers)
        self.leases.table = table = Writer(self._shape)
        self._watch.start(threading.get_ident(), table.beat)
        child, name = self._start_child(table), f"onward-guardian-{self._worker}"
        self._listening = threading.Thread(target=self._keep, args=(child, table, worker_loop), name=name, daemon=True)
        self._listening.start()

    async def stop(self) -> None:
        self._watch.stop()
        self._kill_at = time.monotonic() + _STOPPING
        self._stopped.set()
        self._say(b"stop\n")
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
        try:
            await to_the_end(asyncio.to_thread(self._end))
        finally:
            if self.leases.table is not None:
                table, self.leases.table = self.leases.table, None
                table.close()

    def _end(self) -> None:
        if self._listening is not None:
            self._listening.join()
        if self._fallback is not None:
            self._fallback.end()

    def _start_child(self, table: Writer) -> "Child | None":
        """A child that comes up; None if it cannot be started."""
        self._trouble = None
        table.anew()
        try:
            self._child = child = self._spawn(table.descriptor)
        except OSError as error:
            self._trouble = f"cannot be started: {error}"
            return None
        logger.info("worker %s: a child process (pid %d) renews the leases", self._worker, child.pid)
        return child

    def _spawn(self, descriptor: int) -> Child:
        configuration = json.dumps(self._configuration(descriptor)).encode() + b"\n"
        child = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), self._worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C in a terminal goes to the whole process group
            bufsize=0,
        )
        assert child.stdin is not None
        with suppress(OSError):  # it has ended already: the thread will notice
            child.stdin.write(configuration)
        os.set_blocking(child.stdin.fileno(), False)
        return child

    def _configuration(self, descriptor: int) -> dict[str, Any]:
        """What `child.program.Configuration` describes."""
        commands, presence = self._store.state.lease_commands(worker=self._worker), self._presence
        presence_commands = self._store.state.workers.commands(presence.row)
        hint = self._notify.command([Hint(HintKind.EXPIRED, "")])
        return {
            "parent": os.getpid(),
            "worker": self._worker,
            "path": sys.path,
            "client": self._address.client,
            "options": self._address.options,
            "statements": {
                "renew": [self._spelled(command) for command in commands.renew],
                "expire": self._spelled(commands.expire),
                "time_out": self._spelled(commands.time_out),
                "give_back": self._spelled(commands.give_back),
                "hint": hint and self._spelled(hint),
                "hint_parameters": hint.parameters if hint else {},
                "sign": [self._spelled(command) for command in presence_commands.sign],
                "sign_parameters": {**presence_commands.sign[0].parameters, "promise": presence.promise, "now": None},
                "bury": self._spelled(presence_commands.bury),
            },
            "started": presence.started,
            "next_sign": presence.next_sign,
            "sign_every": presence.every,
            "table": descriptor,
            "leases": self._shape.leases,
            "processes": self._shape.processes,
            "interval": self._shortest / 3,
            "longest": self._longest,
            "tells_renewals": self._store.observers.wants(events.LeaseRenewed),
            "ends_worker": self._watch.ends_process,
        }

    def _spelled(self, command: Command[Any]) -> dict[str, Any]:
        if self._address.client == "sqlite3":
            return {"sql": command.sql, "names": ()}  # it understands :name
        spelled = spell(command.sql, "dollar" if self._address.client == "asyncpg" else "percent")
        return {"sql": spelled.sql, "names": spelled.names}

    def _say(self, line: bytes) -> None:
        # A child that does not read, or is gone, is noticed by the thread.
        if self._child is not None and self._child.stdin is not None and not self._child.stdin.closed:
            with suppress(OSError, ValueError):  # just closed
                self._child.stdin.write(line)

    def _kill(self, trouble: str) -> None:
        if self._child is not None and self._trouble is None:
            self._trouble = trouble
            self._child.kill()

    # -- in the thread

    def _keep(self, child: "Child | None", table: Writer, worker_loop: WorkerLoop) -> None:
        """One child after the other, until the worker stops."""
        pacing = Pacing(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=0)
        while True:
            began = time.monotonic()
            if child is not None:
                self._listen(child, table, worker_loop)
            if self._kill_at is not None:
                return
            self._fall_back(worker_loop)
            if time.monotonic() > began + _HEALTHY:
                pacing.reset()
            if self._holds_too_many or self._stopped.wait(next(pacing)):
                return
            child = self._start_child(table)
            if child is not None and self._stopped.is_set():
                child.kill()

    def _listen(self, child: Child, table: Writer, worker_loop: WorkerLoop) -> None:
        """Until the child has ended."""
        assert child.stdout is not None
        try:
            self._hear_until_it_ends(child.stdout, table, worker_loop)
        except Exception:
            logger.exception("worker %s does not understand its guardian", self._worker)
            self._kill("cannot be understood")
        child.stdout.close()
        code = child.wait()
        if child.stdin is not None:
            child.stdin.close()
        self._trouble = self._trouble or f"ended with code {code}"

    def _hear_until_it_ends(self, output: IO[bytes], table: Writer, worker_loop: WorkerLoop) -> None:
        started, unread = time.monotonic(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if selector.select(self._deadlines.look_every):
                    data = os.read(output.fileno(), 65536)
                    if not data:
                        return
                    *lines, unread = (unread + data).split(b"\n")
                    for line in lines:
                        self._hear(json.loads(line), worker_loop)
                self._watch_deadlines(table, worker_loop)
                self._watch_child(table, started)
                if self._failed_at is not None and table.renewed > self._failed_at:
                    self._failed_at = None
                    worker_loop.database_works(_RENEWING)
                if self._fallback is not None and table.renewed > started:
                    fallback, self._fallback = self._fallback, None
                    fallback.end()

    def _hear(self, news: dict[str, Any], worker_loop: WorkerLoop) -> None:
        match news:
            case {"lost": job_id, "attempt": attempt, "reason": reason}:
                worker_loop.lost(UUID(job_id), attempt, LossReason(reason))
            case {"renewed": count}:
                worker_loop.emit(events.LeaseRenewed(worker=self._worker, count=count))
            case {"overdue": keys}:
                self._say_what_blocks(_read(keys))
            case {"timed_out": keys}:
                self._were_let_go(_read(keys), worker_loop)
            case {"unsigned": kind, "message": message}:
                worker_loop.emit(events.StateError(doing=SIGNING, error=JobError(type=kind, message=message)))
            case {"signed": True}:
                worker_loop.database_works(SIGNING)
            case {"error": kind, "message": message}:
                self._failed_at = time.monotonic()
                worker_loop.emit(events.StateError(doing=_RENEWING, error=JobError(type=kind, message=message)))
            case _:
                raise ValueError(news)

    def _say_what_blocks(self, keys: list[tuple[JobId, int]]) -> None:
        self._stack = self._watch.stack()
        returned = [(str(job_id), attempt) for job_id, attempt in keys if self._watch.has_returned(job_id, attempt)]
        words = {"stack": storable(self._stack)[-_MOST_STACK:], "returned": returned}
        self._say(json.dumps(words).encode() + b"\n")

    def _were_let_go(self, keys: list[tuple[JobId, int]], worker_loop: WorkerLoop) -> None:
        for job_id, attempt in keys:
            lease = self.leases.get(job_id)
            if lease is not None and lease.attempt == attempt:
                lease.is_given_up = True
            worker_loop.lost(job_id, attempt, LossReason.TIMEOUT)
        self._watch.report(keys, self._stack)
        if self._watch.is_to_end():
            self._watch.end()  # the child gives back the rest

    def _watch_deadlines(self, table: Writer, worker_loop: WorkerLoop) -> None:
        for lease in self.leases.copy().values():
            lease.renewed_at(table.renewed)
        if table.waited > time.monotonic() - _WAITED_LATELY:
            return  # nobody can take the jobs either
        for job_id, attempt in self._deadlines.overdue():
            worker_loop.lost(job_id, attempt, LossReason.ERROR)

    def _watch_child(self, table: Writer, started: float) -> None:
        now = time.monotonic()
        if self._kill_at is not None:
            if now > self._kill_at:
                self._kill("did not end")
        elif table.turned == 0.0:
            if now > started + _STARTING:
                self._kill("did not come up")
        elif now > table.turned + max(self._shortest * 2 / 3, 1.0):
            self._kill("is stuck")

    def _fall_back(self, worker_loop: WorkerLoop) -> None:
        """Have a thread stand in, if none does yet."""
        logger.warning("worker %s: the child process that renews the leases %s", self._worker, self._trouble)
        if self._fallback is not None:
            return
        fallback = ThreadGuardian(
            self._store,
            self._worker,
            shortest=self._shortest,
            lost=self._lost,
            watch=self._watch,
            presence=self._presence,
            why="in place of the child process",
            leases=self.leases,
        )
        fallback.start_for(worker_loop)
        self._fallback = fallback


def _read(keys: list[tuple[str, int]]) -> list[tuple[JobId, int]]:
    return [(UUID(job_id), attempt) for job_id, attempt in keys]
