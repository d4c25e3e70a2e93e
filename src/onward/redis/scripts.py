"""Lua scripts: read once, and called by their digest."""

from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from onward.redis.connection import exceptions

Execute = Callable[..., Awaitable[Any]]


class Script(NamedTuple):
    """A script and what the server calls it."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> "Script":
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def load(package: str, *names: str, head: str = "") -> Script:
    """The files of these names in the package's folder `scripts`, one after the other, as one script."""
    folder = files(package).joinpath("scripts")
    return Script.of("\n".join([head, *(folder.joinpath(f"{name}.lua").read_text() for name in names)]))


async def run(execute: Execute, script: Script, *words: Any, at_first: Execute | None = None) -> Any:
    """Call a script with the number of its keys, its keys and its arguments, as EVAL takes them.

    A server that does not know it, new or started again, is sent its text: by `execute`, whatever was tried at first.
    """
    try:
        return await (at_first or execute)("EVALSHA", script.digest, *words)
    except exceptions.NoScriptError:
        return await execute("EVAL", script.text, *words)
