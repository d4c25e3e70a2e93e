"""Limits: who holds a place, and who waits for one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onward.client.limits import KeyStatus, LimitStatus
from onward.client.words import duration_of
from onward.dashboard.page import Action, Ask, Data, Form, Page, Question
from onward.dashboard.pages.figures import part_of, rate_in_words
from onward.dashboard.refusal import NotThere, Refusal
from onward.define.limit import Rate
from onward.errors import ConfigurationError

_PER_PAGE = 20
"""Limits: each is one statement more."""
_KEYS = 100
_JOBS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    limit: LimitStatus
    types: Sequence[str]
    keys: Sequence[KeyStatus]

    @property
    def is_more(self) -> bool:
        """Whether there are more keys than were looked at."""
        return len(self.keys) == _KEYS


async def limits(ask: Ask) -> Data:
    """All of them, by name."""
    stored = await ask.app.limits.list()
    part, after = part_of(stored, ask.query, "name", most=_PER_PAGE)
    types = _types_by_limit(ask)
    return {
        "rows": [_Row(limit=one, types=types.get(one.name, ()), keys=await _keys(ask, one.name)) for one in part],
        "next": after,
        "not_stored": sorted(types.keys() - {one.name for one in stored}),
        "rate": rate_in_words,
    }


async def _keys(ask: Ask, name: str) -> Sequence[KeyStatus]:
    try:
        return await ask.app.limits.keys(name, limit=_KEYS)
    except ConfigurationError:  # no limit can be called so: a hand has written it
        return ()


async def limit(ask: Ask) -> Data:
    """One of them, by key; with `key` in the address, the jobs there."""
    app, name, key = ask.app, ask.path["name"], ask.query.get("key")
    found = next((one for one in await app.limits.list() if one.name == name), None)
    if found is None:
        raise NotThere(f"There is no limit {name[:200]!r}.")
    after = ask.query.get("after") or None
    keys = await app.limits.keys(name, after=after, limit=_KEYS) if key is None else ()
    if key is None and after is None and [one.key for one in keys] == [""]:
        key = ""  # a limit without keys
    return {
        "limit": found,
        "types": _types_by_limit(ask).get(name, ()),
        "keys": keys,
        "next": keys[-1].key if len(keys) == _KEYS else None,
        "key": key,
        "holding": await app.limits.holding(name, key, limit=_JOBS) if key is not None else (),
        "waiting": await app.limits.waiting(name, key, limit=_JOBS) if key is not None else (),
        "most": _JOBS,
        "rate": rate_in_words,
    }


def _types_by_limit(ask: Ask) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind in ask.app.registry.values():
        for one in kind.limits:
            found.setdefault(one.name, []).append(kind.name)
    return found


# -- what can be done


async def _ask_change(form: Form) -> Question:
    name = form.one("limit")
    found = next((one for one in await form.app.limits.list() if one.name == name), None)
    places = "" if found is None or found.concurrency is None else str(found.concurrency)
    rate = None if found is None else found.rate
    return Question(
        words=f"Change the limit {name}?",
        button="Change",
        details=["It holds from now on, for all workers, until the code declares something else. What runs goes on."],
        inputs=[
            ("concurrency", "How many at a time", places),
            ("rate", "How often, such as 100 per 1m", rate_in_words(rate)),
            ("burst", "How many at once after a pause", "" if rate is None else str(rate.burst)),
        ],
    )


async def _change(form: Form) -> str:
    name = form.one("limit")
    places, rate = _number(form, "concurrency"), _rate(form)
    if places is None and rate is None:
        raise Refusal(400, "Nothing was said to change: say how many at a time, or how often.")
    await form.app.limits.change(name, concurrency=places, rate=rate)
    said = [f"{places:,} at a time" if places is not None else "", rate_in_words(rate)]
    return f"Changed the limit {name}: {', '.join(filter(None, said))}."


def _number(form: Form, name: str) -> int | None:
    text = (form.maybe(name) or "").strip().replace(",", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise Refusal(400, f"{name}: {text[:50]!r} is no whole number.")
    return int(text)


def _rate(form: Form) -> Rate | None:
    text = (form.maybe("rate") or "").strip()
    if not text:
        return None
    match = re.fullmatch(r"([\d,]{1,13})\s*(?:per|/)\s*(.+)", text, flags=re.ASCII)
    if match is None:
        raise Refusal(400, f"rate: {text[:50]!r}: write a number, per, and a time, such as 100 per 1m.")
    per = match[2] if match[2][0].isdigit() else f"1{match[2]}"
    try:
        return Rate(int(match[1].replace(",", "")), per=duration_of(per), burst=_number(form, "burst") or 1)
    except ValueError as problem:
        raise Refusal(400, f"rate: {problem}.") from None


async def _ask_reset(form: Form) -> Question:
    return Question(
        words=f"Reset the limit {form.one('limit')}?",
        button="Reset",
        details=["It has the figures that the code declares, from now on. What runs goes on."],
    )


async def _reset(form: Form) -> str:
    await form.app.limits.reset(form.one("limit"))
    return f"Reset the limit {form.one('limit')} to what the code declares."


PAGES = (
    Page(
        path="/limits",
        title="Limits",
        template="limits.html",
        look=limits,
        navigation="Limits",
        every=5.0,
        cost=1 + _PER_PAGE,
    ),
    Page(path="/limits/{name:path}", title="Limit", template="limit.html", look=limit, cost=4),
)
ACTIONS = (
    Action(name="change-limit", ask=_ask_change, do=_change, records=["limit", "concurrency", "rate", "burst"]),
    Action(name="reset-limit", ask=_ask_reset, do=_reset, records=["limit"]),
)
