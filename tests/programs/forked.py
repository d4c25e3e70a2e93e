"""A program that opens its app and then forks, as a server does that loads the application first.

forked.py TARGET SCHEMA KIND: what each of three children and the parent could do, a line each. KIND is how the app is
used: sync, sync engine, async.
"""

import asyncio
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from onward import Attempt, Onward, job

TIMES = 20


@job("welcome")
def welcome(attempt: Attempt[str]) -> None: ...


def main(url: str, schema: str, kind: str) -> None:
    warnings.simplefilter("ignore")  # newer Pythons warn of a fork with threads, which is what this is about
    app = Onward(_target(url, kind), jobs=[welcome], schema=schema, migrate=True)
    if kind == "async":
        asyncio.run(_fork_async(app))
        return
    client: Any = app.sync
    client.open()
    client.start(welcome, "parent")
    file = getattr(app.driver, "file", None)
    _fork(lambda name: _use(client, name), client.close, file and file.path)


def _target(url: str, kind: str) -> Any:
    if kind != "sync engine":
        return url
    from sqlalchemy import create_engine

    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def _fork(use: Any, close: Any, file: Path | None) -> None:
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            use(f"child {number}")
            sys.exit(0)  # as a server's child ends: what there is to clean up at the end is the parent's
        children.append(child)
    use("parent")
    for child in children:
        os.waitpid(child, 0)
    use("parent afterwards")
    sys.stdout.write(f"file: {file is None or file.exists()}\n")
    close()


def _use(client: Any, name: str) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(TIMES):
        try:
            client.start(welcome, f"{name} {number}")
            outcomes["started"] += 1
        except Exception as error:  # noqa: BLE001 - it is told
            outcomes[f"{type(error).__name__}: {error}"] += 1
    sys.stdout.write(f"{name}: {dict(outcomes)}\n")
    sys.stdout.flush()


async def _fork_async(app: Onward) -> None:
    async with app:
        await app.start(welcome, "parent")
        child = await asyncio.to_thread(_fork_once, app)
        await app.start(welcome, "parent")
        await asyncio.to_thread(os.waitpid, child, 0)
        await app.start(welcome, "parent")
    sys.stdout.write("parent: {'started': 3}\n")


def _fork_once(app: Onward) -> int:
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_start_there(app))
            sys.stdout.write("child: started\n")
        except Exception as error:  # noqa: BLE001 - it is told
            sys.stdout.write(f"child: {type(error).__name__}: {error}\n")
        sys.stdout.flush()
        os._exit(0)
    return child


async def _start_there(app: Onward) -> None:
    async with asyncio.timeout(10):
        await app.start(welcome, "child")


if __name__ == "__main__":
    main(*sys.argv[1:])
