"""`make bench`: Onward beside its best peer and the bare driver, in one run of the shared harness; ratios last.

The harness lives beside the project (../shared/bench, or BENCH_HARNESS). It is copied, because it writes its results
next to itself. Peers get a virtual environment each. Absolute figures depend on the machine; the ratios count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HARNESS = Path(os.environ.get("BENCH_HARNESS", HERE.parent.parent / "shared" / "bench"))
PEERS = {"bare": ["asyncpg", "uvloop"], "pgqueuer": ["pgqueuer[asyncpg,cli]", "uvloop"], "huey": ["huey"]}
SUITES = {
    "postgres": ["onward", "pgqueuer", "bare-pg"],
    "sqlite": ["onward-sqlite", "huey-sqlite-syncoff", "bare-sqlite"],
}
FIGURES = {
    "drain, settled jobs/s": ("settled_rate",),
    "drain, handlers jobs/s": ("drain",),
    "start one by one /s": ("enqueue_one",),
    "start many /s": ("enqueue_bulk",),
    "latency p50 ms": ("latency_ms", "p50"),
    "latency p99 ms": ("latency_ms", "p99"),
    "worker CPU µs/job": ("worker_cpu_us_per_job",),
    "RSS MB": ("rss_mb",),
}


def main() -> None:
    options = parse()
    if not (HARNESS / "bench.py").exists():
        sys.exit(f"no harness at {HARNESS}: set BENCH_HARNESS to the folder that holds bench.py")
    with tempfile.TemporaryDirectory(prefix="onward-bench-") as scratch:
        place = prepare(Path(scratch))
        for suite in options.suites:
            run(place, SUITES[suite], options)
            report(place, SUITES[suite])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", default=["postgres"], help=f"of {', '.join(SUITES)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--phases", default="one,drain,latency")
    parser.add_argument("--drain-n", type=int, default=50_000)
    return parser.parse_args()


def prepare(scratch: Path) -> Path:
    """The harness with Onward among its peers."""
    place = scratch / "bench"
    shutil.copytree(HARNESS, place)
    for path in (place, *place.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    shutil.copy(HERE / "harness" / "p_onward.py", place / "peers")
    peers = json.loads((place / "peers.json").read_text())
    ours = {"file": "peers/p_onward.py", "venv": sys.executable}
    peers |= {"onward": ours, "onward-sqlite": {**ours, "env": {"ONWARD_BACKEND": "sqlite"}}}
    (place / "peers.json").write_text(json.dumps(peers))
    return place


def environments() -> Path:
    """One virtual environment for each peer, kept between runs."""
    home = HERE.parent / ".venv" / "bench-peers"
    for name, packages in PEERS.items():
        python = home / name / "bin" / "python"
        if not python.exists():
            print(f"Installing {', '.join(packages)} …", file=sys.stderr)
            venv.create(home / name, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-qq", *packages], check=True)
    return home


def run(place: Path, peers: list[str], options: argparse.Namespace) -> None:
    command = [sys.executable, place / "bench.py", *peers, "--runs", options.runs, "--phases", options.phases]
    command += ["--drain-n", options.drain_n]
    surroundings = {**os.environ, "BENCH_VENVS": str(environments())}
    subprocess.run([str(part) for part in command], check=True, env=surroundings, cwd=place)


def report(place: Path, peers: list[str]) -> None:
    results = [json.loads((place / "raw" / f"{peer}.json").read_text())["summary"] for peer in peers]
    print(f"\n{'':24}" + "".join(f"{peer:>22}" for peer in peers) + f"{'ours / peer':>14}{'ours / bare':>14}")
    for figure, path in FIGURES.items():
        values = [median(result, path) for result in results]
        shown = "".join(f"{value:>22,.2f}" if value is not None else f"{'–':>22}" for value in values)
        print(f"{figure:24}{shown}" + "".join(ratio(values[0], other) for other in values[1:]))


def median(summary: Any, path: tuple[str, ...]) -> float | None:
    for name in path:
        summary = (summary or {}).get(name)
    return summary and summary["median"]


def ratio(ours: float | None, other: float | None) -> str:
    return f"{ours / other:>13.2f}x" if ours and other else f"{'–':>14}"


if __name__ == "__main__":
    main()
