"""A real browser, and a dashboard served to it. Its chromium is Debian's: Playwright brings none here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright

import servers
from browsing import served
from onward import Onward
from onward.dashboard import Dashboard


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    program = await asyncio.to_thread(servers.chromium)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens an app on a SQLite file."""
    async with AsyncExitStack() as stack:

        async def make(*jobs: Any, **options: Any) -> Onward:
            made = Onward(f"sqlite:///{tmp_path}/onward.db", jobs=jobs, observers=[], **options)
            return await stack.enter_async_context(made)

        yield make


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Serves a dashboard of an app; gives its address."""
    async with AsyncExitStack() as stack:

        async def start(app: Onward, **options: Any) -> str:
            return await stack.enter_async_context(served(Dashboard(app, **{"write": True, **options})))

        yield start
