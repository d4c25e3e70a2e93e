"""Graphs drawn here as SVG: from left to right in layers, each thing a link, whatever it says also said in words.

What is drawn is bounded by who asks for it; ours is a layout for a few hundred things at most.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_WIDTH, _HEIGHT = 190, 50
_GAP, _BETWEEN, _MARGIN = 58, 14, 8
_THIN = 6
"""How much room a line needs that passes by."""
_SWEEPS = 6
_LONGEST = 25
"""Letters that fit into a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Something in the picture."""

    id: str
    words: str
    more: str = ""
    """A second line."""
    at: str | None = None
    """Where it leads, from the dashboard's own root."""
    kind: str = ""
    """Classes, for colours: a status, "here", "fold"."""
    title: str = ""
    """All that is to be said of it, for hovering and for those who hear the page."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow."""

    start: str
    end: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to draw."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    words: str
    """What the whole of it shows."""


def draw(plan: Plan, base: str) -> Markup:
    """The picture; `base` leads to the dashboard's own root.

    >>> plan = Plan(nodes=[Node(id="a", words="<a>"), Node(id="b", words="b")], edges=[Edge("a", "b")], words="two")
    >>> "&lt;a&gt;" in draw(plan, "./")
    True
    """
    lines, loops = _lines(plan)
    layers = _layers([node.id for node in plan.nodes], lines)
    layout = _Layout(layers, lines)
    layout.place()
    width = _MARGIN * 2 + len(layout.columns) * (_WIDTH + _GAP) - _GAP
    drawn = [_path(line, layout) for line in lines]
    drawn += [_box(node, layout, base, is_loop=node.id in loops) for node in plan.nodes]
    return Markup(
        '<svg class="picture" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" aria-label="{2}">'
        '<desc>{2}</desc><defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path class="head" d="M0 0.5L8 4L0 7.5z"/></marker></defs>{3}</svg>'
    ).format(width, round(layout.height), plan.words, Markup("").join(drawn))


# -- layers


@dataclass(slots=True)
class _Line:
    """An arrow as it lies: from a layer to one further right, also where the arrow points back."""

    start: str
    end: str
    kind: str
    is_back: bool
    through: list[str]
    """Where it passes the layers in between."""


def _lines(plan: Plan) -> tuple[list[_Line], set[str]]:
    known = {node.id for node in plan.nodes}
    pairs = {(edge.start, edge.end): edge for edge in plan.edges if edge.start in known and edge.end in known}
    loops = {start for start, end in pairs if start == end}
    below: dict[str, list[str]] = {}
    for start, end in pairs:
        if start != end:
            below.setdefault(start, []).append(end)
    back = set(_back_edges([node.id for node in plan.nodes], below))
    lines: list[_Line] = []
    for (start, end), edge in pairs.items():
        if start == end:
            continue
        if (start, end) not in back:
            lines.append(_Line(start, end, edge.kind, False, []))
        elif (end, start) not in pairs:
            lines.append(_Line(end, start, edge.kind, True, []))
        else:  # both ways: the line that goes forward says so
            loops.add(start)
    return lines, loops


