"""Onward as a peer of the shared benchmark harness (form: ../shared/bench/peers/p_template.py).

`ONWARD_BACKEND` chooses the database: postgres (default) or sqlite. See benchmarks/README.md for how to run it.
"""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import benchlib as B  # type: ignore[import-not-found]  # noqa: N812 - the harness calls it so
import uvloop

from onward import Attempt, Onward, job

BACKEND = os.environ.get("ONWARD_BACKEND", "postgres")
DB = "bench_onward"
FILE = f"{B.WORKDIR}/onward.db"
URL = B.pg_dsn(DB) if BACKEND == "postgres" else f"sqlite:///{FILE}"


@job("noop")
async def noop(attempt: Attempt[dict[str, int]]) -> None:
    B.hit(attempt.input["n"])


def make_app() -> Onward:
    return Onward(URL, jobs=[noop], migrate=True)


def remove_database() -> None:
    if BACKEND == "postgres":
        B.pg_fresh(DB)
    for suffix in ("", "-wal", "-shm"):
        Path(FILE + suffix).unlink(missing_ok=True)


class Peer:
    name, backend, uvloop = "onward", BACKEND, True
    db = DB if BACKEND == "postgres" else None
    packages = ("onward", "asyncpg", "uvloop", "msgspec")
    drain_n = 100000
    settings = "one worker process, concurrency=100, uvloop, defaults otherwise"
    semantics = (
        "at-least-once; lease of 60 s renewed by a guardian thread; batched claim, outcomes settled in groups and "
        "reported done only after their commit; rows and outputs kept"
    )
    if BACKEND == "postgres":
        settle_sql = "select count(*) from onward.job where status <> 'completed'"

    async def reset(self) -> None:
        remove_database()
        async with make_app():
            pass

    async def open(self) -> None:
        self.app = make_app()
        await self.app.open()

    async def close(self) -> None:
        await self.app.close()

    async def enqueue(self, n: int) -> None:
        await self.app.start(noop, {"n": n})

    async def enqueue_many(self, ns: list[int]) -> None:
        await self.app.start_many([noop.with_input({"n": n}) for n in ns])

    def worker(self) -> None:
        async def go() -> None:
            app = make_app()
            worker = app.worker(concurrency=100, grace=timedelta(seconds=1))
            async with app:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
                await worker.run()

        uvloop.run(go())


if __name__ == "__main__":
    B.main(Peer())
