"""What handlers say about how far they have come, written now and then for those who look."""

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from onward.errors import PhaseError
from onward.lifecycle.effects import describe, escaped
from onward.lifecycle.store import Store
from onward.model import JobId, Progress, WorkerId
from onward.observe import events
from onward.options import LONGEST_NOTE, cut, storable
from onward.state.contract import ProgressReport, Settlement
from onward.state.driver import Fault
from onward.worker.connections import Reserved

_EVERY = 0.25
_WRITING = "write progress"


def check_progress(fraction: object, note: object) -> None:
    """Raise PhaseError for what is no progress."""
    if not (isinstance(fraction, int | float) and math.isfinite(fraction) and 0.0 <= fraction <= 1.0):
        raise PhaseError(f"progress({fraction!r}): say a fraction from 0 to 1")
    if note is not None and not isinstance(note, str):
        raise PhaseError(f"progress({fraction!r}, note={note!r}): a note is text")


class ProgressBoard:
    """Collects reports, the newest of each job, and writes them with one statement at a time.

    May be called from any thread. A report that cannot be written is lost: the next one will do.
    """

    def __init__(self, store: Store, worker: WorkerId, reserved: Reserved) -> None:
        self._store, self._worker, self._reserved = store, worker, reserved
        self._reports: dict[JobId, ProgressReport] = {}
        self._writing: dict[JobId, ProgressReport] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def report(
        self,
        job_id: JobId,
        attempt: int,
        fraction: float,
        note: str | None,
        keep: Callable[[str], str] | None = None,
    ) -> None:
        """`keep` makes of a note what may be stored."""
        check_progress(fraction, note)
        note = note and storable(cut(note, LONGEST_NOTE))
        self._reports[job_id] = ProgressReport(job_id, attempt, float(fraction), keep(note) if note and keep else note)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Write reports until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._news.wait()
            self._news.clear()
            await self.write()
            await asyncio.sleep(_EVERY)

    def last_word(self, settlement: Settlement) -> Settlement:
        """The attempt ends, and with it the right to write: what it said last goes along with its settlement."""
        if settlement.progress is not None:
            return settlement  # it was asked before
        # One that is being written may come too late, so it is said again.
        report = self._reports.pop(settlement.job_id, None) or self._writing.get(settlement.job_id)
        if report is None or report.attempt != settlement.attempt:
            return settlement
        return msgspec.structs.replace(settlement, progress=Progress(report.fraction, report.note))

    async def write(self) -> None:
        """Write what there is."""
        self._writing, self._reports = self._reports, {}
        reports = list(self._writing.values())
        if not reports:
            return
        try:
            try:
                await self._write(reports)
            except Exception as error:
                if self._store.fault(error) is not Fault.VALUE:
                    raise
                # The note of one keeps nobody else's from being written.
                await self._write(
                    [msgspec.structs.replace(each, note=each.note and escaped(each.note)) for each in reports]
                )
        except Exception as error:  # noqa: BLE001 - one turn of a loop
            self._store.observers.emit(events.StateError(doing=_WRITING, error=describe(error)))
        else:
            self._store.observers.database_works(_WRITING)
        finally:
            self._writing = {}

    async def _write(self, reports: Sequence[ProgressReport]) -> None:
        await self._reserved.run(self._store.state.report_progress(worker=self._worker, reports=reports))
