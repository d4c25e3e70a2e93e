"""The worker as its child sees it: what it says, what it is told, and whether it lives."""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from enum import Enum
from typing import Any

_LOOK_EVERY = 0.5


class Fate(Enum):
    """How a worker ended."""

    STOPPED = "stopped"
    DIED = "died"


class Parent:
    """Talks over stdin and stdout; nothing here waits for a worker that is stuck."""

    def __init__(self) -> None:
        self._input = self._output = b""
        self._fate: Fate | None = None
        self._wake = asyncio.Event()
        self._words: dict[str, Any] | None = None
        self._ended = asyncio.Event()

    def first_line(self) -> bytes:
        """Waits for it."""
        while b"\n" not in self._input:
            data = os.read(0, 65536)
            if not data:
                sys.exit(0)
            self._input += data
        line, _, self._input = self._input.partition(b"\n")
        return line

    def watch(self, pid: int) -> None:
        """Begin to listen. The end of stdin is the end of the worker, unless something it forked has stdin too."""
        loop = asyncio.get_running_loop()
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        loop.add_reader(0, self._hear)
        self._look(pid)
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                loop.add_reader(descriptor, self._see_end, descriptor)
                return
        self._look_often(pid)

    def _look(self, pid: int) -> None:
        if os.getppid() != pid:
            self._has_died()

    def _look_often(self, pid: int) -> None:
        self._look(pid)
        asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look_often, pid)

    def _see_end(self, descriptor: int) -> None:
        # Once: it stays readable, and the loop would do nothing else.
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._has_died()

    def _has_died(self) -> None:
        self._hear()  # it may have said that it stops
        self._end(Fate.DIED)

    def _hear(self) -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        # What came together with the first line is still there.
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self._words = json.loads(line)
        if b"stop" in lines:
            self._end(Fate.STOPPED)
        elif not data:
            self._end(Fate.DIED)
        self._wake.set()

    def _end(self, fate: Fate) -> None:
        if self._fate is None:
            self._fate = fate
            asyncio.get_running_loop().remove_reader(0)
            self._ended.set()
            self._wake.set()

    @property
    def has_ended(self) -> bool:
        return self._fate is not None

    async def fate(self) -> Fate:
        """Wait for the worker's end."""
        await self._ended.wait()
        assert self._fate is not None
        return self._fate

    async def wake(self, timeout: float) -> bool:
        """Wait until the worker says something, ends, or the time is up; whether it was one of the former."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        is_woken = self._wake.is_set()
        if not self.has_ended:
            self._wake.clear()
        return is_woken

    async def ask(self, question: dict[str, Any], *, within: float) -> dict[str, Any] | None:
        """Say something and wait for the answer; None: the worker, or the thread that would give it, is stuck too."""
        self._words = None
        self.tell(question)
        deadline = time.monotonic() + within
        while not self._has_answered() and (left := deadline - time.monotonic()) > 0:
            await self.wake(left)
        return self._words

    def _has_answered(self) -> bool:
        return self._words is not None or self.has_ended

    def tell(self, news: dict[str, Any]) -> None:
        """Say something; kept while the worker does not read."""
        self._output += json.dumps(news).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._output = self._output[os.write(1, self._output) :]
        except BlockingIOError:
            pass
        except OSError:
            self._output = b""  # it no longer reads
        if self._output:
            loop.add_writer(1, self._flush)
        else:
            loop.remove_writer(1)
