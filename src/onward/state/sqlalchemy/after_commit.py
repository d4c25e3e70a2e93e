"""Actions that wait for the commit of a SQLAlchemy connection.

SQLAlchemy's "commit" event comes before the commit, and a session's events do not know whose transaction the session
has joined. Only the dialect's `do_commit` returns when the commit has succeeded: that is what we follow, and its four
sisters with it. What waits is kept in the connection's `info`; there is no listener that would have to be removed.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect

logger = logging.getLogger("onward")
Action: TypeAlias = Callable[[], Any]
_WAITING, _ENDED = "onward_after_commit", "onward_has_ended"
_FOLLOWED = ("do_commit", "do_rollback", "do_savepoint", "do_rollback_to_savepoint", "do_release_savepoint")


class Waiting:
    """The actions of one transaction, by the savepoint they depend on; the first list is for none that we saw begin."""

    def __init__(self) -> None:
        self._savepoints: list[tuple[str, list[Action]]] = [("", [])]

    def add(self, action: Action) -> None:
        self._savepoints[-1][1].append(action)

    def do_commit(self) -> None:
        for action in self._close(""):
            try:
                action()
            except Exception:
                # The commit has succeeded; an error from here would tell the caller that it had not.
                logger.exception("an action after a commit failed")

    def do_rollback(self) -> None:
        self._close("")

    def do_savepoint(self, name: str) -> None:
        self._savepoints.append((name, []))

    def do_rollback_to_savepoint(self, name: str) -> None:
        self._close(name)

    def do_release_savepoint(self, name: str) -> None:
        released = self._close(name)
        self._savepoints[-1][1].extend(released)

    def _close(self, name: str) -> list[Action]:
        """Forget a savepoint and those inside it; one that we did not see begin holds all that we have."""
        names = [each for each, _ in self._savepoints]
        position = names.index(name) if name in names else 0
        closed = [action for _, actions in self._savepoints[position:] for action in actions]
        self._savepoints = self._savepoints[:position] or [("", [])]
        return closed


def after_commit(connection: Connection, action: Action) -> None:
    """Call `action` once the connection's transaction has been committed, and never if it is rolled back."""
    _follow(connection.dialect)
    connection.info.setdefault(_WAITING, Waiting()).add(action)


@contextmanager
def has_ended(connection: Connection) -> Iterator[None]:
    """Meanwhile SQLAlchemy commits, and rolls back for the pool, what the client knows to have ended already: to ask it
    for that costs aiosqlite's thread as much as a statement.
    """
    _follow(connection.dialect)
    info = connection.info
    info[_ENDED] = True
    try:
        yield
    finally:
        info.pop(_ENDED, None)


def _follow(dialect: Dialect) -> None:
    # Once for each dialect object. Two threads that come here together follow it twice, which does no harm.
    if _WAITING not in vars(dialect):
        for name in _FOLLOWED:
            setattr(dialect, name, _followed(getattr(dialect, name), name))
        setattr(dialect, _WAITING, True)


def _followed(method: Callable[..., None], name: str) -> Callable[..., None]:
    def call(connection: Any, *arguments: Any) -> None:
        if not (connection.info.get(_ENDED) and _is_idle(connection)):
            method(connection, *arguments)
        waiting = connection.info.get(_WAITING)
        if waiting is not None:
            getattr(waiting, name)(*arguments)

    return call


def _is_idle(connection: Any) -> bool:
    return not connection.dbapi_connection.driver_connection.in_transaction
