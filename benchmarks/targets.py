"""What was promised, as ratios within one run, and whether a run keeps it."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.samples import FIGURES, Samples

LISTENING = ("pgqueuer", "oban", "chancy", "procrastinate")
REDIS_PEERS = ("taskiq-stream", "saq-redis", "arq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on a figure of ours: of another's, of the best of several, or of its own."""

    suite: str
    figure: str
    ours: str
    of: tuple[str, ...] = ()
    """Whose figure it is a multiple of; nobody's: the bound is absolute."""
    of_figure: str | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says about a target."""

    target: Target
    words: str
    found: float | None
    state: Literal["met", "not met", "not measured"]


TARGETS = (
    Target(suite="postgres", figure="settled", ours="onward", of=("pgqueuer",), least=1.3),
    Target(suite="postgres", figure="settled", ours="onward", of=("bare-pg",), least=0.45),
    Target(suite="work", figure="settled", ours="onward-write", of=("bare-write",), least=0.75),
    Target(suite="postgres", figure="one", ours="onward", of=("pgqueuer",), least=1.2),
    Target(suite="postgres", figure="many", ours="onward", of=("pgqueuer",), least=1.1),
    Target(suite="sqlite", figure="drain", ours="onward-sqlite", of=("huey-sqlite-syncoff",), least=1.5),
    Target(suite="sqlite", figure="drain", ours="onward-memory", of=("bare-sqlite",), least=0.35),
    Target(suite="redis", figure="drain", ours="onward-redis", of=REDIS_PEERS, least=3.0),
    Target(suite="postgres", figure="p50", ours="onward", of=("bare-pg",), most=2.0),
    Target(suite="postgres", figure="p99", ours="onward", of=("bare-pg",), most=3.5),
    Target(suite="postgres", figure="p50", ours="onward", of=LISTENING, most=1.0),
    Target(suite="postgres", figure="p99", ours="onward", of=LISTENING, most=1.0),
    Target(suite="redis", figure="p50", ours="onward-redis", of=("bare-redis",), most=3.5),
    Target(suite="redis", figure="p99", ours="onward-redis", of=("bare-redis",), most=4.5),
    # The cost of a job is the inverse of the rate.
    Target(suite="target", figure="drain", ours="large", of=("small",), least=1 / 1.3),
    Target(suite="target", figure="take_p99", ours="large", of=("large",), of_figure="take_p50", most=10.0),
    Target(suite="snapshot", figure="drain", ours="held", of=("none",), least=0.8),
    Target(suite="many", figure="drain", ours="37", of=("1",), least=0.8),
    Target(suite="many", figure="drain", ours="100", of=("1",), least=0.6),
    Target(suite="many", figure="drain", ours="37 held", of=("37",), least=0.7),
    Target(suite="many", figure="drain", ours="100 held", of=("100",), least=0.7),
    Target(suite="limits", figure="drain", ours="onward-limited", of=("onward",), least=0.5),
    Target(suite="limits", figure="drain", ours="onward-sqlite-limited", of=("onward-sqlite",), least=0.5),
    Target(suite="pruning", figure="drain", ours="pruned", of=("kept",), least=0.95),
    Target(suite="postgres", figure="cpu", ours="onward", of=("pgqueuer",), most=0.75),
    Target(suite="postgres", figure="rss", ours="onward", most=60.0),
)


def judge(samples: Samples) -> list[Verdict]:
    """Each target beside what was found."""
    return [_judge(target, samples) for target in TARGETS]


def _judge(target: Target, samples: Samples) -> Verdict:
    figure = FIGURES[target.figure][0]
    other = samples.best(target.suite, target.of, target.of_figure or target.figure)
    if target.of:
        named = other or " or ".join(target.of)
        if target.of_figure:
            named += f"'s {FIGURES[target.of_figure][0]}"
        words = f"{target.suite}: {figure}, {target.ours} ÷ {named}"
        found = other and samples.ratio(target.suite, target.ours, other, target.figure, target.of_figure)
    else:
        words = f"{target.suite}: {figure}, {target.ours}"
        found = samples.median(target.suite, target.ours, target.figure)
    if not found:
        return Verdict(target, words, None, "not measured")
    found = float(found)
    holds = found >= target.least if target.least is not None else found <= (target.most or 0)
    return Verdict(target, words, found, "met" if holds else "not met")
