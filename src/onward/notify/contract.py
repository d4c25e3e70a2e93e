"""The notify contract: hints between those who change jobs and those who wait for them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from onward.state.command import Command


class HintKind(StrEnum):
    """What a hint is about; the value is its spelling on the wire."""

    READY = "s"
    """Jobs of a type may be taken now; the key is the type's name."""
    DEFERRED = "d"
    """Jobs of a type will be due later; the key is the type's name."""
    ENDED = "e"
    """A chain has ended; the key is its id."""
    LOST = "l"
    """A running job was cancelled, deleted, completed or taken; the key is its id."""
    EXPIRED = "x"
    """Leases of a dead worker have run out; the key is a type's name, or empty: any type."""
    UNKNOWN = "?"
    """Something has changed, and it is not known what; there is no key."""
    AWAITED = "w"
    """Somebody waits for a chain; the key is its id. Workers announce the end of such chains only."""
    ROOM = "a"
    """So many listeners of a process could take jobs of a type: told between processes, never to listeners."""


class Hint(msgspec.Struct, frozen=True, gc=False):
    """Something worth a look."""

    kind: HintKind
    key: str
    count: int = 1


Changed: TypeAlias = Callable[[Exception | None], None]
"""Told the error when hints go down, and None when they are back."""


def ignore(error: Exception | None) -> None:
    """For those whom nobody asks."""


class Listener(Protocol):
    """Collects hints from the moment its set-up returned."""

    has_room: bool
    """Whether it could take a job now, as far as it has said: hints about ready jobs go to those who can.

    One that has none must look by itself as soon as it has room again."""

    async def wait(self, timeout: float | None) -> Sequence[Hint]:
        """The hints since the last call, waiting for one if there is none; empty when the time is up."""
        ...

    def wake(self) -> None:
        """End the wait under way, or the next one, without a hint."""
        ...

    def decline(self, hints: Sequence[Hint]) -> None:
        """Those among these hints that are about ready jobs cannot be followed: have others do so."""
        ...


class NotifyAdapter(Protocol):
    """Carries hints between processes.

    A hint may be lost or doubled: whatever it speeds up must also happen without it.
    """

    crosses_processes: bool
    """Whether hints reach other processes; if not, workers poll more often."""
    sees_commits: bool
    """Whether commits are noticed elsewhere even when nobody announces them."""

    @property
    def is_up(self) -> bool:
        """Whether hints arrive at present; while they do not, workers poll more often."""
        ...

    async def open(self, tasks: asyncio.TaskGroup, changed: Changed = ignore) -> None:
        """Get ready; background work belongs to `tasks` and ends with `close`.

        `changed` is to be told when hints go down, and when they are back.
        """
        ...

    async def close(self) -> None: ...

    def command(self, hints: Sequence[Hint], /) -> Command[None] | None:
        """Sends hints when its transaction commits; None where there is no such thing."""
        ...

    @property
    def hears_commands(self) -> bool:
        """Whether listeners in this process, too, hear what a command sends."""
        ...

    async def announce(self, hints: Sequence[Hint]) -> None:
        """Send hints after the transaction that caused them has committed. One round trip, however many."""
        ...

    def listen(
        self, *, types: Collection[str] = (), ended: Collection[str] = (), lost: bool = False, awaited: bool = False
    ) -> AbstractAsyncContextManager[Listener]:
        """Listen for jobs of these types, for the end of these chains, for lost jobs, for chains that are awaited.

        `ended` may change while it listens.
        A hint about ready jobs wakes about as many listeners as there are jobs; the others reach every listener.
        """
        ...
