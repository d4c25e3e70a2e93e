"""Where things are in a picture, whatever leads to what."""

import random
import re

import pytest

from onward.dashboard.picture import Edge, Node, Plan, draw

BOX = re.compile(r'<rect class="box" x="([\d.]+)" y="([\d.]+)" width="(\d+)" height="(\d+)"')


def drawn(names: str, *edges: str, more: str = "") -> tuple[str, dict[str, tuple[float, float]]]:
    """A picture, and where each is in it."""
    nodes = [Node(id=name, words=name, more=more, at=f"jobs/{name}") for name in names]
    html = draw(Plan(nodes=nodes, edges=[Edge(*edge) for edge in edges], words="all"), "../")
    return html, {name: (float(x), float(y)) for name, (x, y, _, _) in zip(names, BOX.findall(html), strict=True)}


def test_what_leads_to_something_stands_left_of_it() -> None:
    html, at = drawn("abcd", "ab", "bc", "ac", "dc")

    assert at["a"][0] < at["b"][0] < at["c"][0]
    assert at["d"][0] == at["b"][0], "right before what it leads to"
    assert html.count('<path class="edge ') == 4
    assert 'href="../jobs/a"' in html
    assert 'aria-label="all"' in html
    assert "style=" not in html


@pytest.mark.parametrize(
    "edges", [["ab", "ba"], ["ab", "bc", "ca"], ["aa", "ab"], ["ab", "bb", "ba", "aa", "bc", "cb"]]
)
def test_circles_are_drawn_too(edges: list[str]) -> None:
    html, at = drawn("abc", *edges)

    assert at["a"][0] < at["b"][0]
    assert len(at) == 3
    assert "↻" in html or "marker-start" in html


def test_nothing_lies_upon_another_and_all_lies_inside() -> None:
    draws = random.Random(7)
    names = "abcdefghijklmnopqrstuvwxyz"
    for _ in range(30):
        edges = [draws.choice(names) + draws.choice(names) for _ in range(draws.randrange(40))]
        html, at = drawn(names, *edges)
        size = re.search(r'width="(\d+)" height="(\d+)"', html)
        assert size is not None
        for one, (x, y) in at.items():
            assert 0 <= x <= int(size[1]) - 190
            assert 0 <= y <= int(size[2]) - 50
            for other, (left, top) in at.items():
                assert one == other or abs(x - left) >= 190 or abs(y - top) >= 50, (one, other, edges)


def test_a_long_text_is_cut_and_said_whole() -> None:
    html, _ = drawn("a")
    assert draw(Plan(nodes=[], edges=[], words="nothing"), "./")
    long = draw(Plan(nodes=[Node(id="x", words="<b>" * 40)], edges=[Edge("x", "gone")], words="x"), "./")

    assert "…" in long
    assert "&lt;b&gt;" * 40 in long
    assert "<b>" not in long
    assert "…" not in html
