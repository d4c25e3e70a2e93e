"""How long to leave the database alone between batches of what is pruned."""

import math

from onward.worker.pruning import Pace


def test_what_has_piled_up_takes_its_time_while_it_becomes_less() -> None:
    pace = Pace(40.0)

    for lag in (math.inf, 9_000.0, 8_000.0, 7_999.0):
        pace.after_round(lag=lag, is_done=False)

    assert pace.rest == 40.0


def test_rests_become_shorter_while_chains_end_faster_than_they_are_pruned_until_that_is_caught_up() -> None:
    pace, rests = Pace(40.0), list[float]()

    for lag in (60.0, 90.0, 110.0, 100.0, 20.0):
        pace.after_round(lag=lag, is_done=False)
        rests.append(pace.rest)
    pace.after_round(lag=10.0, is_done=True)

    assert rests == [40.0, 20.0, 10.0, 10.0, 10.0]
    assert pace.rest == 40.0


def test_rests_have_an_end() -> None:
    pace = Pace(40.0)

    for lag in range(20):
        pace.after_round(lag=float(lag), is_done=False)

    assert pace.rest == 4.0
