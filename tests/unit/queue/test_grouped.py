"""Many callers, few calls: who leaves with whom, and who is told what."""

import asyncio
from collections.abc import Sequence

import pytest

from onward.conformance.queue.session import until
from onward.queue.providers.grouped import Grouped, in_parts


class Server:
    """Answers each number with its double, when it is let."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def send(self, group: Sequence[int]) -> Sequence[int]:
        self.groups.append(list(group))
        await self.may_answer.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return [2 * n for n in group]


async def test_what_arrives_during_a_call_leaves_together_in_the_next() -> None:
    server = Server()
    grouped = Grouped(server.send, most=100)
    async with asyncio.TaskGroup() as tasks:
        first = [tasks.create_task(grouped(n)) for n in range(3)]
        await until(lambda: len(server.groups) == 1)
        second = [tasks.create_task(grouped(n)) for n in range(3, 6)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (*first, *second))
        server.may_answer.set()

    assert server.groups == [[0, 1, 2], [3, 4, 5]]
    assert [task.result() for task in (*first, *second)] == [0, 2, 4, 6, 8, 10]


async def test_a_group_has_a_limit() -> None:
    server = Server()
    server.may_answer.set()
    grouped = Grouped(server.send, most=2)
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(grouped(n)) for n in range(5)]

    assert server.groups == [[0, 1], [2, 3], [4]]
    assert [task.result() for task in answers] == [0, 2, 4, 6, 8]


async def test_a_failure_is_told_to_those_who_were_in_that_call_only() -> None:
    server = Server()
    grouped = Grouped(server.send, most=100)
    async with asyncio.TaskGroup() as tasks:
        unlucky = [tasks.create_task(_caught(grouped, n)) for n in range(2)]
        await until(lambda: len(server.groups) == 1)
        lucky = tasks.create_task(grouped(2))
        await asyncio.sleep(0)
        server.failure = ConnectionError("gone")
        server.may_answer.set()

    assert {type(task.result()) for task in unlucky} == {ConnectionError}
    assert lucky.result() == 4


async def test_who_gave_up_before_the_call_is_left_out() -> None:
    server = Server()
    grouped = Grouped(server.send, most=100)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(grouped(1))
        await until(lambda: len(server.groups) == 1)
        second = tasks.create_task(grouped(2))
        third = tasks.create_task(grouped(3))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        server.may_answer.set()

    assert server.groups == [[1], [3]]
    assert (first.result(), third.result()) == (2, 6)


async def test_closing_waits_until_everything_is_sent() -> None:
    server = Server()
    grouped = Grouped(server.send, most=1)
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(grouped(n)) for n in range(3)]
        await until(lambda: len(server.groups) == 1)
        closing = tasks.create_task(grouped.close())
        await asyncio.sleep(0)
        assert not closing.done()
        server.may_answer.set()

    assert [task.result() for task in answers] == [0, 2, 4]


async def _caught(grouped: Grouped[int, int], n: int) -> BaseException:
    with pytest.raises(ConnectionError) as caught:
        await grouped(n)
    return caught.value


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([4, 4, 4], [[4, 4], [4]]),
        ([11, 1, 11], [[11], [1], [11]]),
        ([9, 1, 1], [[9, 1], [1]]),
    ],
)
def test_parts_have_so_many_items_and_so_much_in_them(sizes: list[int], parts: list[list[int]]) -> None:
    assert list(in_parts(sizes, most=3, size=lambda size: size, most_size=10)) == parts
