"""What is going on at a glance: overview, types, workers, schedules and limits, and what can be done there."""

from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from browsing import HERE, Browser, text_of
from hostile_html import MARK, look_at, texts
from onward import Attempt, JobType, Limit, Onward, Permanent, Rate, Schedule, job
from onward.dashboard import Visitor
from onward.errors import ChainFailed
from onward.model import WorkerId
from onward.state.workers import SignOfLife, WorkerRow

by_hand = JobType("orders.approve", input=int, output=bool)
ship = JobType("orders.ship", input=int, output=int, limit=Limit("carrier", concurrency=2, key=lambda n: f"k{n % 3}"))
nightly = Schedule("nightly", by_hand, 7, cron="0 3 * * *", tz="Europe/Oslo")
PATHS = ("/", "/types", "/workers", "/schedules", "/limits")


@job("orders.charge", version=2, retention=None, max_attempts=3)
async def charge(attempt: Attempt[int]) -> bool:
    if attempt.input < 0:
        raise Permanent("no such customer")
    return True


order = JobType("orders.order", input=int, output=bool, continues_to=[charge])


@job("orders.pack", blocked_by=[charge], limit=Limit(rate=Rate(2, per=timedelta(hours=1), burst=3)))
async def pack(attempt: Attempt[int]) -> None: ...


