"""The shop of the demo, which never closes, and a dashboard beside it."""

import asyncio
import os
import random
import socket
from datetime import timedelta
from itertools import count
from pathlib import Path

from onward.cli.dashboard import serve_until_stopped
from onward.cli.demo import app as shop
from onward.cli.demo.workers import WorkerProcess
from onward.client.app import Onward

_PAUSE = 0.7
"""Seconds between two customers."""
_CITIES = ("Oslo", "Nairobi", shop.FLAKY, "Osaka", "Quito")


async def keep_open(folder: Path, listener: socket.socket) -> None:
    """Take orders, and serve the dashboard, until a signal comes."""
    from onward.dashboard import Dashboard

    environment = {shop.DATABASE: os.environ[shop.DATABASE]}
    worker = WorkerProcess("three", folder=folder, environment=environment)
    try:
        async with shop.app() as app, asyncio.TaskGroup() as tasks:
            customers = tasks.create_task(_take_orders(app))
            await serve_until_stopped(Dashboard(app, write=True, title="The shop of the demo"), listener)
            customers.cancel()
    finally:
        worker.kill()


async def _take_orders(app: Onward) -> None:
    for number in count(1000):
        if number % 17 == 0:  # an order that nobody wrote down, so that something fails
            await app.start(shop.charge, shop.Order(number))
        else:
            later = timedelta(minutes=10) if number % 11 == 0 else None
            async with app.transaction() as tx:
                await tx.execute("insert into orders values (:id, :total, 'new')", id=number, total=number % 90 + 10)
                await app.start(shop.charge, shop.Order(number), delay=later, tx=tx)
        if number % 25 == 0:
            await app.start(shop.report, None, blockers=[shop.fetch.with_input(city) for city in _CITIES])
        await asyncio.sleep(_PAUSE * (0.5 + random.random()))
