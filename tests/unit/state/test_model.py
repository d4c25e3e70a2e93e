"""The values that rows are made of."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.model import Backoff, new_id, new_ids


def test_the_default_backoff_doubles_from_ten_seconds_to_five_minutes() -> None:
    delays = [Backoff().delay(failures).total_seconds() for failures in range(1, 9)]

    assert delays == [10, 20, 40, 80, 160, 300, 300, 300]


@pytest.mark.parametrize("failures", [0, -1, 1])
def test_the_first_delay_is_the_initial_one(failures: int) -> None:
    assert Backoff(initial=timedelta(seconds=3)).delay(failures) == timedelta(seconds=3)


@given(failures=st.integers(0, 10**9), factor=st.floats(1.0, 100.0))
def test_no_number_of_failures_waits_longer_than_the_maximum(failures: int, factor: float) -> None:
    backoff = Backoff(factor=factor, maximum=timedelta(minutes=1))

    assert timedelta(seconds=10) <= backoff.delay(failures) <= timedelta(minutes=1)


@given(failures=st.integers(1, 100), jitter=st.floats(0.0, 1.0))
def test_jitter_spreads_the_delay_to_both_sides(failures: int, jitter: float) -> None:
    plain = Backoff().delay(failures)

    delay = Backoff(jitter=jitter).delay(failures)

    assert abs(delay - plain) <= plain * (jitter / 2) + timedelta(microseconds=1)


def test_jitter_makes_delays_differ() -> None:
    delays = {Backoff(jitter=0.5).delay(3) for _ in range(50)}

    assert len(delays) > 10


def test_ids_of_one_batch_ascend() -> None:
    ids = new_ids(10_000)

    assert ids == sorted(ids)
    assert len(set(ids)) == 10_000


def test_ids_are_uuids_of_version_7() -> None:
    assert {(id.version, id.variant) for id in new_ids(100)} == {(7, "specified in RFC 4122")}


def test_ids_of_later_batches_sort_after_those_of_earlier_ones() -> None:
    batches = [new_ids(3) for _ in range(1000)]

    heads = [batch[0].int >> 64 for batch in batches]

    assert heads == sorted(heads)


def test_no_two_ids_are_the_same() -> None:
    ids = [new_id() for _ in range(20_000)]

    assert len(set(ids)) == len(ids)


def test_no_ids_are_an_empty_batch() -> None:
    assert new_ids(0) == []
