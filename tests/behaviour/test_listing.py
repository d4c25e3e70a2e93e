"""Listings: a page can be iterated, and all pages can."""

from typing import Any

from onward import Attempt, JobStatus, Onward, job


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@job("after", blocked_by=[work])
async def after(attempt: Attempt[int]) -> int:
    return attempt.input


async def test_a_page_can_be_iterated_and_counted(opened: Any) -> None:
    app: Onward = await opened(work)
    await app.start_many([work.with_input(number) for number in range(5)])

    page = await app.jobs(limit=3)

    assert [found.input for found in page] == [4, 3, 2]
    assert len(page) == 3
    assert [found.input for found in await app.jobs(after=page.next)] == [1, 0]


async def test_all_pages_are_gone_through_one_after_another(opened: Any) -> None:
    app: Onward = await opened(work, after)
    started = await app.start_many([work.with_input(number) for number in range(7)])
    blocked = await app.start_many([after.with_input(number, blockers=[started[0]]) for number in range(3)])

    assert [found.input async for found in app.jobs(types=[work], limit=2)] == [6, 5, 4, 3, 2, 1, 0]
    assert [chain.id async for chain in app.chains(status=JobStatus.BLOCKED, limit=1)] == [c.id for c in blocked[::-1]]
    assert [found.id async for found in app.blocked_by(started[0], limit=2)] == [chain.id for chain in blocked[::-1]]
    assert [found.input async for found in app.jobs(types=[work], after=started[3].id, limit=2)] == [2, 1, 0]


async def test_in_a_transaction_its_own_jobs_are_listed(opened: Any) -> None:
    app: Onward = await opened(work)

    async with app.transaction() as tx:
        chain = await app.start(work, 1, tx=tx)
        assert [found.id async for found in app.jobs(tx=tx)] == [chain.id]


def test_without_an_event_loop_there_is_a_way_for_the_page_and_one_for_all(make_app: Any) -> None:
    app: Onward = make_app(work)

    with app.sync as client:
        client.start_many([work.with_input(number) for number in range(5)])

        assert [found.input for found in client.jobs(limit=2)] == [4, 3]
        assert [found.input for found in client.all_jobs(limit=2)] == [4, 3, 2, 1, 0]
        assert [chain.current.input for chain in client.all_chains(limit=2, types=[work])] == [4, 3, 2, 1, 0]
