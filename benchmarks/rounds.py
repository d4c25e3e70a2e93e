"""Suites of the harness's phases, run in rounds: in each one every peer has its turn at a phase, one after another."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.place import BEFORE, Harness, install
from benchmarks.samples import Samples, shown

NAMES = {
    "enqueue_one": "one",
    "enqueue_bulk": "many",
    "settled_rate": "settled",
    "drain": "drain",
    "worker_cpu_us_per_job": "cpu",
    "rss_mb": "rss",
}
"""The harness's figures, and ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Peers on the same work."""

    name: str
    peers: tuple[str, ...]
    phases: tuple[str, ...] = ("one", "drain", "latency")
    drain: int
    """How many jobs each peer drains …"""
    fewer: Mapping[str, int] = field(default_factory=dict)
    """… but for those that would take too long."""
    latencies: int = 200

    def scaled(self, factor: float) -> "Suite":
        """With so many jobs more or less."""

        def scaled(count: int) -> int:
            return max(990, int(count * factor) // 990 * 990)  # whole chains of 3 and whole fan-ins of 11

        fewer = {peer: scaled(count) for peer, count in self.fewer.items()}
        return replace(self, drain=scaled(self.drain), fewer=fewer, latencies=max(20, int(self.latencies * factor)))


SHORT = (
    Suite(name="postgres", peers=("onward", "pgqueuer", "bare-pg"), drain=30_690, latencies=200),
    Suite(
        name="work",
        peers=("onward-write", "bare-write", "onward-chain", "onward-fan-in"),
        phases=("drain",),
        drain=9_900,
    ),
    Suite(
        name="limits",
        peers=("onward", "onward-limited", "onward-sqlite", "onward-sqlite-limited"),
        phases=("drain",),
        drain=30_690,
    ),
    Suite(
        name="sqlite",
        peers=("onward-sqlite", "onward-memory", "huey-sqlite-syncoff", "bare-sqlite"),
        phases=("one", "drain"),
        drain=30_690,
    ),
    Suite(
        name="redis",
        peers=("onward-redis", "taskiq-stream", "bare-redis"),
        drain=30_690,
        fewer={"taskiq-stream": 7_920},
        latencies=200,
    ),
)
FULL = (
    Suite(
        name="postgres",
        peers=("onward", "pgqueuer", "oban", "chancy", "procrastinate", "bare-pg"),
        drain=99_990,
        fewer={"oban": 9_900, "chancy": 9_900, "procrastinate": 4_950},
        latencies=500,
    ),
    replace(SHORT[1], drain=29_700),
    replace(SHORT[2], drain=99_990),
    replace(SHORT[3], phases=("one", "drain", "latency"), drain=79_200, latencies=300),
    Suite(
        name="redis",
        peers=("onward-redis", "taskiq-stream", "saq-redis", "arq", "bare-redis"),
        drain=49_500,
        fewer={"taskiq-stream": 19_800, "saq-redis": 9_900, "arq": 9_900},
        latencies=500,
    ),
)


def against(suite: Suite) -> Suite:
    """Our own peers only, each beside itself on another checkout."""
    ours = [name for name in suite.peers if name.startswith("onward")]
    return replace(suite, peers=tuple(peer for name in ours for peer in (name, BEFORE + name)), fewer={})


def run_suite(harness: Harness, suite: Suite, rounds: int, samples: Samples) -> None:
    """Measure each peer in each phase, `rounds` times. One that fails is left out of the round, and said to be."""
    peers = {name: harness.peer(name) for name in install(suite.peers, harness)}
    for number in range(rounds):
        for phase in suite.phases:
            print(f"{suite.name}, round {number + 1} of {rounds}: {phase}", flush=True)
            # In turns also as to who comes first: what a server does after the phase before falls upon that one.
            for name, peer in list(peers.items())[:: 1 if number % 2 else -1]:
                try:
                    figures = _measure(harness, peer, suite, phase)
                except Exception as error:  # noqa: BLE001 - a peer may do anything; the others go on
                    print(f"  {name}: {type(error).__name__}: {error}; its log ends:\n{_end_of(peer.log)}", flush=True)
                else:
                    samples.add(suite.name, name, number, figures)
                    print(f"  {name:22}{shown(figures)}", flush=True)


def _end_of(log: str) -> str:
    return Path(log).read_text(errors="replace")[-1_000:]


def _measure(harness: Harness, peer: Any, suite: Suite, phase: str) -> dict[str, float]:
    count = suite.fewer.get(peer.name, suite.drain)
    if harness.is_in_process(peer.name):
        return _measure_in_process(harness, peer, count) if phase == "drain" else {}
    counts = Namespace(
        one_n=5_000, one_s=1.5, drain_n=count, lat_n=suite.latencies, lat_gap=0.01, limit=max(90, count / 500)
    )
    with harness.measuring() as noise:
        found = harness.programme.phase_run(peer, peer.call("meta"), counts, phase)
    if not found.get("complete", True):
        raise RuntimeError(f"{found['executed']} of {found['drain_n']} jobs ran in time")
    latency = {name.replace("from_call", "call"): value for name, value in found.pop("latency_ms", {}).items()}
    figures = {name: found[key] for key, name in NAMES.items() if found.get(key)}
    latencies = {name: latency[name] for name in ("p50", "p99", "call_p50", "call_p99") if name in latency}
    return {**figures, **latencies, "noise": noise()}


def _measure_in_process(harness: Harness, peer: Any, count: int) -> dict[str, float]:
    harness.library.board_create(peer.board)
    found = peer.call("inproc", count)
    return {"one": found["enqueue_one"], "many": found["enqueue_bulk"], "drain": found["drain"]}
