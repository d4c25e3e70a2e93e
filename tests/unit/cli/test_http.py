"""The small HTTP server: what it answers, what it refuses, and that nobody can keep it from answering others."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus

import pytest

from onward.cli import http
from onward.cli.http import Answer, serving


async def hello() -> Answer:
    return Answer(HTTPStatus.OK, "hello\n")


async def broken() -> Answer:
    raise ZeroDivisionError


@pytest.fixture
def made() -> list[str]:
    """An entry for each answer that took time to make."""
    return []


@pytest.fixture
async def port(made: list[str]) -> AsyncIterator[int]:
    async def slow() -> Answer:
        made.append("slow")
        await asyncio.sleep(0.05)
        return await hello()

    listening = socket.create_server(("127.0.0.1", 0))
    async with serving(listening, {"/hello": hello, "/broken": broken, "/slow": slow}):
        yield listening.getsockname()[1]


async def said(port: int, request: bytes) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read(-1)
        writer.close()
        return answer


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n", 200, b"hello\n"),
        (b"GET /hello?a=b HTTP/1.0\r\n\r\n", 200, b"hello\n"),
        (b"HEAD /hello HTTP/1.1\r\nhost:a\r\nAccept: */*\r\n\r\n", 200, b""),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400, b"an HTTP/1.1 request names one host\n"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, b"an HTTP/1.1 request names one host\n"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400, b"this is no HTTP/1.1 request\n"),
        (b"GET /hello HTTP/2\r\nHost: a\r\n\r\n", 400, b"this is no HTTP/1.1 request\n"),
        (b"\x16\x03\x01\x00\xff\r\n\r\n", 400, b"this is no HTTP/1.1 request\n"),
        (b"\r\n\r\n", 400, b"this is no HTTP/1.1 request\n"),
        (b"POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 405, b"only GET and HEAD\n"),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", 404, b"there are /hello, /broken, /slow\n"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, b"the request is too long\n"),
        (b"a" * 20_000, 431, b"the request is too long\n"),
    ],
    ids=range(13),
)
async def test_what_is_answered(port: int, request_: bytes, status: int, text: bytes) -> None:
    head, _, body = (await said(port, request_)).partition(b"\r\n\r\n")

    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nConnection: close" in head
    assert (b"\r\nAllow: GET, HEAD" in head) == (status == 405)
    assert body == text


async def test_an_answer_that_fails_is_logged_and_ends_nothing(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert b"500 Internal" in await said(port, b"GET /broken HTTP/1.0\r\n\r\n")
    assert "ZeroDivisionError" in caplog.text
    assert b"200 OK" in await said(port, b"GET /hello HTTP/1.0\r\n\r\n")


async def test_the_silent_and_the_slow_are_sent_away_and_keep_nobody_out(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    for _, writer in connections:
        writer.write(b"GET /hel")

    assert b"200 OK" in await said(port, b"GET /hello HTTP/1.0\r\n\r\n")
    with suppress(ConnectionResetError):
        assert await connections[0][0].read() == b""  # the first had its time

    monkeypatch.setattr(http, "_WITHIN", 0.1)
    assert b"408 Request Timeout" in await said(port, b"GET /hello HTTP/1.0\r\n")
    for _, writer in connections:
        writer.transport.abort()


async def test_many_at_once_are_answered_for_the_price_of_few(port: int, made: list[str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(said(port, b"GET /slow HTTP/1.0\r\n\r\n")) for _ in range(60)]

    assert all(b"200 OK" in task.result() for task in asked)
    assert len(made) < 20
