"""Pages show what there is, and actions do what they say."""

import re
from datetime import timedelta
from typing import Any

import pytest

from browsing import Browser, text_of
from onward import Attempt, Next, job, new_id
from onward.model import CompletedJob, JobStatus, WorkerId
from onward.state.contract import TypeClaim

LATER = timedelta(hours=1)


async def test_lists_pages_and_actions_of_chains(browser: Browser) -> None:
    app = browser.app
    app_charge: Any = app.registry.find("orders.charge").step
    waiting = await app.start(app_charge, {"id": 1}, delay=LATER)
    other = await app.start(app_charge, {"id": 2})

    page = await browser.visit("/chains")
    assert str(waiting.id) in page
    assert "orders.charge" in page
    assert "As of" in text_of(page)
    assert str(waiting.id) in await browser.visit(f"/jobs/{waiting.id}")
    assert str(waiting.id) in await browser.visit(f"/chains/{waiting.id}")
    assert str(waiting.id) in await browser.visit("/jobs?status=pending&type=orders.charge&newer=1h")
    assert str(waiting.id) not in await browser.visit("/jobs?input=%22id%22: 2")
    assert str(other.id) in await browser.visit("/jobs?input=%22id%22: 2")
    found = await browser.client.get("find", params={"q": str(waiting.id)})
    assert (found.status_code, found.headers["location"]) == (303, f"./chains/{waiting.id}")
    assert "in an error" in await browser.visit("/find?q=Declined")
    assert "There is no job" in await browser.visit(f"/jobs/{new_id()}", status=404)
    assert "is no id" in await browser.visit("/jobs/7", status=404)

    assert "Triggered 1 chain." in await browser.act("trigger", {"chain": str(waiting.id)})
    assert "Cancelled 2 chains." in await browser.act("cancel", {"chain": [str(waiting.id), str(other.id)]})
    failed = await browser.visit("/failed")
    group = re.search(r"failed/(\w{8})", failed)
    assert group is not None
    assert str(other.id) in await browser.visit(f"/failed/{group[1]}")
    followed = await browser.act("replay", {"group": group[1], "back": "/failed"})
    assert "Retried 2 chains." in followed
    replay = re.search(r"failed/replays/\w+", followed)
    assert replay is not None
    assert "Retried 2 chains" in text_of(await browser.visit(replay[0]))
    assert "No failed jobs are in this group" in await browser.visit(f"/failed/{group[1]}", status=404)
    done = await browser.act("complete", {"chain": str(other.id), "output": '{"tracking": "7"}'})
    assert "Completed chain" in done
    chain = await app.find_chain(other.id)
    assert chain is not None
    assert chain.status is JobStatus.COMPLETED
    assert isinstance(chain.current, CompletedJob)
    assert chain.current.output == {"tracking": "7"}
    assert "Deleted 1 chain." in await browser.act("delete", {"all": "yes", "status": "completed"})
    assert await app.find_chain(other.id) is None


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_lease_that_was_let_go_of_ended_at_no_time(browser: Browser) -> None:
    """Of a worker that was killed; others need not watch it."""
    app = browser.app
    kind = app.registry.find("orders.charge")
    step: Any = kind.step
    chain = await app.start(step, {"id": 1})
    async with app.driver.connection() as connection:
        claim = TypeClaim("orders.charge", kind.definition.version, 60.0)
        await connection.run(app.state.take(types=[claim], limit=1, worker=WorkerId("killed")))
        await connection.run(app.state.expire(worker=WorkerId("killed")))

    page = text_of(await browser.visit(f"/jobs/{chain.id}"))

    assert "Run by killed" in page
    assert "Lease until let go of" in page


@job("step", internal=True)
async def step(attempt: Attempt[int]) -> int:
    return attempt.input


@job("goes.on", continues_to=[step])
async def goes_on(attempt: Attempt[int]) -> Next[int]:
    return attempt.continue_with(step, attempt.input)


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_what_always_goes_on_cannot_be_completed_by_hand(opened: Any, serve: Any) -> None:
    browser = await serve(await opened(goes_on, step))
    chain = await browser.app.start(goes_on, 1)

    page = await browser.visit(f"/chains/{chain.id}")

    assert "Cancel" in page
    assert "Complete by hand" not in page
    assert "always goes on" in text_of(await browser.visit(f"/confirm/complete?chain={chain.id}", status=409))
