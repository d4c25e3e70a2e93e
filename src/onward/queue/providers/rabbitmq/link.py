"""Connections and channels that are opened when they are needed, and again after they were lost.

Not `aio_pika.connect_robust`: there a call during an outage waits for the broker's return instead of failing, and an
acknowledgement may go to a channel that replaced the one its message came on. Here a lost connection is an error for
whoever uses it, at once; whoever comes next opens another.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias, TypeVar
from weakref import WeakSet

from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.abc import AbstractChannel as AbstractUnderlay
from aiormq.exceptions import (
    AuthenticationError,
    ChannelInvalidStateError,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)

from onward.errands import Errands

R = TypeVar("R")
Connect: TypeAlias = Callable[[], Awaitable[AbstractConnection]]
ANSWER, CONNECT, FAREWELL = 10.0, 5.0, 2.0
"""Seconds that the broker has for an answer, for letting us in, and for letting us go."""


@asynccontextmanager
async def answered(seconds: float = ANSWER) -> AsyncIterator[None]:
    """Calls of the broker that end in time, and in an error that says what happened."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(f"RabbitMQ gave no answer within {seconds:g} s") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # aiormq cancels what waits on a connection that it closes; nobody cancelled us.
        raise ConnectionError("the connection to RabbitMQ was closed") from error


class Link:
    """A connection."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._leaving: WeakSet[AbstractUnderlay] = WeakSet()
        self._turn = asyncio.Lock()

    async def connected(self) -> AbstractConnection:
        """The connection, made now if there is none."""
        async with self._turn:
            if self._connection is None or not _is_up(self._connection):
                await self._leave()
                async with answered(CONNECT):
                    self._connection = await self._connect()
            return self._connection

    async def channel(self) -> AbstractChannel:
        """A new channel. What is published on it waits for the broker's word, and raises if it reaches no queue."""
        async with answered():
            channel = (await self.connected()).channel(publisher_confirms=True, on_return_raises=True)
            await channel.initialize()
            return channel

    async def leave(self, channel: AbstractChannel) -> None:
        """Close a channel: from now on nothing may be acknowledged on it."""
        with suppress(ChannelInvalidStateError):
            self._leaving.add(await channel.get_underlay_channel())
        await _closed(channel)

    def carries(self, message: AbstractIncomingMessage) -> bool:
        """Whether the channel that a message came on is open, and stays so.

        RabbitMQ answers an acknowledgement that comes after the wish to close a channel by ending the connection, with
        whatever others do on it; and aiormq sends it until the broker has answered that wish.
        """
        try:
            return message.channel not in self._leaving
        except ChannelInvalidStateError:
            return False

    async def close(self) -> None:
        async with self._turn:
            await self._leave()

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _closed(connection)


def _is_up(connection: AbstractConnection) -> bool:
    # What aio-pika says of itself changes only after its callbacks have run.
    return connection.transport is not None and connection.transport.connection.is_opened


class KeptChannel:
    """A channel that is kept."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: AbstractChannel | None = None
        self._users: Counter[AbstractChannel] = Counter()
        self._turn = asyncio.Lock()
        self._questions = Errands()

    async def channel(self) -> AbstractChannel:
        """The channel, opened now if there is none."""
        async with self._turn:
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._link.channel()
            return self._channel

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[AbstractChannel]:
        """The channel, to publish on.

        One on which the broker refused something is not used again, and closed once nobody waits for anything on it:
        after a node of a cluster was lost, RabbitMQ may refuse whatever is published on a channel, for ever.
        """
        channel = await self.channel()
        self._users[channel] += 1
        try:
            yield channel
        except PublishError:
            raise  # it was taken, and has nowhere to go
        except DeliveryError:
            if channel is self._channel:
                self._channel = None
            raise
        finally:
            self._users[channel] -= 1
            if not self._users[channel]:
                del self._users[channel]
                if channel is not self._channel:
                    await self._link.leave(channel)

    async def ask(self, question: Callable[[AbstractChannel], Awaitable[R]], seconds: float = ANSWER) -> R:
        """What the broker answers on this channel.

        Whoever is cancelled leaves the question: to cancel it would close the channel, with what others ask on it.
        """
        task = self._questions.begin(self._asked(question, seconds))
        await asyncio.wait([task])
        if task.cancelled():
            raise ConnectionError("the connection to RabbitMQ was closed")
        return task.result()

    async def _asked(self, question: Callable[[AbstractChannel], Awaitable[R]], seconds: float) -> R:
        async with answered(seconds):
            return await question(await self.channel())

    async def close(self) -> None:
        await self._questions.settle(FAREWELL)
        await self._questions.end()
        async with self._turn:
            channel, self._channel = self._channel, None
            if channel is not None:
                await self._link.leave(channel)


async def _closed(what: AbstractChannel | AbstractConnection) -> None:
    """Close it, in vain if it is lost: whatever it held is then free already."""
    with suppress(Exception):
        async with answered(FAREWELL):
            await what.close()


class Links:
    """Two connections, one to publish and one for all else.

    A broker short of memory or disk stops reading from those who publish, and must still be told what is done.
    """

    def __init__(self, connect: Connect) -> None:
        self.publishing, self.other = Link(connect), Link(connect)

    async def close(self) -> None:
        await self.publishing.close()
        await self.other.close()


def refused_in_words(error: BaseException) -> str | None:
    """What is wrong with an address, in words, where a connection was refused for that."""
    match error:
        case ProbableAuthenticationError() | AuthenticationError():
            return f"RabbitMQ does not accept the user or the password ({error}); guest may only come from its own host"
        case InvalidFrameError() if "Connection.OpenOk" in str(error):
            return "RabbitMQ refused the virtual host: there is none of that name, or this user may not use it"
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of RabbitMQ is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"RabbitMQ does not speak TLS as we do at this address ({cause.reason}): its usual port for that is 5671"
    return None
