"""`onward worker --processes N`: starts worker processes, hands on when to stop, and replaces those that die."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from onward.cli.console import say
from onward.cli.steering import KILLED, MARGIN, NOT_STOPPED, PATIENCE, SIGNALS, Stop
from onward.pacing import Pacing

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STOPPED = (0, *(-number for number in SIGNALS))
"""Exit codes of a process that stopped in order; a signal ends it only before it listens, when it has no jobs."""
_KILL = getattr(signal, "SIGKILL", 9)
_HEALTHY = 60.0
"""Seconds after which a process has proved itself: should it die, the next one starts soon."""


def why_not() -> str | None:
    """Why this system cannot have a supervisor, in words; None where it can."""
    if os.name == "posix":
        return None
    return (
        "--processes needs signals and pipes that this system does not have: start as many `onward worker` commands "
        "as you want processes, each with --processes 1"
    )


class Supervisor:
    """Keeps worker processes running until told to stop.

    They are exec'd and share nothing but standard output and error. Each has a pipe from here: a byte says how hard to
    stop, and its end, that the supervisor is gone. Each is the head of a process group, so that Ctrl-C comes from here.
    """

    def __init__(self, command: Sequence[str], *, processes: int, name: str, grace: float) -> None:
        self._command, self._processes, self._name = command, processes, name
        self._time_to_stop = grace + PATIENCE + 2 * MARGIN
        self._reached = 0
        self._stopping = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._lifelines: dict[int, int] = {}

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
            if self._reached:
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
        theirs, ours = os.pipe()
        try:
            process = await self._start(number, theirs)
        except OSError as error:
            os.close(ours)
            return 1, f"cannot be started: {error}"
        finally:
            os.close(theirs)
        self._running[number], self._lifelines[number] = process, ours
        try:
            if self._reached:
                self._tell(number)
            code = await process.wait()
            return code, f"(process {process.pid}) {_in_words(code)}"
        finally:
            del self._running[number], self._lifelines[number]
            os.close(ours)

    async def _start(self, number: int, lifeline: int) -> asyncio.subprocess.Process:
        own = ["--name", f"{self._name}-{number}", "--number", str(number), "--lifeline", str(lifeline)]
        return await asyncio.create_subprocess_exec(
            *self._command, *own, stdin=asyncio.subprocess.DEVNULL, pass_fds=[lifeline], process_group=0
        )

    def _stop(self, why: str) -> None:
        self._reached = min(self._reached + 1, Stop.END)
        say(f"{why}: {_MEANING[Stop(self._reached)]}")
        self._stopping.set()
        for number in self._running:
            self._tell(number)
        asyncio.get_running_loop().call_later(self._time_to_stop, self._kill_rest)

    def _tell(self, number: int) -> None:
        if self._reached >= Stop.END:
            _kill(self._running[number])
        else:
            with suppress(BrokenPipeError):
                os.write(self._lifelines[number], bytes([self._reached]))

    def _kill_rest(self) -> None:
        for number, process in self._running.items():
            say(f"worker {number} (process {process.pid}) does not end: killed; its jobs are left to their leases")
            _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has just ended, and whoever waits for it is yet to be told
        process.kill()


_MEANING = {
    Stop.DRAIN: "every worker drains. A second signal makes them give their jobs back at once.",
    Stop.GIVE_BACK: "every worker gives its jobs back. A third signal kills them.",
    Stop.END: "every worker is killed; its jobs are left to their leases.",
}


def _in_words(code: int) -> str:
    """How a process ended, as the end of a sentence."""
    if code == -_KILL:
        return "was killed (SIGKILL: by somebody, or because memory ran out)"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"was ended by {known.get(-code, f'signal {-code}')}"
    if code == NOT_STOPPED:
        return f"made room because a handler did not stop (exit code {code})"
    return f"ended with exit code {code}"
