"""A proxy that swallows answers: the server has committed, and nobody is told."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class CommitCutter:
    """Forwards to a server; now and then a client that has said COMMIT is cut off instead of answered."""

    def __init__(self, target: tuple[str, int], *, share: float, seed: int) -> None:
        self._target, self._share = target, share
        self._random = random.Random(seed)
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        doomed = asyncio.Event()
        try:
            with suppress(OSError):
                async with asyncio.TaskGroup() as ways:
                    down = ways.create_task(self._answers(there, writer, doomed))
                    await self._questions(reader, back, doomed)
                    down.cancel()
        finally:
            back.close()
            writer.close()

    async def _questions(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await source.read(65536):
            if b"COMMIT" in data and self._random.random() < self._share:
                doomed.set()
            sink.write(data)
            await sink.drain()

    async def _answers(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await source.read(65536):
            if doomed.is_set():
                self.cuts += 1
                sink.transport.abort()
                return
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def cut_after_commit(dsn: str, *, share: float, seed: int) -> AsyncIterator[tuple[CommitCutter, str]]:
    """Such a proxy before the server of this DSN, and the DSN that leads through it."""
    url = urlsplit(dsn)
    cutter = CommitCutter((url.hostname or "127.0.0.1", url.port or 5432), share=share, seed=seed)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    try:
        yield cutter, url._replace(netloc=f"postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}").geturl()
    finally:
        server.close()
