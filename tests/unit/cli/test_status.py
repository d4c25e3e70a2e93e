"""What `onward status` shows."""

from datetime import UTC, datetime

from onward.cli.status import screen
from onward.operating import Stats, TypeStats


def test_a_sum_goes_on_only_where_a_count_does() -> None:
    stats = Stats(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        more_than=10,
        total=TypeStats(pending=13, failed=18),
        types={"mail": TypeStats(pending=10, failed=9), "ship": TypeStats(pending=3, failed=9)},
    )

    in_all, *types = [line.plain.split() for line in screen(stats, [])[4:]]

    assert in_all == ["in", "all", "0", "13+", "0", "0", "18"]
    assert types == [["mail", "0", "10+", "0", "0", "9"], ["ship", "0", "3", "0", "0", "9"]]
