"""Whoever is told of events does not disturb whoever tells."""

import asyncio
from typing import Any

import pytest

from onward.observe.subscribers import Subscribers

Failures = list[tuple[Any, BaseException]]


def subscribers() -> tuple[Subscribers[Any], Failures]:
    failures: Failures = []
    return Subscribers(lambda subscriber, event, error: failures.append((event, error))), failures


def test_each_is_told_of_its_kind_until_it_has_had_enough() -> None:
    told, (those, _) = list[object](), subscribers()
    end, _ = those.add(int, told.append), those.add(int, told.append)

    those.tell(1)
    end()
    end()
    those.tell(2)
    those.tell("another kind")

    assert told == [1, 1, 2]


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), asyncio.CancelledError()])
def test_what_one_raises_is_told_apart_and_the_next_is_told(error: BaseException) -> None:
    told, (those, failures) = list[object](), subscribers()

    def fail(event: object) -> None:
        raise error

    those.add(int, fail)
    those.add(int, told.append)
    those.tell(1)

    assert (told, failures) == ([1], [(1, error)])


def test_a_user_who_interrupts_is_heard() -> None:
    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    those, failures = subscribers()
    those.add(int, interrupt)

    with pytest.raises(KeyboardInterrupt):
        those.tell(1)
    assert failures == []


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3)])
async def test_a_coroutine_function_is_awaited_whatever_it_raises(error: BaseException) -> None:
    heard, (those, failures) = list[object](), subscribers()

    async def hear(event: object) -> None:
        await asyncio.sleep(0)
        heard.append(event)
        raise error

    those.add(int, hear)
    those.tell(1)
    assert heard == []
    await those.settle(within=5.0)

    assert (heard, failures) == ([1], [(1, error)])


async def test_nobody_waits_for_ever_for_one() -> None:
    those, _ = subscribers()
    never = asyncio.Event()
    those.add(int, lambda event: never.wait())
    those.tell(1)

    await those.settle(within=0.01)
    never.set()
    await those.settle(within=5.0)
