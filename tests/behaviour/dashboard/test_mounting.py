"""At any path, in any host: links lead where they should, and the app stays whose it is."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from browsing import HERE
from onward import JobType, Onward
from onward.dashboard import Dashboard
from onward.dashboard.paths import own_address

charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str])


@pytest.fixture
def target(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


class Stripping:
    """A host that hands on a path without what it is mounted at, and does not say so, such as a proxy. Litestar also
    ends it with a slash."""

    def __init__(self, inner: Any, at: str, end: str = "") -> None:
        self._inner, self._at, self._end = inner, at, end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith(self._at)
        path = scope["path"].removeprefix(self._at).removesuffix(self._end) + self._end
        await self._inner({**scope, "path": path or "/"}, receive, send)


HOSTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "alone": ("", lambda inner: inner),
    "starlette": ("/ops/jobs", lambda inner: Starlette(routes=[Mount("/ops/jobs", inner)])),
    "starlette, twice": (
        "/a/b/c",
        lambda inner: Starlette(routes=[Mount("/a", Starlette(routes=[Mount("/b/c", inner)]))]),
    ),
    "stripping": ("/ops", lambda inner: Stripping(inner, "/ops")),
    "like Litestar": ("/ops", lambda inner: Stripping(inner, "/ops", "/")),
}


@pytest.mark.parametrize("name", HOSTS)
async def test_every_link_stays_below_where_it_is_mounted_and_leads_somewhere(
    opened: Callable[..., Any], name: str
) -> None:
    at, host = HOSTS[name]
    app = await opened(charge)
    chain = await app.start(charge, {"id": 1})
    await app.cancel(chain.id)
    transport = httpx.ASGITransport(host(Dashboard(app, write=True)))
    todo, seen = [f"{HERE}{at}/", f"{HERE}{at}/confirm/retry?chain={chain.id}&back=/chains"], set[str]()

    async with httpx.AsyncClient(transport=transport) as client:
        if at:
            answer = await client.get(f"{HERE}{at}", follow_redirects=True)
            assert str(answer.url) == f"{HERE}{at}/"
        while todo:
            address = todo.pop()
            seen.add(address)
            answer = await client.get(address)
            assert answer.status_code == 200, address
            if "text/html" not in answer.headers["content-type"]:
                continue
            for found in re.findall(r'(?:href|src|(?<!form)action)="([^"#]*)"', answer.text):
                link = urljoin(address, found.replace("&amp;", "&"))
                assert link.startswith(f"{HERE}{at}/"), (address, found)
                if link not in seen | set(todo) and "/do/" not in link and "/confirm/" not in link and "?q" not in link:
                    todo += [] if link.endswith("/find") else [link]
        token = re.search(
            r'name="token" value="(\w+)"', (await client.get(f"{HERE}{at}/confirm/retry?chain={chain.id}")).text
        )
        assert token is not None
        fields = {"chain": str(chain.id), "back": "/failed?x=1", "token": token[1]}
        answer = await client.post(f"{HERE}{at}/do/retry", data=fields, headers={"origin": HERE})

    assert urljoin(f"{HERE}{at}/do/retry", answer.headers["location"]) == f"{HERE}{at}/failed?x=1"
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("path", "above", "raw", "address"),
    [
        ("/jobs", "", b"/jobs", "/jobs"),
        ("/ops/types/a/b", "/ops", b"/ops/types/a%2Fb", "/types/a%2Fb"),
        ("/types/a/b", "", b"/ops/more/types/a%2Fb", "/types/a%2Fb"),
        ("/ops/", "/ops", b"/ops/", "/"),
        ("/ops", "/ops", b"/ops", "/"),
        ("/types/é", "", b"", "/types/%C3%A9"),
        ("/types/é", "", b"/types/%C3%A9", "/types/%C3%A9"),
        ("/jobs", "", b"/something/else", "/jobs"),
        ("/types/a/b/", "", b"/ops/types/a%2Fb", "/types/a%2Fb"),
        ("/types/a/", "", b"/ops/types/a%2F", "/types/a%2F"),
    ],
)
def test_an_address_is_known_as_the_browser_has_it(path: str, above: str, raw: bytes, address: str) -> None:
    scope = {"type": "http", "path": path, "root_path": above, "raw_path": raw, "query_string": b"x=%2F"}

    assert own_address(scope) == f"{address}?x=%2F"


async def test_an_app_that_is_open_is_left_to_its_host(opened: Callable[..., Any]) -> None:
    app = await opened(charge)

    said = await _lifespan(Dashboard(app))

    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert app.is_open


async def test_served_alone_it_opens_the_app_and_closes_it(make_app: Callable[..., Onward]) -> None:
    app = make_app(charge)
    dashboard = Dashboard(app)
    open_meanwhile: list[bool] = []

    said = await _lifespan(dashboard, lambda: open_meanwhile.append(app.is_open))

    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert open_meanwhile == [True]
    assert not app.is_open
    transport = httpx.ASGITransport(dashboard)
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        answer = await client.get("/chains")
    assert answer.status_code == 503
    assert "not open" in answer.text


async def _lifespan(dashboard: Dashboard, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    said: list[str] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        if len(messages) == 1:
            meanwhile()
        return messages.pop(0)

    async def send(message: Any) -> None:
        said.append(message["type"])

    await dashboard({"type": "lifespan"}, receive, send)
    return said
