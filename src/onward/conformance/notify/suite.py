"""Every test that every adapter passes."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from onward.conformance.notify.hearing import LONG, Connect, hear, listen, two
from onward.notify.contract import Hint, HintKind

__all__ = ["TestEverybody", "TestListening", "TestReady"]


class TestListening:
    """A listener, from its set-up to its end."""

    async def test_a_listener_is_active_when_its_set_up_returns(self, connect: Connect) -> None:
        here, there = await two(connect)

        for n in range(10):
            async with here.listen(ended=[f"chain {n}"]) as listener:
                await there.announce([Hint(HintKind.ENDED, f"chain {n}")])

                async with asyncio.timeout(LONG):
                    while Hint(HintKind.ENDED, f"chain {n}") not in await listener.wait(LONG):
                        pass

    async def test_a_wait_ends_when_its_time_is_up(self, connect: Connect) -> None:
        notify = await connect()

        async with notify.listen(types=["mail"]) as listener:
            async with asyncio.timeout(LONG):
                while await listener.wait(0.05):
                    pass

    async def test_a_wait_can_be_ended_without_a_hint(self, connect: Connect) -> None:
        notify = await connect()

        async with notify.listen(types=["mail"]) as listener, asyncio.timeout(LONG):
            listener.wake()
            hints = await listener.wait(None)

        assert all(hint.kind is HintKind.UNKNOWN for hint in hints)

    async def test_leaving_ends_the_wait(self, connect: Connect) -> None:
        notify = await connect()

        # The listener is left first: were its wait to go on, the group would not end.
        async with asyncio.timeout(LONG), asyncio.TaskGroup() as tasks, notify.listen(types=["mail"]) as listener:
            await listener.wait(0.05)
            tasks.create_task(listener.wait(None))
            await asyncio.sleep(0)

    async def test_closing_the_adapter_ends_the_wait(self, connect: Connect) -> None:
        notify = await connect()

        async with asyncio.timeout(LONG), notify.listen(types=["mail"]) as listener, asyncio.TaskGroup() as tasks:
            await listener.wait(0.05)
            tasks.create_task(listener.wait(None))
            await asyncio.sleep(0)
            await notify.close()

    async def test_nothing_is_delivered_to_one_who_left(self, connect: Connect) -> None:
        here, there = await two(connect)
        hints = [Hint(HintKind.READY, "mail"), Hint(HintKind.LOST, "job")]

        async with listen(here, types=["mail"], lost=True) as listener:
            pass
        async with listen(here, types=["mail"], lost=True) as other:
            heard = await hear([other], there, hints)

        assert sorted(hint.kind for hint in heard[0]) == [HintKind.LOST, HintKind.READY]
        assert all(hint.kind is HintKind.UNKNOWN for hint in await listener.wait(0))  # from before
        assert not await listener.wait(0.05)

    async def test_hints_between_two_waits_come_together(self, connect: Connect) -> None:
        notify = await connect()

        async with listen(notify, ended=["a", "b"], lost=True) as listener:
            [heard] = await hear(
                [listener], notify, [Hint(HintKind.ENDED, "a"), Hint(HintKind.ENDED, "b")], [Hint(HintKind.LOST, "c")]
            )

        assert {(hint.kind, hint.key) for hint in heard} == {
            (HintKind.ENDED, "a"), (HintKind.ENDED, "b"), (HintKind.LOST, "c")
        }  # fmt: skip

    async def test_it_can_be_opened_again(self, connect: Connect) -> None:
        notify = await connect()
        async with listen(notify, lost=True) as listener:
            await hear([listener], notify, [Hint(HintKind.LOST, "job")])
        await notify.close()

        async with asyncio.TaskGroup() as tasks:
            await notify.open(tasks)
            async with listen(notify, lost=True) as listener:
                heard = await hear([listener], notify, [Hint(HintKind.LOST, "job")])
            await notify.close()

        assert heard == [[Hint(HintKind.LOST, "job")]]


class TestEverybody:
    """Hints that reach every listener whom they concern, and nobody else."""

    @pytest.mark.parametrize("kind", [HintKind.ENDED, HintKind.LOST, HintKind.AWAITED])
    async def test_a_hint_reaches_all_whom_it_concerns(self, connect: Connect, kind: HintKind) -> None:
        here, there = await two(connect)
        lost, awaited = kind is HintKind.LOST, kind is HintKind.AWAITED

        async with AsyncExitStack() as stack:
            listeners = [
                await stack.enter_async_context(listen(notify, ended=["chain"], lost=lost, awaited=awaited))
                for notify in (here, here, there, there)
            ]
            heard = await hear(listeners, here, [Hint(kind, "chain")])

        assert heard == [[Hint(kind, "chain")]] * 4

    @pytest.mark.parametrize("kind", [HintKind.ENDED, HintKind.LOST, HintKind.AWAITED, HintKind.READY])
    async def test_a_hint_reaches_nobody_else(self, connect: Connect, kind: HintKind) -> None:
        here, there = await two(connect)
        flags = {"lost": kind is not HintKind.LOST, "awaited": kind is not HintKind.AWAITED}

        async with (
            listen(here, types=["post"], ended=["other"], **flags) as one,
            listen(there, types=["post"], ended=["other"], **flags) as another,
        ):
            heard = await hear([one, another], there, [Hint(kind, "mail")])

        assert heard == [[], []]

    async def test_expired_leases_concern_whoever_takes_jobs_of_the_type(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with listen(here, types=["mail"]) as one, listen(there, types=["post"]) as another:
            heard = await hear([one, another], there, [Hint(HintKind.EXPIRED, "mail")], [Hint(HintKind.EXPIRED, "")])

        assert [[hint.key for hint in hints] for hints in heard] == [["mail", ""], [""]]

    async def test_many_hints_travel_in_one_announcement(self, connect: Connect) -> None:
        here, there = await two(connect)
        keys = [f"chain {n} {'é' * 40}" for n in range(1000)]

        async with listen(here, ended=keys) as listener:
            [heard] = await hear([listener], there, [Hint(HintKind.ENDED, key) for key in keys])

        assert sorted(hint.key for hint in heard) == sorted(keys)


class TestReady:
    """Hints about jobs that may be taken."""

    async def test_somebody_wakes(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with AsyncExitStack() as stack:
            listeners = [await stack.enter_async_context(listen(here, types=["mail"])) for _ in range(3)]
            heard = await hear(listeners, there, [Hint(HintKind.READY, "mail", 2)])

        assert 1 <= sum(map(bool, heard)) <= 2

    async def test_jobs_one_by_one_wake_somebody_each(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with here.listen(types=["mail"]) as listener:
            for _ in range(20):
                await there.announce([Hint(HintKind.READY, "mail")])
                async with asyncio.timeout(LONG):
                    while not any(hint.key == "mail" for hint in await listener.wait(LONG)):
                        pass

    async def test_one_who_is_awake_hears_of_them_at_the_next_wait(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with here.listen(types=["mail"]) as listener:
            await listener.wait(0.05)
            await there.announce([Hint(HintKind.READY, "mail")])
            await asyncio.sleep(0.2)  # busy with something else, and not waiting

            async with asyncio.timeout(LONG):
                assert any(hint.key == "mail" for hint in await listener.wait(LONG))

    async def test_several_types_can_be_listened_to(self, connect: Connect) -> None:
        here, there = await two(connect)
        names = ["mail", "billing.charge", "größer > * als"]

        async with listen(here, types=names) as listener:
            [heard] = await hear([listener], there, [Hint(HintKind.READY, name, 100) for name in names])

        assert {hint.key for hint in heard} == set(names)

    async def test_jobs_that_will_be_due_are_told(self, connect: Connect) -> None:
        here, there = await two(connect)

        async with listen(here, types=["mail"]) as listener:
            [heard] = await hear([listener], there, [Hint(HintKind.DEFERRED, "mail")])

        assert [hint.kind for hint in heard] == [HintKind.DEFERRED]

    async def test_one_who_has_no_room_is_spared(self, connect: Connect) -> None:
        notify = await connect()

        async with listen(notify, types=["mail"]) as full, listen(notify, types=["mail"]) as idle:
            full.has_room = False
            heard = [await hear([full, idle], notify, [Hint(HintKind.READY, "mail")]) for _ in range(5)]

        assert [list(map(bool, hints)) for hints in heard] == [[False, True]] * 5
