"""Queues and flows beside the jobs: what they show, what can be done, and who may."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from browsing import Browser, text_of
from hostile_html import MARK, look_at, texts
from onward import Onward, Permanent
from onward.crypto import Secret
from onward.dashboard import Dashboard, Visitor
from onward.errors import ConfigurationError, QueueErrorCode, QueueRuntimeError
from onward.flow import Flow
from onward.queue import Capabilities, Memory, Options, Provider, Queue, QueueStats, QueueWorker

HOSTILE = texts()
ACTIONS = ("queue-retry", "queue-remove", "queue-retry-all", "queue-purge", "queue-pause", "queue-resume")


@dataclass
class Letter:
    to: str
    token: Annotated[str, Secret]


class Away(Provider):
    """A server that is not there, or does not answer."""

    name = "away"

    def __init__(self, queue_name: str, *, hangs: bool = False) -> None:
        super().__init__(queue_name)
        self._hangs = hangs

    async def stats(self) -> QueueStats:
        if self._hangs:
            await asyncio.sleep(60)
        raise QueueRuntimeError(
            "nobody listens at amqp://ada:hush-hush@queue.example/",
            code=QueueErrorCode.CONNECTION,
            queue_name=self.queue_name,
        )


class Plain(Provider):
    """A server that can do next to nothing."""

    name = "plain"
    capabilities = Capabilities()

    async def add(self, job: Any, options: Options) -> Any:
        return job

    async def stats(self) -> QueueStats:
        return QueueStats(waiting=3)


@pytest.fixture
def target(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
async def app(opened: Callable[..., Any]) -> Onward:
    found: Onward = await opened()
    return found


async def refuse(data: Letter, job: Any) -> None:
    raise Permanent(f"{data.to} with {data.token}")


@pytest.fixture
async def letters() -> AsyncIterator[Queue[Letter]]:
    """With two dead letters."""
    memory = Memory()
    async with Queue("letters/a b", provider=memory, data=Letter) as queue:
        for name in ("one", "two"):
            await queue.add("welcome", Letter(to=f"{name}@example.org", token="hush-hush"), id=name)
        async with QueueWorker(queue.name, refuse, provider=memory):
            while (await queue.stats()).failed != 2:
                await asyncio.sleep(0.01)
        yield queue


def at(queue: Queue[Any]) -> dict[str, str]:
    return {"name": queue.name}


async def test_dead_letters_are_shown_put_back_and_deleted(
    serve: Callable[..., Any], app: Onward, letters: Queue[Letter]
) -> None:
    browser: Browser = await serve(app, queues=[letters])
    fields = {"queue": letters.name}

    assert "Queues" in await browser.visit("/graph")
    listed = await browser.visit("/queues")
    assert "queues/one?name=letters/a%20b" in listed
    assert "dead letters 2" in text_of(listed)
    page = await browser.visit("/queues/one", params=at(letters))
    assert "one@example.org with ***" in page
    assert "hush-hush" not in page
    assert "***" in page
    assert "As of" in page

    assert "Put job one back" in await browser.act("queue-retry", {**fields, "job": "one"})
    assert (await letters.stats()).failed == 1
    assert "Deleted job two" in await browser.act("queue-remove", {**fields, "job": "two"})
    assert (await letters.stats()).failed == 0
    assert "one@example.org" in await browser.visit("/queues/one", params={**at(letters), "status": "waiting"})
    assert "is no state" in await browser.visit("/queues/one?name=letters/a b&status=gone", status=400)
    assert "Paused the queue" in await browser.act("queue-pause", fields)
    assert "Resume" in await browser.visit("/queues/one", params=at(letters))
    assert "Resumed the queue" in await browser.act("queue-resume", fields)
    assert "Put 0 jobs back" in await browser.act("queue-retry-all", fields)
    assert "Deleted 0 dead letters" in await browser.act("queue-purge", fields)
    assert "no queue" in await browser.act("queue-pause", {"queue": "another"}, status=404)
    await browser.act("queue-retry", {**fields, "job": "gone"}, status=409)


async def test_all_dead_letters_at_once(serve: Callable[..., Any], app: Onward, letters: Queue[Letter]) -> None:
    browser: Browser = await serve(app, queues=[letters], hide_payloads=True)

    page = await browser.visit("/queues/one", params=at(letters))
    assert "Hidden here." in page
    assert '"to"' not in page
    assert "Put 2 jobs back" in await browser.act("queue-retry-all", {"queue": letters.name})
    assert (await letters.stats()).waiting == 2
    async with QueueWorker(letters.name, refuse, provider=letters.provider):
        while (await letters.stats()).failed != 2:
            await asyncio.sleep(0.01)
    assert "Deleted 2 dead letters" in await browser.act("queue-purge", {"queue": letters.name})
    assert (await letters.stats()).failed == 0


async def test_who_may_only_look_changes_no_queue(
    serve: Callable[..., Any], app: Onward, letters: Queue[Letter]
) -> None:
    for options in ({"write": False}, {"authenticate": lambda request: Visitor("eve", "look")}):
        browser: Browser = await serve(app, queues=[letters], **options)
        page = await browser.visit("/queues/one", params=at(letters))
        assert "one@example.org" in page
        assert "confirm/" not in page
        for action in (*ACTIONS, "flow-retry", "flow-delete"):
            await browser.act(action, {"queue": letters.name, "job": "one", "flow": "x"}, status=403)
            done = await browser.client.post(f"do/{action}", data={"queue": letters.name, "job": "one"})
            assert done.status_code == 403
    stats = await letters.stats()
    assert (stats.failed, stats.paused) == (2, False)


async def test_a_server_that_is_away_stops_no_page(serve: Callable[..., Any], app: Onward, letters: Queue[Any]) -> None:
    gone, hanging = Queue("gone", provider=Away("gone")), Queue("hanging", provider=Away("hanging", hangs=True))
    plain = Queue("plain", provider=Plain("plain"))
    browser: Browser = await serve(app, queues=[letters, gone, hanging, plain])

    page = text_of(await browser.visit("/queues"))
    assert "nobody listens at amqp://queue.example/" in page
    assert "did not answer within" in page
    assert "dead letters 2" in page
    for queue in (gone, hanging):
        assert "Not known now." in await browser.visit("/queues/one", params=at(queue))
    page = await browser.visit("/queues/one", params=at(plain))
    assert "keeps no dead letters" in page
    assert "cannot be paused" in page
    assert "confirm/" not in page
    assert "not support" in await browser.act("queue-pause", {"queue": "plain"}, status=400)


async def test_without_any_there_is_nothing_in_the_navigation(serve: Callable[..., Any], app: Onward) -> None:
    browser: Browser = await serve(app)

    page = await browser.visit("/queues")
    assert "was given no queues" in page
    assert 'href="./queues"' not in page
    assert "was given no flows" in await browser.visit("/flows")
    await browser.visit("/queues/one", status=404)
    await browser.visit("/flows/one?name=x", status=404)


async def test_texts_of_queues_stay_texts(serve: Callable[..., Any], app: Onward) -> None:
    memory = Memory()
    name = HOSTILE[0]
    together = ["\n".join(HOSTILE[n : n + 12]) for n in range(0, len(HOSTILE), 12)]

    async def fails(data: Any, job: Any) -> None:
        raise Permanent(data["text"])

    async with Queue(name, provider=memory) as queue:
        for number, text in enumerate(together):
            await queue.add(HOSTILE[number], {"text": text, text: "key"}, id=f"{number}{HOSTILE[number]}")
        async with QueueWorker(name, fails, provider=memory):
            while (await queue.stats()).failed != len(together):
                await asyncio.sleep(0.01)
        browser: Browser = await serve(app, queues=[queue])
        for address, query in (
            ("queues", {}),
            ("queues/one", {"name": name}),
            ("queues/one", {"name": name, "status": name}),
        ):
            answer = await browser.client.get(address, params=query)
            assert answer.status_code < 500
            assert look_at(answer.text)[0] == []
            assert f"49{MARK}" not in answer.text
        asked = await browser.visit("/confirm/queue-retry", params={"queue": name, "job": f"0{HOSTILE[0]}"})
        assert look_at(asked)[0] == []
        assert look_at(await browser.act("queue-retry", {"queue": name, "job": f"0{HOSTILE[0]}"}))[0] == []


async def test_what_cannot_be_shown_is_refused() -> None:
    app = Onward("memory://", jobs=[])
    for options in ({"queues": ["letters"]}, {"queues": [Queue("a"), Queue("a")]}, {"flows": [Queue("a")]}):
        with pytest.raises(ConfigurationError):
            Dashboard(app, **options)  # type: ignore[arg-type]


@dataclass
class Request:
    user: str
    password: Annotated[str, Secret] = "hush-hush"


@dataclass
class Granted:
    account: str


def access_of(url: str) -> Flow[Request]:
    flow = Flow("dash3-access", url, input=Request)

    @flow.stage("dash3-check", next="dash3-grant")
    async def check(job: Request) -> Granted:
        raise Permanent(f"{job.user} {MARK}<b> with {job.password}")

    @flow.stage("dash3-grant")
    async def grant(job: Granted) -> None: ...

    return flow


async def test_flows_with_their_stages_and_what_failed(serve: Callable[..., Any], app: Onward, redis_url: str) -> None:
    flow = access_of(redis_url)
    closed = access_of(redis_url)
    closed.name = "closed"
    async with flow:
        ids = await flow.start_many([Request(user="ann"), Request(user="<img src=x>")])
        async with flow.workers({"dash3-check": 1}):
            while (await flow.positions()).count(place="failed") < 2:
                await asyncio.sleep(0.01)
        try:
            browser: Browser = await serve(app, flows=[flow, closed])
            listed = text_of(await browser.visit("/flows"))
            assert "failed 2" in listed
            assert "is not open" in listed
            page = await browser.visit("/flows/one?name=dash3-access")
            assert "ann" in page
            assert "hush-hush" not in page
            assert look_at(page)[0] == []
            assert '<svg class="picture"' in page
            assert "Not known now." in await browser.visit("/flows/one?name=closed")

            assert "Retried job" in await browser.act("flow-retry", {"flow": flow.name, "job": ids[0]})
            assert (await flow.get(ids[0])).status == "open"
            await browser.act("flow-retry", {"flow": flow.name, "job": ids[0]}, status=409)
            assert "Deleted job" in await browser.act("flow-delete", {"flow": flow.name, "job": ids[1]})
            await browser.act("flow-delete", {"flow": "another", "job": ids[1]}, status=404)
            assert (await flow.positions()).count(place="failed") == 0
        finally:
            for id in ids[:1]:
                await flow.delete(id)


async def test_served_alone_it_opens_flows_and_lets_them_go(
    serve: Callable[..., Any], app: Onward, redis_url: str
) -> None:
    flow = access_of(redis_url)
    browser: Browser = await serve(app, flows=[flow])

    async with browser.dashboard.beside:
        assert "waiting 0" in text_of(await browser.visit("/flows"))
    assert "is not open" in text_of(await browser.visit("/flows?again"))
