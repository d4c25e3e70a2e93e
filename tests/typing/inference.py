"""What type checkers infer from handlers. Checked by mypy --strict and pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Never, TypedDict, assert_type
from uuid import UUID

from onward.define.attempt import Attempt, Row, SyncTransaction, Transaction
from onward.define.job_type import JobType, Step, job
from onward.define.middleware import Middleware, Resource
from onward.define.outcome import Done, Next, Outcome
from onward.define.request import NewChain
from onward.define.schedule import Schedule
from onward.define.slice import Slice
from onward.model import Blocker, JobError, LossReason


@dataclass
class Order:
    id: int


@dataclass
class Charged:
    order_id: int


@dataclass
class Shipped:
    tracking: str


@dataclass
class Rejected:
    reason: str


class Url(TypedDict):
    url: str


# -- a chain: the output of the last step is the output of every step before it


@job("orders.ship", internal=True)
async def ship(attempt: Attempt[Charged]) -> Shipped:
    assert_type(attempt.input, Charged)
    return Shipped(f"track-{attempt.input.order_id}")


@job("orders.charge", continues_to=[ship], lease=timedelta(minutes=5))
async def charge(attempt: Attempt[Order]) -> Next[Shipped]:
    async with attempt.prepare() as tx:
        assert_type(tx, Transaction)
        assert_type(await tx.fetchrow("select 1"), Row | None)
        assert_type(await tx.execute("update orders set paid = :paid", paid=True), int)
    async with attempt.complete() as tx:
        assert_type(tx, Transaction)
        return attempt.continue_with(ship, Charged(attempt.input.id))


@job("orders.review", continues_to=[charge])
async def review(attempt: Attempt[Order]) -> Outcome[Rejected | Shipped]:
    if attempt.input.id < 0:
        return Done(Rejected("unknown"))
    if attempt.failures > 3:
        return attempt.reschedule(delay=timedelta(minutes=1))
    return attempt.continue_with(charge, attempt.input)


assert_type(ship, Step[Charged, Shipped])
assert_type(charge, JobType[Order, Shipped])
assert_type(review, JobType[Order, Rejected | Shipped])


# -- a type that continues to itself


@job("poll", continues_to=["poll"])
async def poll(attempt: Attempt[int]) -> Outcome[str]:
    if attempt.input == 0:
        return Done("done")
    return attempt.continue_with(poll, attempt.input - 1)


assert_type(poll, JobType[int, str])


# -- def handlers


@job("thumbnail")
def thumbnail(attempt: Attempt[bytes, SyncTransaction]) -> int:
    with attempt.complete() as tx:
        assert_type(tx, SyncTransaction)
        assert_type(tx.execute("select 1"), int)
        return len(attempt.input)


@job("resize", internal=True)
def resize(attempt: Attempt[Url, SyncTransaction]) -> Outcome[Shipped]:
    return Done(Shipped(attempt.input["url"]))


@job("branch", continues_to=[resize])
def branch(attempt: Attempt[Url, SyncTransaction]) -> Next[Shipped]:
    return attempt.continue_with(resize, attempt.input)


@job("compress", executor="process")
def compress(attempt: Attempt[Url]) -> Shipped:
    return Shipped(attempt.input["url"])


assert_type(compress, JobType[Url, Shipped])
assert_type(thumbnail, JobType[bytes, int])
assert_type(resize, Step[Url, Shipped])
assert_type(branch, JobType[Url, Shipped])


# -- the application's own transaction


class AsyncSession:
    async def flush(self) -> None: ...


@job("with-session")
async def with_session(attempt: Attempt[Order, AsyncSession]) -> None:
    async with attempt.prepare(atomic=True) as tx:
        assert_type(tx, AsyncSession)
        await tx.flush()


assert_type(with_session, JobType[Order, None])


# -- a type without a handler, and one that gets it later

approve = JobType("orders.approve", input=Order, output=bool)
assert_type(approve, JobType[Order, bool])


@approve.handler
async def approved(attempt: Attempt[Order]) -> bool:
    return attempt.input.id > 0


assert_type(approved, JobType[Order, bool])

later = JobType("orders.later", input=Order, output=Shipped, continues_to=[ship])


@later.handler
async def go_later(attempt: Attempt[Order]) -> Next[Shipped]:
    return attempt.continue_with(ship, Charged(attempt.input.id))


assert_type(go_later, JobType[Order, Shipped])

blocking = JobType("orders.blocking", input=Order, output=str)


@blocking.handler
def block(attempt: Attempt[Order, SyncTransaction]) -> str:
    return str(attempt.input.id)


assert_type(block, JobType[Order, str])


# -- blockers, and the rest of an attempt

fetch = JobType("fetch", input=Url, output=str)
assert_type(fetch.with_input({"url": "https://example.org"}, priority=3), NewChain[str])
assert_type(charge.with_input(Order(7)), NewChain[Shipped])


@job("report", blocked_by=[fetch, charge])
async def report(attempt: Attempt[None]) -> list[str]:
    assert_type(attempt.outputs_of(fetch), list[str])
    assert_type(attempt.outputs_of(charge), list[Shipped])
    assert_type(attempt.outputs_of(review), list[Rejected | Shipped])
    assert_type(attempt.blockers, Sequence[Blocker])
    assert_type(attempt.reschedule(), Outcome[Never])
    assert_type(attempt.continue_with(charge, Order(1), blockers=[fetch.with_input({"url": ""})]), Next[Shipped])
    assert_type(attempt.job_id, UUID)
    assert_type(attempt.last_error, JobError | None)
    assert_type(attempt.cancelled, LossReason | None)
    return attempt.outputs_of(fetch)


assert_type(report, JobType[None, list[str]])


# -- slices

orders = Slice("orders")


@orders.job("audit")
async def audit(attempt: Attempt[Order]) -> Shipped:
    return Shipped("")


@orders.job("archive", internal=True)
async def archive(attempt: Attempt[Shipped]) -> None: ...


assert_type(audit, JobType[Order, Shipped])
assert_type(archive, Step[Shipped, None])


# -- middleware and resources: any of the hooks, of either kind, without a base class


@dataclass
class Tenant:
    name: str


class Tenancy:
    @asynccontextmanager
    async def around_handler(self, attempt: Attempt[Any]) -> AsyncGenerator[Tenant]:
        yield Tenant(attempt.job_type)


class Audit:
    @contextmanager
    def around_prepare(self, attempt: Attempt[Any, SyncTransaction], tx: SyncTransaction) -> Generator[None]:
        yield

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any], tx: Transaction) -> AsyncGenerator[list[object]]:
        yield [Tenant(str(attempt.number)), await tx.fetchval("select 1")]


class Client:
    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None: ...


@contextmanager
def tenants() -> Generator[list[Tenant]]:
    yield [Tenant("")]


tenancy: Middleware = Tenancy()
resources: list[Resource] = [Client(), Client, tenants, tenants()]
surrounded = Slice("surrounded", middleware=[tenancy, Audit()])


@surrounded.job("mail")
async def mail(attempt: Attempt[Order]) -> str:
    assert_type(attempt.get(Tenant), Tenant)
    assert_type(attempt.get(Client), Client)
    return attempt.get(Tenant).name


@surrounded.job("print")
def print_label(attempt: Attempt[Order, SyncTransaction]) -> Tenant:
    return attempt.get(Tenant)


assert_type(mail, JobType[Order, str])
assert_type(print_label, JobType[Order, Tenant])


# -- variance: wider inputs and narrower outputs fit


@dataclass
class Express(Order):
    fee: int


def entries(narrow: JobType[Express, Shipped | Rejected], anything: Step[Any, Any]) -> None: ...


entries(charge, charge)
entries(review, ship)


def ends(outcome: Outcome[Shipped | Rejected]) -> None: ...


def ways_to_end(attempt: Attempt[Order]) -> None:
    ends(Done(Shipped("")))
    ends(attempt.continue_with(charge, attempt.input))
    ends(attempt.reschedule())


@charge.upcast(1)
def with_id(old: Any) -> Any:
    return {"id": old}


# -- schedules

nightly = JobType("nightly", input=Order, output=str)
nothing_in = JobType("nothing in", input=type(None), output=str)


def of_the_tick(tick: datetime) -> Order:
    return Order(tick.day)


hour = timedelta(hours=1)
assert_type(Schedule("a", nightly, Order(7), every=hour), Schedule[Order])
assert_type(Schedule("b", nightly, of_the_tick, cron="0 3 * * *", tz="Europe/Oslo"), Schedule[Order])
assert_type(Schedule("c", nightly, lambda tick: Order(tick.day), every=hour, missed="all"), Schedule[Order])
assert_type(Schedule("d", nothing_in, every=hour, overlap="skip"), Schedule[None])


@job("own", schedule=Schedule(input=Order(7), every=hour))
async def own(attempt: Attempt[Order]) -> str:
    return ""


assert_type(own, JobType[Order, str])
