"""Taking goes on where it ended, and no job is forgotten behind that point."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from onward.model import new_id
from onward.state.contract import Position, TakenJob, TypeClaim
from onward.state.next_in_line import NextInLine
from onward.worker import maintenance
from onward.worker.maintenance import TakeCursor

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
CLAIMS = [TypeClaim("a", 1, 60.0), TypeClaim("b", 2, 60.0)]


class Backlog:
    """Waiting jobs, taken in order: in place of a database and of what asks it."""

    def __init__(self, *jobs: tuple[str, int, int]) -> None:
        self.waiting = [job_at(*job) for job in jobs]
        self.asked: list[dict[str, Position | None]] = []
        self.told: list[tuple[float | None, ...]] = []
        self.seen: list[int] = []
        """How many jobs takes were told of that earlier ones had seen."""

    def take(
        self, *, types: Sequence[TypeClaim], limit: int, next_in_line: NextInLine, **_: Any
    ) -> tuple[Sequence[TypeClaim], int]:
        self.seen.append(len(next_in_line.to_try(limit)))
        next_in_line.saw([new_id()] * limit, rank=0, until=BEGAN, limit=limit)
        return types, limit

    async def run(self, asked: tuple[Sequence[TypeClaim], int]) -> Sequence[TakenJob]:
        types, limit = asked
        self.asked.append({claim.type_name: claim.after for claim in types})
        self.told.append(tuple(claim.expected for claim in types))
        onward = self.asked[-1]
        found = [job for job in self.waiting if not passed_over(job, onward[job.type_name])]
        taken = sorted(found, key=lambda job: (job.rank, job.scheduled_at))[:limit]
        self.waiting = [job for job in self.waiting if job not in taken]
        return taken


def passed_over(job: TakenJob, onward: Position | None) -> bool:
    return onward is not None and job.rank == onward.rank and job.scheduled_at < onward.scheduled_at


def job_at(type_name: str, rank: int, second: int) -> TakenJob:
    id, version = new_id(), {"a": 1, "b": 2}[type_name]
    at = BEGAN + timedelta(seconds=second)
    return TakenJob(id, id, 0, type_name, version, "1", 1, 0, 0, 0, rank, id, None, 0, at, at)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(maintenance.time, "monotonic", lambda: now[0])
    return now


async def test_a_full_take_is_followed_by_one_from_there(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(6)], *[("b", 1, n) for n in range(6)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS)

    taken = [await taking.take(cast(Any, backlog), 4) for _ in range(2)]

    assert [[(j.type_name, j.scheduled_at.second) for j in each] for each in taken] == [
        [("a", 0), ("a", 1), ("a", 2), ("a", 3)],
        [("a", 4), ("a", 5), ("b", 0), ("b", 1)],
    ]
    assert backlog.asked == [
        {"a": None, "b": None},
        {"a": Position(0, BEGAN + timedelta(seconds=3)), "b": None},
    ]


async def test_a_take_of_many_types_is_told_what_to_expect_of_each(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(6)], *[("b", 1, n) for n in range(6)])
    taking = TakeCursor(cast(Any, backlog), "worker", [*CLAIMS, *(TypeClaim(f"other-{n}", 1, 60.0) for n in range(7))])

    for limit in (4, 4, 8):
        await taking.take(cast(Any, backlog), limit)

    # All of the first was of one type, half of the second. The third found too little, and was completed.
    assert [told[:2] for told in backlog.told] == [(None, None), (4.0, 0.0), (7.0, 1.0), (3.5, 0.5)]


async def test_where_jobs_are_not_taken_by_rank_every_take_begins_at_the_beginning(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(12)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS, 60.0)

    for _ in range(3):
        await taking.take(cast(Any, backlog), 4)

    assert backlog.asked == [{"a": None, "b": None}] * 3


async def test_less_than_asked_for_is_completed_from_the_beginning(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(2, 6)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS)
    await taking.take(cast(Any, backlog), 3)
    late = job_at("a", 0, 1)
    backlog.waiting.append(late)

    taken = await taking.take(cast(Any, backlog), 3)

    assert [job.scheduled_at.second for job in taken] == [5, 1]


async def test_a_job_behind_is_found_in_a_while_though_the_backlog_never_ends(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(2, 60)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS)
    await taking.take(cast(Any, backlog), 2)
    late = job_at("a", 0, 1)
    backlog.waiting.append(late)

    before = [*await taking.take(cast(Any, backlog), 2), *await taking.take(cast(Any, backlog), 2)]
    clock[0] += 0.3
    after = await taking.take(cast(Any, backlog), 2)

    assert (late in before, late in after) == (False, True)


async def test_a_take_that_begins_at_the_beginning_goes_by_nothing_that_was_seen_before(clock: list[float]) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(60)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS)

    for pause in (0.0, 0.0, 0.3, 0.0):
        clock[0] += pause
        await taking.take(cast(Any, backlog), 2)

    assert backlog.seen == [0, 2, 0, 2]


async def test_where_looking_back_takes_long_it_is_done_less_often(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = Backlog(*[("a", 0, n) for n in range(60)])
    taking = TakeCursor(cast(Any, backlog), "worker", CLAIMS)

    async def slow(asked: tuple[Sequence[TypeClaim], int]) -> Sequence[TakenJob]:
        clock[0] += 0.1 if not any(claim.after for claim in asked[0]) else 0.001
        return await Backlog.run(backlog, asked)

    monkeypatch.setattr(backlog, "run", slow)
    for _ in range(20):
        await taking.take(cast(Any, backlog), 2)
        clock[0] += 0.09

    assert sum(1 for asked in backlog.asked if asked["a"] is None) == 1
