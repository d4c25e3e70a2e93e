"""The demo from its first order to its last check."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onward import ChainHandle, Onward, Transaction
from onward.cli.dashboard import listening, require_dashboard
from onward.cli.demo import app as shop
from onward.cli.demo.checks import Check, DemoRun, check_everything
from onward.cli.demo.endless import keep_open
from onward.cli.demo.progress import Display, Snapshot
from onward.cli.demo.workers import WorkerProcess
from onward.cli.failures import CommandFailed

_ORDERS = range(1, 31)
_ROLLED_BACK = 99
_WAREHOUSES = ("Oslo", "Nairobi", shop.FLAKY, "Osaka", "Quito")
_AT_MOST = 50.0
"""Seconds in which everything must be done."""


def run_demo(*, dashboard_at: int | None = None) -> int:
    """Run it; the exit code. With a port for a dashboard, keep the shop open then."""
    console = Console(file=sys.stdout)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onward-demo-")))
        place = None
        if dashboard_at is not None:
            require_dashboard()
            place = stack.enter_context(listening("127.0.0.1", dashboard_at))
        os.environ[shop.DATABASE] = str(folder / "shop.db")
        began = time.monotonic()
        checks = asyncio.run(_Demo(folder, console).run())
        _print_summary(console, checks, time.monotonic() - began)
        if place is None:
            console.print("\nTo look at it in a browser, beside a shop that never closes: onward demo --dashboard")
        else:
            listener, address = place
            console.print(f"\nThe shop stays open: look at {address}, Ctrl-C closes it.")
            asyncio.run(keep_open(folder, listener))
    return 0 if all(check.holds for check in checks) else 1


class _Demo:
    def __init__(self, folder: Path, console: Console) -> None:
        self._folder, self._console = folder, console
        self._deadline = time.monotonic() + _AT_MOST
        totals = {
            "orders.charge": len(_ORDERS),
            "orders.ship": len(_ORDERS),
            "stock.fetch": len(_WAREHOUSES),
            "stock.report": 1,
        }
        self._display = Display(console, totals)
        self._chains: list[ChainHandle[object]] = []
        self._failures = 0

    async def run(self) -> list[Check]:
        async with shop.app() as app:
            try:
                with self._display:
                    await self._start_chains(app)
                    first = self._start_worker("one")
                    await self._until(
                        app, lambda now: now.completed("orders.charge") >= 6 and len(now.held_by("one")) >= 3
                    )
                    first.kill()
                    lost = (await Snapshot.read(app)).held_by("one")
                    self._display.tell(
                        f"worker one killed with SIGKILL; it held {len(lost)} jobs, whose leases run out within 2 s"
                    )
                    second = self._start_worker("two")
                    await self._until(app, self._all_done)
                    code = await asyncio.to_thread(second.stop, within=10)
                    self._display.tell("everything is done; worker two was asked to stop, and drained")
                facts = DemoRun(
                    orders=_ORDERS,
                    rolled_back=_ROLLED_BACK,
                    chains=self._chains,
                    lost=[job.id for job in lost],
                    heir="two",
                    stock=sum(10 * len(city) for city in _WAREHOUSES),
                    exit_code=code,
                )
                return await check_everything(app, facts)
            finally:
                for worker in self._display.workers:
                    worker.kill()

    # -- what it starts

    async def _start_chains(self, app: Onward) -> None:
        async with app.transaction() as tx:
            for table in shop.TABLES:
                await tx.execute(table)
        fetches = [shop.fetch.with_input(city, priority=2) for city in _WAREHOUSES]
        self._chains.append(await app.start(shop.report, None, priority=2, blockers=fetches))
        for number in _ORDERS:
            async with app.transaction() as tx:
                await self._place_order(app, tx, number)
        try:
            async with app.transaction() as tx:
                await self._place_order(app, tx, _ROLLED_BACK)
                raise _CustomerLeft
        except _CustomerLeft:
            self._chains.pop()
        self._display.tell(
            f"{len(_ORDERS)} orders placed, each in one transaction with its chain, and one rolled back; "
            f"a report waits for {len(fetches)} warehouses"
        )

    async def _place_order(self, app: Onward, tx: Transaction, number: int) -> None:
        await tx.execute("insert into orders values (:id, :total, 'new')", id=number, total=10 * number)
        self._chains.append(await app.start(shop.charge, shop.Order(number), tx=tx))

    def _start_worker(self, name: str) -> WorkerProcess:
        environment = {shop.DATABASE: os.environ[shop.DATABASE]}
        worker = WorkerProcess(name, folder=self._folder, environment=environment)
        self._display.workers.append(worker)
        self._display.tell(f"worker {name} started: process {worker.pid}, four jobs at a time")
        return worker

    # -- what it waits for

    async def _until(self, app: Onward, condition: Callable[[Snapshot], bool]) -> None:
        while True:
            now = await Snapshot.read(app)
            self._tell_of_failures(now)
            self._display.show(now)
            if condition(now):
                return
            self._check_on_workers()
            await asyncio.sleep(0.05)

    def _tell_of_failures(self, now: Snapshot) -> None:
        failures = sum(job.failures for job in now.of_type("stock.fetch"))
        if failures > self._failures:
            self._failures = failures
            self._display.tell(
                f"a warehouse did not answer; it will be asked again (failed attempts so far: {failures})"
            )

    @staticmethod
    def _all_done(now: Snapshot) -> bool:
        return now.completed("orders.ship") == len(_ORDERS) and now.completed("stock.report") == 1

    def _check_on_workers(self) -> None:
        worker = self._display.workers[-1]
        if not worker.is_running:
            raise CommandFailed(f"worker {worker.name} ended unexpectedly:\n{worker.log}")
        if time.monotonic() > self._deadline:
            raise CommandFailed(f"not done after {_AT_MOST:g} s; worker {worker.name} said:\n{worker.log}")


class _CustomerLeft(Exception):
    pass


def _print_summary(console: Console, checks: list[Check], seconds: float) -> None:
    table = Table(title=f"What was checked, after {seconds:.1f} s", title_justify="left")
    table.add_column("claim")
    table.add_column("found in the database")
    table.add_column("")
    for check in checks:
        verdict = Text("ok", style="green") if check.holds else Text("NOT SO", style="bold red")
        table.add_row(check.claim, check.found, verdict)
    console.print()
    console.print(table)
