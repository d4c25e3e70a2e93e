"""The queues behind one queue: their names, their arguments, and what a delay is rounded to."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from aio_pika.abc import AbstractChannel, AbstractQueue
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

from onward.errors import QueueConfigurationError
from onward.queue.model import KEEP_FAILED, Keep

QueueType: TypeAlias = Literal["quorum", "classic"]

LONGEST_DELAY = timedelta(days=46)
_FINEST = 100
_SHORTEST_PERIOD = _MARGIN = 600_000
"""Milliseconds in which one delay queue is published to, and that it outlives the last message it may hold: how far
clocks may differ, or a publisher may be held up."""
_LONGEST_LIFE = 2**32 - 1
"""Milliseconds: what RabbitMQ takes as an expiry, of a queue or a message."""
LONGEST_KEPT = timedelta(milliseconds=_LONGEST_LIFE)
_CLOCKS = 60_000
"""Milliseconds: how far ahead the clock of who made a queue may be of who deletes it."""
_MANY = (
    *(10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 33, 36, 40, 44, 48, 50, 55, 60, 66, 72, 80, 87, 90, 100),
)
_FEW = (10, 12, 15, 20, 24, 30, 40, 50, 60, 80, 100)
"""Between one power of ten and the next, times ten: what delays are rounded to, and the waits between attempts."""
_NO_LIMIT = 2**31 - 1
_DIFFERS = re.compile(r"inequivalent arg '(?P<argument>[^']+)'.*: received (?P<wanted>.+) but current is (?P<found>.+)")


def rounded(delay: timedelta) -> int:
    """A delay in milliseconds, never shorter, and longer by an eighth or a tenth of a second at most.

    One queue serves one delay, since RabbitMQ looks for expired messages only at the head of a queue: rounding keeps
    their number small.

    >>> [rounded(timedelta(seconds=s)) for s in (0, 0.01, 1.5, 60, 61.2, 3600, 3601)]
    [0, 100, 1500, 60000, 66000, 3600000, 4000000]
    """
    return _up(-(-min(delay, LONGEST_DELAY) // timedelta(milliseconds=1)), _MANY)


def roughly(delay: timedelta) -> timedelta:
    """Rounded further, by a third at most: the wait before another attempt, which jitter makes different every time.

    >>> [roughly(timedelta(seconds=s)).total_seconds() for s in (0, 0.93, 1.07, 61.2, 3100)]
    [0.0, 1.0, 1.2, 80.0, 4000.0]
    """
    return timedelta(milliseconds=_up(rounded(delay), _FEW))


def every_delay() -> list[int]:
    """All that `rounded` answers with, except 0: some 200."""
    last = rounded(LONGEST_DELAY)
    exponents = range(len(str(last)))
    found = {_up(step * 10**exponent // 10, _MANY) for exponent in exponents for step in _MANY} - {0}
    return sorted(delay for delay in found if delay <= last)


def _up(milliseconds: int, steps: Sequence[int]) -> int:
    """The next of those steps."""
    if not milliseconds:
        return 0
    unit: int = 10 ** (len(str(milliseconds)) - 1)
    finer = (-(-step * unit // 10) for step in steps)
    return max(-(-next(step for step in finer if step >= milliseconds) // _FINEST) * _FINEST, _FINEST)


def _period(milliseconds: int) -> int:
    """As long as the delay, where the life that makes is not too long for RabbitMQ."""
    return max(_SHORTEST_PERIOD, min(milliseconds, _LONGEST_LIFE - milliseconds - _MARGIN))


@dataclass(frozen=True, slots=True)
class Declared:
    """What the broker says of a queue."""

    messages: int
    """Those that wait, not those that somebody holds."""
    consumers: int

    @classmethod
    def of(cls, queue: AbstractQueue) -> "Declared":
        said = queue.declaration_result
        return cls(messages=int(said.message_count or 0), consumers=int(said.consumer_count or 0))


@dataclass(frozen=True, slots=True)
class Topology:
    """`<queue>` with the jobs that wait, `<queue>.failed`, and for delays `<queue>.delay.<milliseconds>.<period>`.

    A delay queue is published to for one period only and ends by itself some time after its last message did, so that
    there are few of them, and none for ever. Its life is never renewed: declaring a quorum queue again does not do that
    (rabbitmq-server issue 5894), and it would end with jobs in it.
    """

    queue: str
    queue_type: QueueType
    max_priority: int
    """0: none. Only classic queues have priorities."""
    keep_failed: Keep = KEEP_FAILED

    @property
    def failed(self) -> str:
        return f"{self.queue}.failed"

    @property
    def lock(self) -> str:
        """An exclusive queue: whoever has it reads the failed jobs alone."""
        return f"{self.queue}.failed.lock"

    def delay(self, milliseconds: int, now: float) -> str:
        """Where what is delayed by so much is published to at that time."""
        return f"{self.queue}.delay.{milliseconds}.{int(now * 1000) // _period(milliseconds)}"

    def delays(self, now: float) -> Iterator[str]:
        """All delay queues that may exist at that time."""
        for milliseconds in every_delay():
            period = _period(milliseconds)
            newest = int(now * 1000 + _CLOCKS) // period
            oldest = int(now * 1000 - _life_of_delay(milliseconds)) // period
            for number in range(oldest, newest + 1):
                yield f"{self.queue}.delay.{milliseconds}.{number}"

    async def declare(self, channel: AbstractChannel, name: str) -> Declared:
        """Have that queue, and learn what is in it. A refusal closes the channel."""
        try:
            queue = await channel.declare_queue(name, durable=True, arguments=self._arguments(name))
        except ChannelPreconditionFailed as error:
            found = _DIFFERS.search(str(error))
            if found is None:
                raise self._refused(f"the queue {name!r} cannot be declared: {error}", error) from error
            if name == self.failed and found["argument"] in ("x-max-length", "x-message-ttl"):
                raise KeptOtherwise(
                    f"the queue {name!r} was made with another keep_failed, and stays as it is ({found[0]}). "
                    f"To change it, delete it once it is empty: rabbitmqctl delete_queue {name}"
                ) from error
            problem = (
                f"the queue {name!r} exists with another {found['argument']}: wanted is {found['wanted']}, "
                f"it has {found['found']}. Give RabbitMQ(…) the queue_type and max_priority it was made with, "
                f"or delete it once it is empty: rabbitmqctl delete_queue {name}"
            )
            raise self._refused(problem, error) from error
        except ChannelAccessRefused as error:
            needs = f"configure and read on {self.queue!r} and {self.queue + '.*'!r}, and write on amq.default"
            raise self._refused(f"{error}. The user needs {needs}", error) from error
        return Declared.of(queue)

    def _arguments(self, name: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            # Attempts are counted per job, and reading failed jobs counts as a delivery: no limit of the queue's own.
            arguments["x-delivery-limit"] = _NO_LIMIT
        if name == self.failed:
            age = self.keep_failed.age // timedelta(milliseconds=1)
            return arguments | {"x-max-length": self.keep_failed.count, "x-message-ttl": age}
        target = self.failed if name == self.queue else self.queue
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        if self.queue_type == "quorum":
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        if name != self.queue:
            milliseconds = int(name.split(".")[-2])
            return arguments | {"x-message-ttl": milliseconds, "x-expires": _life_of_delay(milliseconds)}
        if self.max_priority:
            arguments["x-max-priority"] = self.max_priority
        return arguments

    def _refused(self, problem: str, cause: Exception) -> QueueConfigurationError:
        return QueueConfigurationError(problem, queue_name=self.queue, cause=cause)


class KeptOtherwise(Exception):
    """The queue of failed jobs keeps them for another time, or in another number."""


def _life_of_delay(milliseconds: int) -> int:
    """From when it is made: it is published to for a period, then its last message expires."""
    return _period(milliseconds) + milliseconds + _MARGIN
