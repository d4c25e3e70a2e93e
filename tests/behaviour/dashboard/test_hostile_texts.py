"""Texts of others are shown as texts, in whatever field they come, on every page that shows them."""

import contextlib
import re
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from browsing import Browser
from hostile_html import MARK, look_at, texts
from onward import Attempt, Deduplication, JobType, Onward, Permanent, job
from onward.dashboard.pages.registry import ACTIONS, PAGES
from onward.errors import ChainFailed

HOSTILE = texts()
TYPE = f"<script>{MARK}()</script>"
"""The name of a type: every name of ours is one of the texts."""


@pytest.fixture
def target(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


@job(f'"><img src=x onerror={MARK}()>')
async def raises(attempt: Attempt[dict[str, str]]) -> None:
    text = attempt.input["text"]
    attempt.progress(0.5, text[:200])
    raise type(f"E{MARK}<b>", (Permanent,), {})(text)


@job(f"</title><svg onload={MARK}()>")
async def returns(attempt: Attempt[dict[str, str]]) -> dict[str, str]:
    return {attempt.input["text"]: attempt.input["text"]}


waits = JobType(TYPE, input=dict[str, str], output=str, blocked_by=[returns, raises])


def test_there_are_enough_of_them() -> None:
    assert len(set(HOSTILE)) >= 200
    assert all(MARK in text for text in HOSTILE)


def test_a_page_that_forgot_to_escape_would_be_found() -> None:
    found = [text for text in HOSTILE if look_at(f"<p>{text}</p>")[0] or look_at(f'<p title="{text}">x</p>')[0]]
    assert len(found) > 180
    assert look_at(f'<a href="javascript:{MARK}()">x</a>')[0]


async def test_no_text_becomes_anything_but_text(running: Callable[..., Any], serve: Callable[..., Any]) -> None:
    app = await running(raises, returns, waits)
    # Several in each job: what they become does not depend on what stands beside them.
    together = ["\n".join(HOSTILE[n : n + 12]) for n in range(0, len(HOSTILE), 12)]
    starts = [
        kind.with_input(
            {"text": text, text: "key"}, meta={"note": text}, deduplication=Deduplication(text[:100], scope="any")
        )
        for kind in (raises, returns)
        for text in together
    ]
    chains = await app.start_many(starts)
    first = chains[0]
    last = await app.start(waits, {"text": HOSTILE[0]}, blockers=[first, chains[-1]])
    await _ended(app)

    browser: Browser = await serve(app, title=TYPE)
    browser.dashboard._readings._timeout = 60
    pages = [page.path for page in PAGES if "{" not in page.path]
    addresses = [*pages, *(f"{path}?limit=200" for path in pages), "/nowhere" + quote(HOSTILE[0])]
    everything = [job async for job in app.jobs(limit=1000)]
    addresses += [f"/jobs/{job.id}" for job in everything] + [f"/chains/{last.id}"]
    failed = await browser.visit("/failed")
    addresses += [f"/failed/{group}" for group in set(re.findall(r"failed/(\w{8})", failed))]
    addresses += [f"/confirm/{action.name}?chain={first.id}&group={quote(HOSTILE[0])}" for action in ACTIONS]
    for text in (HOSTILE[0], HOSTILE[41], HOSTILE[-1]):
        for page in pages:
            names = ("status", "newer", "after", "reason", "limit", "root")
            addresses += [f"{page}?{urlencode({'type': text, 'error': text, 'input': text, 'q': text})}"]
            addresses += [f"{page}?{urlencode({name: text})}" for name in names]
        addresses += [f"/confirm/retry?{urlencode({'chain': str(first.id), text: text, 'back': text})}"]

    shown = ""
    for address in addresses:
        answer = await browser.client.get(address.lstrip("/"))
        assert answer.status_code < 500, (address, answer.text)
        problems, _ = look_at(answer.text)
        assert not problems, (address, problems)
        assert f"49{MARK}" not in answer.text
        shown += unescape(answer.text)

    assert [text for text in HOSTILE if text not in shown] == []


async def _ended(app: Onward) -> None:
    async for chain in app.chains(status=["pending", "running", "blocked"], limit=1000):
        if chain.type_name != TYPE:
            job_type: Any = app.registry.find(chain.type_name).step
            with contextlib.suppress(ChainFailed):
                await app.chain(job_type, chain.id).wait()
