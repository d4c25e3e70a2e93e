"""What must be true when the demo has ended, looked up in the shop's own tables and in Onward's."""

from collections.abc import Sequence
from dataclasses import dataclass

from onward import ChainHandle, CompletedJob, JobStatus, Onward
from onward.cli.demo.app import FLAKY
from onward.model import JobId


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, what was found, and whether that is so."""

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What the demo remembers of its run."""

    orders: Sequence[int]
    rolled_back: int
    chains: Sequence[ChainHandle[object]]
    lost: Sequence[JobId]
    """What the killed worker held."""
    heir: str
    stock: int
    exit_code: int


async def check_everything(app: Onward, facts: DemoRun) -> list[Check]:
    """Every check, in the order in which they are shown."""
    return [
        await _chains_completed(app, facts),
        await _once_each(app, facts, "payments", "Every order was paid exactly once"),
        await _once_each(app, facts, "shipments", "Every order was shipped exactly once"),
        await _rolled_back(app, facts),
        await _fan_in(app, facts),
        await _retried(app),
        await _taken_over(app, facts),
        Check("The other worker stopped cleanly", f"exit code {facts.exit_code}", facts.exit_code == 0),
    ]


async def _chains_completed(app: Onward, facts: DemoRun) -> Check:
    states = [(await chain.get()).status for chain in facts.chains]
    completed = states.count(JobStatus.COMPLETED)
    return Check("Every chain completed", f"{completed} of {len(states)} chains", completed == len(states))


async def _once_each(app: Onward, facts: DemoRun, table: str, claim: str) -> Check:
    statements = {
        "payments": "select order_id, count(*) from payments group by order_id order by order_id",
        "shipments": "select order_id, count(*) from shipments group by order_id order by order_id",
    }
    async with app.transaction() as tx:
        counts = {row[0]: row[1] for row in await tx.fetch(statements[table])}
    rows, twice = sum(counts.values()), sum(count > 1 for count in counts.values())
    holds = counts == dict.fromkeys(facts.orders, 1)
    return Check(claim, f"{rows} {table} of {len(facts.orders)} orders, {twice} twice", holds)


async def _rolled_back(app: Onward, facts: DemoRun) -> Check:
    inputs = [job.input["id"] for job in (await app.jobs(types=["orders.charge"], limit=1000)).items]
    left = inputs.count(facts.rolled_back)
    return Check("An order rolled back left no job", f"{left} jobs for order {facts.rolled_back}", left == 0)


async def _fan_in(app: Onward, facts: DemoRun) -> Check:
    async with app.transaction() as tx:
        stored = [row[0] for row in await tx.fetch("select stock from reports")]
    return Check(
        "The report waited for its blockers", f"stock {stored}, expected [{facts.stock}]", stored == [facts.stock]
    )


async def _retried(app: Onward) -> Check:
    fetches = (await app.jobs(types=["stock.fetch"])).items
    flaky = next(job for job in fetches if job.input == FLAKY)
    holds = flaky.failures >= 2 and flaky.status is JobStatus.COMPLETED
    return Check("The failing step was retried", f"{flaky.failures} failures, now {flaky.status}", holds)


async def _taken_over(app: Onward, facts: DemoRun) -> Check:
    jobs = [await app.find_job(job_id) for job_id in facts.lost]
    saved = [
        job for job in jobs if isinstance(job, CompletedJob) and (job.completed_by or "").startswith(f"{facts.heir}-")
    ]
    found = f"{len(saved)} of {len(facts.lost)}, by the other worker"
    return Check("The killed worker's jobs were finished", found, 0 < len(saved) == len(facts.lost))
