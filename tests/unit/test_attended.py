"""Connections that have to answer in time."""

import asyncio
import time

import pytest

from onward import transport
from onward.transport import Attended


class Connection:
    """Notes for how long it waits, as it is told here: look by look, and the last again and again."""

    def __init__(self, *waits: float) -> None:
        self._since = [time.monotonic() - wait if wait else 0.0 for wait in waits]
        self.is_lost, self.was_seen = asyncio.Event(), asyncio.Event()

    @property
    def waits_since(self) -> float:
        if len(self._since) > 1:
            return self._since.pop(0)
        self.was_seen.set()
        return self._since[0]

    def cut_off(self) -> None:
        self.is_lost.set()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_SECOND_LOOK", 0.001)


async def test_one_that_waits_for_too_long_is_cut_off() -> None:
    connection = Connection(10.0)

    async with asyncio.timeout(5):
        with Attended(connection, 0.001):
            await connection.is_lost.wait()


@pytest.mark.parametrize("waits", [(0.0, 0.0, 0.0), (10.0, 0.0, 0.0)], ids=["idle", "answered at the last moment"])
async def test_one_that_does_not_wait_any_more_is_left_alone(waits: tuple[float, ...]) -> None:
    connection = Connection(*waits)

    async with asyncio.timeout(5):
        with Attended(connection, 0.001):
            await connection.was_seen.wait()

    assert not connection.is_lost.is_set()


async def test_one_that_asks_again_and_again_is_given_its_time_for_each() -> None:
    connection = Connection(0.05, 0.04, 0.03, 0.02, 0.0)

    async with asyncio.timeout(5):
        with Attended(connection, 0.06):
            await connection.was_seen.wait()

    assert not connection.is_lost.is_set()
