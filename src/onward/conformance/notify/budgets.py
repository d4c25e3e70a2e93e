"""For adapters whose processes share the wake-ups for ready jobs."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from onward.conformance.notify.hearing import LONG, Connect, hear, listen, two
from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter

__all__ = ["TestBudgets"]


async def acquainted(listeners: Sequence[Listener], sender: NotifyAdapter) -> None:
    """Processes may need a moment to know of each other; until then, now and again one wakes too many."""
    rounds_in_a_row = 0
    async with asyncio.timeout(LONG):
        while rounds_in_a_row < 10:
            heard = await hear(listeners, sender, [Hint(HintKind.READY, "mail")])
            rounds_in_a_row = rounds_in_a_row + 1 if sum(map(bool, heard)) == 1 else 0


class TestBudgets:
    """About as many listeners wake as there are jobs, wherever they are."""

    async def test_no_more_wake_than_there_are_jobs(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with AsyncExitStack() as stack:
            listeners = [
                await stack.enter_async_context(listen(notify, types=["mail", "post"]))
                for notify in (here, there)
                for _ in range(3)
            ]
            await acquainted(listeners, here)
            for count in (1, 2, 4):
                heard = await hear(listeners, here, [Hint(HintKind.READY, "mail", count)])

                assert 1 <= sum(map(bool, heard)) <= count

    async def test_all_wake_for_as_many_jobs(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with AsyncExitStack() as stack:
            listeners = [
                await stack.enter_async_context(listen(notify, types=["mail"])) for notify in (here, there, there)
            ]
            heard = await hear(listeners, here, [Hint(HintKind.READY, "mail", 200)])

        assert all(heard)

    async def test_one_with_room_wakes_though_those_elsewhere_are_full(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with listen(here, types=["mail"]) as full, listen(there, types=["mail"]) as idle:
            full.has_room = False
            heard = [await hear([full, idle], here, [Hint(HintKind.READY, "mail")]) for _ in range(5)]

        assert all(hints[1] for hints in heard)

    async def test_one_that_has_filled_up_gives_its_hint_back(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with listen(here, types=["mail"]) as first:
            await first.wait(0.05)
            await here.announce([Hint(HintKind.READY, "mail")])
            await asyncio.sleep(0.3)  # awake, so that the hint waits for it
            async with listen(there, types=["mail"]) as second:
                first.has_room = False
                heard = await hear([first, second], here)

        assert not heard[0]
        assert [hint.key for hint in heard[1]] == ["mail"]
