"""What is to be known of a session of the server's, whichever client library it was made with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onward.state.command import Command, nothing
from onward.state.postgres.literals import literals, new_name
from onward.state.statement import spell

UNLOCK = Command("SELECT pg_catalog.pg_advisory_unlock_all()", {}, nothing, "nothing")


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
        return f"EXECUTE {name}({literals(positional(command.parameters))})" if positional else f"EXECUTE {name}"


def reads_only(*, standby: str | None, by_default: str | None) -> bool | None:
    """What the server has last said of itself unasked (`in_hot_standby`, `default_transaction_read_only`): whether it
    takes no writes; None: before version 14 it does not say.
    """
    return None if standby is None else "on" in (standby, by_default)
