"""When an outage begins, and when it is over."""

from onward.observe.outage import Outage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_lasts_from_the_first_failure_until_everything_has_worked_again() -> None:
    clock = Clock()
    outage = Outage(clock)

    assert [outage.failed(doing) for doing in ("take", "settle", "take")] == [True, False, False]
    clock.now += 5
    assert outage.worked("take") is None
    assert outage.is_on
    assert outage.worked("read") is None
    assert outage.worked("settle") == (5.0, 3)

    assert not outage.is_on
    assert outage.worked("settle") is None
    assert outage.failed("take")


def test_what_nobody_tries_again_does_not_keep_it_going() -> None:
    clock = Clock()
    outage = Outage(clock)
    outage.failed("start")  # the caller gave up
    outage.failed("take")

    clock.now += 11

    assert outage.worked("take") == (11.0, 2)


def test_everything_may_work_at_once() -> None:
    outage = Outage(Clock())
    outage.failed("listen")
    outage.failed("announce")

    assert outage.worked() == (0.0, 2)
