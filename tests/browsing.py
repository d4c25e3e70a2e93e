"""Asks a dashboard as a browser would, without a server in between; and serves it to real ones."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx
import uvicorn

from onward import Onward
from onward.dashboard import Dashboard

HERE = "http://localhost"


@dataclass
class Browser:
    """Asks for pages as a browser would, forms included."""

    client: httpx.AsyncClient
    dashboard: Dashboard
    app: Onward

    async def visit(self, path: str, *, status: int = 200, **options: Any) -> str:
        """A page."""
        answer = await self.client.get(path.lstrip("/"), **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.text

    async def act(self, action: str, fields: dict[str, Any], *, status: int = 200) -> str:
        """Do something: ask, confirm, and look at the page that follows."""
        asked = await self.client.get(f"confirm/{action}", params=fields)
        if asked.status_code != 200:
            assert asked.status_code == status, (asked.status_code, asked.text)
            return asked.text
        token = re.search(r'name="token" value="(\w+)"', asked.text)
        assert token is not None
        answer = await self.client.post(
            f"do/{action}", data={**fields, "token": token[1]}, headers={"origin": HERE}, follow_redirects=True
        )
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.text


@asynccontextmanager
async def streamed(
    dashboard: Any, at: str, *, below: str = "", headers: Sequence[tuple[bytes, bytes]] = ()
) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """A function that gives the next event of a page, which is looked at meanwhile; of a host's, `below` a path."""
    path = f"{below}/live"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
        "query_string": str(httpx.QueryParams({"at": at})).encode(), "client": ("127.0.0.1", 1), "http_version": "1.1",
        "headers": [(b"host", b"localhost"), *((k.lower(), v) for k, v in headers if k.lower() != b"host")],
        "server": ("localhost", 80), "asgi": {"version": "3.0"}, "state": {},
    }  # fmt: skip
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message
        for line in message.get("body", b"").decode().splitlines():
            if line.startswith("data: "):
                events.put_nowait(json.loads(line.removeprefix("data: ")))

    async with asyncio.TaskGroup() as tasks:
        streaming = tasks.create_task(dashboard(scope, receive, send))
        try:
            yield events.get
        finally:
            gone.set()
            await streaming


def text_of(html: str) -> str:
    """What a reader sees of a page, more or less."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


@asynccontextmanager
async def served(asgi: Any) -> AsyncIterator[str]:
    """The address of an ASGI application, which is served meanwhile."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(asgi, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            # Without the handlers of signals that serve() sets: those are pytest's.
            serving = tasks.create_task(server._serve(sockets=[listener]))
            try:
                while not server.started:
                    await asyncio.sleep(0.01)
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving
