"""`onward worker --processes N`: starts worker processes, hands on when to stop, and replaces those that die."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from onward.cli.child import Child
from onward.cli.console import say
from onward.cli.probes import FleetHealth
from onward.cli.steering import KILLED, MARGIN, NOT_STOPPED, PATIENCE, SIGNALS, Stop
from onward.pacing import Pacing

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STOPPED = (0, *(-number for number in SIGNALS))
"""Exit codes of a process that stopped in order; a signal ends it only before it listens, when it has no jobs."""
_LEFT = (0, 1, 2)
"""The same of a burst: it has done everything, or names an error that the next would meet as well."""
_KILL = getattr(signal, "SIGKILL", 9)
_HEALTHY = 60.0
"""Seconds after which a process has proved itself: should it die, the next one starts soon."""


def why_not(option: str) -> str | None:
    """Why this system cannot have a supervisor, or whatever the option wants, in words; None where it can."""
    if os.name == "posix":
        return None
    return (
        f"{option} needs signals and pipes that this system does not have: start `onward worker` without it, as many "
        "as you want processes"
    )


def time_to_stop(grace: float) -> float:
    """Seconds after which a worker process that was told to stop hangs."""
    return grace + PATIENCE + 2 * MARGIN


class Supervisor:
    """Keeps worker processes running until told to stop; with `burst`, each until it has found nothing left to do."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        name: str,
        grace: float,
        burst: bool = False,
        health: FleetHealth | None = None,
    ) -> None:
        self._command, self._processes, self._name, self._burst = command, processes, name, burst
        self._time_to_stop = time_to_stop(grace)
        self._health = health
        self._reached = 0
        self._stopping = asyncio.Event()
        self._running: dict[int, Child] = {}

    async def run(self) -> int:
        """Until every process has ended; the exit code, 0 if all of them stopped in order."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop, number.name)
        say(f"starting {self._processes} worker processes. Ctrl-C stops them.")
        async with asyncio.TaskGroup() as places:
            kept = [places.create_task(self._keep(number)) for number in range(1, self._processes + 1)]
        say("all worker processes have ended")
        return KILLED if self._reached >= Stop.END else max(task.result() for task in kept)

    async def _keep(self, number: int) -> int:
        """One process after the other; the exit code of the last."""
        pacing = Pacing(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=0)
        while True:
            began = time.monotonic()
            code, ending = await self._run(number)
            if time.monotonic() - began > _HEALTHY:
                pacing.reset()
            if self._reached or (self._burst and code in _LEFT):
                if code in _STOPPED:
                    return 0
                say(f"worker {number} {ending}")
                return code if code >= 0 else 128 - code
            pause = next(pacing)
            say(f"worker {number} {ending}; another starts in {pause:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return 0

    async def _run(self, number: int) -> tuple[int, str]:
        """One process from start to end: its exit code, and how it ended in words."""
        own = ["--name", f"{self._name}-{number}", "--number", str(number)]
        if self._health is not None:
            place = self._health.place_of(number)
            place.unlink(missing_ok=True)
            own += ["--health-socket", str(place)]
        try:
            child = await Child.started([*self._command, *own])
        except OSError as error:
            return 1, f"cannot be started: {error}"
        self._running[number] = child
        try:
            if self._reached:
                child.stop(Stop(self._reached))
            code = await child.ended()
            return code, f"(process {child.process.pid}) {in_words(code)}"
        finally:
            del self._running[number]

    def _stop(self, why: str) -> None:
        self._reached = min(self._reached + 1, Stop.END)
        say(f"{why}: {_MEANING[Stop(self._reached)]}")
        self._stopping.set()
        if self._health is not None:
            self._health.is_stopping = True
        for child in self._running.values():
            child.stop(Stop(self._reached))
        asyncio.get_running_loop().call_later(self._time_to_stop, self._kill_rest)

    def _kill_rest(self) -> None:
        for number, child in self._running.items():
            process = child.process.pid
            say(f"worker {number} (process {process}) does not end: killed; its jobs are left to their leases")
            child.stop(Stop.END)


_MEANING = {
    Stop.DRAIN: "every worker drains. A second signal makes them give their jobs back at once.",
    Stop.GIVE_BACK: "every worker gives its jobs back. A third signal kills them.",
    Stop.END: "every worker is killed; its jobs are left to their leases.",
}


def in_words(code: int) -> str:
    """How a process ended, as the end of a sentence."""
    if code == -_KILL:
        return "was killed (SIGKILL: by somebody, or because memory ran out)"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"was ended by {known.get(-code, f'signal {-code}')}"
    if code == NOT_STOPPED:
        return f"made room because a handler did not stop (exit code {code})"
    return f"ended with exit code {code}"
