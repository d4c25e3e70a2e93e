"""A chain as a picture, its attempts on a time line, why it waits, and the graph of what is declared."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from browsing import Browser, text_of
from onward import Attempt, Backoff, JobType, Next, Onward, Permanent, job
from onward.dashboard.timeline import draw, time_line
from onward.errors import ChainFailed
from onward.model import FailedJob, FailureReason, JobError, RunningJob, new_id

LATER = timedelta(hours=1)
part = JobType("basket.part", input=int, output=int)


@job("basket.mail", internal=True)
async def mail(attempt: Attempt[int]) -> None: ...


@job("basket.sum", blocked_by=[part], continues_to=[mail])
async def summed(attempt: Attempt[int]) -> Next[None]:
    async with attempt.complete():
        return attempt.continue_with(mail, attempt.input)


@job("basket.part.of.another", backoff=Backoff(initial=timedelta(0)))
async def failing(attempt: Attempt[int]) -> None:
    raise (ValueError if attempt.number < 3 else Permanent)("no such basket")


report = JobType("basket.report", input=int, output=int, blocked_by=[summed])
alone = JobType("alone", input=int, output=int)


@pytest.fixture
def target(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
async def browser(running: Callable[..., Any], serve: Callable[..., Any]) -> Browser:
    found: Browser = await serve(await running(part, mail, summed, failing, report, alone))
    return found


def picture_in(page: str) -> str:
    found = re.search(r'<svg class="picture".*?</svg>', page, re.DOTALL)
    assert found is not None
    return found[0]


async def test_a_chain_is_drawn_with_what_it_waits_for_and_what_waits_for_it(browser: Browser) -> None:
    app = browser.app
    parts = await app.start_many([part.with_input(n) for n in range(103)])
    chain = await app.start(summed, 1, blockers=parts)
    waiting = await app.start(report, 2, blockers=[chain])

    page = await browser.visit(f"/chains/{chain.id}")
    drawn = picture_in(page)
    assert "and 97 more" in drawn
    assert "97 pending" in drawn
    assert drawn.count("../chains/") == 6
    assert f'href="../jobs/{waiting.id}"' in drawn
    assert 'class="node blocked here"' in drawn
    assert "waits, or waited, for 103 chains" in drawn
    facts = text_of(page)
    assert "What this rests on" in facts
    assert "open blockers 103" in facts

    await app.cancel(parts[0])
    drawn = picture_in(await browser.visit(f"/jobs/{waiting.id}"))
    assert f'href="../chains/{chain.id}"' in drawn
    assert "failed" in drawn


async def test_steps_of_a_chain_follow_each_other_and_what_was_done_is_on_the_time_line(browser: Browser) -> None:
    app = browser.app
    first = await app.start(part, 1)
    chain = await app.start(summed, 7, blockers=[first])
    async with app.complete(first.id) as completion:
        await completion.done(3)
    await chain.wait(timeout=timedelta(seconds=20))
    bad = await app.start(failing, 1)
    with pytest.raises(ChainFailed):
        await bad.wait(timeout=timedelta(seconds=20))

    for address in (f"/chains/{chain.id}", f"/jobs/{chain.id}"):
        page = await browser.visit(address)
        drawn = picture_in(page)
        assert f'href="../chains/{first.id}"' in drawn, "what its first step waited for"
        assert "basket.mail" in drawn
        assert drawn.count('class="edge continues"') == 1
        assert drawn.count('class="edge blocks"') == 1
        assert page.count('<svg class="line"') == 2
        assert "1 completed" in text_of(page)
    page = await browser.visit(f"/chains/{bad.id}")
    assert '<svg class="picture"' not in page, "of one thing there is no picture"
    assert page.count('class="fell failed"') == 3
    assert [word in text_of(page) for word in ("1 ValueError", "2 ValueError", "3 Permanent")] == [True] * 3


def at(seconds: float) -> datetime:
    return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def error(attempt: int, kind: str, *, counted: bool = True) -> JobError:
    return JobError(type=kind, message="", attempt=attempt, counted=counted, at=at(attempt) if attempt < 19 else None)


def test_no_more_is_drawn_than_rows_tell() -> None:
    id = new_id()
    job = RunningJob(
        id=id, chain_id=id, chain_index=0, type_name="x", payload_version=1, input=1, priority=0, created_at=at(0),
        scheduled_at=at(60), origin_id=None, root_id=id, attempt=20, failures=2, leased_by="w", leased_until=at(200),
        cancel_requested=False,
        errors=(error(17, "WorkerCrashed"), error(18, "OSError", counted=False), error(19, "ValueError")),
    )  # fmt: skip
    [row] = time_line([job], at(100)).rows

    assert [(part.kind, part.start, part.end) for part in row.parts] == [
        ("retried", at(0), at(60)),
        ("running", at(60), at(100)),
    ]
    assert row.earlier == 8
    assert draw(row, time_line([job], at(100))).count('class="fell ') == 2
    assert [one.kind for one in row.tries[-5:]] == ["unknown", "lost", "uncounted", "failed", "running"]
    assert "19 earlier attempts" in row.parts[0].words
    untried = FailedJob(
        id=id, chain_id=id, chain_index=0, type_name="x", payload_version=1, input=1, priority=0, created_at=at(0),
        scheduled_at=at(900), origin_id=None, root_id=id, attempt=0, failures=0,
        reason=FailureReason.CANCELLED, failed_at=at(5),
    )  # fmt: skip
    [row] = time_line([untried], at(100)).rows
    assert [(part.kind, part.end) for part in row.parts] == [("waited", at(5))]
    assert row.tries == []


async def test_the_graph_shows_what_is_declared_with_counts(browser: Browser, make_app: Callable[..., Onward]) -> None:
    await browser.app.start(part, 1)
    await browser.app.start(alone, 1, delay=LATER)

    page = await browser.visit("/graph")
    drawn = picture_in(page)
    assert "basket.part: 1 pending" in drawn
    assert 'href="./jobs?type=basket.part"' in drawn
    assert ">alone<" not in drawn
    assert "Types that stand alone" in page
    assert "As of" in page
    async with make_app() as stranger:
        browser.dashboard.app = stranger
        assert "not declared here" in await browser.visit("/graph?again")
