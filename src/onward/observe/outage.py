"""Failures that repeat, as one thing that begins and ends: it is logged twice, however long it lasts."""

import threading
import time
from collections.abc import Callable

_STALE = 10.0
"""Seconds after which something that failed and was not tried again no longer keeps an outage going."""


class Outage:
    """What does not work at present, by what was being done. For any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._failed_at: dict[str, float] = {}
        self._since = 0.0
        self._failures = 0
        self.is_on = False
        """Whether anything failed that has not worked since."""

    def failed(self, doing: str) -> bool:
        """Note a failure; whether it is the first of an outage."""
        with self._lock:
            is_first, now = not self._failed_at, self._now()
            if is_first:
                self._since, self._failures = now, 0
            self._failures += 1
            self._failed_at[doing] = now
            self.is_on = True
            return is_first

    def worked(self, doing: str | None = None) -> tuple[float, int] | None:
        """Note that something works, or everything; if that ends an outage, how long it was and how many failures."""
        with self._lock:
            if not self._failed_at:
                return None
            now = self._now()
            self._failed_at = {
                other: at
                for other, at in self._failed_at.items()
                if doing is not None and other != doing and at > now - _STALE
            }
            self.is_on = bool(self._failed_at)
            return None if self.is_on else (now - self._since, self._failures)
