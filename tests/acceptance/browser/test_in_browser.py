"""Every page and every action in a real browser: light, dark, on a phone, at another path, and without JavaScript."""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

import servers
from browsing import served
from hostile_html import MARK, texts
from onward import Attempt, JobType, Limit, Onward, Permanent, Schedule, job
from onward.dashboard import Dashboard
from onward.dashboard.pages.registry import ACTIONS, PAGES
from onward.errors import ChainFailed
from onward.flow import Flow
from onward.queue import Memory, Queue, QueueWorker
from proxy import proxied

pytestmark = pytest.mark.slow
LATER = timedelta(hours=1)
AXE = "axe-core@4.10.3"


@job("orders.charge")
async def charge(attempt: Attempt[dict[str, Any]]) -> str:
    if "text" in attempt.input:
        raise Permanent(attempt.input["text"])
    return "done"


approve = JobType("orders.approve", input=dict[str, Any], output=bool)
report = JobType("report", input=str, output=int, blocked_by=[approve])


async def fill(app: Onward) -> dict[str, str]:
    """Something of everything; gives what stands for the {names} of paths."""
    waiting = await app.start(approve, {"order": 1})
    await app.start(report, "2026-11", blockers=[waiting])
    await app.start(charge, {"order": 2}, delay=LATER)
    failed = await app.start(charge, {"text": "declined"})
    async with app.worker():
        with pytest.raises(ChainFailed):
            await failed.wait()
    return {"id": str(failed.id)}


@job("orders.ship", limit=Limit("carrier", concurrency=1))
async def ship(attempt: Attempt[str]) -> None: ...


@job("nightly", schedule=Schedule(input="all", every=timedelta(days=1)))
async def nightly(attempt: Attempt[str]) -> None: ...


@dataclass
class Letter:
    to: str


async def refuse(data: Letter, job: Any) -> None:
    raise Permanent("no such address")


@asynccontextmanager
async def letters() -> AsyncIterator[Queue[Letter]]:
    """With two dead letters."""
    memory = Memory()
    async with Queue("letters", provider=memory, data=Letter) as queue:
        for name in ("one", "two"):
            await queue.add("welcome", Letter(f"{name}@example.org"), id=name)
        async with QueueWorker(queue.name, refuse, provider=memory):
            while (await queue.stats()).failed < 2:
                await asyncio.sleep(0.01)
        yield queue


@asynccontextmanager
async def posting(redis_url: str) -> AsyncIterator[tuple[Flow[Letter], list[str]]]:
    """A flow of which two jobs have failed."""
    name = f"browser-{secrets.token_hex(4)}"
    flow = Flow(name, redis_url, input=Letter)

    @flow.stage(f"{name}-sort")
    async def sort(letter: Letter) -> None:
        raise Permanent("no such address")

    async with flow:
        ids = await flow.start_many([Letter("ann"), Letter("bob")])
        async with flow.workers({f"{name}-sort": 1}):
            while (await flow.positions()).count(place="failed") < 2:
                await asyncio.sleep(0.01)
        yield flow, ids
        for id in ids[:1]:
            await flow.delete(id)


@asynccontextmanager
async def everything(
    app: Callable[..., Awaitable[Onward]], redis_url: str
) -> AsyncIterator[tuple[Onward, dict[str, Any], dict[str, str]]]:
    """An app, what stands beside it, and what can be named in an address."""
    shop = await app(charge, approve, report, ship, nightly)
    async with letters() as queue, posting(redis_url) as (flow, ids):
        samples = await fill(shop)
        async with shop.worker():
            while not (await shop.schedules.list() and await shop.limits.list()):
                await asyncio.sleep(0.05)
        samples |= {"flow": flow.name, "first": ids[0], "second": ids[1]}
        yield shop, {"queues": [queue], "flows": [flow]}, samples


def addresses(samples: dict[str, str]) -> dict[str, str]:
    """Of every page there is."""
    id, group, replay = samples["id"], samples["group"], samples["replay"]
    named = {
        "/find": "/find?q=order",
        "/chains/{id}": f"/chains/{id}",
        "/jobs/{id}": f"/jobs/{id}",
        "/types/{name:path}": "/types/orders.charge",
        "/limits/{name:path}": "/limits/carrier",
        "/failed/{group}": f"/failed/{group}",
        "/failed/replays/{replay}": f"/failed/replays/{replay}",
        "/queues/one": "/queues/one?name=letters",
        "/flows/one": f"/flows/one?name={samples['flow']}",
    }
    return {page.path: named.get(page.path, page.path) for page in PAGES}


