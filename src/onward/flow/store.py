"""Every step of a job's life as one call to Redis; what the scripts answer becomes values here."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from onward.errors import FlowFull, FlowJobExists, FlowKeysTaken
from onward.flow.keys import Keys, milliseconds
from onward.flow.server import Server
from onward.flow.stage import Stage
from onward.flow.views import FlowFailureReason, FlowJob, Positions, read_job, read_positions

Refusal = Literal["held", "moved", "missing"]
_PROMOTED_AT_ONCE = 1_000


class NewFlowJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job for `start.lua`, or a child for `complete.lua`."""

    id: str
    stage: str
    attributes: dict[str, str]
    facts: dict[str, str]
    delay: int | None = None


class StageOutcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a handler's return value means for the job; see `complete.lua`."""

    attributes: dict[str, str]
    next: str | None = None
    delay: int | None = None
    result: str | None = None
    children: list[NewFlowJob] | None = None
    collect_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLease:
    """A job that is locked for a worker."""

    stage: str
    job_id: str
    worker: str
    claim: str
    """Fences: every lock of a job has another number, and who settles names his."""
    retries: int
    stalls: int
    correlation_id: str
    is_child: bool
    attributes: Mapping[str, str]
    locked_at: float
    """By the clock of the event loop, and not later than Redis set the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a look at a stage that is taken from by script brought."""

    job_id: str | None
    line_moves_in: float | None
    """Seconds until the rate of the stage lets another job begin; None when none waits for that."""
    put_off: Sequence[str]
    """Jobs that have to wait for the rate from now on."""


class Ended(NamedTuple):
    """A job that was ended by a script."""

    job_id: str
    status: Literal["done", "failed"]
    stage: str
    reason: FlowFailureReason
    message: str
    correlation_id: str


class Settled(NamedTuple):
    """What became of a claim, and the jobs that ended with that: the job itself, its parents."""

    answer: Literal["completed", "retried", "failed", "lost"]
    ended: Sequence[Ended]


class Recovered(NamedTuple):
    """What the janitor did about one job."""

    what: Literal["stalled", "taken-back", "missing"]
    job_id: str
    stage: str
    worker: str
    stalls: int
    runs_again: int
    correlation_id: str


