"""The shop of the demo: its tables, its jobs and its app, as an application would write them."""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

from onward import Attempt, Backoff, Next, Onward, Slice, job

DATABASE = "ONWARD_DEMO_DATABASE"
"""The environment variable that tells the worker processes where the file is."""
FLAKY = "Lisbon"
"""The warehouse that does not answer the first two times."""

TABLES = (
    "create table orders (id integer primary key, total integer not null, status text not null)",
    "create table payments (order_id integer not null, amount integer not null)",
    "create table shipments (order_id integer not null, tracking text not null)",
    "create table reports (stock integer not null)",
)

# A short lease, so that the demo need not wait long for the job of the worker it kills.
orders = Slice("orders", lease=timedelta(seconds=2), backoff=Backoff(initial=timedelta(seconds=0.5)))


@dataclass
class Order:
    id: int


@dataclass
class Charged:
    order_id: int
    amount: int


@dataclass
class Shipped:
    tracking: str


@orders.job("ship", internal=True)
async def ship(attempt: Attempt[Charged]) -> Shipped:
    await asyncio.sleep(0.4)
    shipped = Shipped(tracking=f"parcel-{attempt.input.order_id}")
    async with attempt.complete() as tx:
        await tx.execute(
            "insert into shipments values (:id, :tracking)", id=attempt.input.order_id, tracking=shipped.tracking
        )
        await tx.execute("update orders set status = 'shipped' where id = :id", id=attempt.input.order_id)
        return shipped


@orders.job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Next[Shipped]:
    async with attempt.prepare() as tx:
        total = await tx.fetchval("select total from orders where id = :id", id=attempt.input.id)
    await asyncio.sleep(1.0)  # the payment service; no transaction is open meanwhile
    async with attempt.complete() as tx:
        await tx.execute("insert into payments values (:id, :amount)", id=attempt.input.id, amount=total)
        await tx.execute("update orders set status = 'paid' where id = :id", id=attempt.input.id)
        # What is paid is shipped before other orders are charged.
        return attempt.continue_with(ship, Charged(attempt.input.id, total), priority=1)


@job("stock.fetch", lease=timedelta(seconds=2), backoff=Backoff(initial=timedelta(seconds=0.5)))
async def fetch(attempt: Attempt[str]) -> int:
    await asyncio.sleep(0.7)
    if attempt.input == FLAKY and attempt.failures < 2:
        raise ConnectionError(f"the warehouse in {attempt.input} did not answer")
    return 10 * len(attempt.input)


@job("stock.report", blocked_by=[fetch], lease=timedelta(seconds=2))
async def report(attempt: Attempt[None]) -> int:
    stock = sum(attempt.outputs_of(fetch))
    async with attempt.complete() as tx:
        await tx.execute("insert into reports values (:stock)", stock=stock)
        return stock


def app() -> Onward:
    """The app on the file named by the environment variable; made when asked for, since only then there is a file."""
    return Onward(f"sqlite:///{os.environ[DATABASE]}", jobs=[orders, fetch, report])
