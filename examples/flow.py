"""A flow on Redis: an application for access is checked, then granted or rejected.

Needs `pip install 'onward[redis]'` and a Redis at REDIS_URL, or at redis://127.0.0.1:6379.
Run it: python examples/flow.py
It prints:
    ann: granted key-ann-30
    tim: rejected, too young
    found again: done
"""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

from onward.flow import Flow, Goto

REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")


@dataclass
class Request:
    user: str
    age: int


@dataclass
class Checked:
    score: int


@dataclass
class Grant:
    """What the grant stage asks for: a field of the request, and one that the check adds."""

    user: str
    score: int


@dataclass
class Decided:
    decision: str


@dataclass
class Rejected:
    reason: str


flow = Flow("access", REDIS, input=Request, index=["user"], keep=timedelta(seconds=10))


@flow.stage("access.check", next="access.grant", goto=["access.reject"], max_retries=3)
async def check(job: Request) -> Checked | Goto[Rejected]:
    if job.age < 18:
        return Goto("access.reject", Rejected("too young"))
    return Checked(job.age)


@flow.stage("access.grant", timeout=timedelta(seconds=10))
async def grant(job: Grant) -> Decided:
    return Decided(f"granted key-{job.user}-{job.score}")


@flow.stage("access.reject")
def reject(job: Rejected) -> Decided:  # a plain function runs in a thread
    return Decided(f"rejected, {job.reason}")


async def main() -> None:
    async with flow, flow.workers(2):
        for user, age in [("ann", 30), ("tim", 9)]:
            job_id = await flow.start(Request(user, age), correlation_id=f"request-of-{user}")
            job = await flow.wait(job_id, timeout=timedelta(seconds=10))
            print(f"{user}: {job.read(Decided).decision}")
        found = [job.status for user in ("ann", "tim") for job in await flow.find("user", user)]
        print("found again:", found[0])


if __name__ == "__main__":
    asyncio.run(main())
