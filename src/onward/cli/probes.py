"""`onward worker --health-port`: whether a worker lives and is ready, and its figures, for probes and scrapers."""

import asyncio
import ipaddress
import os
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from onward.cli.console import say
from onward.cli.failures import CommandFailed
from onward.cli.http import Answer, Routes, fetched, serving
from onward.client.app import Onward
from onward.worker.worker import Worker

if TYPE_CHECKING:
    from onward.cli.figures import Figures

T = TypeVar("T")
_TURNS_WITHIN = 0.75
"""Seconds: Kubernetes waits for one, unless told otherwise."""
_ANSWERS_WITHIN = 3.0
"""Of the database."""
_PROCESS_ANSWERS_WITHIN = _ANSWERS_WITHIN + 1
_BLOCKED = "the event loop does not turn: a handler blocks it"
_FIGURES = "text/plain; version=0.0.4; charset=utf-8"
_NO_FIGURES = Answer(HTTPStatus.NOT_FOUND, "figures need prometheus_client: pip install 'onward[prometheus]'\n")


# -- where


def listen(host: str, port: int) -> socket.socket:
    """A socket on which probes may come."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        place = _shown(host, port)
        raise CommandFailed(f"--health-port: cannot listen on {place}: {error.strerror or error}") from None
    here = _shown(host, listening.getsockname()[1])
    anyone = "" if _is_local(listening.getsockname()[0]) else " Anyone who reaches this address may read them."
    say(f"http://{here} has /healthz, /readyz and /metrics.{anyone}")
    return listening


def listen_at(place: Path) -> socket.socket:
    """A socket of the file system, for the supervisor."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.fspath(place))
    listening.listen()
    return listening


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


# -- one worker


@contextmanager
def shown_by(listening: socket.socket | None, app: Onward, worker: Worker, ready: asyncio.Event) -> Iterator[None]:
    """Answer for this worker, if somebody wants to know, in a thread: the event loop here may be blocked."""
    if listening is None:
        yield
        return
    routes = WorkerHealth(worker, ready, asyncio.get_running_loop(), _figures_of(app)).routes
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    arguments = loop, listening, routes, ended
    threading.Thread(target=_serve, args=arguments, name="onward-health", daemon=True).start()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # it ended before
            loop.call_soon_threadsafe(ended.set)


def _figures_of(app: Onward) -> "Figures | None":
    if find_spec("prometheus_client") is None:
        return None
    from onward.cli.figures import Figures

    return Figures(app)


def _serve(loop: asyncio.AbstractEventLoop, listening: socket.socket, routes: Routes, ended: asyncio.Event) -> None:
    async def until_ended() -> None:
        async with serving(listening, routes):
            await ended.wait()

    with closing(loop):
        loop.run_until_complete(until_ended())


class WorkerHealth:
    """What is told of a worker whose event loop turns, or does not, in another thread."""

    def __init__(
        self, worker: Worker, ready: asyncio.Event, loop: asyncio.AbstractEventLoop, figures: "Figures | None"
    ) -> None:
        self._worker, self._ready, self._loop, self._figures = worker, ready, loop, figures
        self.routes: Routes = {
            "/healthz": self._alive,
            "/readyz": self._is_ready,
            "/metrics": self._metrics,
            "/metrics/process": self._metrics_of_process,
        }

    async def _alive(self) -> Answer:
        return _answer(await self._blocked())

    async def _is_ready(self) -> Answer:
        return _answer(await self._blocked() or await self._asked(self._trouble(), _BLOCKED, _ANSWERS_WITHIN))

    async def _blocked(self) -> str | None:
        return await self._asked(_nothing(), _BLOCKED, _TURNS_WITHIN)

    async def _trouble(self) -> str | None:
        return await self._worker.trouble(within=_ANSWERS_WITHIN / 2) if self._ready.is_set() else "it is starting"

    async def _metrics(self) -> Answer:
        if self._figures is not None and not await self._blocked():
            await self._asked(self._figures.look(within=_ANSWERS_WITHIN / 2), None, _ANSWERS_WITHIN)
        return await self._metrics_of_process(depths=True)

    async def _metrics_of_process(self, *, depths: bool = False) -> Answer:
        if self._figures is None:
            return _NO_FIGURES
        return Answer(HTTPStatus.OK, self._figures.page(depths=depths), _FIGURES)

    async def _asked(self, question: Coroutine[Any, Any, T], otherwise: T, within: float) -> T:
        """What the worker's event loop answers, or something else if it does not in time."""
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:  # it has ended
            question.close()
            return otherwise
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await asyncio.wrap_future(asked)
        return otherwise


async def _nothing() -> str | None:
    return None


def _answer(trouble: str | None) -> Answer:
    return Answer(HTTPStatus.OK, "ok\n") if trouble is None else Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{trouble}\n")


# -- several


class FleetHealth:
    """What a supervisor tells of its worker processes: each is asked on a socket of its own in `folder`."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder, self._processes = folder, processes
        self.is_stopping = False
        self.routes: Routes = {"/healthz": self._alive, "/readyz": self._is_ready, "/metrics": self._metrics}

    def place_of(self, number: int) -> Path:
        """Where a process is asked; there while it has come far enough to answer."""
        return self._folder / f"{number}.sock"

    async def _alive(self) -> Answer:
        """One that is about to start, or to be replaced, is none that hangs."""
        answers = await self._answers("/healthz")
        return _summed_up({number: answer for number, answer in answers.items() if answer is not None})

    async def _is_ready(self) -> Answer:
        if self.is_stopping:
            return _answer("the workers are stopping")
        return _summed_up(await self._answers("/readyz"))

    async def _metrics(self) -> Answer:
        if find_spec("prometheus_client") is None:
            return _NO_FIGURES
        from onward.cli.figures import merged

        pages: dict[int, str] = {}
        for number in range(1, self._processes + 1):  # what is of the database is asked of one
            path = "/metrics/process" if pages else "/metrics"
            answer = await self._answer_of(number, path)
            if answer is not None and answer.status is HTTPStatus.OK:
                pages[number] = answer.text
        return Answer(HTTPStatus.OK, merged(pages), _FIGURES)

    async def _answers(self, path: str) -> Mapping[int, Answer | None]:
        numbers = range(1, self._processes + 1)
        async with asyncio.TaskGroup() as tasks:
            asked = {number: tasks.create_task(self._answer_of(number, path)) for number in numbers}
        return {number: task.result() for number, task in asked.items()}

    async def _answer_of(self, number: int, path: str) -> Answer | None:
        """None: there is nobody to ask."""
        try:
            return await fetched(self.place_of(number), path, within=_PROCESS_ANSWERS_WITHIN)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (OSError, TimeoutError):
            return _answer("it does not answer")


def _summed_up(answers: Mapping[int, Answer | None]) -> Answer:
    """Well if all are; else who is not."""
    words = {number: "it is starting\n" if answer is None else answer.text for number, answer in answers.items()}
    bad = [number for number, answer in answers.items() if answer is None or answer.status is not HTTPStatus.OK]
    return _answer("\n".join(f"worker {number}: {words[number].strip()}" for number in bad) or None)
