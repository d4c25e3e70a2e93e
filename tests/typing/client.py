"""What the client's calls infer, and what they refuse before anything runs."""

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from onward import (
    Attempt,
    Chain,
    ChainHandle,
    Completion,
    Job,
    JobType,
    Next,
    Onward,
    Page,
    Step,
    SyncChainHandle,
    SyncCompletion,
    job,
    new_id,
    required,
)
from onward.crypto import Encryption
from onward.queue import Queue, QueueJob

encryption = Encryption({"a": Encryption.new_key()})


@job("sealed", encryption=encryption)
async def sealed(attempt: Attempt[int]) -> str:
    return str(attempt.input)


assert_type(sealed, JobType[int, str])


@job("unsealed", internal=True, encryption=False)
async def unsealed(attempt: Attempt[int]) -> str:
    return str(attempt.input)


assert_type(unsealed, Step[int, str])


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


class Point(TypedDict):
    x: int


mark = JobType("mark", input=Point, output=int)
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


async def an_input_is_read_as_what_the_job_type_takes() -> None:
    assert_type(await app.start(mark, {"x": 1}), ChainHandle[int, Point])


async def completing_through_a_handle_is_typed() -> None:
    async with app.complete(app.chain(approve, new_id())) as completion:
        assert_type(completion, Completion[str, bool])
        assert_type(completion.input, str)
        await completion.done(True)
        await completion.done("yes")  # type: ignore[arg-type]
    async with app.complete(await app.start(charge, Order(7))) as completing:
        assert_type(completing.input, Order)
        assert_type(completing.input_of(ship), Order)
        await completing.continue_with(ship, Order(7))
        await completing.done(Shipped("x"))
        await completing.done(Order(7))  # type: ignore[arg-type]
    async with app.complete(new_id()) as untyped:
        assert_type(untyped, Completion[Any, Any])


async def listings_are_awaited_or_iterated() -> None:
    assert_type(await app.jobs(), Page[Job])
    assert_type(await app.chains(), Page[Chain])
    async for found in app.jobs(types=[charge]):
        assert_type(found, Job)
    for chain in await app.chains():
        assert_type(chain, Chain)
    async for moved in app.history(types=[charge], status="failed"):
        assert_type(moved, Chain)


def and_without_an_event_loop() -> None:
    with app.sync as client:
        chain = client.start(charge, Order(7))
        assert_type(chain, SyncChainHandle[Shipped, Order])
        assert_type(chain.wait(), Shipped)
        with client.complete(client.chain(approve, new_id())) as completion:
            assert_type(completion, SyncCompletion[str, bool])
            completion.done("yes")  # type: ignore[arg-type]
        for found in client.all_jobs():
            assert_type(found, Job)


async def the_queue_of_a_job_type_takes_its_input() -> None:
    queue: Queue[Order] = Queue(charge.name, data=Order)
    assert_type(await queue.add(charge, Order(7)), QueueJob[Order])
    await queue.add(charge, "seven")  # type: ignore[arg-type]
    await queue.add(approve, Order(7))  # type: ignore[arg-type]


async def mistakes_are_found_before_anything_runs() -> None:
    await app.start(ship, Order(7))  # type: ignore[arg-type]
    await app.start(charge, "seven")  # type: ignore[arg-type]
    await app.start(charge, Order(7), delay=5)  # type: ignore[arg-type]
    await app.start(charge, Order(7), prio=5)  # type: ignore[call-arg]
    app.sync.start(charge, Order(7), prio=5)  # type: ignore[call-arg]
    await app.start(charge, lambda: Order(7))  # type: ignore[arg-type]
    app.sync.start(charge, "seven")  # type: ignore[arg-type]
    await app.start(report, "r", blockers=[Order(1)])  # type: ignore[list-item]
    job("gather", blocked_by=[required(charge), "report", approve])
    job("gather", blocked_by=[required(ship)])  # type: ignore[arg-type]
