"""The scripts of one queue, called by their digest."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

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


class QueueKeys:
    """The names of a queue's keys: one hash tag, so that they are on one node of a cluster."""

    def __init__(self, queue_name: str) -> None:
        self.by_name: Final = {key: f"onward:{{{queue_name}}}:{key}".encode() for key in KEYS}
        self.all: Final = list(self.by_name.values())
        self.wake: Final = self.by_name["wake"]
        self.meta: Final = self.by_name["meta"]
        self.workers: Final = self.by_name["workers"]


class Scripts:
    """Calls scripts on the keys of one queue."""

    def __init__(self, client: Any, keys: QueueKeys, *, on_moved: Callable[[list[tuple[str, str, str]]], None]) -> None:
        self._client, self._execute, self._on_moved = client, client.execute_command, on_moved
        self._calls = {
            name: (script, (len(used), *(keys.by_name[key] for key in used)))
            for name, (script, used) in _SCRIPTS.items()
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
