"""Whether a job's cost grows: with finished or waiting rows, types, worker processes, a held snapshot, or pruning."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.place import Harness
from benchmarks.samples import Samples, shown

ROWS = Path(__file__).with_name("growth.sql")
WARM_UP = 1_000
"""Jobs before the clock starts: connections are made, statements prepared."""
REBUILT = 200_000
"""Databases up to this size are made anew each round; larger ones are only topped up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A database, and how it is worked on."""

    group: str
    """Which question it answers; the first case of a group is what the others are compared with."""
    label: str
    history: int = 1_000
    backlog: int = 0
    """Waiting jobs beside those that are measured."""
    types: int = 1
    processes: int = 1
    jobs: int
    """How many are measured …"""
    seconds: float = 60.0
    """… in at most this time."""
    snapshot: bool = False
    pruned: bool = False
    """Whether the finished rows, which are years old, are deleted meanwhile."""

    @property
    def database(self) -> str:
        return f"bench_{self.group}_{self.label}".replace(" ", "_").lower()


def cases(*, full: bool, factor: float = 1.0) -> list[Case]:
    """Every case of a run, those of a group one after another."""
    jobs = max(3_000, int((50_000 if full else 20_000) * factor))
    large = max(2_000, int((5_000_000 if full else 1_000_000) * factor))
    waiting = max(1_000, int(400_000 * factor))
    seconds = max(1.0, (60 if full else 10) * min(1.0, factor))
    small = Case(group="target", label="small", types=10, jobs=jobs)
    held = Case(group="snapshot", label="none", jobs=int(seconds * 30_000), seconds=seconds)
    found = [small, replace(small, label="large", history=large, backlog=waiting), held]
    found.append(replace(held, label="held", snapshot=True))
    several = [Case(group="many", label=str(types), types=types, jobs=jobs) for types in (1, 37, 100)]
    found += several + [replace(case, label=f"{case.label} held", snapshot=True) for case in several]
    # Workers begin to prune some seconds after they have started, and go about it slowly.
    long = 3 * seconds
    kept = Case(group="pruning", label="kept", history=large, jobs=int(long * 30_000), seconds=long)
    found += [kept, replace(kept, label="pruned", pruned=True)]
    if not full:
        return found
    sizes = [int(size * factor) for size in (1_000, 100_000, 1_000_000, 5_000_000)]
    found += [Case(group="history", label=_short(size), history=size, jobs=jobs) for size in sizes]
    found += [Case(group="backlog", label=_short(size), backlog=size, jobs=jobs) for size in sizes]
    found += [Case(group="types", label=str(types), types=types, jobs=jobs) for types in (1, 10, 100)]
    found += [Case(group="processes", label=str(n), processes=n, jobs=2 * jobs) for n in (1, 2, 4, 8)]
    return found


def _short(number: int) -> str:
    return f"{number / 1_000_000:g} M" if number >= 1_000_000 else f"{number / 1_000:g} k"


def run_growth(harness: Harness, chosen: Sequence[Case], rounds: int, samples: Samples) -> None:
    """Measure each case, `rounds` times; the databases of a group exist side by side."""
    for group in dict.fromkeys(case.group for case in chosen):
        ours = [case for case in chosen if case.group == group]
        # Minutes of the same work do not get better by being repeated.
        repeated = min(rounds, 2) if group == "snapshot" else rounds
        try:
            for number in range(repeated):
                print(f"{group}, round {number + 1} of {repeated}", flush=True)
                for case in ours:
                    with harness.measuring() as noise:
                        figures = _measure(harness, case, number)
                    figures["noise"] = noise()
                    samples.add(group, case.label, number, figures)
                    print(f"  {case.label:22}{shown(figures)}", flush=True)
        finally:
            for case in ours:
                harness.library.psql(f'drop database if exists "{case.database}" with (force);')


def _measure(harness: Harness, case: Case, number: int) -> dict[str, float]:
    takes = harness.scratch / "takes"
    variables = {"ONWARD_DB": case.database, "ONWARD_TYPES": str(case.types), "ONWARD_TAKES": str(takes)}
    if not case.pruned:
        variables["ONWARD_RETENTION"] = "none"
    peer = harness.peer("onward", **variables)
    _fill(harness, peer, case, number)
    with _snapshot(harness, case):
        figures = {**_worked(harness, peer, case), **_takes(takes)}
    if case.pruned:
        left = harness.library.psql("select count(*) from onward.job where created_at < '2021-01-01'", case.database)
        figures["pruned"] = case.history + case.backlog + case.jobs + WARM_UP - int(left)
    return figures


def _fill(harness: Harness, peer: Any, case: Case, number: int) -> None:
    """The rows of the case, and as many jobs as will be measured."""
    waiting = case.backlog + case.jobs + WARM_UP
    if number == 0 or case.history + waiting <= REBUILT or case.group in ("snapshot", "pruning"):
        peer.call("reset")
        rows = {"first": 0, "finished": case.history, "last": case.history + waiting}
    else:
        left = int(harness.library.psql("select count(*) from onward.job where status = 'pending'", case.database))
        first = number * 100_000_000
        rows = {"first": first, "finished": 0, "last": first + waiting - left}
    settings = {**rows, "types": case.types}
    script = "".join(f"\\set {name} {value}\n" for name, value in settings.items()) + ROWS.read_text()
    harness.library.psql(script, case.database)


def _worked(harness: Harness, peer: Any, case: Case) -> dict[str, float]:
    harness.library.board_create(peer.board)
    board = harness.library.Board(peer.board)
    workers = []
    try:
        workers = [peer.start_worker() for _ in range(case.processes)]
        _wait(board, workers, WARM_UP, time.monotonic() + 30)
        began, at_first = time.monotonic(), board.total()
        _wait(board, workers, WARM_UP + case.jobs, began + case.seconds)
        seconds, jobs = time.monotonic() - began, board.total()
        cpu = sum(harness.programme.cpu_s(harness.programme.tree(worker.pid)) for worker in workers)
        memory = max(harness.programme.rss_mb(harness.programme.tree(worker.pid)) for worker in workers)
    finally:
        for worker in workers:
            harness.programme.stop(worker)
    if jobs <= at_first:
        raise RuntimeError(f"the worker ran no jobs; see {peer.log}")
    return {"drain": (jobs - at_first) / seconds, "cpu": cpu / jobs * 1e6, "rss": memory}


def _wait(board: Any, workers: Sequence[Any], jobs: int, deadline: float) -> None:
    while board.total() < jobs and time.monotonic() < deadline:
        if any(worker.poll() is not None for worker in workers):
            return
        time.sleep(0.005)


def _takes(file: Path) -> dict[str, float]:
    """Of the last worker that stopped; the first take, which prepares the statement, is left out."""
    seconds = sorted(map(float, file.read_text().split()[1:]))
    return {f"take_p{p}": seconds[min(len(seconds) - 1, len(seconds) * p // 100)] * 1e3 for p in (50, 99)}


@contextmanager
def _snapshot(harness: Harness, case: Case) -> Iterator[None]:
    """Another connection that holds the snapshot it took, if the case says so."""
    if not case.snapshot:
        yield
        return
    script = "begin isolation level repeatable read; select count(*) from pg_class; \\echo held\nselect pg_sleep(600);"
    environment = harness.library.pg_env(case.database)
    holder = subprocess.Popen(
        ["psql", "-XAtq"], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(script)
        holder.stdin.close()
        while holder.stdout.readline() not in ("held\n", ""):
            pass
        yield
    finally:
        holder.terminate()
        holder.wait()
        holder.stdout.close()
