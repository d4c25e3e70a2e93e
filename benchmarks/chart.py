"""Bar and line charts as SVG, readable on light and dark pages."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

WIDTH = 720
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #555 } .title { font-size: 15px; font-weight: 600 }
.bar { fill: #9aa7b5 } .ours { fill: #2f7ed8 } .line { fill: none; stroke: #2f7ed8; stroke-width: 2 }
.axis { stroke: #9aa7b5; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #ccc } }
</style>"""


def bars(title: str, values: Mapping[str, float]) -> str:
    """One horizontal bar for each value, in the order given; Onward's own stand out."""
    label, row, top = 170, 26, 40
    room, longest = WIDTH - label - 90, max(values.values()) or 1.0
    parts = []
    for place, (name, value) in enumerate(values.items()):
        y, length = top + place * row, max(1.0, room * value / longest)
        kind = "ours" if name.startswith("onward") else "bar"
        parts += [
            f'<text x="{label - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{label}" y="{y}" width="{length:.1f}" height="{row - 8}" rx="2"/>',
            f'<text x="{label + length + 8:.1f}" y="{y + 14}">{_number(value)}</text>',
        ]
    return _drawing(title, top + row * len(values) + 10, parts)


def lines(title: str, axis: str, values: Mapping[str, float]) -> str:
    """One line through the values, evenly spaced, from zero up."""
    left, top, height = 60, 60, 180
    step, highest = (WIDTH - 2 * left) / max(1, len(values) - 1), max(values.values()) or 1.0
    floor = top + height
    points = [
        (left + place * step, floor - height * value / highest, name, value)
        for place, (name, value) in enumerate(values.items())
    ]
    parts = [
        f'<path class="axis" d="M {left - 20} {floor} H {WIDTH - left + 20}"/>',
        f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)}"/>',
        f'<text x="{WIDTH / 2}" y="{floor + 42}" text-anchor="middle">{escape(axis)}</text>',
    ]
    for x, y, name, value in points:
        parts += [
            f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
            f'<text x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle">{_number(value)}</text>',
            f'<text x="{x:.1f}" y="{floor + 20}" text-anchor="middle">{escape(name)}</text>',
        ]
    return _drawing(title, floor + 56, parts)


def _drawing(title: str, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    titles = f'<title>{escape(title)}</title>{_STYLE}<text class="title" x="10" y="22">{escape(title)}</text>'
    return "\n".join([head, titles, *parts, "</svg>\n"])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
