"""How times are counted in buckets, each wider than the one before by eight hundredths."""

import random

import pytest

from onward.state.histogram import histogram_of


def test_each_value_is_counted_in_the_bucket_that_reaches_up_to_it() -> None:
    chance = random.Random(7)
    seconds = [chance.lognormvariate(-4, 2) for _ in range(2_000)] + [0.25] * 50

    together = histogram_of(seconds)

    assert sum(together.values()) == len(seconds)
    for bucket, count in together.items():
        lowest, highest = 1.08 ** (bucket - 1) * (1 - 1e-9), 1.08**bucket * (1 + 1e-9)
        assert sum(lowest < each <= highest for each in seconds) >= count


@pytest.mark.parametrize("seconds", [1.08**bucket for bucket in range(-100, 100)])
def test_a_value_between_two_buckets_is_in_one_of_them(seconds: float) -> None:
    assert sum(histogram_of([seconds, seconds, seconds]).values()) == 3


def test_what_is_beyond_all_buckets_is_in_the_last_of_its_side() -> None:
    assert histogram_of([-1.0, 0.0, 1e-6]) == histogram_of([1e-6] * 3)
    assert histogram_of([1e9, 2e9, 1e300]) == histogram_of([1e9] * 3)
    assert histogram_of([]) == {}
