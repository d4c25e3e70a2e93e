"""Chains from start to result: the patterns that must work, and where jobs come from."""

from dataclasses import dataclass
from typing import Any

import pytest

from onward import Attempt, ChainFailed, Done, JobStatus, JobType, Next, Onward, Outcome, job
from support import SOON


@dataclass
class Order:
    id: int


@dataclass
class Charged:
    order_id: int
    receipt: str


@dataclass
class Shipped:
    tracking: str


@dataclass
class Rejected:
    reason: str


@job("ship", internal=True)
async def ship(attempt: Attempt[Charged]) -> Shipped:
    return Shipped(f"{attempt.input.receipt}/{attempt.input.order_id}")


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Next[Shipped]:
    return attempt.continue_with(ship, Charged(attempt.input.id, "paid"))


@job("check", continues_to=[charge])
async def check(attempt: Attempt[Order]) -> Outcome[Rejected | Shipped]:
    if attempt.input.id < 0:
        return Done(Rejected("negative"))
    return attempt.continue_with(charge, attempt.input)


@job("countdown", continues_to=["countdown"])
async def countdown(attempt: Attempt[int]) -> Outcome[str]:
    if attempt.input == 0:
        return Done("lift-off")
    return attempt.continue_with(countdown, attempt.input - 1)


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@job("total", blocked_by=[double, charge])
async def total(attempt: Attempt[str]) -> list[Any]:
    return [attempt.input, *attempt.outputs_of(double), *attempt.outputs_of(charge)]


async def test_a_chain_runs_from_step_to_step_and_its_output_is_the_last_ones(running: Any) -> None:
    app: Onward = await running(charge, ship)

    chain = await app.start(charge, Order(7))

    assert await chain.wait(timeout=SOON) == Shipped("paid/7")
    stored = await chain.get()
    assert stored.status is JobStatus.COMPLETED
    assert (stored.type_name, stored.current.type_name, stored.current.chain_index) == ("charge", "ship", 1)


async def test_a_branch_either_ends_or_goes_on(running: Any) -> None:
    app: Onward = await running(check, charge, ship)

    rejected = await app.start(check, Order(-1))
    shipped = await app.start(check, Order(1))

    assert await rejected.wait(timeout=SOON) == Rejected("negative")
    assert await shipped.wait(timeout=SOON) == Shipped("paid/1")


async def test_a_type_that_continues_to_itself_is_a_loop(running: Any) -> None:
    app: Onward = await running(countdown)

    chain = await app.start(countdown, 5)

    assert await chain.wait(timeout=SOON) == "lift-off"
    jobs = (await app.jobs(chains=[chain])).items
    assert sorted(job.chain_index for job in jobs) == [0, 1, 2, 3, 4, 5]


async def test_a_job_waits_for_chains_and_sees_their_outputs_in_order(running: Any) -> None:
    app: Onward = await running(double, charge, ship, total)
    ended = await app.start(double, 1)
    await ended.wait(timeout=SOON)

    chain = await app.start(total, "sum", blockers=[ended, charge.with_input(Order(3)), double.with_input(2), ended])

    assert await chain.wait(timeout=SOON) == ["sum", 2, 4, 2, {"tracking": "paid/3"}]


async def test_blockers_started_along_belong_to_the_same_tree_and_existing_ones_keep_theirs(running: Any) -> None:
    app: Onward = await running(double, total, charge, ship)
    existing = await app.start(double, 1)

    chain = await app.start(total, "sum", blockers=[existing, double.with_input(2)])
    await chain.wait(timeout=SOON)

    blockers = await app.blockers_of(chain.id)
    roots = [(await app.chain(double, blocker.chain_id).get()).current.root_id for blocker in blockers]
    assert roots == [existing.id, chain.id]


