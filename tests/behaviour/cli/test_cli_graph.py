"""`onward graph`: the declared chains, and what waits in them."""

from typing import Any

from onward import SyncOnward

SHOP = """
@job('ship "now"', internal=True)
async def ship(attempt: Attempt[int]) -> int:
    return 1
@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[int]) -> Next[int]:
    return attempt.continue_with(ship, 1)
report = JobType("report", input=int, output=int, blocked_by=[charge])
jobs = [charge, ship, report]
"""


def test_chains_are_drawn_for_mermaid_and_graphviz(onward: Any, module: Any) -> None:
    *path, app = module(SHOP)

    assert onward("graph", app, *path).out.splitlines() == [
        "flowchart LR",
        '  t0(["charge"])',
        '  t1["ship #34;now#34;"]',
        '  t2(["report"])',
        "  t0 --> t1",
        "  t0 -.-> t2",
    ]
    drawn = onward("graph", app, "--format", "dot").out
    assert '"charge" -> "ship \\"now\\"";' in drawn
    assert '"charge" -> "report" [style=dashed];' in drawn
    found = onward("graph", app, "--json").json
    assert found["continues"] == [{"from": "charge", "to": 'ship "now"'}]
    assert found["waits"] == [{"type": "report", "for": "charge"}]
    assert [one["type"] for one in found["types"]] == ["charge", 'ship "now"', "report"]


def test_a_type_is_one_line_and_steers_no_terminal_whatever_it_is_called(onward: Any, module: Any) -> None:
    *path, app = module("jobs = [JobType('a\\x1b[2J\\nb', input=int, output=int)]\n")

    assert onward("graph", app, *path).out.splitlines() == ["flowchart LR", '  t0(["a␛[2J b"])']


def test_what_waits_is_counted_where_asked(onward: Any, module: Any, at: Any, client: SyncOnward) -> None:
    *path, app = module(SHOP)
    for _ in range(2):
        onward("start", "charge", 1, "--app", app, *path)

    for where in (at, ["--counts"]):
        assert 't0(["charge<br/>2 pending"])' in onward("graph", app, *where).out
        assert '[label="charge\\n2 pending"' in onward("graph", app, *where, "--format", "dot").out
        assert onward("graph", app, *where, "--json").json["types"][0]["counts"]["pending"] == 2
    assert "no module named" in onward("graph", "nowhere:app", code=1).words
