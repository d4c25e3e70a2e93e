"""Listings: a page can be iterated, and all pages can."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, JobStatus, Onward, job
from onward.errors import ConfigurationError


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


async def test_a_page_that_may_look_at_few_jobs_says_where_to_go_on(opened: Any) -> None:
    app: Onward = await opened(work, after)
    rare, *_ = await app.start_many([work.with_input(0), *[after.with_input(n) for n in range(1, 8)]])
    listings: list[Callable[..., Any]] = [app.jobs, app.chains]

    for listing in listings:
        page = await listing(types=[work], among=3)
        assert (len(page), page.next is None) == (0, False)
        assert [found.id async for found in listing(types=[work], among=3)] == [rare.id]
        assert [found.id for found in await listing(types=[work], status="pending", among=3)] == [rare.id]  # an index


async def test_what_waits_is_found_by_age_whether_few_wait_or_many(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(work)
    started = await app.start_many([work.with_input(number) for number in range(3)])

    for few in (0, 100):
        monkeypatch.setattr("onward.client.queries.FEW", few)
        assert len(await app.jobs(status="pending", newer_than=timedelta(hours=1))) == 3
        assert len(await app.chains(status=["pending", "running"], older_than=timedelta(hours=1))) == 0
        assert [job.input for job in await app.jobs(chains=[started[1]])] == [1]
    for wrong in ({"older_than": 5}, {"error_text": ""}, {"among": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            app.jobs(**wrong)  # type: ignore[arg-type]


async def test_chains_of_a_rare_type_are_not_looked_for_among_many_that_wait(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an index jobs are found by their own type, chains only by their status."""
    app: Onward = await opened(work, after)
    await app.start_many([work.with_input(number) for number in range(5)])
    monkeypatch.setattr("onward.client.queries.FEW", 2)

    chains = await app.chains(types=[after], status="pending", among=3)
    jobs = await app.jobs(types=[after], status="pending", among=3)

    assert (len(chains), chains.next is None) == (0, False)
    assert (len(jobs), jobs.next is None) == (0, True)


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
