"""What an adapter found to stand in the way of a change, as the error to raise: the same for every adapter."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from onward.errors import (
    BlockersDeleted,
    BlockerStillFailed,
    ChainNotFailed,
    ChainNotFound,
    JobAlreadyCompleted,
    JobNotFound,
    JobTakenByAnotherWorker,
    KeyInUse,
    TransactionUnsuitable,
)
from onward.model import ChainId, JobId, JobStatus, WorkerId

PROBLEMS: frozenset[str] = frozenset(
    {"isolation", "missing", "not_failed", "key_taken", "blocker_deleted", "blocker_failed"}
)


class Problem(NamedTuple):
    """Why a chain cannot be changed as asked."""

    kind: str
    chain_id: ChainId
    other: ChainId | None = None
    """The chain that is in the way."""


def refuse(problems: Sequence[Problem]) -> None:
    """Raise the first and gravest of the problems, if there is one."""
    by_kind: dict[str, list[Problem]] = {}
    for problem in sorted(set(problems)):
        by_kind.setdefault(problem.kind, []).append(problem)
    if "isolation" in by_kind:
        raise TransactionUnsuitable(
            "deduplication is not safe in a REPEATABLE READ transaction, which cannot see a chain that was just "
            "started elsewhere: use READ COMMITTED or SERIALIZABLE"
        )
    if missing := by_kind.get("missing"):
        raise ChainNotFound(_chains(missing))
    if alive := by_kind.get("not_failed"):
        raise ChainNotFailed(_chains(alive))
    if taken := by_kind.get("key_taken"):
        raise KeyInUse(taken[0].chain_id, _others(taken)[0])
    if lacking := by_kind.get("blocker_deleted"):
        raise BlockersDeleted(_chains(lacking))
    if failed := by_kind.get("blocker_failed"):
        first = failed[0].chain_id
        raise BlockerStillFailed(first, _others([problem for problem in failed if problem.chain_id == first]))


def _chains(problems: Sequence[Problem]) -> list[ChainId]:
    return [problem.chain_id for problem in problems]


def _others(problems: Sequence[Problem]) -> list[ChainId]:
    return [problem.other for problem in problems if problem.other is not None]


def refuse_lost(job_id: JobId, attempt: int, holder: WorkerId, rows: Sequence[Sequence[Any]]) -> None:
    """Raise AttemptLost unless the only row (attempt, holder, status), if there is one, is this attempt's."""
    if not rows:
        raise JobNotFound(job_id, attempt)
    if tuple(rows[0][:2]) != (attempt, holder):
        ended = rows[0][2] in (JobStatus.COMPLETED, JobStatus.FAILED)
        raise (JobAlreadyCompleted if ended else JobTakenByAnotherWorker)(job_id, attempt)
