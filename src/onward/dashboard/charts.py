"""Small pictures drawn here: SVG with classes, which the style sheet colours, and without styles of its own.

Each says in words what it shows: readers of the screen hear that, and it appears on hovering.
"""

from collections.abc import Sequence
from datetime import timedelta

from markupsafe import Markup

from onward.operating import Minute, Spread

_WIDTH, _HEIGHT = 600, 120


def sparkline(values: Sequence[float], *, label: str, width: int = 120, height: int = 24) -> Markup:
    """A line without axes, for a cell of a table.

    >>> "polyline" in sparkline([1, 2, 3], label="jobs a minute")
    True
    """
    highest = max(values, default=0) or 1
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{n * step:.1f},{height - 2 - value / highest * (height - 4):.1f}" for n, value in enumerate(values)
    )
    body = Markup('<polyline class="line" points="{}" fill="none"/>').format(points)
    return _picture(body, label=label, kind="sparkline", width=width, height=height)


def bars(minutes: Sequence[Minute], *, label: str, kinds: Sequence[str] = ("completed", "retried", "failed")) -> Markup:
    """What was done in each minute, failures on top of it; every bar says its numbers on hovering."""
    highest = max((sum(getattr(minute, kind) for kind in kinds) for minute in minutes), default=0) or 1
    slot = _WIDTH / max(len(minutes), 1)
    drawn: list[Markup] = [Markup('<line class="axis" x1="0" y1="{0}" x2="{1}" y2="{0}"/>').format(_HEIGHT, _WIDTH)]
    for n, minute in enumerate(minutes):
        counts = ", ".join(f"{getattr(minute, kind):,} {kind}" for kind in kinds)
        words = f"{minute.at:%H:%M} UTC: {counts}"
        top = float(_HEIGHT)
        parts: list[Markup] = []
        for kind in kinds:
            if count := getattr(minute, kind):
                tall = max(count / highest * (_HEIGHT - 6), 1.5)
                top -= tall
                parts.append(
                    Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                        kind, n * slot + slot * 0.1, top, slot * 0.8, tall
                    )
                )
        # What is hovered is the whole column, also where nothing was done.
        parts.append(
            Markup('<rect class="hover" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>').format(n * slot, slot, _HEIGHT)
        )
        drawn.append(Markup("<g><title>{}</title>{}</g>").format(words, Markup("").join(parts)))
    return _picture(Markup("").join(drawn), label=label, kind="bars", width=_WIDTH, height=_HEIGHT)


def spread(found: Spread | None, *, label: str, longest: timedelta | None = None) -> Markup:
    """Half, most and nearly all of how long something takes, as one bar up to `longest`."""
    if found is None:
        return Markup('<span class="none">—</span>')
    end = (longest or found.p99).total_seconds() or 1.0
    drawn: list[Markup] = []
    for kind, value in (("p99", found.p99), ("p95", found.p95), ("p50", found.p50)):
        wide = min(value.total_seconds() / end, 1.0) * 120
        drawn.append(
            Markup('<rect class="{}" x="0" y="4" width="{:.1f}" height="8" rx="2"/>').format(kind, max(wide, 1.0))
        )
    return _picture(Markup("").join(drawn), label=label, kind="spread", width=120, height=16)


def bar(share: float, *, label: str) -> Markup:
    """How far something has come, from 0 to 1."""
    body = Markup(
        '<rect class="track" x="0" y="0" width="120" height="8" rx="4"/>'
        '<rect class="done" x="0" y="0" width="{:.1f}" height="8" rx="4"/>'
    ).format(min(max(share, 0.0), 1.0) * 120)
    return _picture(body, label=label, kind="bar", width=120, height=8)


def _picture(body: Markup, *, label: str, kind: str, width: int, height: int) -> Markup:
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
        "<title>{}</title>{}</svg>"
    ).format(kind, width, height, label, label, body)
