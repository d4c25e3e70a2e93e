"""What holds of every page, whoever adds one."""

import asyncio
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from browsing import Browser, streamed, text_of
from onward.dashboard.pages.registry import ACTIONS, PAGES
from orders import jobs

NOT_LIVE = {"/find"}
TRIED_ELSEWHERE = ("/limits/", "/queues/", "/flows/")
"""They need a limit, a queue or a flow."""


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


class Outline(HTMLParser):
    """The ids of a page, its headings, and forms inside forms, which browsers drop."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.live: set[str] = set()
        self.headings = 0
        self._forms = 0
        self.nested: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(found["id"] or "")
        if "data-live" in found:
            self.live.add(found["id"] or "")
        self.headings += tag == "h1"
        if tag == "form":
            if self._forms:
                self.nested.append(found.get("action") or "?")
            self._forms += 1

    def handle_endtag(self, tag: str) -> None:
        self._forms -= tag == "form"


async def test_every_page_is_well_made_and_its_live_parts_can_be_sent_alone(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    app = await opened(*jobs())
    charge: Any = app.registry.find("orders.charge").step
    report: Any = app.registry.find("report").step
    failed, open_one = await app.start(charge, {"id": 1}), await app.start(charge, {"id": 2})
    await app.start(report, 3, blockers=[open_one])
    await app.cancel(failed.id)
    browser: Browser = await serve(app)
    group = re.search(r"failed/(\w{8})", await browser.visit("/failed"))
    assert group is not None
    replay = re.search(r"replays/(\w+)", await browser.act("replay", {"group": group[1], "back": "/failed"}))
    assert replay is not None
    await app.cancel(failed.id)
    samples = {
        "/chains/{id}": f"/chains/{open_one.id}",
        "/jobs/{id}": f"/jobs/{open_one.id}",
        "/failed/{group}": f"/failed/{group[1]}",
        "/failed/replays/{replay}": f"/failed/replays/{replay[1]}",
        "/types/{name:path}": "/types/orders.charge",
    }

    for page in PAGES:
        if page.path.startswith(TRIED_ELSEWHERE):
            continue
        path = samples[page.path] if "{" in page.path else page.path
        html = await browser.visit(path, params={"q": "x"} if path == "/find" else {})
        outline = Outline(html)
        assert outline.headings == 1, page.path
        assert outline.nested == [], page.path
        assert len(outline.ids) == len(set(outline.ids)), page.path
        assert "As of" in text_of(html), f"{page.path} does not say when it was read"
        assert bool(outline.live) == (page.path not in NOT_LIVE), page.path
        if outline.live:
            async with asyncio.timeout(20), streamed(browser.dashboard, path) as event:
                sent = await event()
            assert set(sent["parts"]) == outline.live, page.path


def test_names_of_pages_and_actions_are_each_used_once() -> None:
    for names in ([page.path for page in PAGES], [action.name for action in ACTIONS]):
        assert len(names) == len(set(names))
