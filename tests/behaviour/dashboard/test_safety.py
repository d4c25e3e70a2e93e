"""Who may look and who may act: tried against every route there is, whatever is added to them."""

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from browsing import HERE, Browser
from onward import JobType, Onward, new_id
from onward.dashboard import Dashboard, Visitor
from onward.dashboard.pages import acting
from onward.dashboard.pages.registry import ACTIONS
from onward.errors import ConfigurationError
from onward.model import JobStatus

charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str])
LATER = timedelta(hours=1)
OURS = {"origin": HERE}


@pytest.fixture
def target(tmp_path: Any) -> str:
    """What is tried here has nothing to do with the database."""
    return f"sqlite:///{tmp_path}/onward.db"


def addresses(dashboard: Dashboard) -> list[str]:
    """An address for each route, and for each action below those that take one."""
    found: list[str] = []
    for route in dashboard.routes:
        names = [action.name for action in ACTIONS] if "{action}" in route.path else [""]
        for name in names:
            path = route.path.replace("{action}", name).replace("{name}", "live.js")
            found.append(re.sub(r"\{\w+\}", str(new_id()), path))
    return found


async def token_of(browser: Browser) -> str:
    page = await browser.visit(f"/confirm/cancel?chain={new_id()}")
    found = re.search(r'name="token" value="(\w+)"', page)
    assert found is not None
    return found[1]


@pytest.fixture
async def chain(opened: Callable[..., Any]) -> tuple[Onward, Any]:
    app = await opened(charge)
    return app, await app.start(charge, {"id": 1}, delay=LATER)


async def is_untouched(app: Onward, chain: Any) -> bool:
    found = await app.find_chain(chain.id)
    return found is not None and found.status is JobStatus.PENDING and len(await app.chains()) == 1


def fields(chain: Any, **more: str) -> dict[str, str]:
    return {"chain": str(chain.id), "group": "x", "output": "{}", "name": "orders.charge", **more}


async def test_only_what_is_below_do_takes_anything_but_a_look(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])

    for route in browser.dashboard.routes:
        assert isinstance(route, Route)
        assert route.methods is not None
        assert route.methods <= {"GET", "HEAD"} or route.path.startswith("/do/"), route.path
    for address in addresses(browser.dashboard):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            answer = await browser.client.request(method, address.lstrip("/"), data=fields(chain[1]))
            assert answer.status_code in (403, 405, 404), (method, address, answer.status_code)
    assert await is_untouched(*chain)


@pytest.mark.parametrize(
    ("what", "status", "token", "headers"),
    [
        ("no token", 403, None, OURS),
        ("another's token", 403, "0" * 64, OURS),
        ("odd token", 403, "é", OURS),
        ("from elsewhere", 403, "own", {"origin": "http://evil.example"}),
        ("from elsewhere on this host", 403, "own", {"origin": "http://localhost:1"}),
        ("from nowhere", 403, "own", {"origin": "null"}),
        ("from what is no address", 403, "own", {"origin": "http://["}),
        ("from no scheme", 403, "own", {"origin": "//localhost"}),
        ("cross-site", 403, "own", {**OURS, "sec-fetch-site": "cross-site"}),
        ("same-site", 403, "own", {"sec-fetch-site": "same-site"}),
        ("nothing said", 403, "own", {}),
        ("another name", 403, "own", {**OURS, "host": "evil.example"}),
        ("JSON", 415, "own", {**OURS, "content-type": "application/json"}),
    ],
)
async def test_no_write_passes_that_is_not_a_form_of_ours(
    serve: Callable[..., Any], chain: Any, what: str, status: int, token: str | None, headers: dict[str, str]
) -> None:
    browser = await serve(chain[0])
    own = await token_of(browser)
    given = {} if token is None else {"token": own if token == "own" else token}

    for action in ACTIONS:
        answer = await browser.client.post(f"do/{action.name}", data=fields(chain[1], **given), headers=headers)
        assert answer.status_code == status, (what, action.name, answer.text)

    assert await is_untouched(*chain)


