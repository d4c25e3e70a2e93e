"""Who works, and what each runs."""

from onward.dashboard.page import Ask, Data, Page

_MOST = 200


async def workers(ask: Ask) -> Data:
    """Those that live, then those that died within a day."""
    found = await ask.app.workers()
    alive = [worker for worker in found if worker.state == "alive"]
    return {
        "workers": found[:_MOST],
        "more": len(found) - _MOST,
        "alive": len(alive),
        "dead": sum(worker.state == "dead" for worker in found),
        "places": sum(worker.concurrency for worker in alive),
        "running": sum(len(worker.running) for worker in alive),
    }


PAGES = (Page(path="/workers", title="Workers", template="workers.html", look=workers, navigation="Workers", cost=1),)
