"""The slot loop: how often it fills, and what becomes of what it has not begun."""

import asyncio
from collections.abc import Sequence

from onward.run.loop import SlotLoop


class Source:
    """Work without end, each piece of which is done when the test says so."""

    def __init__(self, *, pieces: int) -> None:
        self.left = pieces
        self.fills: list[int] = []
        self.running: list[asyncio.Event] = []
        self.handed_back: list[asyncio.Event] = []
        self._woken = asyncio.Event()

    async def fill(self, free: int) -> Sequence[asyncio.Event]:
        count = min(free, self.left)
        self.left -= count
        self.fills.append(count)
        return [asyncio.Event() for _ in range(count)]

    async def hand_back(self, work: Sequence[asyncio.Event]) -> None:
        self.handed_back += work

    async def run_piece(self, piece: asyncio.Event) -> None:
        self.running.append(piece)
        await piece.wait()

    async def wait(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    async def recover(self, error: Exception) -> None:
        raise error


async def test_slots_that_become_free_one_by_one_are_filled_several_at_a_time() -> None:
    source = Source(pieces=40)
    loop = SlotLoop(source, concurrency=20)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        while source.left:
            if source.running:
                source.running.pop(0).set()
            await asyncio.sleep(0)
        loop.stop()
        while loop.busy:
            while source.running:
                source.running.pop(0).set()
            await asyncio.sleep(0)

    assert source.fills[0] == 20
    assert sum(source.fills) == 40
    assert len(source.fills) < 10


async def test_while_pieces_wait_for_each_other_no_more_are_taken_than_half() -> None:
    source, jammed = Source(pieces=29), True
    loop = SlotLoop(source, concurrency=20, is_jammed=lambda: jammed)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        while not source.running:
            await asyncio.sleep(0)
        for _ in range(9):
            source.running.pop(0).set()
        await asyncio.sleep(0.02)
        while_jammed = list(source.fills)
        jammed = False
        while source.left:
            await asyncio.sleep(0.001)
        loop.stop()
        while loop.busy:
            while source.running:
                source.running.pop(0).set()
            await asyncio.sleep(0)

    assert while_jammed == [20]
    assert source.fills[1] == 9


async def test_one_slot_is_filled_as_soon_as_it_is_free() -> None:
    source = Source(pieces=3)
    loop = SlotLoop(source, concurrency=1)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        for _ in range(3):
            while not source.running:
                await asyncio.sleep(0)
            source.running.pop(0).set()
        loop.stop()

    assert source.fills[:3] == [1, 1, 1]


async def test_what_has_not_begun_when_everything_is_cancelled_is_handed_back() -> None:
    class Sudden(Source):
        async def fill(self, free: int) -> Sequence[asyncio.Event]:
            work = await super().fill(free)
            # As asyncio.run() does at its end, between the making of the tasks and their first step.
            asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in asyncio.all_tasks() - {here}])
            return work

    here, source = asyncio.current_task(), Sudden(pieces=3)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(SlotLoop(source, concurrency=4).run())
        await asyncio.wait([running])

    assert running.cancelled()
    assert not source.running
    assert len(source.handed_back) == 3


async def test_what_has_begun_is_not_handed_back() -> None:
    source = Source(pieces=3)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(SlotLoop(source, concurrency=4).run())
        while not source.running:
            await asyncio.sleep(0)
        running.cancel()

    assert running.cancelled()
    assert len(source.running) == 3
    assert not source.handed_back
