"""Who is asked, and told, what."""

import logging

import pytest

from onward.observe import events, observer
from onward.observe.events import Event
from onward.observe.logs import LogObserver
from onward.observe.observer import Observers

STOPPED = events.WorkerStopped(worker="w")


def test_the_level_is_that_of_the_logger_when_something_happens(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("onward.test_observers")
    logger.setLevel(logging.WARNING)
    observers = Observers([LogObserver(logger)])  # as modules do, before anybody has set up logging
    caplog.set_level(logging.INFO, logger.name)

    observers.emit(STOPPED)
    assert observers.wants(events.WorkerStopped)
    assert [record.message for record in caplog.records] == ["WorkerStopped worker=w"]

    monkeypatch.setattr(observer, "_ASK_AGAIN", 0.0)
    caplog.set_level(logging.WARNING, logger.name)
    assert not observers.wants(events.WorkerStopped)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_an_observer_raises_goes_no_further(caplog: pytest.LogCaptureFixture, error: type[BaseException]) -> None:
    class Broken:
        def wants(self, kind: type[Event]) -> bool:
            if kind is events.WorkerStarted:
                raise error
            return True

        def observe(self, event: Event) -> None:
            raise error

    observers = Observers([Broken()])

    observers.emit(STOPPED)

    assert "failed on WorkerStopped" in caplog.text
    assert not observers.wants(events.WorkerStarted)
