"""Queues where there is more than one event loop: side by side in threads, and one after another."""

import asyncio
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward import Onward
from onward.conformance.queue.session import LONG
from onward.queue import Memory, Queue, QueueWorker
from onward.queue.providers.memory import MemoryProvider

TESTS = Path(__file__).parents[1]
Run = Callable[[Any], Any]


@pytest.fixture
def run() -> Run:
    """Runs a coroutine in an event loop of its own, in a thread, and not for ever."""

    def in_thread(work: Any) -> Any:
        answers: list[Any] = []

        def call() -> None:
            try:
                answers.append(asyncio.run(asyncio.wait_for(work, LONG)))
            except BaseException as error:  # noqa: BLE001 - raised below
                answers.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    return in_thread


def in_two_loops(spec: str) -> list[str]:
    """In a process of its own: what nobody closed would be complained of in some later test."""
    command = [sys.executable, "-m", "programs.queue_loops", spec, f"loops-{secrets.token_hex(6)}"]
    return subprocess.check_output(command, cwd=TESTS, text=True, timeout=120, stderr=subprocess.DEVNULL).splitlines()


@pytest.mark.parametrize("kind", ["redis", "bullmq"])
def test_what_was_left_open_is_opened_anew_in_the_next_loop(kind: str, redis_url: str) -> None:
    assert in_two_loops(f"{kind}+{redis_url}") == ["1", "2", "worked", "None", "None"]


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_an_app_that_was_left_open_is_refused_in_words_in_the_next_loop(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = f"sqlite:///{tmp_path}/q.db" if place == "sqlite" else request.getfixturevalue("postgres_dsn")

    first, then, working, *rest = in_two_loops(f"{place}+{address}")

    assert first == "1"
    for refusal in (then, working):
        assert refusal.startswith("QueueConfigurationError False")
        assert "event loop that has ended" in refusal
    assert rest == ["None", "None"]  # there is nothing left to let go of


def test_a_lock_that_was_waited_for_in_one_loop_serves_in_the_next(run: Run) -> None:
    queue: Queue[int] = Queue("letters", provider=Memory())

    async def use_at_once() -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(5):
                tasks.create_task(queue.add("letter", n))

    run(use_at_once())
    run(use_at_once())


def test_memory_serves_several_threads_at_once(run: Run) -> None:
    memory, count, done = Memory(), 300, list[int]()
    over = threading.Event()

    async def add(first: int) -> None:
        async with Queue[int]("letters", provider=memory) as queue:
            for n in range(first, first + count):
                await queue.add("letter", n)

    async def work() -> None:
        async def handler(data: int, job: Any) -> None:
            done.append(data)
            if len(done) == 3 * count:
                over.set()

        async with QueueWorker("letters", handler, provider=memory, concurrency=5):
            await asyncio.to_thread(over.wait, LONG)

    threads = [
        threading.Thread(target=run, args=[work]) for work in (work(), work(), *(add(n * count) for n in range(3)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert Counter(done) == Counter(range(3 * count))


def test_an_outbox_publishes_in_one_loop_after_another(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, memory, count = Onward(f"sqlite:///{tmp_path}/q.db", jobs=[], migrate=True), Memory(), 20
    add = MemoryProvider.add

    async def slowly(provider: MemoryProvider, job: Any, options: Any) -> Any:
        await asyncio.sleep(0.001)  # so that others wait for their turn
        return await add(provider, job, options)

    monkeypatch.setattr(MemoryProvider, "add", slowly)
    queue: Queue[int] = Queue("letters", provider=memory, outbox=app)

    async def publish(all_of_them: int) -> None:
        async with app, app.worker(concurrency=10):
            async with app.transaction() as tx:
                for n in range(count):
                    await queue.add("letter", n, tx=tx)
            while (await queue.stats()).waiting != all_of_them:
                await asyncio.sleep(0.01)
            messages = await app.jobs(types=["onward.relay:letters"], limit=100)
            assert sum(message.failures for message in messages.items) == 0

    run(publish(count))
    run(publish(2 * count))
