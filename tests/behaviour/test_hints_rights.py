"""The rights that the documents name suffice for hints over Redis and NATS, and with less hints are down, not lost."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

import certificates
import servers
from onward.notify.contract import Hint, HintKind, NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify
from support import SOON

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "hints.md").read_text()


@asynccontextmanager
async def opened(notify: NotifyAdapter, errors: list[Exception | None]) -> AsyncIterator[NotifyAdapter]:
    async with asyncio.TaskGroup() as tasks:
        await notify.open(tasks, errors.append)
        yield notify
        await notify.close()


async def hints_get_through(here: NotifyAdapter, there: NotifyAdapter) -> None:
    """Of every kind, between two processes; and for so long that each has asked the other end for a sign of life."""
    async with here.listen(types=["mail"], lost=True) as listener, asyncio.timeout(SOON.total_seconds()):
        heard: set[HintKind] = set()
        await there.announce([Hint(HintKind.LOST, "job"), Hint(HintKind.READY, "mail", 3)])
        while heard < {HintKind.LOST, HintKind.READY}:
            heard.update(hint.kind for hint in await listener.wait(None))
        listener.has_room = False
        await there.announce([Hint(HintKind.READY, "mail", 1)])
        await asyncio.sleep(1.2)


async def test_on_redis() -> None:
    [rights] = re.findall(r"^ACL SETUSER hints (.*)$", PAGE, re.MULTILINE)
    with servers.private_redis() as server:
        async with Redis.from_url(server.dsn) as client:
            await client.execute_command("ACL", "SETUSER", "hints", *rights.split())
        url, errors = server.dsn.replace("://", "://hints:secret@"), list[Exception | None]()
        make = lambda: RedisNotify(url, channel="shop")  # noqa: E731
        async with opened(make(), errors) as here, opened(make(), errors) as there:
            await hints_get_through(here, there)
        async with Redis.from_url(server.dsn) as client:
            refused = await client.execute_command("ACL", "LOG")

    assert errors == []
    # Redis-py tells its name, and goes on when it may not.
    assert {entry["object"] for entry in map(readable, refused)} <= {"client|setinfo", "client|maint_notifications"}


def readable(entry: object) -> dict[str, str]:
    words = entry if isinstance(entry, list) else [part for pair in entry.items() for part in pair]  # type: ignore[attr-defined]
    text = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
    return dict(zip(text[::2], text[1::2], strict=True))


async def test_on_nats() -> None:
    [rights] = re.findall(r"^authorization: \{$.*?^\}$", PAGE, re.MULTILINE | re.DOTALL)
    errors: list[Exception | None] = []
    with certificates.folder() as folder:
        (folder / "nats.conf").write_text(rights)
        with servers.private_nats("--config", str(folder / "nats.conf")) as server:
            make = lambda: NatsNotify(server.dsn, subject="shop", user="hints", password="secret")  # noqa: E731
            async with opened(make(), errors) as here, opened(make(), errors) as there:
                await hints_get_through(here, there)

    assert errors == []


@pytest.mark.parametrize("subject", ["shop", "shop.scheduled.*"])
async def test_hints_that_nats_refuses_are_down(subject: str) -> None:
    errors: list[Exception | None] = []
    user = f'{{user: hints, password: secret, permissions: {{publish: [">"], subscribe: ["{subject}"]}}}}'
    with certificates.folder() as folder:
        (folder / "nats.conf").write_text(f"authorization: {{users: [{user}]}}")
        with servers.private_nats("--config", str(folder / "nats.conf")) as server:
            notify = NatsNotify(server.dsn, subject="shop", user="hints", password="secret")
            async with opened(notify, errors), notify.listen(types=["mail"]):
                async with asyncio.timeout(SOON.total_seconds()):
                    while not errors:
                        await asyncio.sleep(0.01)

    assert "permissions violation" in str(errors[0]).lower()
