"""When hints leave with a commit, when after it, and that none is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onward.lifecycle.effects import BackgroundAnnouncer
from onward.notify.contract import Hint, HintKind
from onward.observe.observer import Observers
from onward.state.command import Command

A, B = Hint(HintKind.READY, "a"), Hint(HintKind.READY, "b")


class Notify:
    """Keeps what it is given to send."""

    def __init__(self) -> None:
        self.sent: list[list[Hint]] = []
        self.hears_commands = True

    def command(self, hints: Sequence[Hint]) -> Any:
        return Command("SELECT", {"hints": list(hints)})

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
        carried = announcer.carry([A])

    assert carried is not None
    assert carried.command.parameters == {"hints": [A]}
    assert notify.sent == []


async def test_in_a_stream_of_commits_only_some_carry_hints_and_those_take_along_what_waits(notify: Notify) -> None:
    async with announcing(notify) as announcer:
        first, second = announcer.carry([A]), announcer.carry([B])
        announcer.post([B])
        async with asyncio.timeout(5):
            while (third := announcer.carry([A])) is None and not notify.sent:
                await asyncio.sleep(0.0001)

    assert first is not None
    assert second is None
    told = list(third.hints) if third else notify.sent[0]
    assert B in told


async def test_what_no_commit_takes_along_leaves_by_itself(notify: Notify) -> None:
    async with announcing(notify) as announcer:
        announcer.carry([A])
        announcer.post([B])
        async with asyncio.timeout(5):
            while not notify.sent:
                await asyncio.sleep(0.001)

    assert notify.sent == [[B]]


async def test_where_nobody_would_hear_what_a_commit_carries_hints_are_posted(notify: Notify) -> None:
    notify.hears_commands = False
    async with announcing(notify) as announcer:
        assert announcer.carry([A]) is None
        announcer.post([A])

    assert notify.sent == [[A]]


async def test_before_it_runs_nothing_is_carried(notify: Any) -> None:
    assert BackgroundAnnouncer(notify, Observers()).carry([A]) is None
