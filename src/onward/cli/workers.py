"""`onward workers`: who works, and what each runs."""

from collections.abc import Sequence
from typing import Annotated

from onward.cli.console import say
from onward.cli.options import Json, Place, option, spread
from onward.cli.place import with_app
from onward.cli.printing import print_json, print_table
from onward.client.app import Onward
from onward.client.words import age, ago, several
from onward.operating import WorkerInfo

_MOST_TYPES = 8
Alive = Annotated[bool, option("--alive", "Only those that live, also those that are stopping.")]
Dead = Annotated[bool, option("--dead", "Only those that died.")]


@spread
def workers(place: Place, alive: Alive = False, dead: Dead = False, json: Json = False) -> None:
    """List the workers: those that live, and those that died within a day. Those that stopped in order are gone."""

    async def look(app: Onward) -> Sequence[WorkerInfo]:
        return await app.workers()

    wanted = {alive: "alive", dead: "dead"}.get(True) if alive != dead else None
    found = [one for one in with_app(place, look) if wanted is None or (one.state == "dead") == (wanted == "dead")]
    if json:
        print_json({"workers": found})
        return
    headers = ("worker", "state", "seen", "started", "version", "host", "pid", "runs", "takes", "")
    if found:
        print_table(headers, [_row(worker) for worker in found])
    else:
        say(f"no worker is {wanted}" if wanted else "there are no workers")


def _row(worker: WorkerInfo) -> tuple[object, ...]:
    seen = ago(worker.seen_at)
    if not worker.is_known:
        return worker.id, worker.state, seen, "?", "?", "?", "?", len(worker.running), "?", _remark(worker)
    return (
        worker.id,
        worker.state,
        seen,
        ago(worker.started_at),
        worker.version or "-",
        worker.host,
        worker.pid,
        f"{len(worker.running)} of {worker.concurrency}",
        _types(worker),
        _remark(worker),
    )


def _types(worker: WorkerInfo) -> str:
    names = [
        name if tuple(versions) == (1,) else f"{name} v{_versions(versions)}" for name, versions in worker.types.items()
    ]
    more = [f"and {len(names) - _MOST_TYPES} more"] if len(names) > _MOST_TYPES else []
    return ", ".join(names[:_MOST_TYPES] + more)


def _versions(versions: Sequence[int]) -> str:
    return "/".join(str(version) for version in sorted(versions))


def _remark(worker: WorkerInfo) -> str:
    if not worker.is_known:
        return "without a row: a queue worker, or of an older version"
    if worker.blocked_since is not None and worker.state != "dead":
        return f"its event loop is blocked, since {age(worker.blocked_since)}"
    return f"held {several(len(worker.running), 'job')}" if worker.state == "dead" and worker.running else ""
