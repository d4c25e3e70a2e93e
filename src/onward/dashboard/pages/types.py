"""Job types: how each is doing, and what it was declared with."""

from typing import Any

from onward.client.stats import cut_off
from onward.client.words import several
from onward.dashboard.page import Action, Ask, Data, Form, Page, Question
from onward.dashboard.pages.figures import hour_of, lately, part_of, rate_in_words, rows_of
from onward.dashboard.refusal import NotThere

_PER_PAGE = 100


async def types(ask: Ask) -> Data:
    """All of them, by name."""
    app = ask.app
    stats, schedules = await app.stats(), await app.schedules.list()
    rows = rows_of(app, stats, schedules)
    part, after = part_of(rows, ask.query, "name", most=_PER_PAGE)
    return {
        "rows": part,
        "next": after,
        "stats": stats,
        "count": len(rows),
        # Of a type that the app does not know, and of which there is no job, only this tells.
        "also_paused": [name for name in await app.paused() if name not in stats.types],
        "can_pause": _can_pause(ask),
    }


async def one_type(ask: Ask) -> Data:
    """One of them."""
    app, name = ask.app, ask.path["name"]
    stats = await app.stats()
    found = stats.types.get(name)
    if found is None:
        words = (
            f"There is no type {name[:200]!r}: the app does not know it, and no job of it waits, runs or has failed."
        )
        raise NotThere(words)
    known: Any = app.registry.get(name)
    limits = {limit.name: limit for limit in await app.limits.list()} if known is not None and known.limits else {}
    workers = [worker for worker in await app.workers() if name in worker.types and worker.state == "alive"]
    return {
        "name": name,
        "type": found,
        "stats": stats,
        "hour": hour_of(found.minutes),
        "lately": lately(found.minutes),
        "cut_off": cut_off([found], stats.more_than),
        "known": known,
        "limits": [(one, limits.get(one.name)) for one in known.limits] if known is not None else (),
        "schedules": [one for one in await app.schedules.list() if one.type_name == name],
        "before": sorted(other.name for other in app.registry.values() if name in other.continues_to),
        "waited_for_by": sorted(other.name for other in app.registry.values() if name in other.blocked_by),
        "workers": len(workers),
        "read_by": sorted({version for worker in workers for version in worker.types[name]}),
        "rate": rate_in_words,
        "can_pause": _can_pause(ask),
    }


def _can_pause(ask: Ask) -> Any:
    """Whether the app lets a type be paused: one that it knows, unless it was made for the database alone."""
    return lambda name: not ask.app.registry or name in ask.app.registry


# -- what can be done


async def _ask_pause(form: Form) -> Question:
    return Question(
        words=f"Pause {form.one('type')}?",
        button="Pause",
        details=["Workers leave its jobs alone until it is resumed. What runs goes on, and jobs can still be started."],
    )


async def _pause(form: Form) -> str:
    await form.app.pause(form.one("type"))
    return f"Paused {form.one('type')}."


async def _ask_resume(form: Form) -> Question:
    name = form.one("type")
    found = (await form.app.stats()).types.get(name)
    waiting = [f"Waiting: {several(found.pending, 'job')}."] if found and found.pending else []
    return Question(words=f"Resume {name}?", button="Resume", details=["Workers take its jobs again.", *waiting])


async def _resume(form: Form) -> str:
    await form.app.resume(form.one("type"))
    return f"Resumed {form.one('type')}."


PAGES = (
    Page(path="/types", title="Types", template="types.html", look=types, navigation="Types", every=5.0, cost=5),
    Page(path="/types/{name:path}", title="Type", template="type.html", look=one_type, every=5.0, cost=6),
)
ACTIONS = (
    Action(name="pause-type", ask=_ask_pause, do=_pause, records=["type"]),
    Action(name="resume-type", ask=_ask_resume, do=_resume, records=["type"]),
)
