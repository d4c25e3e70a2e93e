"""What was measured: for each suite, peer and figure one value per round."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIGHER, LOWER = "higher", "lower"
FIGURES = {
    "settled": ("drain, settled jobs/s", HIGHER),
    "drain": ("drain, handlers jobs/s", HIGHER),
    "one": ("start one by one /s", HIGHER),
    "many": ("start many /s", HIGHER),
    "p50": ("latency p50 ms", LOWER),
    "p99": ("latency p99 ms", LOWER),
    "call_p50": ("latency with the call, p50 ms", LOWER),
    "call_p99": ("latency with the call, p99 ms", LOWER),
    "cpu": ("worker CPU µs/job", LOWER),
    "rss": ("RSS MB after the drain", LOWER),
    "take_p50": ("take p50 ms", LOWER),
    "take_p99": ("take p99 ms", LOWER),
    "pruned": ("finished rows pruned", HIGHER),
    "noise": ("cores busy elsewhere", LOWER),
}
"""Their names in tables, and what is better."""


class Samples:
    """Values by suite, peer, figure and round."""

    def __init__(self, values: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]] | None = None) -> None:
        self._values: dict[str, dict[str, dict[str, dict[int, float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(dict))
        )
        for suite, peer, figure, rounds in _flat(values or {}):
            self._values[suite][peer][figure] = {int(number): value for number, value in rounds.items()}

    def add(self, suite: str, peer: str, round: int, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            rounds = self._values[suite][peer][figure]
            # Noise is said for each phase of a round; the worst counts.
            rounds[round] = max(value, rounds.get(round, 0.0)) if figure == "noise" else value

    def suites(self) -> list[str]:
        return list(self._values)

    def peers(self, suite: str) -> list[str]:
        return list(self._values[suite]) if suite in self._values else []

    def median(self, suite: str, peer: str, figure: str) -> float | None:
        values = self._rounds(suite, peer, figure).values()
        return statistics.median(values) if values else None

    def best(self, suite: str, peers: Iterable[str], figure: str) -> str | None:
        """The best of these peers that were measured."""
        medians = {peer: found for peer in peers if (found := self.median(suite, peer, figure)) is not None}
        choose = max if FIGURES[figure][1] is HIGHER else min
        return choose(medians, key=lambda peer: medians[peer]) if medians else None

    def ratio(self, suite: str, ours: str, other: str, figure: str, other_figure: str | None = None) -> float | None:
        """The median of the ratios within each round: what slows a whole round slows both.

        A latency below zero, of a handler that began before its start was known to have committed, divides nothing.
        """
        mine, theirs = self._rounds(suite, ours, figure), self._rounds(suite, other, other_figure or figure)
        ratios = [value / theirs[number] for number, value in mine.items() if theirs.get(number, 0) > 0]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        return {suite: dict(peers) for suite, peers in self._values.items()}

    def _rounds(self, suite: str, peer: str, figure: str) -> dict[int, float]:
        return self._values.get(suite, {}).get(peer, {}).get(figure, {})


def shown(figures: Mapping[str, float]) -> str:
    """In one line."""
    return "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    for suite, peers in values.items():
        for peer, figures in peers.items():
            for figure, rounds in figures.items():
                yield suite, peer, figure, rounds
