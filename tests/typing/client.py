"""What the client's calls infer, and what they refuse before anything runs."""

from dataclasses import dataclass
from typing import assert_type

from onward import Attempt, ChainHandle, JobType, Next, Onward, SyncChainHandle, job, new_id
from onward.queue import Queue, QueueJob


@dataclass
class Order:
    id: int


@dataclass
class Shipped:
    tracking: str


@job("ship", internal=True)
async def ship(attempt: Attempt[Order]) -> Shipped:
    return Shipped("x")


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Next[Shipped]:
    return attempt.continue_with(ship, attempt.input)


@job("report", blocked_by=[charge])
async def report(attempt: Attempt[str]) -> list[Shipped]:
    shipped = attempt.outputs_of(charge)
    assert_type(shipped, list[Shipped])
    return shipped


approve = JobType("approve", input=str, output=bool)
app = Onward("memory://", jobs=[charge, ship, report, approve])


async def the_result_is_inferred_through_the_chain() -> None:
    chain = await app.start(charge, Order(7))
    assert_type(chain, ChainHandle[Shipped, Order])
    without_input: ChainHandle[Shipped] = chain
    assert_type(await without_input.wait(), Shipped)
    assert_type(await chain.wait(), Shipped)
    assert_type(await app.chain(approve, new_id()).wait(), bool)
    many = await app.start_many([charge.with_input(Order(1)), charge.with_input(Order(2))])
    assert_type(many, list[ChainHandle[Shipped]])
    await app.start(report, "r", blockers=[chain, charge.with_input(Order(3))])


def and_without_an_event_loop() -> None:
    with app.sync as client:
        chain = client.start(charge, Order(7))
        assert_type(chain, SyncChainHandle[Shipped, Order])
        assert_type(chain.wait(), Shipped)


async def the_queue_of_a_job_type_takes_its_input() -> None:
    queue: Queue[Order] = Queue(charge.name, data=Order)
    assert_type(await queue.add(charge, Order(7)), QueueJob[Order])
    await queue.add(charge, "seven")  # type: ignore[arg-type]
    await queue.add(approve, Order(7))  # type: ignore[arg-type]


async def mistakes_are_found_before_anything_runs() -> None:
    await app.start(ship, Order(7))  # type: ignore[arg-type]
    await app.start(charge, "seven")  # type: ignore[misc]
    await app.start(report, "r", blockers=[Order(1)])  # type: ignore[list-item]