class FlowStore:
    """The flow in Redis."""

    def __init__(self, flow: str, server: Server, keys: Keys, settings: str) -> None:
        self._flow, self.server, self._keys, self._settings = flow, server, keys, settings

    async def open(self) -> None:
        """Refuse keys that are somebody else's, and note that the queues are ours."""
        match await self._run("open", ""):
            case ["occupied", key, found, needed]:
                raise FlowKeysTaken(
                    self._flow,
                    key=key,
                    owner=f"is a {found} and should be a {needed}",
                    advice="another program uses that name; rename the stage, or use another database of Redis",
                )
            case ["taken", stage, owner]:
                raise FlowKeysTaken(
                    self._flow,
                    key=self._keys.queue(stage, "waiting"),
                    owner=f"belongs to flow {owner!r}",
                    advice="queues of one server have different names; rename the stage, or use another database",
                )

    async def start(self, jobs: Sequence[NewFlowJob], *, max_waiting: int | None) -> None:
        """All of them or none."""
        texts = [msgspec.json.encode(job).decode() for job in jobs]
        match await self._run("start", jobs[0].id, "" if max_waiting is None else max_waiting, *texts):
            case ["exists", job_id]:
                raise FlowJobExists(self._flow, job_id)
            case ["full", waiting]:
                raise FlowFull(self._flow, stage=jobs[0].stage, waiting=waiting, limit=max_waiting or 0)

    async def take(self, stage: Stage, wait: float) -> str | None:
        """Move the next job to the processing list, waiting for one; the id, or None when the time is up."""
        waiting, processing = (self._keys.queue(stage.name, part) for part in ("waiting", "processing"))
        taken = await self.server.execute("BLMOVE", waiting, processing, "LEFT", "RIGHT", wait)
        return None if taken is None else str(taken)

    async def take_by_script(self, stage: Stage) -> Taken:
        """Move the next job of a stage with priorities or a rate to the processing list, if there is one now."""
        job_id, milliseconds, put_off = await self._run("take", "", stage.name)
        return Taken(
            job_id=job_id or None, line_moves_in=None if milliseconds < 0 else milliseconds / 1000, put_off=put_off
        )

    async def wait_for_wake(self, stage: Stage, wait: float) -> None:
        """Until such a stage may have a job, or the time is up."""
        await self.server.execute("BLPOP", self._keys.queue(stage.name, "wake"), wait)

    async def claim(self, stage: Stage, names: Sequence[str], job_id: str, worker: str) -> StageLease | Refusal:
        """Lock a job that was taken. Asked again, the answer is the same."""
        locked_at = asyncio.get_running_loop().time()
        answer = await self._run("claim", job_id, stage.name, job_id, worker, milliseconds(stage.lock), *names)
        if answer[0] != "claimed":
            refusal: Refusal = answer[0]
            return refusal
        _, claim, retries, stalls, correlation_id, is_child, values = answer
        return StageLease(
            stage=stage.name,
            job_id=job_id,
            worker=worker,
            claim=claim,
            retries=int(retries),
            stalls=int(stalls),
            correlation_id=correlation_id,
            is_child=is_child == "1",
            attributes={name: value for name, value in zip(names, values, strict=True) if value is not None},
            locked_at=locked_at,
        )

    async def renew(self, lease: StageLease, stage: Stage) -> bool:
        return bool(await self._settle("renew", lease, milliseconds(stage.lock)))

    async def complete(self, lease: StageLease, outcome: StageOutcome) -> Settled:
        return _settled(await self._settle("complete", lease, msgspec.json.encode(outcome).decode()))

    async def fail(self, lease: StageLease, message: str, *, permanent: bool) -> Settled:
        return _settled(await self._settle("fail", lease, message, "1" if permanent else "0", random.random()))

    async def release(self, lease: StageLease) -> bool:
        return bool(await self._settle("release", lease))

    async def release_unrun(self, stage: Stage, job_id: str, worker: str) -> None:
        """Give back what a claim may have locked whose answer is not known."""
        await self._run("release", job_id, stage.name, job_id, worker, "")

    async def promote(self) -> float | None:
        """Make ready what is due; the seconds until the next one is."""
        soonest = await self._run("promote", "", _PROMOTED_AT_ONCE)
        return None if soonest < 0 else soonest / 1000

    async def recover(self, *, patience: float) -> tuple[list[Recovered], list[Ended]]:
        """Take back jobs whose workers are gone; what was done, and the jobs that ended with that."""
        rows, ended = await self._run("recover", "", int(patience * 1000))
        return [Recovered(*row) for row in rows], [Ended(*row) for row in ended]

    async def retry(self, job_id: str, token: str) -> str | None:
        """Put a failed job back; the stage, or None. Asked again with the token, nothing changes."""
        return str(await self._run("retry", job_id, job_id, token)) or None

    async def delete(self, job_id: str) -> tuple[int, list[Ended]]:
        """How many jobs are gone, and those that ended because of it."""
        removed, ended = await self._run("delete", job_id, job_id)
        return int(removed), [Ended(*row) for row in ended]

    async def positions(self, order: Sequence[str], limit: int) -> Positions:
        """Of the stages in this order, and then of jobs that have ended."""
        rows = await self._run("positions", "", limit)
        return read_positions(sorted(rows, key=lambda row: order.index(row[0]) if row[0] else len(order)))

    async def get(self, job_id: str) -> FlowJob | None:
        stored = await self.server.execute("HGETALL", self._keys.job(job_id))
        return read_job(self._flow, job_id, stored) if stored else None

    async def find(self, attribute: str, value: str, limit: int) -> list[FlowJob]:
        ids = await self.server.execute("ZRANGE", self._keys.index(attribute, value), 0, limit - 1)
        found = [await self.get(str(job_id)) for job_id in ids]
        return [job for job in found if job is not None]

    async def _settle(self, script: str, lease: StageLease, *arguments: str | int | float) -> Any:
        return await self._run(script, lease.job_id, lease.stage, lease.job_id, lease.worker, lease.claim, *arguments)

    async def _run(self, script: str, job_id: str, *arguments: str | int | float) -> Any:
        return await self.server.script(script, self._keys.job(job_id), self._settings, *arguments)


def _settled(answer: list[Any]) -> Settled:
    word, ended = answer
    return Settled(word, [Ended(*row) for row in ended])
