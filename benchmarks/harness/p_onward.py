"""Onward as a peer of the benchmark harness (form: ../shared/bench/peers/p_template.py).

`ONWARD_BACKEND` chooses where jobs are kept: postgres (default), sqlite, memory (with the command `inproc` only), or
redis, the queue provider (p_onward_redis.py). `ONWARD_WORK` chooses what jobs do: return (default), limited (return,
three at a time for each of 1,000 keys), write (a user's update in `complete()`), chain (three steps) or fan-in (one
that waits for ten). `ONWARD_RETENTION=none` has nothing pruned, `ONWARD_TYPES` spreads `return` over so many types,
`ONWARD_DB` names another database, `ONWARD_TAKES` a file for the seconds that each take took.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import benchlib as B  # type: ignore[import-not-found]  # noqa: N812 - the harness calls it so
import uvloop

from onward import Attempt, JobType, Next, Onward, job
from onward.define.job_type import Step
from onward.define.request import NewChain

BACKEND = os.environ.get("ONWARD_BACKEND", "postgres")
WORK = os.environ.get("ONWARD_WORK", "return")
TYPES = int(os.environ.get("ONWARD_TYPES", "1"))
TAKES = os.environ.get("ONWARD_TAKES")
CONCURRENCY = 100
DB = os.environ.get("ONWARD_DB", "bench_onward")
FILE = f"{B.WORKDIR}/onward.db"
URLS = {"postgres": B.pg_dsn(DB), "sqlite": f"sqlite:///{FILE}", "memory": "memory://"}
NAME = "onward" + "".join(f"-{word}" for word in (BACKEND, WORK) if word not in ("postgres", "return"))

Input = dict[str, int]
ROWS = 50_000
ACCOUNTS = Path(__file__).with_name("account.sql")


# -- what jobs do


async def just_return(attempt: Attempt[Input]) -> None:
    B.hit(attempt.input["n"])


def plain_jobs() -> list[JobType[Input, None]]:
    names = ["noop", *(f"noop{number}" for number in range(1, TYPES))]
    return [job(name)(just_return) for name in names]


def limited_jobs() -> list[JobType[Input, None]]:
    from onward import Limit  # older versions, which are measured too, have none

    limit = Limit(concurrency=3, key=lambda input: input["n"] % 1_000)
    return [job("limited", limit=limit)(just_return)]


@job("write")
async def write(attempt: Attempt[Input]) -> None:
    number = attempt.input["n"]
    B.hit(number)
    async with attempt.complete() as tx:
        await tx.execute("update account set visits = visits + 1 where id = :id", id=number % ROWS)


@job("third", internal=True)
async def third(attempt: Attempt[Input]) -> None:
    B.hit(attempt.input["n"])


@job("second", internal=True, continues_to=[third])
async def second(attempt: Attempt[Input]) -> Next[None]:
    B.hit(attempt.input["n"])
    return attempt.continue_with(third, {"n": attempt.input["n"] + 1})


@job("first", continues_to=[second])
async def first(attempt: Attempt[Input]) -> Next[None]:
    B.hit(attempt.input["n"])
    return attempt.continue_with(second, {"n": attempt.input["n"] + 1})


@job("part")
async def part(attempt: Attempt[Input]) -> int:
    B.hit(attempt.input["n"])
    return attempt.input["n"]


@job("whole", blocked_by=[part])
async def whole(attempt: Attempt[Input]) -> int:
    B.hit(attempt.input["n"])
    return sum(attempt.outputs_of(part))


PLAIN = limited_jobs() if WORK == "limited" else plain_jobs()
JOBS: dict[str, list[Step[Any, Any]]] = {
    "return": [*PLAIN],
    "limited": [*PLAIN],
    "write": [write],
    "chain": [first, second, third],
    "fan-in": [part, whole],
}
AT_ONCE = {"return": 1, "limited": 1, "write": 1, "chain": 3, "fan-in": 11}
"""How many jobs, each with a number of its own, one start brings about."""


def chain_of(n: int) -> NewChain[Any]:
    match WORK:
        case "write":
            return write.with_input({"n": n})
        case "chain":
            return first.with_input({"n": n})
        case "fan-in":
            return whole.with_input({"n": n}, blockers=[part.with_input({"n": n + i}) for i in range(1, 11)])
        case _:
            return PLAIN[n % TYPES].with_input({"n": n})


# -- Onward on a database


def remove_file() -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(FILE + suffix).unlink(missing_ok=True)


class OnDatabase:
    name, backend, uvloop = NAME, BACKEND, True
    db = DB if BACKEND == "postgres" else None
    packages = ("onward", "asyncpg", "uvloop", "msgspec")
    drain_n = 100_000 // AT_ONCE[WORK] * AT_ONCE[WORK]
    bulk_size = 1_000 // AT_ONCE[WORK] * AT_ONCE[WORK]
    settings = f"one worker process, concurrency={CONCURRENCY}, uvloop, defaults otherwise; jobs: {WORK}"
    semantics = (
        "at-least-once; lease of 60 s renewed by a guardian thread; batched claim, outcomes settled in groups and "
        "reported done only after their commit; rows and outputs kept"
    )
    if BACKEND == "postgres":
        settle_sql = "select count(*) from onward.job where status <> 'completed'"

    def __init__(self) -> None:
        kept: dict[str, Any] = {"retention": None} if os.environ.get("ONWARD_RETENTION") == "none" else {}
        self.app = Onward(URLS[BACKEND], jobs=JOBS[WORK], migrate=True, **kept)

    async def reset(self) -> None:
        if BACKEND == "postgres":
            B.pg_fresh(DB)
            if WORK == "write":
                B.psql(ACCOUNTS.read_text(), DB)
        remove_file()
        async with self.app:
            pass

    async def open(self) -> None:
        await self.app.open()

    async def close(self) -> None:
        await self.app.close()

    async def enqueue(self, n: int) -> None:
        await self.app.start(PLAIN[n % TYPES], {"n": n})

    async def enqueue_many(self, ns: list[int]) -> None:
        await self.app.start_many([chain_of(n) for n in ns[:: AT_ONCE[WORK]]])

    def worker(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        worker = self.app.worker(concurrency=CONCURRENCY, grace=timedelta(seconds=1))
        with self._takes_timed():
            async with self.app:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
                await worker.run()

    @contextmanager
    def _takes_timed(self) -> Iterator[None]:
        if TAKES is None:
            yield
            return
        from onward.worker.maintenance import TakeCursor  # older versions, which are measured too, have none there

        take, seconds = TakeCursor.take, list[float]()

        async def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            taken = await take(*arguments, **named)
            seconds.append(time.perf_counter() - began)
            return taken

        TakeCursor.take = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Path(TAKES).write_text("\n".join(map(str, seconds)))

    def inproc(self, arguments: list[str]) -> None:
        """Everything in one process, for `memory://`, which no other process can see."""
        B._emit(uvloop.run(self._in_process(int(arguments[0]))))

    async def _in_process(self, count: int) -> dict[str, float]:
        async with self.app:
            began = time.perf_counter()
            for n in range(count // 10):
                await self.enqueue(n)
            one = time.perf_counter()
            for lowest in range(0, count, self.bulk_size):
                await self.enqueue_many(list(range(lowest, min(lowest + self.bulk_size, count))))
            many = time.perf_counter()
            total, worker = count + count // 10, self.app.worker(concurrency=CONCURRENCY)
            board = B.Board(os.environ["BENCH_BOARD"])
            async with worker:
                while board.total() < total:  # noqa: ASYNC110 - other processes write the board, too
                    await asyncio.sleep(0.005)
            # A worker that has stopped has settled everything.
            drained = time.perf_counter()
        return {
            "enqueue_one": count // 10 / (one - began),
            "enqueue_bulk": count / (many - one),
            "drain": total / (drained - many),
        }


if __name__ == "__main__":
    if BACKEND == "redis":
        from p_onward_redis import OnRedis  # type: ignore[import-not-found]

        B.main(OnRedis())
    else:
        B.main(OnDatabase())
