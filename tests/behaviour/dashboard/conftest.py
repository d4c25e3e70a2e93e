"""A dashboard on every database."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from browsing import HERE, Browser
from onward import Onward
from onward.dashboard import Dashboard
from orders import jobs


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """A browser for a dashboard of an open app, at whatever path."""
    async with AsyncExitStack() as stack:

        async def browse(app: Onward, *, at: str = "", asgi: Any = None, **options: Any) -> Browser:
            dashboard = Dashboard(app, **{"write": True, **options})
            transport = httpx.ASGITransport(asgi or dashboard, root_path=at)
            client = httpx.AsyncClient(transport=transport, base_url=f"{HERE}{at}/", follow_redirects=False)
            return Browser(await stack.enter_async_context(client), dashboard, app)

        yield browse


@pytest.fixture
async def browser(opened: Callable[..., Any], serve: Callable[..., Any]) -> Browser:
    """A dashboard of a small shop, with actions."""
    found: Browser = await serve(await opened(*jobs()))
    return found
