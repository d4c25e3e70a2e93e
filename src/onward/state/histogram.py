"""How long things take, counted in buckets, each wider than the one before by eight hundredths: they add up."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from datetime import timedelta
from typing import TypeAlias

from onward.operating import Spread

Histogram: TypeAlias = dict[int, int]
"""How many there are, by the number of their bucket."""
_WIDER = 1.08
_PER_BUCKET = 1 / math.log(_WIDER)
_SHORTEST, _LONGEST = 1e-6, 1e9


def histogram_of(seconds: Iterable[float]) -> Histogram:
    """How many are in which bucket. Without a step of Python's for each: busy workers count thousands.

    >>> histogram_of([1.0, 60.0, 1.05, 60.0])
    {0: 1, 1: 1, 54: 2}
    """
    ordered, counted = sorted(seconds), 0
    found: Histogram = {}
    while counted < len(ordered):
        bucket = math.ceil(math.log(min(max(ordered[counted], _SHORTEST), _LONGEST)) * _PER_BUCKET)
        end = bisect_right(ordered, _WIDER**bucket, counted + 1)
        found[bucket] = found.get(bucket, 0) + end - counted
        counted = end
    return found


def add_up(into: Histogram, more: Histogram) -> None:
    """Count what is in one in another."""
    for bucket, count in more.items():
        into[bucket] = into.get(bucket, 0) + count


def spread_of(histogram: Histogram) -> Spread | None:
    """What half, 95 and 99 in a hundred took at most, to within four hundredths; None: there was nothing.

    >>> spread_of(histogram_of([1.0] * 98 + [60.0] * 2)).p50.total_seconds()
    0.961538
    """
    buckets, total = sorted(histogram.items()), sum(histogram.values())
    if not total:
        return None
    found: list[timedelta] = []
    below, shares = 0, [0.5, 0.95, 0.99]
    for bucket, count in buckets:
        below += count
        while len(found) < len(shares) and below >= shares[len(found)] * total:
            # In the middle, so that it is off by as much either way.
            found.append(timedelta(seconds=2 * _WIDER**bucket / (_WIDER + 1)))
    return Spread(p50=found[0], p95=found[1], p99=found[2])
