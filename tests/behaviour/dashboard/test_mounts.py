"""In the hosts that the how-to names, each as written there: pages, files, live parts, actions, and who is let in."""

import asyncio
import re
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from browsing import HERE, streamed
from onward import Attempt, Onward, job
from onward.dashboard import Dashboard, Visitor

pytestmark = pytest.mark.usefixtures("logging_as_before")
PAGE = Path(__file__).parents[3] / "docs/how-to/dashboard.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
AT = f"{HERE}/ops"


@pytest.fixture
def written() -> Iterator[Callable[[str], types.ModuleType]]:
    """What the how-to has under a heading, run after the block that all hosts share."""
    module = types.ModuleType("page_of_a_host")
    sys.modules[module.__name__] = module  # annotations, and Django's addresses, are looked up there

    def run(heading: str) -> types.ModuleType:
        shared, _, rest = PAGE.read_text().partition("## In your own application")[2].partition(f"### {heading}\n")
        for text in (shared, rest):
            found = BLOCK.search(text)
            assert found is not None
            exec(compile(found[1], str(PAGE), "exec"), vars(module))
        return module

    yield run
    del sys.modules[module.__name__]


@asynccontextmanager
async def living(asgi: Any) -> AsyncIterator[None]:
    """What a server does around serving."""
    told: asyncio.Queue[Any] = asyncio.Queue()
    said: asyncio.Queue[Any] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(
            asgi({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, told.get, said.put)
        )
        for kind in ("startup", "shutdown"):
            told.put_nowait({"type": f"lifespan.{kind}"})
            assert (await said.get())["type"] == f"lifespan.{kind}.complete"
            if kind == "startup":
                yield
        await life


async def go_through(site: Any, module: types.ModuleType, at: str = AT, **visitor: Any) -> None:
    """Look at everything, and do something, as a browser would that knows only the address of the mount."""
    app: Onward = module.app
    async with living(site):
        chain = await app.start(module.greet, "ada")
        await app.cancel(chain.id)
        transport = httpx.ASGITransport(site)
        async with httpx.AsyncClient(transport=transport) as stranger:
            for path in ("/", "/chains", "/live?at=/", "/static/live.js"):
                assert (await stranger.get(at + path)).status_code == 403, path
        async with httpx.AsyncClient(transport=transport, follow_redirects=True, **visitor) as client:
            # Which some hosts answer themselves, not all of them with what a proxy has cut off.
            assert (await client.get(at, follow_redirects=False)).headers["location"].endswith("/ops/")
            assert (await client.get(f"{at}/nowhere")).status_code == 404
            assert (await client.head(f"{at}/chains")).status_code == 200
            assert str((await client.get(f"{at}/find?q={chain.id}")).url) == f"{at}/chains/{chain.id}"
            await _follow_every_link(client, at)
            await _retry(client, at, str(chain.id))
        await _watch(site, at, **visitor)
    assert not app.is_open


async def _follow_every_link(client: httpx.AsyncClient, at: str) -> None:
    todo, seen = [f"{at}/"], set[str]()
    while todo:
        address = todo.pop()
        seen.add(address)
        answer = await client.get(address)
        assert answer.status_code == 200, address
        if "text/html" not in answer.headers["content-type"]:
            continue
        for found in re.findall(r'(?:href|src)="([^"#]*)"', answer.text):
            link = urljoin(address, found.replace("&amp;", "&"))
            assert link.startswith(f"{at}/"), (address, found)
            if link not in seen and link not in todo:
                todo.append(link)
    assert {"chains", "types/greet", "static"} <= {
        link.removeprefix(f"{at}/").partition("/live.js")[0] for link in seen
    }


async def _retry(client: httpx.AsyncClient, at: str, chain: str) -> None:
    asked = await client.get(f"{at}/confirm/retry?chain={chain}&back=/failed")
    token = re.search(r'name="token" value="(\w+)"', asked.text)
    assert token is not None
    fields = {"chain": chain, "back": "/failed", "token": token[1]}
    refused = await client.post(f"{at}/do/retry", data={**fields, "token": "x"}, headers={"origin": HERE})
    done = await client.post(f"{at}/do/retry", data=fields, headers={"origin": HERE})
    assert (refused.status_code, done.status_code) == (403, 200)
    assert str(done.url) == f"{at}/failed"
    assert "Retried 1 chain." in done.text


async def _watch(site: Any, at: str, **visitor: Any) -> None:
    headers = httpx.Request("GET", at, **visitor).headers.raw
    async with asyncio.timeout(10), streamed(site, "/chains", below=at.removeprefix(HERE), headers=headers) as event:
        assert "live-rows" in (await event())["parts"]


async def test_starlette(written: Callable[[str], types.ModuleType]) -> None:
    module = written("FastAPI")  # whose block comes after that of Starlette

    await go_through(module.site, module, headers={"x-user": "ada"})


async def test_fastapi(written: Callable[[str], types.ModuleType]) -> None:
    module = written("FastAPI")

    await go_through(module.api, module, headers={"x-user": "ada"})


@pytest.mark.parametrize("is_put_back", [True, False])
async def test_fastapi_behind_a_proxy_that_cuts_off_a_path(
    written: Callable[[str], types.ModuleType], is_put_back: bool
) -> None:
    """Servers that are told of it put it back before the path; `FastAPI(root_path=…)` does not."""
    module = written("FastAPI")

    async def site(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            cut = 0 if is_put_back else len("/shop")
            scope = {**scope, "root_path": "/shop", "path": scope["path"][cut:], "raw_path": scope["raw_path"][cut:]}
        await module.api(scope, receive, send)

    await go_through(site, module, f"{HERE}/shop/ops", headers={"x-user": "ada"})


async def test_the_app_and_the_session_of_fastapi_are_known_to_the_hook() -> None:
    from fastapi import FastAPI

    @job("greet")
    async def greet(attempt: Attempt[str]) -> str:
        return attempt.input

    app = Onward("memory://", jobs=[greet], observers=[])
    seen: list[Any] = []

    def who(request: Any) -> Visitor:
        seen.append((request.app, request.session, request.url.path))
        return Visitor("ada")

    class Session:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app({**scope, "session": {"user": 7}}, receive, send)

    api = FastAPI()
    api.mount("/ops", Dashboard(app, authenticate=who))
    api.add_middleware(Session)
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(api)) as client:
        assert (await client.get(f"{AT}/chains")).status_code == 200

    assert seen == [(api, {"user": 7}, "/ops/chains")]


async def test_litestar(written: Callable[[str], types.ModuleType]) -> None:
    module = written("Litestar")

    async def site(scope: Any, receive: Any, send: Any) -> None:
        """What an authentication middleware would do."""
        user = dict(scope.get("headers", ())).get(b"x-user")
        await module.litestar({**scope, **({"user": user.decode()} if user else {})}, receive, send)

    await go_through(site, module, headers={"x-user": "ada"})


async def test_django(
    written: Callable[[str], types.ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = written("Django")
    from asgiref.sync import sync_to_async
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command
    from django.db import connections

    def fill() -> dict[str, str]:
        call_command("migrate", verbosity=0)
        keys = {}
        for name, is_staff in (("ada", True), ("eve", False)):
            user = get_user_model().objects.create(username=name, is_staff=is_staff, is_superuser=is_staff)
            session = SessionStore()
            session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
            session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
            session.create()
            keys[name] = session.session_key
        return keys

    try:
        keys = await sync_to_async(fill)()
        await go_through(module.application, module, cookies={"sessionid": keys["ada"]})

        async with living(module.application):
            transport = httpx.ASGITransport(module.application)
            async with httpx.AsyncClient(transport=transport, cookies={"sessionid": keys["eve"]}) as client:
                assert (await client.get(f"{AT}/chains")).status_code == 403
                elsewhere = await client.get(f"{HERE}/opsx")
                assert (elsewhere.status_code, "onward" in elsewhere.text.lower()) == (404, False)
    finally:
        await sync_to_async(connections.close_all)()
