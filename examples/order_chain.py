"""An order chain on a SQLite file: charge, then ship, each step in one commit with the shop's own rows.

Run it: python examples/order_chain.py
It prints:
    parcel-7
    paid and shipped: 1 order
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from onward import Attempt, Next, Onward, Slice

orders = Slice("orders")


@dataclass
class Order:
    id: int


@dataclass
class Charged:
    order_id: int
    receipt: str


@orders.job("ship", internal=True)
async def ship(attempt: Attempt[Charged]) -> str:
    tracking = f"parcel-{attempt.input.order_id}"
    async with attempt.complete() as tx:
        order_id = attempt.input.order_id
        await tx.execute("update orders set tracking = :tracking where id = :id", tracking=tracking, id=order_id)
        return tracking


@orders.job("charge", continues_to=[ship], max_attempts=5)
async def charge(attempt: Attempt[Order]) -> Next[str]:
    async with attempt.prepare() as tx:
        total = await tx.fetchval("select total from orders where id = :id", id=attempt.input.id)
    # No transaction is open here. The job's id makes a second call, after a crash, harmless to the customer.
    receipt = await call_payment_service(total, idempotency_key=str(attempt.job_id))
    async with attempt.complete() as tx:
        await tx.execute("update orders set receipt = :receipt where id = :id", receipt=receipt, id=attempt.input.id)
        return attempt.continue_with(ship, Charged(attempt.input.id, receipt))


async def call_payment_service(total: int, *, idempotency_key: str) -> str:
    await asyncio.sleep(0.05)
    return f"{total} paid, {idempotency_key}"


async def main(path: Path) -> None:
    app = Onward(f"sqlite:///{path}", jobs=[orders])
    async with app, app.worker(concurrency=2):
        async with app.transaction() as tx:
            await tx.execute("create table orders (id integer primary key, total integer, receipt text, tracking text)")
            await tx.execute("insert into orders (id, total) values (7, 40)")
            chain = await app.start(charge, Order(7), tx=tx)
        print(await chain.wait(timeout=timedelta(seconds=10)))
        async with app.transaction() as tx:
            done = await tx.fetchval("select count(*) from orders where receipt is not null and tracking is not null")
        print(f"paid and shipped: {done} order")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "shop.db"))
