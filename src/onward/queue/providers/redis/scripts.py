"""The scripts of one queue, called by their digest."""

from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from redis.exceptions import NoScriptError

KEYS: Final = (
    "jobs", "waiting", "urgent", "delayed", "active", "completed", "failed",
    "locks", "taken", "attempts", "errors", "results", "wake", "meta",
)  # fmt: skip
"""In the order in which shared.lua names them."""


def _read(name: str) -> tuple[bytes, str]:
    folder = files("onward.queue.providers.redis").joinpath("scripts")
    text = "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in ("shared", name)).encode()
    return text, sha1(text, usedforsecurity=False).hexdigest()


_SCRIPTS: Final = {
    name: _read(name)
    for name in ("add", "fetch", "settle", "renew", "retry", "resume", "find", "dead_letters", "stats")
}


class QueueKeys:
    """The names of a queue's keys: one hash tag, so that they are on one node of a cluster."""

    def __init__(self, queue_name: str) -> None:
        self.all: Final = [f"onward:{{{queue_name}}}:{key}".encode() for key in KEYS]
        self.wake: Final = self.all[KEYS.index("wake")]
        self.meta: Final = self.all[KEYS.index("meta")]


class Scripts:
    """Calls scripts on the keys of one queue."""

    def __init__(self, client: Any, keys: QueueKeys) -> None:
        self._client, self._keys = client, keys.all

    async def __call__(self, name: str, *arguments: bytes | str | int) -> Any:
        """Run it. A server that does not know it, because it was started again, is sent its text."""
        text, digest = _SCRIPTS[name]
        try:
            return await self._client.execute_command("EVALSHA", digest, len(self._keys), *self._keys, *arguments)
        except NoScriptError:
            return await self._client.execute_command("EVAL", text, len(self._keys), *self._keys, *arguments)