@pytest.fixture
def target(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


async def sign(app: Onward, **said: Any) -> None:
    """Have a worker in the list that is nobody's."""
    life = SignOfLife(
        age=said.pop("age", 60.0), promise=said.pop("promise", 600.0), blocked_for=said.pop("blocked_for", None),
        is_stopping=said.pop("is_stopping", False),
    )  # fmt: skip
    usual = {"host": "alpha", "pid": 4711, "version": "1.4", "onward_version": "0.1", "types": {}, "concurrency": 4}
    row = WorkerRow(**{**usual, **said, "id": WorkerId(said["id"])})
    await app.store.read(app.store.state.workers.sign(row, life))


async def test_the_overview_says_what_needs_attention_first(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await opened(charge, by_hand)
    async with app.worker():  # at its end it has written all figures
        with pytest.raises(ChainFailed):
            await (await app.start(charge, -1)).wait()
        await (await app.start(charge, 1)).wait()
    await sign(app, id="a-1", types={"orders.charge": [2]})
    browser: Browser = await serve(app)

    page = text_of(await browser.visit("/"))
    assert "1 job failed in the last hour." in page
    assert "1 × orders.charge Permanent no such customer" in page
    assert page.index("failed in the last hour") < page.index("Throughput")
    assert "1 alive" in page
    assert "As of" in page

    await app.start(by_hand, 1)
    await app.pause(by_hand)
    other = await opened(ship, by_hand)
    await other.start(ship, 1)
    await sign(app, id="stuck-1", blocked_for=30.0, types={"orders.charge": [2]})
    page = text_of(await (await serve(await opened(charge, by_hand))).visit("/"))
    assert "orders.approve is paused, and 1 job of it waits." in page
    assert "Jobs wait that no live worker takes: orders.ship" in page
    assert "The event loop stands still of stuck-1" in page
    assert page.index("orders.ship") < page.index("orders.approve is paused"), "errors come first"


async def test_where_all_is_well_it_says_so(running: Callable[..., Any], serve: Callable[..., Any]) -> None:
    app = await running(charge, by_hand)
    browser: Browser = await serve(app)

    assert "Nothing needs attention." in await browser.visit("/")


async def test_a_type_shows_what_it_was_declared_with_and_can_be_paused(
    running: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await running(charge, by_hand, pack, order, schedules=[nightly])
    await (await app.start(charge, 1)).wait()
    browser: Browser = await serve(app)

    page = text_of(await browser.visit("/types/orders.charge"))
    for words in ("Payload version 2", "Kept when completed for good", "Attempts 3", "Comes after orders.order",
                  "Waited for by orders.pack", "1 live worker"):  # fmt: skip
        assert words in page, words
    assert "Continues to orders.charge" in text_of(await browser.visit("/types/orders.order"))
    page = text_of(await browser.visit("/types/orders.pack"))
    assert "1 per 1800s , 3 at once" in page.replace("s,", "s ,")
    assert "nightly" in await browser.visit("/types/orders.approve")
    assert "There is no type" in await browser.visit("/types/nothing", status=404)

    assert "Paused orders.charge." in await browser.act("pause-type", {"type": "orders.charge", "back": "/types"})
    assert await app.paused() == ["orders.charge"]
    assert "Resume orders.charge" in await browser.visit("/types")
    assert "Resumed orders.charge." in await browser.act("resume-type", {"type": "orders.charge"})
    assert await app.paused() == []
    await browser.act("pause-type", {"type": "orders.chrage"}, status=409)


async def test_workers_are_shown_with_what_they_run(opened: Callable[..., Any], serve: Callable[..., Any]) -> None:
    app = await opened(charge, by_hand)
    browser: Browser = await serve(app)
    assert "No worker lives" in await browser.visit("/workers")

    await sign(app, id="a-1", types={"orders.charge": [1, 2], "orders.ship": [1]})
    await sign(app, id="b-2", host="beta", is_stopping=True)
    await sign(app, id="c-3", host="gamma", blocked_for=20.0)
    await sign(app, id="d-4", host="delta", pid=1, promise=0.0)
    browser.dashboard._readings.forget()
    page = text_of(await browser.visit("/workers"))
    for words in ("alpha pid 4711 a-1 alive", "0 of 4", "1.4 onward 0.1", "orders.charge v1/2 , orders.ship",
                  "beta pid 4711 b-2 stopping", "gamma pid 4711 c-3 alive event loop blocked", "delta pid 1 d-4 dead",
                  "1 died within a day"):  # fmt: skip
        assert words in page, (words, page)


async def test_schedules_are_shown_paused_resumed_and_run(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await opened(by_hand, schedules=[nightly])
    browser: Browser = await serve(app)
    assert "not stored yet" in await browser.visit("/schedules")

    said = await browser.act("pause-schedule", {"schedule": "nightly", "back": "/schedules"})
    assert "Paused the schedule nightly." in said
    page = text_of(said)
    for words in ("0 3 * * * Europe/Oslo", "starts orders.approve", "nightly paused", "Resume", "Run now"):
        assert words in page, words
    assert "Resumed the schedule nightly." in await browser.act("resume-schedule", {"schedule": "nightly"})
    assert (await app.schedules.list())[0].paused_at is None
    assert "Started chain" in await browser.act("run-schedule", {"schedule": "nightly"})
    assert [chain.type_name for chain in await app.chains()] == ["orders.approve"]
    for action in ("pause-schedule", "resume-schedule", "run-schedule"):
        await browser.act(action, {"schedule": "daily"}, status=409)


async def test_limits_are_shown_by_key_and_changed(opened: Callable[..., Any], serve: Callable[..., Any]) -> None:
    app = await opened(ship)
    browser: Browser = await serve(app)
    assert "carrier" in await browser.visit("/limits"), "declared, if not stored"
    for n in range(0, 12, 3):
        await app.start(ship, n)
    await app.start(ship, 1)

    change = {"limit": "carrier", "concurrency": "1", "rate": "5/m", "burst": "4", "back": "/limits"}
    assert "Changed the limit carrier: 1 at a time, 5 per 60s." in await browser.act("change-limit", change)
    found = (await app.limits.list())[0]
    assert (found.concurrency, found.rate and found.rate.every, found.rate and found.rate.burst) == (1, 12.0, 4)
    asked = await browser.visit("/confirm/change-limit", params={"limit": "carrier"})
    assert 'value="1 per 12s"' in asked

    assert "carrier changed" in text_of(await browser.visit("/limits"))
    page = await browser.visit("/limits/carrier")
    assert "?key=k0" in page
    assert "?key=k1" in page
    at_key = await browser.visit("/limits/carrier?key=k0")
    held = [*await app.limits.holding("carrier", "k0"), *await app.limits.waiting("carrier", "k0")]
    assert len(held) == 4
    assert all(str(job.id) in at_key for job in held)
    assert "?key=k0" not in await browser.visit("/limits/carrier?after=k0")
    assert "There is no limit" in await browser.visit("/limits/courier", status=404)

    assert "Reset the limit carrier" in await browser.act("reset-limit", {"limit": "carrier"})
    assert (await app.limits.list())[0].concurrency == 2
    for wrong in ({}, {"concurrency": "many"}, {"concurrency": "0"}, {"rate": "often"}, {"rate": "5 per 9999999999d"},
                  {"rate": "0/s"}, {"concurrency": "9" * 12}, {"rate": "1/s", "burst": "-1"}):  # fmt: skip
        await browser.act("change-limit", {"limit": "carrier", **wrong}, status=400)
    await browser.act("change-limit", {"limit": "courier", "concurrency": "3"}, status=400)
    assert (await app.limits.list())[0].concurrency == 2


async def test_what_a_hand_has_spoiled_takes_no_page_with_it(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await opened(ship)
    browser: Browser = await serve(app)
    await app.limits.change("carrier", concurrency=3)
    await sign(app, id="a-1", concurrency=0)
    async with app.transaction() as tx:
        await tx.execute("UPDATE onward_limit_rule SET name = :name", name="9" * 400)

    assert "0 of 0" in text_of(await browser.visit("/workers"))
    assert "9" * 400 in await browser.visit("/limits")


async def test_who_may_only_look_sees_all_of_it_and_no_button(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await opened(ship, by_hand, schedules=[nightly])
    await app.schedules.resume("nightly")
    await app.limits.change("carrier", concurrency=1)
    await app.pause(ship)
    fields = {"type": "orders.ship", "schedule": "nightly", "limit": "carrier", "concurrency": "9"}
    actions = ("pause-type", "resume-type", "pause-schedule", "run-schedule", "change-limit", "reset-limit")

    for options in ({"write": False}, {"authenticate": lambda request: Visitor("eve", "look")}):
        browser: Browser = await serve(app, **options)
        for path in (*PATHS, "/types/orders.ship", "/limits/carrier"):
            assert "confirm/" not in await browser.visit(path), path
        for action in actions:
            await browser.act(action, fields, status=403)
            answer = await browser.client.post(f"do/{action}", data=fields, headers={"origin": HERE})
            assert answer.status_code == 403

    assert await app.paused() == ["orders.ship"]
    assert (await app.schedules.list())[0].paused_at is None
    assert (await app.limits.list())[0].concurrency == 1
    assert not await app.chains()


async def test_names_of_others_are_only_ever_texts(opened: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """Types, workers and hosts, schedules and their errors, limits and their keys."""
    hostile = [text for text in texts() if "\n" not in text and "\r" not in text]
    names = [text.replace("..", "") for text in hostile[::9]]
    kinds = [
        JobType(name, input=str, output=str, limit=Limit(f"limit {name}", concurrency=1, key=lambda text: text))
        for name in names
    ]
    schedules = [
        Schedule(f"every {name}", kind, "x", every=timedelta(hours=1)) for name, kind in zip(names, kinds, strict=True)
    ]
    app = await opened(*kinds, schedules=schedules)
    for name in names:
        await app.schedules.resume(f"every {name}")
        await app.limits.change(f"limit {name}", concurrency=2)
    rows = app.store.state.schedules
    for schedule, text in zip(await app.schedules.list(), hostile, strict=False):
        assert schedule.next_at is not None
        await app.store.read(rows.fail(schedule.name, schedule.next_at, f"ValueError: {text}"))
    for n, text in enumerate(hostile):
        await sign(app, id=f"{n} {text}"[:200], host=text, version=text, types={text: [1]})
    await app.start_many([kinds[0].with_input(text) for text in hostile[:100]])
    await app.pause(kinds[0])
    browser: Browser = await serve(app)
    browser.dashboard._readings._timeout = 60

    addresses = [*PATHS, f"/limits/{quote('limit ' + names[0])}", f"/schedules?after={quote('every ' + names[3])}"]
    for name in names:
        addresses += [f"/types/{quote(name)}", f"/limits/{quote('limit ' + name)}?key={quote(name)}"]
        fields = f"type={quote(name, safe='')}&schedule={quote(name, safe='')}&limit={quote('limit ' + name, safe='')}"
        addresses += [f"/confirm/{action}?{fields}" for action in ("pause-type", "run-schedule", "change-limit")]
    seen = ""
    for address in addresses:
        answer = await browser.client.get(address.lstrip("/"))
        assert answer.status_code == 200, (address, answer.text)
        problems, _ = look_at(answer.text)
        assert not problems, (address, problems)
        seen += unescape(answer.text)
    assert all(f"ValueError: {text}" in seen for text in hostile[: len(names)])
    assert "A tick could not be started of" in seen
    assert MARK in seen
    assert [name for name in names if name not in seen] == []


async def test_a_type_of_any_name_is_live_and_led_back_to(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    for name in ("größe", "a/b", "a?b#c", "100%", "a b"):
        app = await opened(JobType(name, input=int, output=int))
        browser: Browser = await serve(app)
        path = f"types/{quote(name)}"
        page = await browser.visit(path)
        assert f'data-at="/{path}"' in page
        found, params = browser.dashboard._found(f"/types/{name}")
        assert (found.path, params) == ("/types/{name:path}", {"name": name})
        said = await browser.act("pause-type", {"type": name, "back": f"/{path}"})
        assert f"Paused {name}." in unescape(said)
        assert "Resume" in said