def _back_edges(ids: Sequence[str], below: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Those that close a circle, found by going down from each in turn."""
    done: set[str] = set()
    on_the_way: set[str] = set()
    for first in ids:
        todo: list[tuple[str, Iterator[str]]] = []
        if first not in done:
            on_the_way.add(first)
            todo.append((first, iter(below.get(first, ()))))
        while todo:
            here, rest = todo[-1]
            following = next(rest, None)
            if following is None:
                todo.pop()
                on_the_way.discard(here)
                done.add(here)
            elif following in on_the_way:
                yield here, following
            elif following not in done:
                on_the_way.add(following)
                todo.append((following, iter(below.get(following, ()))))


def _layers(ids: Sequence[str], lines: Sequence[_Line]) -> dict[str, int]:
    """Each behind all that leads to it; what nothing leads to stands right before what it leads to."""
    after: dict[str, list[str]] = {id: [] for id in ids}
    open_before = dict.fromkeys(ids, 0)
    for line in lines:
        after[line.start].append(line.end)
        open_before[line.end] += 1
    sources = [id for id in ids if not open_before[id]]
    layer = dict.fromkeys(ids, 0)
    todo = list(sources)
    while todo:
        here = todo.pop()
        for id in after[here]:
            layer[id] = max(layer[id], layer[here] + 1)
            open_before[id] -= 1
            if not open_before[id]:
                todo.append(id)
    for id in sources:
        if after[id]:
            layer[id] = min(layer[other] for other in after[id]) - 1
    return layer


class _Layout:
    """Where everything is."""

    def __init__(self, layers: Mapping[str, int], lines: Sequence[_Line]) -> None:
        self.columns: list[list[str]] = [[] for _ in range(max(layers.values(), default=0) + 1)]
        self._column_of = dict(layers)
        self._passing: set[str] = set()
        self._left: dict[str, list[str]] = {}
        self._right: dict[str, list[str]] = {}
        self.top: dict[str, float] = {}
        self.height = 0.0
        for id, layer in layers.items():
            self.columns[layer].append(id)
        for number, line in enumerate(lines):
            way = [line.start]
            for layer in range(layers[line.start] + 1, layers[line.end]):
                passing = f"{number}\n{layer}"
                self._passing.add(passing)
                self._column_of[passing] = layer
                self.columns[layer].append(passing)
                way.append(passing)
            line.through = way[1:]
            for one, other in zip(way, [*way[1:], line.end], strict=True):
                self._right.setdefault(one, []).append(other)
                self._left.setdefault(other, []).append(one)

    def place(self) -> None:
        """So that lines cross little, and lead straight on where they can."""
        for sweep in range(_SWEEPS):
            self._sort(rightwards=sweep % 2 == 0)
        for column in self.columns:
            top = 0.0
            for id in column:
                self.top[id] = top
                top += self.tall(id) + _BETWEEN
        for sweep in range(_SWEEPS):
            self._align(rightwards=sweep % 2 == 0)
        self._align(rightwards=True)
        highest = min(self.top.values(), default=0.0)
        for id in self.top:
            self.top[id] += _MARGIN - highest
        self.height = max((top + self.tall(id) for id, top in self.top.items()), default=0.0) + _MARGIN

    def tall(self, id: str) -> float:
        return _THIN if id in self._passing else _HEIGHT

    def left(self, id: str) -> float:
        return _MARGIN + self._column_of[id] * (_WIDTH + _GAP)

    def middle(self, id: str) -> float:
        return self.top[id] + self.tall(id) / 2

    def _sort(self, *, rightwards: bool) -> None:
        near = self._left if rightwards else self._right
        columns = self.columns if rightwards else self.columns[::-1]
        for before, column in itertools.pairwise(columns):
            place = {id: n for n, id in enumerate(before)}
            own = {id: float(n) for n, id in enumerate(column)}
            for id in column:
                places = [place[other] for other in near.get(id, ())]
                if places:
                    own[id] = sum(places) / len(places)
            column.sort(key=own.__getitem__)

    def _align(self, *, rightwards: bool) -> None:
        near = self._left if rightwards else self._right
        for column in self.columns if rightwards else reversed(self.columns):
            wanted: list[float] = []
            for id in column:
                middles = [self.middle(other) for other in near.get(id, ())]
                wanted.append(sum(middles) / len(middles) - self.tall(id) / 2 if middles else self.top[id])
            for id, top in zip(column, self._apart(column, wanted), strict=True):
                self.top[id] = top

    def _apart(self, column: Sequence[str], wanted: Sequence[float]) -> Iterable[float]:
        """As near to what is wanted as their order and the room between them allow (least squares)."""
        offsets: list[float] = []
        so_far = 0.0
        for id in column:
            offsets.append(so_far)
            so_far += self.tall(id) + _BETWEEN
        groups: list[tuple[float, int]] = []
        for want, offset in zip(wanted, offsets, strict=True):
            groups.append((want - offset, 1))
            while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
                (one, n), (other, m) = groups[-2:]
                groups[-2:] = [((one * n + other * m) / (n + m), n + m)]
        places = [place for place, count in groups for _ in range(count)]
        return [place + offset for place, offset in zip(places, offsets, strict=True)]


# -- drawing


def _path(line: _Line, layout: _Layout) -> Markup:
    x, y = layout.left(line.start) + _WIDTH, layout.middle(line.start)
    steps = [f"M{x:.1f} {y:.1f}"]
    for id in (*line.through, line.end):
        to, across = layout.left(id), layout.middle(id)
        half = (to - x) / 2
        steps.append(f"C{x + half:.1f} {y:.1f} {to - half:.1f} {across:.1f} {to:.1f} {across:.1f}")
        x, y = to, across
        if id != line.end:
            x += _WIDTH
            steps.append(f"H{x:.1f}")
    end = "marker-start" if line.is_back else "marker-end"
    return Markup('<path class="edge {}" d="{}" fill="none" {}="url(#arrow)"/>').format(
        line.kind, "".join(steps), Markup(end)
    )


def _box(node: Node, layout: _Layout, base: str, *, is_loop: bool) -> Markup:
    x, y = layout.left(node.id), layout.top[node.id]
    line = y + (21 if node.more else 30)
    body = Markup(
        '<title>{}</title><rect class="box" x="{:.1f}" y="{:.1f}" width="{}" height="{}" rx="7"/>'
        '<path class="edge-of" d="M{:.1f} {:.1f}v{}"/><text class="words" x="{:.1f}" y="{:.1f}">{}</text>'
    ).format(
        node.title or node.words, x, y, _WIDTH, _HEIGHT, x + 5, y + 8, _HEIGHT - 16, x + 14, line, _cut(node.words)
    )
    if node.more:
        body += Markup('<text class="more" x="{:.1f}" y="{:.1f}">{}</text>').format(x + 14, y + 39, _cut(node.more, 29))
    if is_loop:
        body += Markup('<text class="loop" x="{:.1f}" y="{:.1f}">↻</text>').format(x + _WIDTH - 20, y + 21)
    if node.at is None:
        return Markup('<g class="node {}">{}</g>').format(node.kind, body)
    return Markup('<a class="node {}" href="{}{}" aria-label="{}">{}</a>').format(
        node.kind, base, node.at, node.title or node.words, body
    )


def _cut(text: str, most: int = _LONGEST) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
