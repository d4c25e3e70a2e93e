"""The queues behind one queue: their names, their arguments, and what a delay is rounded to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

from onward.errors import QueueConfigurationError, QueueErrorCode

QueueType: TypeAlias = Literal["quorum", "classic"]

LONGEST_DELAY = timedelta(days=48)
_FINEST = 100
_UNUSED = 600_000
"""Milliseconds that a classic delay queue outlives the last message it may hold."""
RENEW = 60.0
"""Seconds after which a delay queue is declared again, which renews its life: well within `_UNUSED`."""
_NO_LIMIT = 2**31 - 1
_DIFFERS = re.compile(r"inequivalent arg '(?P<argument>[^']+)'.*: received (?P<wanted>.+) but current is (?P<found>.+)")


def rounded(delay: timedelta) -> int:
    """A delay in milliseconds with two significant digits and no finer than a tenth of a second, never shorter.

    One queue serves one delay, since RabbitMQ looks for expired messages only at the head of a queue: rounding keeps
    their number small.

    >>> [rounded(timedelta(seconds=s)) for s in (0, 0.01, 1.5, 61.2, 3601)]
    [0, 100, 1500, 62000, 3700000]
    """
    milliseconds = -(-min(delay, LONGEST_DELAY) // timedelta(milliseconds=1))
    return -(-milliseconds // _step(milliseconds)) * _step(milliseconds)


def every_delay() -> Iterator[int]:
    """All that `rounded` answers with, except 0: some 600."""
    delay, last = _FINEST, rounded(LONGEST_DELAY)
    while delay <= last:
        yield delay
        delay += _step(delay)


def _step(milliseconds: int) -> int:
    return max(_FINEST, int(10 ** (len(str(milliseconds)) - 2)))


@dataclass(frozen=True, slots=True)
class Topology:
    """`<queue>` with the jobs that wait, `<queue>.failed`, and `<queue>.delay.<milliseconds>` per delay in use."""

    queue: str
    queue_type: QueueType
    max_priority: int
    """0: none. Only classic queues have priorities."""

    @property
    def failed(self) -> str:
        return f"{self.queue}.failed"

    @property
    def lock(self) -> str:
        """An exclusive queue: whoever has it reads the failed jobs alone."""
        return f"{self.queue}.failed.lock"

    def delay(self, milliseconds: int) -> str:
        return f"{self.queue}.delay.{milliseconds}"

    async def declare(self, channel: AbstractChannel, name: str) -> int:
        """Have that queue, and learn how many messages wait in it. A refusal closes the channel."""
        try:
            queue = await channel.declare_queue(name, durable=True, arguments=self._arguments(name))
        except ChannelPreconditionFailed as error:
            raise self._refused(_how_it_differs(name, str(error)), error) from error
        except ChannelAccessRefused as error:
            needs = f"configure and read on {self.queue!r} and {self.queue + '.*'!r}, and write on amq.default"
            raise self._refused(f"{error}. The user needs {needs}", error) from error
        return int(queue.declaration_result.message_count or 0)

    def _arguments(self, name: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            # Attempts are counted per job, and reading failed jobs counts as a delivery: no limit of the queue's own.
            arguments["x-delivery-limit"] = _NO_LIMIT
        if name == self.failed:
            return arguments
        target = self.failed if name == self.queue else self.queue
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        if self.queue_type == "quorum":
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        if name != self.queue:
            return arguments | self._life_of_delay(int(name.rpartition(".")[2]))
        if self.max_priority:
            arguments["x-max-priority"] = self.max_priority
        return arguments

    def _life_of_delay(self, milliseconds: int) -> dict[str, Any]:
        if self.queue_type == "quorum":
            # No x-expires: declaring a quorum queue again does not renew its life, and it would end with jobs in it
            # (rabbitmq-server issue 5894).
            return {"x-message-ttl": milliseconds}
        return {"x-message-ttl": milliseconds, "x-expires": milliseconds + _UNUSED}

    def _refused(self, problem: str, cause: Exception) -> QueueConfigurationError:
        return QueueConfigurationError(problem, code=QueueErrorCode.INVALID_OPTION, queue_name=self.queue, cause=cause)


def _how_it_differs(name: str, said: str) -> str:
    found = _DIFFERS.search(said)
    if found is None:
        return f"the queue {name!r} cannot be declared: {said}"
    return (
        f"the queue {name!r} exists with another {found['argument']}: wanted is {found['wanted']}, "
        f"it has {found['found']}. Give RabbitMQ(…) the queue_type and max_priority it was made with, "
        f"or delete it once it is empty: rabbitmqctl delete_queue {name}"
    )
