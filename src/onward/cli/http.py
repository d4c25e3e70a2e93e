"""A small HTTP server for probes and scrapers: GET and HEAD, one answer for each connection, and nothing else.

Whoever connects may be slow, silent or hostile: a request is short and in time, or it is refused.
"""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

logger = logging.getLogger("onward.cli")
T = TypeVar("T")
_WITHIN = 5.0
"""Seconds for the request to arrive, and as many for the answer to be taken."""
_LONGEST = 8192
_MOST_SILENT = 250
"""Connections that have not asked yet: for one more, the first is cut off, since an honest one asks at once."""
_MOST = 400
"""Connections in all."""
_REST = 65_536
_REST_WITHIN = 0.5
_REQUEST = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"[\w!#$%&'*+.^`|~-]+:[^\0\r\n]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered."""

    status: HTTPStatus
    text: str
    kind: str = "text/plain; charset=utf-8"
    allow: str | None = None

    def encoded(self, *, with_text: bool = True) -> bytes:
        text = self.text.encode()
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(text)}",
            "Cache-Control: no-store",
            "Connection: close",
            *([f"Allow: {self.allow}"] if self.allow else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + (text if with_text else b"")


Routes: TypeAlias = Mapping[str, Callable[[], Awaitable[Answer]]]


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, text: str, allow: str | None = None) -> None:
        super().__init__(text)
        self.answer = Answer(status, f"{text}\n", allow=allow)


@asynccontextmanager
async def serving(listening: socket.socket, routes: Routes) -> AsyncIterator[None]:
    """Answer what comes on a listening socket."""
    async with asyncio.TaskGroup() as tasks:
        conversations = _Conversations(routes, tasks)
        is_file = listening.family == getattr(socket, "AF_UNIX", None)
        start = asyncio.start_unix_server if is_file else asyncio.start_server
        server = await start(conversations.begin, sock=listening, limit=_LONGEST)
        try:
            yield
        finally:
            server.close()
            conversations.end()


class _Conversations:
    """Those who have connected, and the answers that are being made for them."""

    def __init__(self, routes: Routes, tasks: asyncio.TaskGroup) -> None:
        self._routes, self._tasks = routes, tasks
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._answers: dict[str, asyncio.Task[Answer]] = {}
        self._open: set[asyncio.Task[Any]] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MOST:
            writer.transport.abort()
            return
        if len(self._silent) >= _MOST_SILENT:
            longest = next(iter(self._silent))
            del self._silent[longest]
            longest.transport.abort()
        self._silent[writer] = None
        self._own(self._tasks.create_task(self._converse(reader, writer)))

    def end(self) -> None:
        for task in self._open:
            task.cancel()

    def _own(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                try:
                    path, with_text = await _request(reader, self._routes)
                    self._silent.pop(writer, None)
                except _Refused as refused:
                    await _send(writer, refused.answer.encoded())
                    await _hear_out(reader, writer)
                else:
                    await _send(writer, (await self._answer(path)).encoded(with_text=with_text))
                writer.close()
        finally:
            self._silent.pop(writer, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer(self, path: str) -> Answer:
        """Those who ask for the same at the same time get the same: many scrapers cost no more than one."""
        if path not in self._answers:
            self._answers[path] = self._own(self._tasks.create_task(_made(self._routes[path], path)))
            self._answers[path].add_done_callback(lambda _: self._answers.pop(path))
        return await asyncio.shield(self._answers[path])


async def _made(make: Callable[[], Awaitable[Answer]], path: str) -> Answer:
    try:
        return await make()
    except Exception:  # an application's own figures may fail
        logger.exception("%s cannot be answered", path)
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log\n")


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_WITHIN):
        await writer.drain()


async def _hear_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is still to come, for a moment: a connection that is closed before loses the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REST_WITHIN):
            writer.write_eof()
            left = _REST
            while left > 0 and (data := await reader.read(left)):
                left -= len(data)


async def _request(reader: asyncio.StreamReader, routes: Routes) -> tuple[str, bool]:
    """The path, and whether more than the head of the answer is wanted."""
    try:
        async with asyncio.timeout(_WITHIN):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long") from None
    except TimeoutError:
        raise _Refused(HTTPStatus.REQUEST_TIMEOUT, "the request takes too long") from None
    first, *fields = head[:-4].split(b"\r\n")
    found = _REQUEST.fullmatch(first)
    if found is None or not all(map(_FIELD.fullmatch, fields)):
        raise _Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    method, target, minor = found.groups()
    if minor == b"1" and sum(field.lower().startswith(b"host:") for field in fields) != 1:
        raise _Refused(HTTPStatus.BAD_REQUEST, "an HTTP/1.1 request names one host")
    if method not in (b"GET", b"HEAD"):
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", allow="GET, HEAD")
    path = target.partition(b"?")[0].decode()
    if path not in routes:
        raise _Refused(HTTPStatus.NOT_FOUND, f"there are {', '.join(path for path in routes if path.count('/') == 1)}")
    return path, method == b"GET"


async def fetched(place: Path, path: str, *, within: float) -> Answer:
    """What a server on a socket of the file system answers. Raises OSError or TimeoutError if it does not."""
    async with asyncio.timeout(within):
        reader, writer = await asyncio.open_unix_connection(place)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head, _, text = (await reader.read(-1)).partition(b"\r\n\r\n")
        finally:
            writer.close()
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    if found is None:
        raise ConnectionResetError("no answer")
    return Answer(HTTPStatus(int(found[1])), text.decode())
