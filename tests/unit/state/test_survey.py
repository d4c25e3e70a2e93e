"""How far jobs are counted, by how long that takes."""

from typing import Any

import pytest

from onward.state.survey import Counting, Whereabouts

MOST = 10_000


def found(*pending: str) -> list[Any]:
    return [("now", None, 7.0), *(("pending", name, 1.0) for name in pending)]


def counted(counting: Counting, jobs: dict[str, int], *, took: float) -> None:
    """As a database would that has so many."""
    rows = [
        (kind, name, name, min(jobs[name], counting.reached), None)
        for kind, names in counting.names.items()
        for name in names
    ]
    counting.count(rows, took)


def test_where_nothing_is_cut_off_one_look_is_enough_and_all_is_exact() -> None:
    counting = Counting(found("mail", "ship"), most=MOST, within=0.01)

    counted(counting, {"mail": 2, "ship": 2499}, took=1.0)

    assert counting.is_done
    assert counting.survey().most == MOST
    assert counting.survey().types == {
        "mail": Whereabouts(pending=2, oldest=1.0), "ship": Whereabouts(pending=2499, oldest=1.0)
    }  # fmt: skip


def test_what_goes_on_is_counted_further_while_there_is_time() -> None:
    jobs, looks = {"mail": 10**6, "ship": 3}, 0
    counting = Counting(found(*jobs), most=MOST, within=0.01)

    while not counting.is_done:
        assert looks == 0 or counting.names["pending"] == ["mail"]
        counted(counting, jobs, took=0.001)
        looks += 1

    assert looks == 3
    assert counting.survey().most == MOST
    assert {name: one.pending for name, one in counting.survey().types.items()} == {"mail": MOST, "ship": 3}


def test_what_was_at_hand_says_little_of_how_long_the_rest_takes() -> None:
    jobs = {f"type-{n}": 10**6 for n in range(100)}
    counting = Counting(found(*jobs), most=MOST, within=0.02)

    for took in (0.001, 0.008):  # twice as many take eight times as long
        counted(counting, jobs, took=took)

    assert counting.is_done
    assert counting.survey().most == 100


def test_where_it_takes_long_counting_ends_after_so_many_rows_in_all() -> None:
    jobs = {f"type-{n}": 10**6 for n in range(100)}
    counting, rows = Counting(found(*jobs), most=MOST, within=0.01), 0

    while not counting.is_done:
        rows += counting.reached * len(counting.names["pending"])
        counted(counting, jobs, took=1.0)

    assert rows <= 10_000
    assert counting.survey().most == 50
    assert all(one.pending == 50 for one in counting.survey().types.values())


def test_who_asks_for_so_many_has_them_counted_in_one_look() -> None:
    counting = Counting(found("mail"), most=1_000_000, within=None)

    counted(counting, {"mail": 2_000_000}, took=60.0)

    assert counting.is_done
    assert counting.survey().types["mail"].pending == counting.survey().most == 1_000_000


@pytest.mark.parametrize("within", [0.01, None])
def test_of_many_types_a_few_of_each_are_counted(within: float | None) -> None:
    counting = Counting(found(*(f"type-{n}" for n in range(10_000))), most=MOST, within=within)

    assert counting.reached == (10 if within else MOST)


def test_what_limits_hold_is_pending_and_counted_by_limit() -> None:
    counting = Counting([*found("mail"), ("held", "few", None)], most=5, within=None)

    rows = [("pending", "mail", "mail", 1, None), ("held", "few", "mail", 2, 9.0), ("held", "few", "call", 3, -1.0)]
    counting.count([*rows, ("held", "few", b"spoiled", 1, 2.0)], 0.0)

    assert counting.survey().types == {
        "mail": Whereabouts(pending=3, oldest=9.0), "call": Whereabouts(pending=3, oldest=0.0)
    }  # fmt: skip
