"""What Redis is asked: scripts of one queue, called by their digest, and to wait until there is something to take."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from onward.errands import Errands
from onward.queue.contract import TakenJob
from onward.redis.connection import exceptions
from onward.redis.scripts import Script, load, run

_FACTS = ("jobs", "taken", "attempts", "stalls", "errors", "reasons", "results", "progress", "expires")
"""Hashes by the id of a job; all but the first have it only when there is something to say."""
_LINES = ("waiting", "urgent", "delayed", "active", "completed", "failed", "locks", "wake", "meta", "workers")
KEYS: Final = (*_FACTS, *_LINES)
_TYPES: Final = {"waiting": "list", "wake": "list"} | dict.fromkeys(
    ("urgent", "delayed", "active", "completed", "failed", "workers"), "zset"
)
"""All others are hashes."""
MOVED: Final = ":moved-away"
"""What a key is called from then on that something else has written."""
_USES: Final[dict[str, tuple[str, ...]]] = {
    # Each key that travels costs, and these travel with every job.
    "add_one": ("jobs", "waiting", "wake"),
    "add": ("jobs", "expires", "waiting", "urgent", "delayed", "wake", "meta"),
    "renew": ("active", "locks", "workers"),
}
_SHARED: Final[dict[str, tuple[str, ...]]] = {"add_one": (), "mend": ()}
"""What stands before a script; it costs, too."""


def _script(name: str) -> tuple[Script, tuple[str, ...]]:
    keys = _USES.get(name, KEYS)
    names = f"local {', '.join(keys)} = unpack(KEYS)"
    # What a script does not use it does not name, and the functions that it shares would look for globals.
    unused = ", ".join(key for key in KEYS if key not in keys)
    parts = [names, *([f"local {unused}"] if unused else [])]
    kinds = ", ".join(f"'{_TYPES.get(key, 'hash')}'" for key in keys)
    parts.append(f"local kinds = {{{kinds}}}")
    names_of_files = (*_SHARED.get(name, ("shared",)), name)
    return load("onward.queue.providers.redis", *names_of_files, head="\n".join(parts)), keys


_SCRIPTS: Final = {
    name: _script(name)
    for name in (
        "add_one", "add", "fetch", "settle", "renew", "report", "retry", "resume", "remove", "purge", "find", "list",
        "stats", "mend",
    )
}  # fmt: skip


Moved: TypeAlias = tuple[str, str, str]
"""A key that was moved away, what it was, and what it should have been."""


def moved_in_words(moved: Moved) -> str:
    key, found, wanted = moved
    problem = (
        f"the key {key} was a {found} and not a {wanted}: something else wrote it, and what it held of jobs is gone"
    )
    return f"{problem}. It was moved to {key}{MOVED}, and the queue goes on"


def keys_of(queue_name: str) -> dict[str, bytes]:
    """The names of a queue's keys: one hash tag, so that they are on one node of a cluster."""
    return {key: f"onward:{{{queue_name}}}:{key}".encode() for key in KEYS}


class Scripts:
    """Calls scripts on the keys of one queue."""

    def __init__(self, client: Any, keys: Mapping[str, bytes], *, on_moved: Callable[[list[Moved]], None]) -> None:
        self._client, self._execute, self._on_moved = client, client.execute_command, on_moved
        self._calls = {
            name: (script, (len(used), *(keys[key] for key in used))) for name, (script, used) in _SCRIPTS.items()
        }

    async def __call__(
        self, name: str, *arguments: bytes | str | int, behind: tuple[bytes | str | float, ...] | None = None
    ) -> Any:
        """Run it; or have it stand in line at the server behind a command that blocks.

        A server that does not know it, because it was started again, is sent its text. When something else has written
        one of the queue's keys, that is moved out of the way first: scripts look before they change anything.
        """
        try:
            return await self._run(name, arguments, behind)
        except exceptions.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
        moved = await self._run("mend", (MOVED,), None)
        self._on_moved([(key.decode(), found.decode(), wanted.decode()) for key, found, wanted in moved])
        return await self._run(name, arguments, None)

    async def _run(
        self, name: str, arguments: tuple[bytes | str | int, ...], behind: tuple[bytes | str | float, ...] | None
    ) -> Any:
        script, keys = self._calls[name]
        at_first = None if behind is None else partial(self._execute_behind, behind)
        return await run(self._execute, script, *keys, *arguments, at_first=at_first)

    async def _execute_behind(self, behind: tuple[bytes | str | float, ...], *words: Any) -> Any:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*behind)
            pipe.execute_command(*words)
            _, answer = await pipe.execute(raise_on_error=False)
        if isinstance(answer, Exception):
            raise answer
        return answer


Taken = tuple[list[TakenJob], int]
"""The jobs, or none and the microseconds until one is due by itself (-1: none is)."""


class _Wait:
    """A call that waits at the server, and whoever waits for it here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.answer: asyncio.Future[Taken | None] | None = None

    def wake(self) -> None:
        """Let go whoever waits."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(None)


class Waking:
    """Waits for a token and takes jobs, in one round trip: the script stands in line behind the call that blocks.

    That goes on when a sleeper leaves, because one that was cancelled might take jobs with it. The next sleeper has it;
    what comes for nobody goes back, for a worker elsewhere.
    """

    def __init__(
        self,
        take: Callable[[int, float], Awaitable[Taken]],
        give_back: Callable[[Sequence[TakenJob]], Awaitable[None]],
        *,
        longest: float,
    ) -> None:
        self._take, self._give_back = take, give_back
        self._longest = longest
        """Seconds of a wait at most: a worker that died with a token in its hands delays others by no more."""
        self.waits: list[_Wait] = []
        self._errands = Errands()
        self.interruptions = 0

    async def take(self, count: int, seconds: float) -> Taken | None:
        """At most that many jobs when a token comes, or what there is after that time; `None` when it is time to look,
        or when interrupted."""
        loop = asyncio.get_running_loop()
        wait = next((left for left in self.waits if left.answer is None and left.count <= count), None)
        if wait is None:
            wait, timer = self._begin(count, min(seconds, self._longest)), None
        else:
            timer = loop.call_later(seconds, wait.wake)  # it was begun for another length of time
        answer: asyncio.Future[Taken | None] = loop.create_future()
        wait.answer = answer
        try:
            return await answer
        finally:
            wait.answer = None
            if timer is not None:
                timer.cancel()

    def interrupt(self) -> None:
        """Wake everybody."""
        self.interruptions += 1
        for wait in self.waits:
            wait.wake()

    async def close(self) -> None:
        """Wake everybody, and let go of the server."""
        self.interrupt()
        await self._errands.end()

    def _begin(self, count: int, seconds: float) -> _Wait:
        wait = _Wait(count)
        self.waits.append(wait)
        self._errands.start(self._run(wait, seconds))
        return wait

    async def _run(self, wait: _Wait, seconds: float) -> None:
        taken: Taken = [], -1
        failure: Exception | None = None
        try:
            taken = await self._take(wait.count, seconds)
        except Exception as error:  # noqa: BLE001 - given to who waits; without anybody, the next call meets it, too
            failure = error
        finally:
            self.waits.remove(wait)
        if wait.answer is None or wait.answer.done():
            if taken[0]:
                await self._give_back(taken[0])
        elif failure is not None:
            wait.answer.set_exception(failure)
        else:
            wait.answer.set_result(taken)
