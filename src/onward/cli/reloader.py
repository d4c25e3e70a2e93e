"""`onward worker --reload`: a worker that is started anew when the source changes. For development."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from onward.cli.child import Child
from onward.cli.console import say
from onward.cli.steering import SIGNALS, Stop
from onward.cli.supervisor import in_words, time_to_stop

_LOOK_EVERY = 0.25
"""Seconds; and for so long nothing has changed before it is taken for whole."""
_SHOWN = 3
Sources: TypeAlias = Mapping[str, tuple[int, int]]
"""What is known of each file: when it was changed, and its size."""


def sources_in(folders: Sequence[Path]) -> Sources:
    """The Python files below these folders, but for what is hidden or installed."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        for place, below, names in os.walk(folder):
            below[:] = [name for name in below if _is_source(Path(place, name))]
            for name in names:
                if name.endswith(".py"):
                    with suppress(OSError):  # gone since
                        is_now = os.stat(path := os.path.join(place, name))
                        found[path] = is_now.st_mtime_ns, is_now.st_size
    return found


def _is_source(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules", "site-packages"):
        return False
    return not (folder / "pyvenv.cfg").exists()


class Reloader:
    """Runs one worker process after the other. It does not import the app, so no mistake there can end it."""

    def __init__(self, command: Sequence[str], folders: Sequence[Path], *, grace: float) -> None:
        self._command, self._folders = command, folders
        self._time_to_stop = time_to_stop(grace)
        self._child: Child | None = None
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Until told to end; the exit code."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._end, number.name)
        folders = ", ".join(map(str, self._folders))
        say(f"a worker starts anew whenever a Python file in {folders} changes. Ctrl-C ends it at once.")
        while not self._ending.is_set():
            await self._run_one()
        return 0

    async def _run_one(self) -> None:
        """A process, from its start until the next one is due."""
        sources = await asyncio.to_thread(sources_in, self._folders)
        async with asyncio.TaskGroup() as tasks:
            changing = tasks.create_task(self._changed(sources))
            running = tasks.create_task(self._process())
            await asyncio.wait([changing, running], return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not self._ending.is_set():
                say(f"the worker {running.result()}; it starts again when a file changes")
            if changed := await changing:
                say(f"changed: {_named(changed)}")
                self._stop(Stop.DRAIN)

    async def _process(self) -> str:
        """From its start to its end; how it ended, in words."""
        try:
            self._child = await Child.started(self._command)
        except OSError as error:
            return f"cannot be started: {error}"
        try:
            if self._ending.is_set():
                self._stop(Stop.GIVE_BACK)
            return in_words(await self._child.ended())
        finally:
            self._child = None

    async def _changed(self, sources: Sources) -> list[str]:
        """Wait for a change, and for it to be whole: files that are new, gone or other. None if the end comes first."""
        last = sources
        while not await self._ends_soon():
            now = await asyncio.to_thread(sources_in, self._folders)
            if now == last and now != sources:
                return sorted(path for path in {*now, *sources} if now.get(path) != sources.get(path))
            last = now
        return []

    async def _ends_soon(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):
                await self._ending.wait()
        return self._ending.is_set()

    def _end(self, why: str) -> None:
        how = Stop.END if self._ending.is_set() else Stop.GIVE_BACK
        say(f"{why}: the worker {'is killed' if how is Stop.END else 'gives its jobs back and ends'}")
        self._ending.set()
        self._stop(how)

    def _stop(self, how: Stop) -> None:
        child = self._child
        if child is None:
            return

        def kill() -> None:
            if self._child is child:
                child.stop(Stop.END)

        child.stop(how)
        asyncio.get_running_loop().call_later(self._time_to_stop, kill)


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(map(os.path.relpath, paths[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
