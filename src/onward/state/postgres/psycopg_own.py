"""The async connections of a pool of our own, to whose sockets the event loop listens for as long as they live.

psycopg has it begin and end to listen for each answer, and sets a timer beside: a quarter of what a job with a write
cost us.
"""

import asyncio
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.waiting import Ready, Wait


class OwnConnection(psycopg.AsyncConnection[Any]):
    """One to whose socket the event loop listens.

    Invariant: it does not listen to a socket that is closed, whose number may be another's by now. libpq closes one
    that is lost, in the middle of a wait; whatever else does so passes through `close` or psycopg's own `wait`.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """Which listens; None: nobody does."""
    _number = -1
    """Of the socket."""
    _is_unasked = False
    """Whether something was there to read when nobody waited."""
    _news: asyncio.Future[None] | None = None
    """Of whoever waits for something to read."""

    async def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """As psycopg's own, which does what is more than to read an answer."""
        if not (arguments or options):
            wanted, error = None, None
            try:
                wanted = next(gen)
                while wanted == Wait.R:
                    await self._listen()
                    if self.closed:  # and what psycopg would read from is no longer there
                        raise psycopg.OperationalError("the connection was closed")
                    wanted = gen.send(Ready.R)
            except StopIteration as ended:
                if self.closed:
                    self._listen_no_more()
                return ended.value
            except (asyncio.CancelledError, KeyboardInterrupt) as interruption:
                error = interruption
            except BaseException:
                self._listen_no_more()
                raise
            gen = _Begun(gen, wanted, error)
        self._listen_no_more()
        return await super().wait(gen, *arguments, **options)

    def _listen(self) -> asyncio.Future[None]:
        """To await until there is something to read."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._listen_no_more()
            self._loop, self._number = loop, self.pgconn.socket
            loop.add_reader(self._number, self._hear)
        self._is_unasked, self._news = False, loop.create_future()
        return self._news

    def _hear(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        elif self._is_unasked:
            self._listen_no_more()  # whoever asks next sees it
        else:
            self._is_unasked = True  # as a rule what was asked for, which is just being read

    def _listen_no_more(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._number)

    async def close(self) -> None:
        """As psycopg's own; whoever waits for an answer is told."""
        self._listen_no_more()
        await super().close()
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class _Begun:
    """A wait that has begun, for psycopg to go on with; or to deal with what has interrupted it."""

    def __init__(self, gen: Generator[Any, Any, Any], wanted: Any, error: BaseException | None) -> None:
        self._wanted, self._error = wanted, error
        self.send = gen.send

    def __next__(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._wanted
