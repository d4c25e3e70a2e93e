"""Connections that notice: how soon a peer that has silently gone away is given up.

A connection whose packets vanish looks idle for ever. The kernel is told to ask idle peers for a sign of life and to
give up unacknowledged data (`watch`); a peer whose kernel lives but who does not answer is cut off (`Patience`).
"""

import asyncio
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

IDLE, INTERVAL, PROBES = 2, 1, 3
"""Seconds until an idle connection is probed, between probes, and how many go unanswered."""
UNANSWERED = 5.0
"""Seconds that data may go unacknowledged on connections which carry only our short statements."""
UNANSWERED_IN_POOL = 6.0
"""The same where handlers may send much: a server that is slow to read counts as one that does not answer."""
CONNECT = 5.0
"""Seconds to connect in."""
STATEMENT = 8.0
"""Seconds in which one of our short statements is answered."""
_SECOND_LOOK = 0.25


@dataclass(frozen=True, slots=True)
class Reach:
    """How to make one more connection to an application's Postgres as the application makes its own.

    With its certificates, passwords and options, whatever they are: who makes connections another way may send a
    password in clear to whoever answers.
    """

    client: Literal["asyncpg", "psycopg"]
    source: str | Callable[[], AbstractAsyncContextManager[Any]] = field(repr=False)
    """An address that says all of it; or what gives a connection of the client library, in autocommit, for a block."""


def watch(raw: "socket.socket | int | None", *, unanswered: float = UNANSWERED) -> None:
    """Have a TCP socket, given as such or by its number, fail soon after its peer is gone; others are left alone."""
    if raw is None:
        return
    with suppress(OSError), _handle(raw if isinstance(raw, int) else raw.fileno()) as handle:
        if handle.family not in (socket.AF_INET, socket.AF_INET6):
            return
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # macOS has another name for the first, and no word for the last.
        idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
        values = {idle: IDLE, "TCP_KEEPINTVL": INTERVAL, "TCP_KEEPCNT": PROBES}
        for name, value in {**values, "TCP_USER_TIMEOUT": int(unanswered * 1000)}.items():
            option: int | None = getattr(socket, name, None)
            if option is not None:
                handle.setsockopt(socket.IPPROTO_TCP, option, value)


def cut_off(number: int) -> None:
    """End a socket in both directions, so that whoever waits for its data is told that there will be none."""
    with suppress(OSError), _handle(number) as handle:
        handle.shutdown(socket.SHUT_RDWR)


@contextmanager
def _handle(number: int) -> Iterator[socket.socket]:
    """A second handle on the same socket: loops wrap theirs, and libpq only tells its number.

    Not by os.dup, which on Windows knows files only; but what belongs to somebody else must not be closed.
    """
    if number < 0:
        raise OSError("the socket is closed")
    handle = socket.socket(fileno=number)
    try:
        yield handle
    finally:
        handle.detach()


def has_news(number: int) -> bool:
    """Whether something came unasked on a socket that was idle: as a rule the peer's farewell, or that it is lost."""
    if not hasattr(select, "poll"):  # on Windows, where any number will do
        return bool(select.select([number], [], [], 0)[0])
    look = select.poll()
    look.register(number, select.POLLIN)
    return bool(look.poll(0))


class Waiting(Protocol):
    """A connection, or what stands for it, that notes for how long it waits."""

    @property
    def waits_since(self) -> float:
        """When the wait under way for an answer to a statement of ours began; 0.0: there is none."""
        ...

    def cut_off(self) -> None:
        """Have whoever waits be told that it is lost."""
        ...


class Attended:
    """`with`: a connection that has to answer in so many seconds is cut off when it has not.

    It is looked at as seldom as that: a timer for each statement would cost more than all else we do for it.
    """

    def __init__(self, connection: Waiting, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._look_in(self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        since = self._connection.waits_since
        left = since + self._seconds - time.monotonic() if since else self._seconds
        if left > 0:
            self._look_in(left)
        else:
            # After a handler has blocked the loop, the answer and this come together: let the answer be read first.
            self._timer = asyncio.get_running_loop().call_later(_SECOND_LOOK, self._look_again, since)

    def _look_again(self, since: float) -> None:
        if self._connection.waits_since == since:
            self._connection.cut_off()
        self._look_in(self._seconds)


class Patience:
    """`with patience:` around each wait for an answer; one that does not come in time ends the connection."""

    def __init__(self, seconds: float, give_up: Callable[[], object]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look_again)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        # After a handler has blocked the loop, the answer and this call come together: let the answer be read first.
        self._timer = asyncio.get_running_loop().call_later(_SECOND_LOOK, self._give_up)