async def test_what_a_handler_starts_knows_where_it_comes_from(running: Any) -> None:
    @job("inner")
    async def inner(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("outer")
    async def outer(attempt: Attempt[int]) -> str:
        async with attempt.complete() as tx:
            chain = await app.start(inner, 1, tx=tx)
            return str(chain.id)

    @job("outermost")
    async def outermost(attempt: Attempt[int]) -> str:
        return str((await app.start(outer, 1)).id)

    app: Onward = await running(inner, outer, outermost)
    first = await app.start(outermost, 1)

    import uuid

    second = app.chain(outer, uuid.UUID(await first.wait(timeout=SOON)))
    third = app.chain(inner, uuid.UUID(await second.wait(timeout=SOON)))
    await third.wait(timeout=SOON)
    jobs = [(await chain.get()).current for chain in (first, second, third)]
    assert [job.origin_id for job in jobs] == [None, first.id, second.id]
    assert [job.root_id for job in jobs] == [first.id, first.id, first.id]


async def test_a_type_without_a_handler_is_left_alone(running: Any) -> None:
    approve = JobType("approve", input=str, output=bool)
    app: Onward = await running(double, approve)

    waiting = await app.start(approve, "please")
    await (await app.start(double, 1)).wait(timeout=SOON)

    assert (await waiting.get()).status is JobStatus.PENDING
    async with app.complete(waiting) as completion:
        assert completion.input == "please"
        await completion.done(True)
    assert await waiting.wait(timeout=SOON) is True


async def test_a_failed_blocker_fails_what_waits_for_it_and_a_retry_brings_both_back(running: Any) -> None:
    healthy = False

    @job("shaky", max_attempts=1)
    async def shaky(attempt: Attempt[int]) -> int:
        if not healthy:
            raise ValueError("not today")
        return attempt.input

    @job("after", blocked_by=[shaky])
    async def after(attempt: Attempt[int]) -> list[int]:
        return attempt.outputs_of(shaky)

    @job("after all", blocked_by=[after])
    async def after_all(attempt: Attempt[int]) -> int:
        return len(attempt.outputs_of(after))

    app: Onward = await running(shaky, after, after_all)
    first = await app.start(shaky, 1)
    second = await app.start(after, 2, blockers=[first])
    third = await app.start(after_all, 3, blockers=[second])

    with pytest.raises(ChainFailed) as failed:
        await third.wait(timeout=SOON)
    assert failed.value.reason == "blocker"

    healthy = True
    await app.retry(first)
    assert await second.wait(timeout=SOON) == [1]
    assert await third.wait(timeout=SOON) == 1


async def test_a_type_may_run_although_a_blocker_failed(running: Any) -> None:
    @job("bad", max_attempts=1)
    async def bad(attempt: Attempt[int]) -> int:
        raise ValueError("no")

    @job("regardless", blocked_by=[bad, double], on_blocker_failure="run")
    async def regardless(attempt: Attempt[int]) -> list[str]:
        return [blocker.status for blocker in attempt.blockers]

    app: Onward = await running(bad, double, regardless)

    chain = await app.start(regardless, 1, blockers=[bad.with_input(1), double.with_input(1)])

    assert await chain.wait(timeout=SOON) == ["failed", "completed"]


async def test_a_continuation_may_wait_for_blockers_too(running: Any) -> None:
    @job("gather", internal=True, blocked_by=[double])
    async def gather(attempt: Attempt[str]) -> list[int]:
        return attempt.outputs_of(double)

    @job("scatter", continues_to=[gather])
    async def scatter(attempt: Attempt[int]) -> Next[list[int]]:
        blockers = [double.with_input(n) for n in range(attempt.input)]
        return attempt.continue_with(gather, "all", blockers=blockers)

    @job("scatter in a transaction", continues_to=[gather])
    async def scatter_within(attempt: Attempt[int]) -> Next[list[int]]:
        async with attempt.complete() as tx:
            started = [await app.start(double, n, tx=tx) for n in range(attempt.input)]
            return attempt.continue_with(gather, "all", blockers=started)

    app: Onward = await running(double, gather, scatter, scatter_within)

    chains = [await app.start(scatter, 3), await app.start(scatter_within, 3)]

    assert [await chain.wait(timeout=SOON) for chain in chains] == [[0, 2, 4], [0, 2, 4]]
