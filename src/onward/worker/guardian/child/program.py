"""Renews what the worker holds until it stops, or dies: then kills its processes and gives its leases back."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypedDict
from uuid import UUID

from onward.worker.guardian.child.clients import Client, Held, Statements, client_for
from onward.worker.guardian.child.parent import Fate, Parent
from onward.worker.guardian.table import Reader, Shape


class Configuration(TypedDict):
    """What the worker says first, on one line of JSON. By pipe: there may be a password in it."""

    parent: int
    worker: str
    path: list[str]
    client: str
    options: dict[str, Any]
    statements: Statements
    table: int
    leases: int
    processes: int
    interval: float
    longest: float
    tells_renewals: bool


_ANSWER = 5.0
"""Seconds a database has to answer; else the connection may be broken, and another one is made."""
_MOMENT = 0.1
"""Seconds in which a connection that is cut off says so."""
_SWEEPS = (0.2, 1.0)
"""Seconds until another look: a take that was under way when the worker died may commit after the first."""


def main() -> None:
    """Until the worker ends."""
    # Ctrl-C and a stopping service are the worker's to handle: it needs its leases until it has ended.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = Parent()
    configuration: Configuration = json.loads(parent.first_line())
    sys.path += [place for place in configuration["path"] if place not in sys.path]
    asyncio.run(_Child(configuration, parent).run())


class _Child:
    def __init__(self, configuration: Configuration, parent: Parent) -> None:
        self._interval, self._longest = configuration["interval"], configuration["longest"]
        self._worker, self._parent, self._parent_pid = configuration["worker"], parent, configuration["parent"]
        self._tells_renewals = configuration["tells_renewals"]
        self._table = Reader(configuration["table"], Shape(configuration["leases"], configuration["processes"]))
        self._client: Client = client_for(
            configuration["client"], configuration["options"], configuration["statements"]
        )
        self._told: set[tuple[UUID, int, str]] = set()

    async def run(self) -> None:
        self._parent.watch(self._parent_pid)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self._renew_until_the_end())
            fate = await self._parent.fate()
            # A renewal under way has a moment to end, so that its connection can be used again.
            await asyncio.wait([renewing], timeout=0.25)
            if renewing.cancel():
                self._client.drop()
        if fate is Fate.DIED:
            self._kill(self._table.processes())
            await self._give_back()
        self._client.drop()

    @asynccontextmanager
    async def _patience(self, seconds: float | None) -> AsyncIterator[None]:
        """Wait for the database no longer than this; being cancelled is not enough to end every client's wait."""
        if seconds is None:
            yield
            return
        cutting = asyncio.get_running_loop().call_later(seconds, self._client.cut_off)
        try:
            async with asyncio.timeout(seconds + _MOMENT):
                yield
        finally:
            cutting.cancel()

    # -- while the worker lives

    async def _renew_until_the_end(self) -> None:
        failures = 0
        while not self._parent.has_ended:
            self._table.turned(time.monotonic())
            failures = 0 if await self._try_to_renew() else failures + 1
            await self._parent.wake(min(self._interval, 0.1 * 2**failures) if failures else self._interval)

    async def _try_to_renew(self) -> bool:
        patience = None if self._client.waits_for_writers else min(max(self._interval, 0.5), _ANSWER)
        try:
            async with self._patience(patience):
                await self._client.connect()
                if self._table.held():
                    await self._renew()
                else:
                    self._table.renewed(time.monotonic())
        except Exception as error:  # noqa: BLE001 - one turn of a loop; the worker is told
            self._client.drop()
            self._parent.tell({"error": type(error).__name__, "message": str(error)})
            return False
        finally:
            self._table.waited(0.0)
        return True

    async def _renew(self) -> None:
        async with self._client.writing(lambda: self._table.waited(time.monotonic())):
            begun = time.monotonic()  # not before: what the worker took while others were writing is held as well
            held = [Held(UUID(bytes=job_id), attempt, seconds) for job_id, attempt, seconds in self._table.held()]
            answers = await self._client.renew(self._worker, held)
        self._table.renewed(begun)
        lost = {(answer.job_id, answer.attempt, answer.lost) for answer in answers if answer.lost is not None}
        # Once each: a worker that is stuck does not read, and what it has been told stays held until it does.
        for job_id, attempt, reason in lost - self._told:
            self._parent.tell({"lost": str(job_id), "attempt": attempt, "reason": reason})
        self._told = lost
        if held and self._tells_renewals:
            self._parent.tell({"renewed": len(held)})

    # -- when it has died

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    async def _give_back(self) -> None:
        """Until nothing is left, or the leases have run out by themselves."""
        deadline = time.monotonic() + self._longest
        sweeps, total, pause = list(_SWEEPS), 0, 0.05
        while time.monotonic() < deadline:
            try:
                async with self._patience(_ANSWER):
                    await self._client.connect()
                    count, locked = await self._client.expire(self._worker)
            except Exception:  # noqa: BLE001 - one turn of a loop; nobody is left to be told
                self._client.drop()
                pause = min(pause * 2, 2.0)
                await asyncio.sleep(pause)
                continue
            total += count
            if locked:
                await asyncio.sleep(0.02)
            elif sweeps:
                await asyncio.sleep(sweeps.pop(0))
            else:
                break
        with suppress(OSError):
            os.write(2, f"onward: worker {self._worker} died; leases given back: {total}\n".encode())