async def test_a_token_is_of_one_browser_and_one_visitor(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0], users={"ada": "one", "bob": "two"})
    browser.client.auth = ("ada", "one")
    own = await token_of(browser)
    data = fields(chain[1], token=own)

    browser.client.auth = ("bob", "two")
    as_another = await browser.client.post("do/cancel", data=data, headers=OURS)
    browser.client.auth = ("ada", "one")
    browser.client.cookies.clear()
    in_another = await browser.client.post("do/cancel", data=data, headers=OURS)

    assert (as_another.status_code, in_another.status_code) == (403, 403)
    assert await is_untouched(*chain)


@pytest.mark.parametrize("options", [{"write": False}, {"authenticate": lambda request: Visitor("eve", "look")}])
async def test_who_may_only_look_can_neither_ask_nor_do(
    serve: Callable[..., Any], chain: Any, options: dict[str, Any]
) -> None:
    app = chain[0]
    acting = await serve(app)
    browser = await serve(app, **options)
    browser.client.cookies = acting.client.cookies
    browser.dashboard._door._key = acting.dashboard._door._key
    own = acting.dashboard._door.token("x", Visitor("eve", "act"))
    browser.client.cookies.set("onward_dashboard", "x")

    for action in ACTIONS:
        asked = await browser.client.get(f"confirm/{action.name}", params=fields(chain[1]))
        done = await browser.client.post(f"do/{action.name}", data=fields(chain[1], token=own), headers=OURS)
        assert (asked.status_code, done.status_code) == (403, 403), action.name
    page = await browser.visit(f"/chains/{chain[1].id}")

    assert await is_untouched(app, chain[1])
    assert "confirm/" not in page
    assert "checkbox" not in await browser.visit("/chains")


async def test_strangers_see_nothing_at_any_address(serve: Callable[..., Any], chain: Any) -> None:
    app, one = chain
    guarded = await serve(app, users={"ada": "secret"})
    closed = await serve(app, authenticate=lambda request: None)
    wrong = [
        None,
        ("ada", "Secret"),
        ("bob", "secret"),
        ("", ""),
        ("ada", ""),
    ]
    odd = ["Basic", "Basic é", "Basic " + base64.b64encode(b"\xff\xfe").decode(), "Bearer secret", "Basic YWRh"]

    for address in [*addresses(guarded.dashboard), f"/chains/{one.id}", "/nowhere"]:
        for method in ("GET", "POST"):
            answers = [await guarded.client.request(method, address.lstrip("/"), auth=auth) for auth in wrong]
            answers += [
                await guarded.client.request(method, address.lstrip("/"), headers={"authorization": text.encode()})
                for text in odd
            ]
            assert {answer.status_code for answer in answers} == {401}, address
            assert all("orders.charge" not in answer.text for answer in answers)
            assert all("www-authenticate" in answer.headers for answer in answers)
            answer = await closed.client.request(method, address.lstrip("/"))
            assert answer.status_code == 403
            assert "orders.charge" not in answer.text
    assert (await guarded.client.get("chains", auth=("ada", "secret"))).status_code == 200


