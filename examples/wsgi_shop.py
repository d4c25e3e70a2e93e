"""A web application without an event loop (any WSGI server; Flask and Django look the same) and `app.sync`.

The request writes an order and starts its chain in one transaction; a worker, here a thread, as a rule a process
(`onward worker wsgi_shop:jobs`), does the rest.

Run it: python examples/wsgi_shop.py
It prints:
    POST /orders/7 202 Accepted
    GET /orders/7 200 OK confirmation sent to order 7
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from wsgiref.util import setup_testing_defaults

from onward import Attempt, Onward, SyncOnward, SyncTransaction, job


@dataclass
class Order:
    id: int


@job("orders.confirm")
def confirm(attempt: Attempt[Order, SyncTransaction]) -> str:
    """A plain function: it runs in a thread of the worker."""
    message = f"confirmation sent to order {attempt.input.id}"
    with attempt.complete() as tx:
        tx.execute("update orders set message = :message where id = :id", message=message, id=attempt.input.id)
        return message


jobs = Onward(f"sqlite:///{mkdtemp()}/shop.db", jobs=[confirm])


def make_web(client: SyncOnward) -> Callable[..., Iterable[bytes]]:
    """The WSGI application."""

    def web(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        number = int(Path(environ["PATH_INFO"]).name)
        if environ["REQUEST_METHOD"] == "POST":
            with client.transaction() as tx:
                tx.execute("insert into orders (id) values (:id)", id=number)
                chain = client.start(confirm, Order(number), tx=tx)
            start_response("202 Accepted", [("Location", f"/chains/{chain.id}")])
            return [b""]
        with client.transaction() as tx:
            message = tx.fetchval("select message from orders where id = :id", id=number)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [(message or "not yet").encode()]

    return web


@contextmanager
def worker_thread() -> Any:
    """What `onward worker` does, for an example that is one file."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def work() -> None:
        async with jobs, jobs.worker():
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def request(web: Callable[..., Iterable[bytes]], method: str, path: str) -> str:
    """One request without a server."""
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
    setup_testing_defaults(environ)
    answer: list[str] = []
    body = b"".join(web(environ, lambda status, headers: answer.append(status)))
    return f"{method} {path} {answer[0]} {body.decode()}".strip()


def main() -> None:
    with jobs.sync as client:
        with client.transaction() as tx:
            tx.execute("create table orders (id integer primary key, message text)")
        web = make_web(client)
        print(request(web, "POST", "/orders/7"))
        with worker_thread():
            chain = client.chain(confirm, client.chains().items[0].id)
            chain.wait(timeout=timedelta(seconds=10))
        print(request(web, "GET", "/orders/7"))


if __name__ == "__main__":
    main()
