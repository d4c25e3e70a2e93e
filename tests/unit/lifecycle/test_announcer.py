"""When hints leave with a commit, when after it, and that none is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onward.lifecycle.announcer import BackgroundAnnouncer
from onward.notify.contract import Hint, HintKind
from onward.observe.observer import Observers

A, B = Hint(HintKind.SCHEDULED, "a"), Hint(HintKind.SCHEDULED, "b")


class Notify:
    """Keeps what it is given to send."""

    def __init__(self) -> None:
        self.sent: list[list[Hint]] = []
        self.rides = True

    def riding(self, hints: Sequence[Hint]) -> Any:
        return ("SELECT", {"hints": list(hints)}) if self.rides else None

    async def announce(self, hints: Sequence[Hint]) -> None:
        self.sent.append(list(hints))


@pytest.fixture
def notify() -> Notify:
    return Notify()


@asynccontextmanager
async def announcing(notify: Any) -> AsyncIterator[BackgroundAnnouncer]:
    async with asyncio.TaskGroup() as tasks:
        announcer = BackgroundAnnouncer(notify, Observers())
        announcer.start(tasks)
        await asyncio.sleep(0.01)
        yield announcer
        await announcer.close()


async def test_a_lone_commit_carries_its_hints(notify: Notify) -> None:
    async with announcing(notify) as announcer:
        ride = announcer.ride([A])

    assert ride is not None
    assert ride.statement == ("SELECT", {"hints": [A]})
    assert notify.sent == []


async def test_in_a_stream_of_commits_only_some_carry_hints_and_those_take_along_what_waits(notify: Notify) -> None:
    async with announcing(notify) as announcer:
        first, second = announcer.ride([A]), announcer.ride([B])
        announcer.post([B])
        async with asyncio.timeout(5):
            while (third := announcer.ride([A])) is None and not notify.sent:
                await asyncio.sleep(0.0001)

    assert first is not None
    assert second is None
    told = list(third.hints) if third else notify.sent[0]
    assert B in told


async def test_what_no_commit_takes_along_leaves_by_itself(notify: Notify) -> None:
    async with announcing(notify) as announcer:
        announcer.ride([A])
        announcer.post([B])
        async with asyncio.timeout(5):
            while not notify.sent:
                await asyncio.sleep(0.001)

    assert notify.sent == [[B]]


async def test_where_hints_cannot_ride_they_are_posted(notify: Notify) -> None:
    notify.rides = False
    async with announcing(notify) as announcer:
        assert announcer.ride([A]) is None
        announcer.post([A])

    assert notify.sent == [[A]]


async def test_before_it_runs_nothing_rides(notify: Any) -> None:
    assert BackgroundAnnouncer(notify, Observers()).ride([A]) is None
