"""Pictures of the dashboard, made with a shop that has something of everything.

`python tools/screenshots.py [FOLDER] [SECONDS]`

Needs chromium (Debian's) and playwright. Without a folder the pictures go to docs/images. The shop
trades for so many seconds before: half an hour makes fine charts.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import Browser, async_playwright

from onward import Attempt, JobType, Next, Onward, Permanent, job
from onward.dashboard import Dashboard
from onward.dashboard.pages.registry import PAGES

CHROMIUM = os.environ.get("ONWARD_TEST_CHROMIUM", "/usr/bin/chromium")


class CardDeclined(Exception):
    """The bank says no."""


@job("orders.ship", internal=True)
async def ship(attempt: Attempt[dict[str, int]]) -> dict[str, str]:
    attempt.progress(0.6, "label printed")
    return {"tracking": f"1Z{attempt.input['order']:06d}"}


@job("orders.charge", continues_to=[ship])
async def charge(attempt: Attempt[dict[str, int]]) -> Next[dict[str, str]]:
    if attempt.input["order"] % 7 == 3:
        raise Permanent(f"card of order {attempt.input['order']} was declined")
    if attempt.input["order"] % 11 == 5:
        raise CardDeclined("insufficient funds")
    return attempt.continue_with(ship, attempt.input)


@job("mail.send")
async def mail(attempt: Attempt[str]) -> None:
    await asyncio.sleep(0.002)


@job("video.encode")
async def encode(attempt: Attempt[str]) -> None:
    attempt.progress(0.42, "pass 1 of 2")
    await asyncio.sleep(3600)


approve = JobType("refunds.approve", input=dict[str, int], output=bool)
report = JobType("reports.monthly", input=str, output=int, blocked_by=[charge])
JOBS: list[Any] = [charge, ship, mail, encode, approve, report]


async def fill(app: Onward) -> None:
    """Something of everything."""
    orders = await app.start_many([charge.with_input({"order": n}) for n in range(120)])
    await app.start_many([mail.with_input(f"customer-{n}@example.com") for n in range(300)])
    await app.start(encode, "holiday.mov")
    await app.start(approve, {"order": 12, "cents": 4900})
    await app.start(mail, "later@example.com", delay=timedelta(hours=3))
    await app.start(report, "2026-10", blockers=[orders[0], orders[3]])
    await app.start(report, "2026-11", blockers=[await app.start(charge, {"order": 1}, delay=timedelta(days=2))])


async def settle(app: Onward) -> None:
    """Until nothing is due but what takes for ever."""
    async with asyncio.timeout(60):
        while (await app.depths())["mail.send"].pending or (await app.depths())["orders.charge"].pending:
            await asyncio.sleep(0.1)


async def pages_of(app: Onward) -> dict[str, str]:
    """Where to go, by the name of the picture."""
    failed = [one async for one in app.chains(status="failed", types=["orders.charge"], limit=10)]
    running = [one async for one in app.chains(status="running", types=["video.encode"], limit=10)]
    named = {page.title.lower(): page.path.lstrip("/") for page in PAGES if page.navigation}
    return {
        **named,
        "chain": f"chains/{failed[0].id}",
        "running": f"chains/{running[0].id}",
        "confirm": f"confirm/retry?chain={failed[0].id}&back=/chains",
    }


async def shoot(browser: Browser, address: str, folder: Path, pages: dict[str, str]) -> None:
    """Each page, light and dark, wide and on a phone."""
    wide, phone = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
    for mode, theme, size in (("light", "light", wide), ("dark", "dark", wide), ("phone", "light", phone)):
        context = await browser.new_context(color_scheme=theme, viewport=size)  # type: ignore[arg-type]
        page = await context.new_page()
        page.on("console", lambda message: print(f"console: {message.text}"))
        page.on("pageerror", lambda error: print(f"error: {error}"))
        for name, path in pages.items():
            await page.goto(f"{address}{path}")
            await page.wait_for_timeout(400)
            await page.screenshot(path=folder / f"{name}-{mode}.png")
        await context.close()


async def trade(app: Onward, seconds: float) -> None:
    """Orders and mails as they come, so that there is something to draw over time."""
    ends = time.monotonic() + seconds
    for number in count(1000):
        if time.monotonic() > ends:
            return
        await app.start(charge, {"order": number})
        await app.start_many(
            [mail.with_input(f"customer-{number}-{n}@example.com") for n in range(random.randrange(9))]
        )
        await asyncio.sleep(0.2)


async def main(folder: Path, seconds: float) -> None:
    random.seed(7)
    with tempfile.TemporaryDirectory() as place:
        app = Onward(f"sqlite:///{place}/shop.db", jobs=JOBS, observers=[])
        async with app, asyncio.TaskGroup() as tasks:
            server = uvicorn.Server(
                uvicorn.Config(Dashboard(app, write=True), port=0, log_level="warning", timeout_graceful_shutdown=1)
            )
            serving = tasks.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.05)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with app.worker(concurrency=20, grace=timedelta(0)), async_playwright() as playwright:
                await fill(app)
                await trade(app, seconds)
                await settle(app)
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                await shoot(browser, f"http://127.0.0.1:{port}/", folder, await pages_of(app))
                await browser.close()
            server.should_exit = True
            await serving


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images")
    SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    FOLDER.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(FOLDER, SECONDS))
