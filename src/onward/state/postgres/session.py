"""What is to be known of a session of the server's, whichever client library it was made with.

And how statements of ours go along with others in one message, which cannot have parameters: prepared under a name, or
with their values spelled out.
"""

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from onward.state.command import Command
from onward.state.statement import spell

T = TypeVar("T")
UNLOCK: Command[Any] = Command("SELECT pg_catalog.pg_advisory_unlock_all()", {})
_SPECIAL = re.compile(r"[\\'\0]")


class Prepared(NamedTuple):
    """A statement that the server knows by a name."""

    name: str
    positional: Callable[[Mapping[str, Any]], Sequence[Any]] | None
    """Its parameters in their order; None: it has none."""


class Session:
    """What is remembered for as long as a session lives, whoever borrows it."""

    def __init__(self, user: str | bytes | None) -> None:
        self._user = user
        self._told: tuple[str | bytes | None, str] | None = None
        self._first = ""
        """What a reset is that comes first, as it was last asked for."""
        self.needs_reset = False
        """Whether statements of the application's ran in it since it was last reset."""
        self.prepared: dict[str, Prepared] = {}
        """Our statements, by their text; none whose PREPARE has not been answered."""

    def reset(self, user: str | bytes | None, unlock: str = UNLOCK.sql) -> str:
        """SQL that has the server forget all that the last borrower did, but for prepared statements, which we want to
        keep. Who the `user` is now, of whom the server tells unasked, need not be asked for if it is who it was.
        """
        as_oneself = "" if user is not None and user == self._user else "RESET SESSION AUTHORIZATION;"
        return f"{as_oneself}RESET ALL;RESET ROLE;CLOSE ALL;UNLISTEN *;{unlock};DISCARD TEMP;DISCARD SEQUENCES"

    def reset_first(self, user: str | bytes | None, unlock: str = UNLOCK.sql) -> str:
        """The same before a BEGIN in the same message.

        In a transaction of its own: statements before a BEGIN would join what that begins, and be undone with it.
        """
        told = (user, unlock)
        if told != self._told:
            self._told, self._first = told, f"BEGIN;{self.reset(user, unlock)};COMMIT;"
        return self._first

    def heed(self, code: str | None, error: BaseException) -> None:
        """What we prepared is gone (DEALLOCATE, DISCARD), or of no use since a table was altered."""
        if code == "26000" or "cached plan" in str(error):
            self.prepared.clear()

    async def prepare(self, command: Command[Any], run: Callable[[str], Awaitable[object]]) -> None:
        """So that it can go along with another in one message; once in a session."""
        name, spelled = new_name(command.sql), spell(command.sql, "dollar")
        await run(f"PREPARE {name} AS {spelled.sql}")
        self.prepared[command.sql] = Prepared(name, spelled.positional if spelled.names else None)

    def call(self, command: Command[Any]) -> str:
        """SQL that runs a statement that has been prepared."""
        name, positional = self.prepared[command.sql]
        values = f"({', '.join(literals(positional(command.parameters)))})" if positional else ""
        return f"EXECUTE {name}{values}"


def reads_only(*, standby: str | None, by_default: str | None) -> bool | None:
    """What the server has last said of itself unasked (`in_hot_standby`, `default_transaction_read_only`): whether it
    takes no writes; None: before version 14 it does not say.
    """
    return None if standby is None else "on" in (standby, by_default)


# -- two statements as one


def as_one(first: Command[T], more: tuple[Command[Any], ...]) -> tuple[Command[T], tuple[Command[Any], ...]]:
    """Two statements as one, where the first only writes: Postgres runs it, whatever becomes of its rows."""
    if first.needs != "nothing" or len(more) != 1:
        return first, more
    both = {**first.parameters, **more[0].parameters}
    return Command(_as_one(first.sql, more[0].sql), both, first.read), ()


@lru_cache(maxsize=256)
def _as_one(first: str, second: str) -> str:
    return f"WITH first AS (\n{first}\n)\n{second}"


# -- values spelled out


def literals(values: Iterable[Any]) -> list[str]:
    """Values as they are written in SQL, whatever the server's settings are.

    >>> print(*literals(["it's", None, 7]))
    E'it''s' NULL 7
    """
    written = list[str]()
    for value in values:
        written.append(_WRITERS[type(value)](value))
    return written


def _array(values: list[Any]) -> str:
    return f"ARRAY[{', '.join(literals(values))}]"


def _text(value: str) -> str:
    if _SPECIAL.search(value) is None:
        return f"'{value}'"
    return f"E'{_SPECIAL.sub(_doubled, value)}'"


def _doubled(found: re.Match[str]) -> str:
    if found[0] == "\0":
        raise ValueError("text with a NUL character, which Postgres cannot store")
    return found[0] * 2


def _instant(value: datetime) -> str:
    return f"'{value.astimezone(UTC)}'"  # the server reads no offset with fractions of a second


_PLAIN: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""What others make of their own kinds, such as members of an enum, they may show as something else."""


def _written_plain(write: Callable[[Any], str], plain: Callable[[Any], Any], value: Any) -> str:
    return write(plain(value))


class _Writers(dict[type[Any], Callable[[Any], str]]):
    """How values of a type are written; learns what else is one of these, such as a client's own kind of UUID."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], str]:
        for known, write in tuple(self.items()):  # threads add to it
            if issubclass(kind, known):
                self[kind] = partial(_written_plain, write, _PLAIN[known]) if known in _PLAIN else write
                return self[kind]
        raise TypeError(f"a value of type {kind.__name__} has no literal")


_WRITERS = _Writers({
    str: _text, UUID: "'{}'".format, datetime: _instant, int: str, float: str, bool: str, type(None): "NULL".format,
    list: _array,
})  # fmt: skip


def new_name(sql: str) -> str:
    """To prepare a statement under; each time another.

    A PREPARE whose outcome is unknown, because it was cancelled or its answer lost, is then of no consequence: nobody
    uses that name again. Two apps on one connection, which know nothing of each other, do not meet either.
    """
    return f"onward_{_digest(sql)}_{secrets.token_hex(4)}"


@lru_cache(maxsize=1024)
def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()[:12]


def inlined(sql: str, parameters: Mapping[str, Any]) -> str:
    """A statement of ours, with its values in it.

    >>> inlined("SELECT :n::integer, :word::text", {"n": 1, "word": "it's"})
    "SELECT 1::integer, E'it''s'::text"
    """
    spelled = spell(sql, "percent")
    values = literals(spelled.positional(parameters))
    return spelled.sql % dict(zip(spelled.names, values, strict=True))