async def test_without_guard_only_this_machine_is_answered(opened: Callable[..., Any]) -> None:
    dashboard = Dashboard(await opened(charge))

    async def status(client: str, host: str) -> int:
        transport = httpx.ASGITransport(dashboard, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as browser:
            return (await browser.get("/chains", headers={"host": host})).status_code

    assert await status("127.0.0.1", "localhost:8321") == 200
    assert await status("::1", "[::1]:8321") == 200
    assert await status("127.0.0.1", "127.0.0.1") == 200
    assert await status("127.0.0.1", "evil.example") == 403
    assert await status("127.0.0.1", "localhost.evil.example") == 403
    assert await status("127.0.0.1", "[::1].evil.example") == 403
    assert await status("127.0.0.1", "localhost:evil.example") == 403
    assert await status("10.0.0.7", "localhost") == 403


async def test_the_host_applications_own_hook_decides(serve: Callable[..., Any], chain: Any) -> None:
    async def who(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        return None if name is None else Visitor(name, "act" if name == "ada" else "look")

    browser = await serve(chain[0], authenticate=who)

    await browser.visit("/chains", status=403)
    assert "read-only" in await browser.visit("/chains", headers={"x-user": "bob"})
    browser.client.headers["x-user"] = "ada"
    assert "Triggered 1 chain." in await browser.act("trigger", {"chain": str(chain[1].id)})


async def test_what_the_hook_raises_keeps_its_headers(serve: Callable[..., Any], chain: Any) -> None:
    def who(request: Request) -> Visitor | None:
        raise HTTPException(307, headers={"location": "/login"})

    answer = await (await serve(chain[0], authenticate=who)).client.get("chains")

    assert (answer.status_code, answer.headers["location"]) == (307, "/login")


@pytest.mark.parametrize(("at", "status"), [("http://[", 404), ("/find?q={id}", 200)])
async def test_an_odd_page_cannot_be_looked_at_live(
    serve: Callable[..., Any], chain: Any, at: str, status: int
) -> None:
    browser = await serve(chain[0])

    answer = await browser.client.get("live", params={"at": at.format(id=chain[1].id)})

    assert answer.status_code == status


async def test_live_pages_end_when_the_server_is_about_to_stop(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        live = tasks.create_task(browser.client.get("live", params={"at": "/chains"}))
        while not browser.dashboard._streams:
            await asyncio.sleep(0.01)
        browser.dashboard.end_streams()

    assert live.result().status_code == 200


async def test_whatever_can_be_looked_at_answers_head_without_a_body_and_at_once(
    serve: Callable[..., Any], chain: Any
) -> None:
    browser = await serve(chain[0])
    looks = [path for path in addresses(browser.dashboard) if not path.startswith("/do/")]

    async with asyncio.timeout(20):
        for path in [*looks, "/live?at=/chains", f"/chains/{chain[1].id}"]:
            head = await browser.client.head(path.lstrip("/"))
            assert head.content == b"", path
            assert head.status_code in (200, 303, 404), path
            if not path.startswith("/live"):
                assert head.status_code == (await browser.client.get(path.lstrip("/"))).status_code, path

    assert (await browser.client.head("live?at=/chains")).headers["content-type"].startswith("text/event-stream")
    assert (await browser.client.head("live?at=/nowhere")).status_code == 404
    assert browser.dashboard._streams == 0


async def test_an_output_that_is_too_deep_is_refused_in_words(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])
    data = fields(chain[1], token=await token_of(browser), output="[" * 2_000 + "]" * 2_000)

    answer = await browser.client.post("do/complete", data=data, headers=OURS)

    assert answer.status_code == 400
    assert await is_untouched(*chain)


async def test_a_page_has_no_more_rows_than_it_may(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])

    for limit in ("201", "0", "-1", "000000001000", "9" * 5000):
        assert "1 to 200 rows" in await browser.visit(f"/jobs?limit={limit}", status=400)


async def test_what_a_question_counts_takes_no_longer_than_a_page(
    serve: Callable[..., Any], chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await serve(chain[0])
    monkeypatch.setattr(acting, "causes", lambda *args, **options: asyncio.sleep(3600))
    monkeypatch.setattr(acting, "_COUNTED_WITHIN", 0.01)

    async with asyncio.timeout(5):
        assert "Counting them takes long" in await browser.visit("/confirm/replay?group=x")


async def test_every_answer_forbids_what_a_page_does_not_need(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])

    for address in [*addresses(browser.dashboard), "/nowhere", "/"]:
        if address == "/live":
            continue
        for method in ("GET", "POST"):
            answer = await browser.client.request(method, address.lstrip("/"))
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            if "/static/" not in address:
                assert answer.headers["cache-control"] == "no-store"
            assert not re.search(r"<script(?! src=)|\son\w+=|\sstyle=|javascript:|https?://", answer.text), address


async def test_what_is_done_and_what_is_refused_is_written_down(
    serve: Callable[..., Any], chain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onward.dashboard.audit")
    entries: list[Any] = []
    browser = await serve(chain[0], users={"ada": "x"}, audit=entries.append)
    browser.client.auth = ("ada", "x")

    await browser.act("trigger", {"chain": str(chain[1].id)})
    await browser.client.post("do/delete", data={"chain": "a\nb", "token": "no"}, headers=OURS)
    await browser.act("retry", {"chain": str(chain[1].id)})

    found = [(entry.who, entry.action, entry.outcome, entry.address) for entry in entries]
    assert found == [
        ("ada", "trigger", "asked", "127.0.0.1"),
        ("ada", "trigger", "done", "127.0.0.1"),
        ("ada", "delete", "refused", "127.0.0.1"),
        ("ada", "retry", "asked", "127.0.0.1"),
        ("ada", "retry", "done", "127.0.0.1"),
    ]
    assert entries[0].what == entries[1].what == f"chain={chain[1].id}"
    assert entries[1].words == "Triggered 1 chain."
    assert "Not " in entries[4].words
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\n"]
)
async def test_nobody_is_led_elsewhere_after_an_action(serve: Callable[..., Any], chain: Any, back: str) -> None:
    browser = await serve(chain[0])
    own = await token_of(browser)

    asked = await browser.visit("/confirm/trigger", params=fields(chain[1], back=back))
    answer = await browser.client.post("do/trigger", data=fields(chain[1], back=back, token=own), headers=OURS)

    assert 'name="back" value="/"' in asked
    assert not re.search(r'(href|action)="[^"]*(evil|javascript)', asked)
    assert answer.headers["location"] == "../"


async def test_what_was_done_is_only_said_by_us(serve: Callable[..., Any], chain: Any) -> None:
    browser = await serve(chain[0])
    forged = base64.urlsafe_b64encode(b"Send money to eve").decode()
    browser.client.cookies.set("onward_said", f"{forged}.{'0' * 64}")

    assert "Send money" not in await browser.visit("/chains")


async def test_payloads_are_hidden_when_told_and_where_nobody_knows_the_secrets(
    serve: Callable[..., Any], make_app: Callable[..., Onward]
) -> None:
    async with make_app(charge) as app, make_app() as other:
        chain = await app.start(charge, {"hush": 1234567})
        shown = await serve(app)
        told = await serve(app, hide_payloads=True)
        unknown = await serve(other)
        insisted = await serve(other, hide_payloads=False)

        for path in (f"/chains/{chain.id}", f"/jobs/{chain.id}"):
            assert "1234567" in await shown.visit(path)
            assert "1234567" not in await told.visit(path)
            assert "1234567" not in await unknown.visit(path)
            assert "1234567" in await insisted.visit(path)
        assert str(chain.id) in await shown.visit("/jobs?input=1234567")
        assert "hidden" in await told.visit("/jobs?input=1234567", status=403)
        assert str(chain.id) not in await unknown.visit("/jobs?input=1234567")


@pytest.mark.parametrize(
    "options",
    [
        {"users": {"a:b": "x"}},
        {"users": {"a": ""}},
        {"users": {"a": "b"}, "authenticate": print},
        {"secret": ""},
        {"secret": "changeme"},
    ],
)
async def test_what_would_let_the_wrong_people_in_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Dashboard(Onward("memory://", jobs=[]), **options)


@pytest.mark.parametrize("given", [False, "", {"name": "ada"}, True])
@pytest.mark.parametrize("write", [False, True])
async def test_a_hook_that_gives_something_else_lets_nobody_in(
    chain: tuple[Onward, Any],
    serve: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    given: Any,
    write: bool,
) -> None:
    browser = await serve(chain[0], authenticate=lambda request: given, write=write)

    answer = await browser.client.get("chains")

    assert answer.status_code == 500
    assert "Something is wrong here." in answer.text
    assert str(chain[1].id) not in answer.text
    assert f"it gave a {type(given).__name__}" in caplog.text
