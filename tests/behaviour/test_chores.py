"""What workers do beside jobs: one of an app at a time, whatever becomes of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from onward import Attempt, Onward, job
from onward.notify.contract import Hint, HintKind
from onward.observe import events
from onward.worker.chores import Chores
from onward.worker.connections import Reserved
from support import SOON, Recorder


@job("rest")
async def rest(attempt: Attempt[None]) -> None:
    return


class Counting:
    """A chore that counts its looks, and does what the test says."""

    def __init__(self, name: str, wait: float, *, act: Callable[[int], None] = lambda look: None) -> None:
        self.name, self._wait, self._act = name, wait, act
        self.looks = self.at_once = self.most = 0
        self._news = asyncio.Event()

    async def look(self, reserved: Reserved) -> float:
        self.looks, self.at_once = self.looks + 1, self.at_once + 1
        self.most = max(self.most, self.at_once)
        self._news.set()
        try:
            await asyncio.sleep(0.001)
            self._act(self.looks)
        finally:
            self.at_once -= 1
        return self._wait

    async def until(self, looks: int) -> None:
        async with asyncio.timeout(SOON.total_seconds()):
            while self.looks < looks:
                self._news.clear()
                await self._news.wait()


def with_chores(app: Onward, *chores: Any) -> Onward:
    app._chores = Chores(app.store, chores)
    return app


async def test_one_worker_of_an_app_does_a_chore_at_a_time_and_another_goes_on(make_app: Callable[..., Onward]) -> None:
    chore = Counting("count", 0.002)
    app = with_chores(make_app(rest), chore)

    async with app, app.worker() as first, app.worker():
        await chore.until(10)
        first.stop()
        looks = chore.looks
        await chore.until(looks + 50)

    async with app, app.worker(), app.worker():
        await chore.until(looks + 100)

    assert chore.most == 1


async def test_a_chore_that_fails_is_tried_again_and_holds_up_nothing(
    make_app: Callable[..., Onward], recorder: Recorder
) -> None:
    def fail(look: int) -> None:
        if look == 1:
            raise ConnectionError("the database is away")
        if look < 4:
            raise ValueError("a mistake")

    failing, other = Counting("fail", 0.0, act=fail), Counting("count", 0.002)
    app = with_chores(make_app(rest, is_transient=lambda error: isinstance(error, ConnectionError)), failing, other)

    async with app, app.worker():
        await failing.until(6)
        await other.until(6)
        await (await app.start(rest, None)).wait(timeout=SOON)

    assert [event.doing for event in recorder.of(events.StateError)] == ["fail"]
    assert len(recorder.of(events.StateRecovered)) == 1


async def test_a_hint_has_a_chore_look_in_every_process(make_app: Callable[..., Onward]) -> None:
    chore = Counting("count", 3600.0)
    app, other = with_chores(make_app(rest), chore), make_app(rest)

    async with app, app.worker(), other:
        await chore.until(1)
        notify = other.notify if other.notify.crosses_processes and not other.notify.sees_commits else app.notify
        await notify.announce([Hint(HintKind.DEFERRED, "count")])
        await chore.until(2)
