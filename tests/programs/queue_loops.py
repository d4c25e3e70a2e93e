"""A program for tests: a queue is left open when its event loop ends, and then used in the next loop.

    queue_loops.py SPEC QUEUE

SPEC names a provider and its server: `redis+redis://127.0.0.1:6379`. Prints a line for each step: what it came to, or
the type of the error, whether trying again may help, and its message.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from onward.errors import QueueError
from onward.queue import Queue, QueueWorker
from programs import queue_worker


def tell(step: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async def limited() -> object:
        async with asyncio.timeout(30):
            return await step()

    try:
        said = str(asyncio.run(limited()))
    except QueueError as error:
        said = f"{type(error).__name__} {error.retryable} {error}"
    sys.stdout.write(f"{said}\n")


def main(spec: str, name: str) -> None:
    queue: Queue[int] = Queue(name, provider=queue_worker.factory(spec))
    queue.on("queue.error", lambda event: None)

    async def use() -> int | None:
        await queue.add("letter", 1)
        return (await queue.stats()).waiting

    async def work() -> str:
        done = asyncio.Event()

        async def handler(data: int, job: object) -> None:
            done.set()

        async with QueueWorker(name, handler, provider=queue.provider):
            await done.wait()
        return "worked"

    async def clear() -> None:
        async with Queue[int](name, provider=queue_worker.factory(spec)) as other:
            await other.delete()

    for step in (use, use, work, queue.disconnect, clear):
        tell(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
