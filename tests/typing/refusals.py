"""What type checkers must refuse. Checked by mypy --strict and pyright, never run.

Both complain of a `type: ignore` that hides nothing, so a line that ceases to be an error for either fails the check.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from dataclasses import dataclass
from datetime import timedelta

from onward.define.attempt import Attempt, SyncTransaction
from onward.define.job_type import JobType, Step, job
from onward.define.middleware import Resource
from onward.define.outcome import Done, Next, Outcome
from onward.define.schedule import Schedule
from onward.define.slice import Slice
from onward.model import Deduplication


@dataclass
class Order:
    id: int


@dataclass
class Charged:
    order_id: int


@dataclass
class Shipped:
    tracking: str


@job("orders.ship", internal=True)
async def ship(attempt: Attempt[Charged]) -> Shipped:
    return Shipped("")


fetch = JobType("fetch", input=str, output=bytes)


# -- continuing with the wrong input, or to an output that was not promised


@job("wrong-input", continues_to=[ship])
async def wrong_input(attempt: Attempt[Order]) -> Next[Shipped]:
    return attempt.continue_with(ship, attempt.input)  # type: ignore[arg-type]


@job("wrong-rest", continues_to=[ship])
async def wrong_rest(attempt: Attempt[Charged]) -> Next[Order]:
    return attempt.continue_with(ship, attempt.input)  # type: ignore[arg-type]


@job("wrong-output")
async def wrong_output(attempt: Attempt[Order]) -> Shipped:
    return attempt.input  # type: ignore[return-value]


@job("wrong-done")
async def wrong_done(attempt: Attempt[Order]) -> Outcome[Shipped]:
    return Done(attempt.input)  # type: ignore[arg-type]


@job("outcome-without-saying-so", continues_to=[ship])
async def unsaid(attempt: Attempt[Charged]) -> Shipped:
    return attempt.continue_with(ship, attempt.input)  # type: ignore[return-value]


@job("done-where-next-was-promised")
async def not_next(attempt: Attempt[Order]) -> Next[Shipped]:
    return Done(Shipped(""))  # type: ignore[return-value]


# -- what begins a chain is a JobType; an internal type is only a Step


def entry(job_type: JobType[Charged, Shipped]) -> None: ...


entry(ship)  # type: ignore[arg-type]
ship.with_input(Charged(1))  # type: ignore[attr-defined]


@job("waits-for-a-step", blocked_by=[ship])  # type: ignore[list-item]
async def waits_for_a_step(attempt: Attempt[Order]) -> list[Shipped]:
    return attempt.outputs_of(ship)  # type: ignore[arg-type]


# -- inputs and outputs of blockers

fetch.with_input(7)  # type: ignore[arg-type]
fetch.with_input("url", deduplication="key")  # type: ignore[arg-type]
fetch.with_input("url", deduplication=Deduplication("key", scope="some"))  # type: ignore[arg-type]


@job("wrong-outputs", blocked_by=[fetch])
async def wrong_outputs(attempt: Attempt[Order]) -> list[str]:
    return attempt.outputs_of(fetch)  # type: ignore[arg-type]


@job("blocked-by-an-id")
async def blocked_by_an_id(attempt: Attempt[Charged]) -> Next[Shipped]:
    return attempt.continue_with(ship, attempt.input, blockers=["id"])  # type: ignore[list-item]


# -- handlers that do not fit the type they are given to


@fetch.handler  # type: ignore[arg-type]
async def takes_another_input(attempt: Attempt[int]) -> bytes:
    return b""


@fetch.handler  # type: ignore[arg-type]
async def gives_another_output(attempt: Attempt[str]) -> int:
    return 0


@job("two-parameters")  # type: ignore[arg-type]
async def two_parameters(attempt: Attempt[Order], more: int) -> Shipped:
    return Shipped("")


@job("no-attempt")  # type: ignore[arg-type]
async def no_attempt(order: Order) -> Shipped:
    return Shipped("")


# -- transactions


@job("await-in-a-thread")
def await_in_a_thread(attempt: Attempt[Order, SyncTransaction]) -> int:
    with attempt.complete() as tx:
        return tx.fetchrow("select 1")  # type: ignore[return-value]


@job("forgotten-await")
async def forgotten_await(attempt: Attempt[Order]) -> int:
    async with attempt.complete() as tx:
        return tx.execute("select 1")  # type: ignore[return-value]


# -- middleware and resources


class NoHooks:
    def around_completion(self, attempt: Attempt[Order]) -> None: ...


class NoContextManager:
    async def around_handler(self, attempt: Attempt[Order]) -> None: ...


Slice("orders", middleware=[NoHooks()])  # type: ignore[list-item]
Slice("orders", middleware=[NoContextManager()])  # type: ignore[list-item]
opens_nothing: Resource = Order(7)  # type: ignore[assignment]


@job("wrong-value")
async def wrong_value(attempt: Attempt[Order]) -> Shipped:
    return attempt.get(Charged)  # type: ignore[return-value]


# -- variance: inputs are contravariant, outputs covariant


def takes(step: Step[object, Shipped], narrow: Step[Charged, Shipped]) -> None: ...


takes(ship, ship)  # type: ignore[arg-type]

# -- options are keyword-only, and known

job("name", True)  # type: ignore[call-overload]
job("name", executor="thread")  # type: ignore[call-overload]
job("name", retries=3)  # type: ignore[call-overload]
JobType("name", input=str, output=str, internal=True)  # type: ignore[call-arg]
JobType("name", input=str, output=str, lease=5)  # type: ignore[arg-type]
Slice("slice").job("name", retries=3)  # type: ignore[call-overload]
Slice("slice").job("name", internal=True, max_attempts="3")  # type: ignore[call-overload]
fetch.with_input("a", 5)  # type: ignore[call-arg, arg-type]
fetch.with_input("a", delay=5)  # type: ignore[arg-type]
fetch.with_input("a", prio=5)  # type: ignore[call-arg]


hour = timedelta(hours=1)
Schedule("wrong input", fetch, 7, every=hour)  # type: ignore[arg-type]
Schedule("wrong input made", fetch, lambda tick: tick.day, every=hour)  # type: ignore[arg-type, return-value]
Schedule("no input", fetch, every=hour)  # type: ignore[arg-type]
Schedule("wrong choice", fetch, "x", every=hour, missed="never")  # type: ignore[call-overload]
Schedule("internal", ship, Charged(7), every=hour)  # type: ignore[call-overload]
