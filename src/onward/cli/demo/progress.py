"""How far the demo has come: read from the database, shown live on a terminal and line by line elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onward import CompletedJob, Job, JobStatus, Onward, RunningJob
from onward.cli.demo.workers import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One kind of job: how many there will be, and how many are in which state."""

    label: str
    total: int
    counts: Counter[JobStatus]
    failures: int

    @property
    def done(self) -> int:
        return self.counts[JobStatus.COMPLETED]

    @property
    def words(self) -> str:
        open_states = (JobStatus.RUNNING, JobStatus.PENDING, JobStatus.BLOCKED, JobStatus.FAILED)
        words = [f"{self.counts[state]} {state}" for state in open_states if self.counts[state]]
        if self.failures:
            words.append(f"failed attempts: {self.failures}")
        return ", ".join(words)


LABELS = {
    "orders.charge": "charge an order",
    "orders.ship": "ship it",
    "stock.fetch": "ask a warehouse",
    "stock.report": "add up the stock",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every job of the demo at one moment."""

    jobs: Sequence[Job]

    @classmethod
    async def read(cls, app: Onward) -> "Snapshot":
        return cls((await app.jobs(limit=1000)).items)

    def of_type(self, name: str) -> list[Job]:
        return [job for job in self.jobs if job.type_name == name]

    def completed(self, name: str) -> int:
        return sum(isinstance(job, CompletedJob) for job in self.of_type(name))

    def held_by(self, worker: str) -> list[RunningJob]:
        return [job for job in self.jobs if isinstance(job, RunningJob) and job.leased_by.startswith(f"{worker}-")]

    def lines(self, totals: dict[str, int]) -> list[Line]:
        return [self._line(name, total) for name, total in totals.items()]

    def _line(self, name: str, total: int) -> Line:
        jobs = self.of_type(name)
        counts = Counter(job.status for job in jobs)
        return Line(label=LABELS[name], total=total, counts=counts, failures=sum(job.failures for job in jobs))


@dataclass
class Display:
    """Shows lines, workers and what happened. On a terminal it is redrawn in place; elsewhere news are printed."""

    console: Console
    totals: dict[str, int]
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    _news: list[str] = field(default_factory=list[str])
    _lines: list[Line] = field(default_factory=list[Line])
    _live: Live | None = None
    _began: float = field(default_factory=time.monotonic)
    _printed_at: float = 0.0
    _printed: str = ""

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, news: str) -> None:
        """Something happened."""
        self._news.append(f"{self._seconds:5.1f} s  {news}")
        if self._live is None:
            self.console.print(self._news[-1], markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """The state of things; without a terminal it is told at most once a second, and only when it changed."""
        self._lines = snapshot.lines(self.totals)
        if self._live is None and self._seconds - self._printed_at >= 1.0:
            words = ", ".join(f"{line.label} {line.done}/{line.total}" for line in self._lines)
            if words != self._printed:
                self._printed_at, self._printed = self._seconds, words
                self.console.print(f"{self._seconds:5.1f} s  {words}", markup=False, highlight=False, soft_wrap=True)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _render(self) -> RenderableType:
        return Group(self._bars(), Text(), self._processes(), Text(), *map(Text, self._news))

    def _bars(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for line in self._lines:
            bar = ProgressBar(total=line.total, completed=line.done, width=30)
            table.add_row(line.label, bar, f"{line.done}/{line.total}", Text(line.words, style="dim"))
        return table

    def _processes(self) -> Table:
        table = Table.grid(padding=(0, 2))
        styles = {"working": "green", "stopped": "dim"}
        for worker in self.workers:
            state = worker.state
            table.add_row(f"worker {worker.name}", f"process {worker.pid}", Text(state, style=styles.get(state, "red")))
        return table
