"""The dashboard on a Postgres database with a million jobs: how soon each page is there, and what open tabs cost.

`python -m benchmarks.dashboard postgresql://…`: it works in a schema of its own, which it removes in the end. Pages are
asked for without a server in between, each with nothing kept from before. Statements are counted by the database, as
transactions: run it on a database that nobody else uses.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx

from onward import Attempt, Onward, job
from onward.dashboard import Dashboard
from onward.dashboard.pages.registry import PAGES

SCHEMA = "onward_dashboard_bench"
COMPLETED, PENDING, RUNNING, FAILED, TYPES = 1_000_000, 50_000, 500, 20_000, 10
ALL = COMPLETED + PENDING + RUNNING + FAILED
TABS, SECONDS = 50, 60.0
LOAD = f"""
INSERT INTO {SCHEMA}.job (id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input,
  created_at, scheduled_at, root_id, attempt, failures, errors, leased_by, leased_until, ended_at, chain_ended_at,
  failure_reason)
SELECT made.id, made.id, 0, 'type-' || n % {TYPES}, 1, status, 0, false,
  jsonb_build_object('order', n, 'note', repeat('x', 200)), made.at, made.at, made.id,
  (status <> 'pending')::integer, (status = 'failed')::integer,
  CASE status WHEN 'failed' THEN jsonb_build_array(jsonb_build_object(
    'type', 'CardDeclined', 'message', 'order ' || n, 'attempt', 1,
    'traceback', repeat('  File "/srv/shop/jobs.py", line ' || n % 7 || E', in charge\\n    raise\\n', 20)))
    ELSE '[]' END,
  CASE status WHEN 'running' THEN 'worker-' || n % 5 END,
  CASE status WHEN 'running' THEN now() + interval '1 h' END,
  CASE WHEN status IN ('completed', 'failed') THEN made.at END,
  CASE WHEN status IN ('completed', 'failed') THEN made.at END,
  CASE status WHEN 'failed' THEN 'permanent' END
FROM generate_series(1, {ALL}) n,
  LATERAL (SELECT CASE WHEN n % 50 = 7 AND n / 50 < {FAILED} THEN 'failed'
    WHEN n > {COMPLETED + FAILED + RUNNING} THEN 'pending'
    WHEN n > {COMPLETED + FAILED} THEN 'running' ELSE 'completed' END AS status) AS life,
  LATERAL (SELECT now() - ({COMPLETED} - n) * interval '0.1 s' AS at,
    (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - ({ALL} - n) * 100), 12, '0')
      || '7' || lpad(to_hex(n & 4095), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid AS id) AS made
"""  # noqa: S608
HOSTILE = (
    "jobs?error=no+such+text+anywhere",
    "chains?error=no+such+text+anywhere",
    "jobs?type=nothing&status=completed",
    "jobs?input=no+such+text+anywhere",
    "jobs?status=completed&older=1000d",
    "chains?status=completed&type=nothing",
    "jobs?error=%25%25%25%25%25%25x&status=failed",
    "failed?error=no+such+text",
)


def types() -> list[Any]:
    async def handler(attempt: Attempt[Any]) -> None:
        return None

    return [job(f"type-{n}")(handler) for n in range(TYPES)]


@asynccontextmanager
async def loaded(url: str) -> AsyncIterator[Onward]:
    app = Onward(url, jobs=types(), schema=SCHEMA, migrate=True, observers=[])
    connection = await asyncpg.connect(url)
    try:
        async with app:
            print(f"loading {ALL:,} jobs …", flush=True)
            await connection.execute(LOAD, timeout=600)
            await connection.execute(f"VACUUM ANALYZE {SCHEMA}.job", timeout=600)
            yield app
    finally:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.close()


async def measure(client: httpx.AsyncClient, dashboard: Dashboard, path: str) -> None:
    taken: list[float] = []
    for _ in range(7):
        dashboard._readings.forget()
        began = time.perf_counter()
        answer = await client.get(path)
        taken.append((time.perf_counter() - began) * 1000)
    print(f"{statistics.median(taken):8.0f} ms {max(taken):8.0f} ms  {answer.status_code}  /{path}", flush=True)


async def watch(dashboard: Dashboard, at: str, until: asyncio.Event) -> None:
    """A tab that is looked at."""
    query = str(httpx.QueryParams({"at": at})).encode()
    scope = {
        "type": "http", "method": "GET", "path": "/live", "raw_path": b"/live", "root_path": "", "scheme": "http",
        "query_string": query, "client": ("127.0.0.1", 1), "http_version": "1.1",
        "headers": [(b"host", b"localhost")], "server": ("localhost", 80),
    }  # fmt: skip

    async def receive() -> Any:
        await until.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    while not until.is_set():  # a stream ends by itself now and then, and a browser asks again
        await dashboard(scope, receive, send)


async def statements(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        await asyncio.sleep(1.5)  # the database tells of what idle connections did a second later
        return await connection.fetchval(  # type: ignore[no-any-return]
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
    finally:
        await connection.close()


async def tabs(url: str, dashboard: Dashboard, addresses: list[str], what: str) -> None:
    until = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for address in addresses:
            tasks.create_task(watch(dashboard, address, until))
        await asyncio.sleep(5)
        began, before = time.monotonic(), await statements(url)
        await asyncio.sleep(SECONDS)
        rate = (await statements(url) - before) / (time.monotonic() - began)
        until.set()
    print(f"{rate:8.1f} statements a second  {len(addresses)} tabs, {what}", flush=True)


async def main(url: str) -> None:
    async with loaded(url) as app:
        dashboard = Dashboard(app)
        found = [*await app.jobs(limit=TABS)]
        failed = [*await app.jobs(status="failed", limit=10)]
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/") as client:
            print("  median       worst  page")
            for page in PAGES:
                path = page.path.lstrip("/").replace("{id}", str(failed[0].id))
                if "{" not in path:
                    await measure(client, dashboard, path + ("?q=x" if path == "find" else ""))
            for path in ("jobs?status=failed", "jobs?status=pending", f"jobs?after={found[-1].id}", *HOSTILE):
                await measure(client, dashboard, path)
        lists = [page.path for page in PAGES if "{" not in page.path and page.path != "/find"]
        await tabs(url, dashboard, [lists[n % len(lists)] for n in range(TABS)], "over all lists")
        await tabs(url, dashboard, [f"/jobs/{one.id}" for one in found], "each another job")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
