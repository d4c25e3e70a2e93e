"""A TCP proxy in the test's own loop whose connections can fall silent (open, but nothing gets through), or end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards to one server. New connections work, unless it was cut off."""

    def __init__(self, target: tuple[str, int], tasks: asyncio.TaskGroup) -> None:
        self._target, self._tasks = target, tasks
        self._open: set[asyncio.Event] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = self._is_mute = self._is_frozen = False
        self.accepted = 0

    def silence(self, *, for_good: bool = False) -> None:
        """Forward nothing more on the connections there are; `for_good`: nor on new ones, until it is mended."""
        self._is_mute = for_good
        for forwards in self._open:
            forwards.clear()

    def freeze(self) -> None:
        """Forward nothing more on any connection, new ones included: they are accepted, and that is all."""
        self._is_frozen = True
        self.silence()

    def thaw(self) -> None:
        """Forward what has come meanwhile."""
        self._is_frozen = False
        for forwards in self._open:
            forwards.set()

    def cut(self) -> None:
        """End every connection, and each new one at once, as if the server were away."""
        self._is_cut = True
        for writer in tuple(self._writers):
            writer.close()

    def mend(self) -> None:
        """The server is back."""
        self._is_cut = self._is_mute = False

    def lead_to(self, dsn: str) -> None:
        """From now on new connections go to another server; those there are stay where they are."""
        self._target = _place(dsn)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.close()
            return
        self.accepted += 1
        self._writers.add(writer)
        forwards = asyncio.Event()
        if not (self._is_mute or self._is_frozen):
            forwards.set()
        self._open.add(forwards)
        there, back = await asyncio.open_connection(*self._target)
        if self._is_cut:
            back.close()
            return
        self._tasks.create_task(self._forward(reader, back, forwards))
        self._tasks.create_task(self._forward(there, writer, forwards))

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, forwards: asyncio.Event) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    await forwards.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
            self._writers.discard(sink)


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of this DSN, and the DSN that leads through it."""
    url = urlsplit(dsn)
    async with asyncio.TaskGroup() as tasks:
        proxy = Proxy(_place(dsn), tasks)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        holder = tasks.create_task(asyncio.Event().wait())
        try:
            user = "" if url.scheme == "http" else f"{url.netloc.rpartition('@')[0] or 'postgres'}@"
            yield proxy, url._replace(netloc=f"{user}127.0.0.1:{port}").geturl()
        finally:
            proxy.cut()
            server.close()
            for task in list(tasks._tasks):  # whatever still waits for a peer that will not come
                task.cancel()
            holder.cancel()


def _place(dsn: str) -> tuple[str, int]:
    url = urlsplit(dsn)
    return url.hostname or "127.0.0.1", url.port or 5432
