"""`make bench`: Onward, its best peers and the bare drivers, interleaved in one run; ratios beside the targets last.

Absolute figures depend on the machine and on what else it does; the ratios count. See benchmarks/README.md.
"""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.growth import cases, run_growth
from benchmarks.place import ROOT, Missing, prepared, servers
from benchmarks.rounds import FULL, SHORT, against, run_suite
from benchmarks.samples import Samples
from benchmarks.targets import judge

SUITES = ("postgres", "work", "limits", "sqlite", "redis", "growth")


def main() -> None:
    options = parse()
    samples, began = Samples(), time.monotonic()
    try:
        run(options, samples)
    except (Missing, servers.ServerMissing) as error:
        sys.exit(f"benchmarks: {error}")
    except KeyboardInterrupt:
        print("stopped; this is what was measured", file=sys.stderr)
    verdicts = [] if options.against else judge(samples)
    report.write(options.output, samples, verdicts, {name: str(value) for name, value in vars(options).items()})
    console = Console(width=None if sys.stdout.isatty() else 150)
    report.print_tables(console, samples)
    if options.against:
        report.print_against(console, samples)
    else:
        report.print_verdicts(console, verdicts)
    report.print_noise(console, samples)
    console.print(f"{time.monotonic() - began:.0f} s; figures and charts are in {options.output}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--full", action="store_true", help="more peers, more jobs, every growth case (an hour)")
    parser.add_argument("--rounds", type=int, help="how often each peer has its turn (default: 3; with --full 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer jobs: 0.1 is a quick look")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "bench", help="where results.json and charts go"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for a quiet machine before each figure"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare with Onward in another checkout (git worktree add ../before HEAD~1), instead of with peers",
    )
    options = parser.parse_args()
    if options.against and not (options.against / "src" / "onward").is_dir():
        parser.error(f"--against: there is no src/onward in {options.against}")
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"no suite named {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    options.suites = options.suites or SUITES
    options.rounds = options.rounds or (5 if options.full else 3)
    return options


def run(options: argparse.Namespace, samples: Samples) -> None:
    with prepared(patience=options.wait, against=options.against) as harness:
        for suite in FULL if options.full else SHORT:
            if suite.name in options.suites:
                chosen = against(suite) if options.against else suite
                run_suite(harness, chosen.scaled(options.scale), options.rounds, samples)
        if "growth" in options.suites and not options.against:
            run_growth(harness, cases(full=options.full, factor=options.scale), options.rounds, samples)


if __name__ == "__main__":
    main()