async def confirmed(page: Page, address: str, action: str, **fields: str) -> str:
    """Ask for something, and confirm it; what the page then says."""
    await page.goto(f"{address}/confirm/{action}?{urlencode({'back': '/failed', **fields})}")
    if await page.get_by_label("Output").count():
        await page.get_by_label("Output").fill("true")
    await page.get_by_role("main").locator("form button").click()
    await expect(page.locator(".said")).to_be_visible()
    return await page.locator(".said").inner_text()


async def found_by(page: Page, address: str, pattern: str) -> list[str]:
    """What links among the failed ones lead to."""
    await page.goto(f"{address}/failed")
    return list(dict.fromkeys(re.findall(pattern, await page.content())))


async def complaints(page: Page, wrong: list[str]) -> None:
    """Have everything that a page complains of be written down."""
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that looks for what some people could not read or use."""
    with servers.node_modules(AXE) as folder:
        return Path(folder, "axe-core", "axe.min.js").read_text()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_every_page_is_whole_and_accessible(
    app: Callable[..., Awaitable[Onward]],
    serve: Callable[..., Awaitable[str]],
    chromium: Browser,
    tmp_path: Path,
    axe: str,
    redis_url: str,
    look: str,
) -> None:
    kept = Path(os.environ.get("ONWARD_TEST_ARTEFACTS", tmp_path))
    size: Any = {"width": 390, "height": 780} if look == "phone" else {"width": 1280, "height": 800}
    context = await chromium.new_context(color_scheme="dark" if look == "dark" else "light", viewport=size)
    page, wrong = await context.new_page(), list[str]()
    await complaints(page, wrong)

    async with everything(app, redis_url) as (shop, beside, samples):
        address = await serve(shop, **beside)
        await shop.cancel(await shop.start(charge, {"order": 3}))
        retried, samples["group"], *_ = await found_by(page, address, r"failed/(\w{8})\b")
        await confirmed(page, address, "replay", group=retried)
        samples["replay"], *_ = await found_by(page, address, r"failed/replays/(\w+)")
        paths = [*addresses(samples).values(), f"/confirm/retry?chain={samples['id']}&back=/chains", "/nowhere"]
        for path in paths:
            answer = await page.goto(f"{address}{path}")
            assert answer is not None
            assert answer.status == (404 if path == "/nowhere" else 200), path
            await expect(page.locator("h1").first).to_be_visible()
            name = path.strip("/").replace("/", "-").partition("?")[0] or "start"
            await page.screenshot(path=kept / f"{name}-{look}.png")
            if path != "/nowhere":
                assert wrong == [], path
            wrong.clear()
            await page.evaluate(axe)
            found = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
            violations = [
                (one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]])
                for one in found["violations"]
            ]
            assert violations == [], path
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} px too wide"
    await context.close()


async def test_every_action_is_asked_and_done(
    app: Callable[..., Awaitable[Onward]], serve: Callable[..., Awaitable[str]], chromium: Browser, redis_url: str
) -> None:
    page, wrong = await chromium.new_page(), list[str]()
    await complaints(page, wrong)

    async with everything(app, redis_url) as (shop, beside, samples):
        address = await serve(shop, **beside)
        waiting, more = [str((await shop.start(kind, {"order": 3})).id) for kind in (charge, approve)]
        (group,) = await found_by(page, address, r"failed/(\w{8})\b")
        flow, letters = {"flow": samples["flow"]}, {"queue": "letters"}
        tried = [
            ("replay", {"group": group}, "Retried 1 chain."),
            ("cancel", {"chain": samples["id"]}, "Cancelled 1 chain."),
            ("retry", {"chain": samples["id"]}, "Retried 1 chain."),
            ("trigger", {"chain": waiting}, "Triggered"),
            ("complete", {"chain": more}, "Completed chain"),
            ("delete", {"chain": waiting}, "Deleted 1 chain."),
            ("pause-type", {"type": "orders.charge"}, "Paused orders.charge."),
            ("resume-type", {"type": "orders.charge"}, "Resumed orders.charge."),
            ("pause-schedule", {"schedule": "nightly"}, "Paused the schedule nightly"),
            ("resume-schedule", {"schedule": "nightly"}, "Resumed the schedule nightly."),
            ("run-schedule", {"schedule": "nightly"}, "Started chain"),
            ("change-limit", {"limit": "carrier", "concurrency": "3"}, "Changed the limit carrier"),
            ("reset-limit", {"limit": "carrier"}, "Reset the limit carrier"),
            ("queue-pause", letters, "Paused the queue"),
            ("queue-resume", letters, "Resumed the queue"),
            ("queue-retry", {**letters, "job": "one"}, "Put job one back"),
            ("queue-remove", {**letters, "job": "two"}, "Deleted job two"),
            ("queue-retry-all", letters, "Put 0 jobs back"),
            ("queue-purge", letters, "Deleted 0 dead letters"),
            ("flow-retry", {**flow, "job": samples["first"]}, "Retried job"),
            ("flow-delete", {**flow, "job": samples["second"]}, "Deleted job"),
        ]
        assert {name for name, _, _ in tried} == {action.name for action in ACTIONS}
        for action, fields, words in tried:
            assert words in await confirmed(page, address, action, **fields), action
    assert wrong == []


@pytest.mark.parametrize("with_script", [True, False])
async def test_everything_can_be_done_with_and_without_javascript_at_any_path(
    app: Callable[..., Awaitable[Onward]], chromium: Browser, with_script: bool
) -> None:
    shop = await app(charge, approve, report)
    samples = await fill(shop)
    site = Starlette(routes=[Mount("/ops/jobs", Dashboard(shop, write=True))])
    context = await chromium.new_context(java_script_enabled=with_script)
    page, wrong = await context.new_page(), list[str]()
    await complaints(page, wrong)

    async def act(button: str, *, confirm: str, says: str) -> None:
        await page.get_by_role("button", name=button, exact=True).first.click()
        await page.get_by_role("main").get_by_role("button", name=confirm, exact=True).click()
        await expect(page.locator(".said")).to_contain_text(says)

    async with served(site) as address:
        await page.goto(f"{address}/ops/jobs")
        await page.get_by_role("link", name="Failed", exact=True).click()
        await act("Retry this group", confirm="Retry", says="Retried 1 chain.")

        await page.get_by_role("link", name="Chains", exact=True).click()
        await page.get_by_label("Status").select_option("pending")
        await page.get_by_label("Type", exact=True).fill("orders.charge")
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("checkbox").first.check()
        await act("Run now", confirm="Run now", says="Triggered")

        await page.goto(f"{address}/ops/jobs/chains?type=orders.approve")
        await page.get_by_role("link", name=re.compile("Chain ")).first.click()
        await page.get_by_role("button", name="Complete by hand").click()
        await page.get_by_label("Output").fill("true")
        await page.get_by_role("main").get_by_role("button", name="Complete").click()
        await expect(page.locator(".said")).to_contain_text("Completed chain")

        await page.goto(f"{address}/ops/jobs/chains/{samples['id']}")
        await act("Cancel", confirm="Cancel", says="Cancelled 1 chain.")
        await act("Delete", confirm="Delete", says="Deleted 1 chain.")

        await page.goto(f"{address}/ops/jobs/chains?status=pending")
        await page.locator(".all").get_by_role("button", name="Cancel").click()
        await page.get_by_label("Also the chains").check()
        await page.get_by_role("main").get_by_role("button", name="Cancel").click()
        await expect(page.locator(".said")).to_contain_text("Cancelled")
    assert [chain.status for chain in await shop.chains(status=["pending"])] == []
    assert wrong == []
    await context.close()


async def test_keys_find_rows_and_the_search(
    app: Callable[..., Awaitable[Onward]], serve: Callable[..., Awaitable[str]], chromium: Browser
) -> None:
    shop = await app(charge, approve, report)
    samples = await fill(shop)
    address = await serve(shop)
    page = await chromium.new_page()

    await page.goto(f"{address}/chains")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await page.keyboard.press("x")
    await expect(page.locator("tr.at input:checked")).to_have_count(1)
    await expect(page.locator("tbody tr").first).to_have_class("at")
    await page.keyboard.press("/")
    await page.keyboard.type(samples["id"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="orders.charge")).to_be_visible()

    await page.get_by_role("button", name="Light or dark").click()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_polling_takes_over_where_nothing_can_be_streamed(
    app: Callable[..., Awaitable[Onward]], serve: Callable[..., Awaitable[str]], chromium: Browser
) -> None:
    shop = await app(charge, approve, report)
    address = await serve(shop)
    page = await chromium.new_page()
    await page.route("**/live?*", lambda route: route.abort())

    await page.goto(f"{address}/chains")
    chain = await shop.start(approve, {"order": 9})

    await expect(page.get_by_label(f"Chain {chain.id}").first).to_be_visible(timeout=60_000)


async def test_a_page_says_that_it_is_not_up_to_date_until_the_database_answers_again(
    postgres_dsn: str, serve: Callable[..., Awaitable[str]], chromium: Browser
) -> None:
    async with proxied(postgres_dsn) as (proxy, dsn):
        schema = f"t_{secrets.token_hex(6)}"
        async with Onward(dsn, jobs=[charge, approve, report], observers=[], schema=schema, migrate=True) as shop:
            address = await serve(shop)
            page = await chromium.new_page()
            await page.goto(f"{address}/chains")
            await expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=30_000)

            proxy.freeze()
            await expect(page.locator("#stale")).to_contain_text("what is shown was read at", timeout=60_000)
            proxy.thaw()
            await expect(page.locator("#stale")).to_be_hidden(timeout=60_000)
            chain = await shop.start(approve, {"order": 9})

            await expect(page.get_by_label(f"Chain {chain.id}").first).to_be_visible(timeout=60_000)


async def test_times_are_those_of_the_reader(
    app: Callable[..., Awaitable[Onward]], serve: Callable[..., Awaitable[str]], chromium: Browser
) -> None:
    shop = await app(charge, approve, report)
    await shop.start(approve, {"order": 9})
    address = await serve(shop)
    shown: list[str] = []
    for zone in ("Asia/Kolkata", "America/Lima"):
        context = await chromium.new_context(timezone_id=zone, locale="en-GB")
        page = await context.new_page()
        await page.goto(f"{address}/chains")
        time = page.locator("td time").first
        instant, told = await time.get_attribute("datetime"), await time.get_attribute("title")
        hour = await page.evaluate("(at) => new Date(at).getHours()", instant)
        assert told is not None
        assert f" {hour:02d}:" in told.replace(",", " ")
        shown.append(told)
        await context.close()

    assert shown[0] != shown[1]


async def test_no_hostile_text_is_ever_run(
    app: Callable[..., Awaitable[Onward]], serve: Callable[..., Awaitable[str]], chromium: Browser
) -> None:
    shop = await app(charge, approve, report)
    chains = [await shop.start(charge, {"text": text, text: text}) for text in texts()]
    async with shop.worker(concurrency=10):
        for chain in chains:
            with pytest.raises(ChainFailed):
                await chain.wait()
    address = await serve(shop)
    context = await chromium.new_context()
    ran: list[str] = []
    await context.expose_function(MARK, lambda *given: ran.append(str(given)))
    page, wrong = await context.new_page(), list[str]()
    await complaints(page, wrong)
    await page.route(re.compile(r"^(?!http://127\.0\.0\.1)"), lambda route: wrong.append(route.request.url))

    for path in ("/jobs?limit=200", "/chains?limit=200", "/failed", *(f"/jobs/{chain.id}" for chain in chains)):
        await page.goto(f"{address}{path}")
        await expect(page.locator("h1").first).to_be_visible()
    # What is sent later goes another way into the page.
    await page.goto(f"{address}/chains?limit=200")
    late = await shop.start(charge, {"text": "x"}, delay=LATER)
    await expect(page.get_by_label(f"Chain {late.id}").first).to_be_visible(timeout=60_000)

    assert ran == []
    assert wrong == []
    await context.close()
