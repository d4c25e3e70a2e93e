"""Apps for behaviour tests: client and worker together, on every database."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from support import SOON, Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=["postgres", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database, once for each kind."""
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return dsn
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
def make_app(target: str, recorder: Recorder) -> Callable[..., Onward]:
    """Builds apps on the test's own tables; several apps share them."""
    schema = f"t_{secrets.token_hex(6)}"

    def make(*jobs: Any, **options: Any) -> Onward:
        return Onward(options.pop("target", target), **{
            "jobs": jobs, "schema": schema, "migrate": True, "observers": [recorder], **options
        })  # fmt: skip

    return make


@pytest.fixture
async def running(make_app: Callable[..., Onward]) -> AsyncIterator[Callable[..., Any]]:
    """Opens apps with a worker, and ends both with the test."""
    async with AsyncExitStack() as stack:

        async def run(*jobs: Any, worker: dict[str, Any] | None = None, **options: Any) -> Onward:
            app = await stack.enter_async_context(make_app(*jobs, **options))
            await stack.enter_async_context(app.worker(**{"concurrency": 10, "grace": SOON, **(worker or {})}))
            return app

        yield run


@pytest.fixture
async def opened(make_app: Callable[..., Onward]) -> AsyncIterator[Callable[..., Any]]:
    """Opens apps without a worker."""
    async with AsyncExitStack() as stack:

        async def open_app(*jobs: Any, **options: Any) -> Onward:
            app: Onward = await stack.enter_async_context(make_app(*jobs, **options))
            return app

        yield open_app
