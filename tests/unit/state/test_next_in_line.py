"""What takes have seen in line is of use as long as others leave enough of it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from onward.model import JobId, new_id
from onward.state.contract import TypeClaim
from onward.state.next_in_line import NextInLine
from onward.state.postgres.adapter import PostgresState

UNTIL = datetime(2030, 1, 1, tzinfo=UTC)
LIMIT = 10


def seen(line: NextInLine, count: int) -> list[JobId]:
    ids: list[JobId] = [new_id() for _ in range(count)]
    line.saw(ids, rank=0, until=UNTIL, limit=LIMIT)
    return ids


def test_what_was_seen_is_tried_in_order_until_less_than_a_take_is_left() -> None:
    line = NextInLine()
    ids = seen(line, 25)

    tried = []
    for first in (0, 10):
        tried.append(line.to_try(LIMIT))
        line.tried(tried[-1], last=ids[first + LIMIT - 1], limit=LIMIT)

    assert tried == [ids[:20], ids[10:]]
    assert line.to_try(LIMIT) == ()
    assert line.to_try(1) == ()  # and is not come back to


def test_as_many_more_are_tried_as_others_took_the_last_time() -> None:
    line = NextInLine()
    ids = seen(line, 100)

    line.tried(line.to_try(LIMIT), last=ids[14], limit=LIMIT)

    assert line.to_try(LIMIT) == ids[15:45]


def test_where_others_take_too_many_it_is_not_looked_so_far_for_a_while_and_then_for_longer() -> None:
    line, rests = NextInLine(), list[int]()

    for _ in range(3):
        while not line.to_try(LIMIT):
            seen(line, 100)
        line.tried(line.to_try(LIMIT), last=None, limit=LIMIT)
        rests.append(0)
        while line.takes_ahead == 1:
            seen(line, 100)
            rests[-1] += 1

    assert rests == [2, 4, 8]


def test_where_others_take_much_more_it_is_not_looked_so_far_for_a_while() -> None:
    line = NextInLine()
    ids = seen(line, 300)

    line.tried(ids[:90], last=ids[79], limit=LIMIT)
    assert len(line.to_try(LIMIT)) == 160
    line.tried(ids[80:], last=ids[160], limit=LIMIT)

    assert line.to_try(LIMIT) == ()
    assert line.takes_ahead == 1


def test_what_is_too_little_for_all_who_take_is_not_tried() -> None:
    line = NextInLine()
    ids = seen(line, 100)
    line.tried(line.to_try(LIMIT), last=ids[17], limit=LIMIT)  # eight were gone

    line.forget()
    seen(line, 17)

    assert line.to_try(LIMIT) == ()
    assert line.takes_ahead == 1


def test_where_somebody_took_too_many_once_it_is_tried_again() -> None:
    line = NextInLine()
    seen(line, 100)
    line.tried(line.to_try(LIMIT), last=None, limit=LIMIT)

    looks = 0
    while not line.to_try(LIMIT):
        looks += 1
        seen(line, 25)

    assert looks < 20


class Nothing:
    """A connection to a database in which nothing waits."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    async def fetch(self, _: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.asked.append(parameters)
        return [(*[None] * 18, False, None, None)]


async def test_with_ageing_it_is_looked_no_further_than_for_one_take() -> None:
    connection, state = Nothing(), PostgresState()
    types = [TypeClaim(f"type-{n}", 1, 60.0, expected=10.0) for n in range(12)]

    for ageing, line in ((None, None), (60.0, NextInLine()), (None, NextInLine())):
        take: Any = state.take(types=types, limit=LIMIT, worker="w", ageing=ageing, next_in_line=line)
        await take.take(cast(Any, connection))

    plain, aged, ahead = [asked["firsts"][0] for asked in connection.asked]
    assert plain == aged < ahead
