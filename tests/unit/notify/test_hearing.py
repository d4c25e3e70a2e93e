"""When those who listen here hear what a commit carries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onward.notify.postgres import PostgresNotify


class Server:
    """Lets whoever connects wait, and loses its connections, when told."""

    can_listen_later, process = False, 7

    def __init__(self) -> None:
        self.asked, self.answers, self.loses = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self.asked.set()
        await self.answers.wait()
        yield self

    async def listen(self, channel: str, receive: object) -> None: ...
    async def notify(self, channel: str, payloads: object) -> None: ...
    async def hold(self, channel: str, due: object) -> None:
        await self.loses.wait()
        raise ConnectionError


async def test_a_commit_carries_hints_where_those_who_listen_here_hear_of_them_over_a_connection() -> None:
    server, heard = Server(), dict[str, bool]()
    notify = PostgresNotify(server.connect, channel="c")
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        await notify.open(tasks)
        heard["nobody listens"] = notify.hears_commands
        async with asyncio.TaskGroup() as listening:
            listening.create_task(_listen(notify))
            await server.asked.wait()
            heard["connecting"] = notify.hears_commands
            server.answers.set()
        heard["connected"] = notify.hears_commands
        server.asked.clear()
        server.answers.clear()
        server.loses.set()
        await server.asked.wait()
        heard["lost"] = notify.hears_commands
        await notify.close()
        heard["closed"] = notify.hears_commands

    assert [when for when, yes in heard.items() if yes] == ["nobody listens", "connected", "closed"]


async def _listen(notify: PostgresNotify) -> None:
    async with notify.listen(types=["work"]):
        pass
