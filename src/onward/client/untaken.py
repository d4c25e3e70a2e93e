"""Jobs that wait, and that no worker takes."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from onward.operating import WorkerInfo
from onward.state.facts import DueType

OF_QUEUES = "queue:"
"""How the types of queues in the database begin: no code declares them, and no row tells of who takes them."""


def is_of_queue(type_name: str) -> bool:
    """Whether queue workers take its jobs, of whom nothing is known unless they run one."""
    return type_name.startswith(OF_QUEUES)


def untaken(
    waiting: Iterable[DueType],
    workers: Iterable[WorkerInfo],
    *,
    here: Mapping[str, Sequence[int]] | None = None,
    without_handler: Collection[str] = (),
) -> list[tuple[DueType, Sequence[int]]]:
    """What waits and no live worker takes, with the versions of the type that some worker does read.

    `here`: what a worker reads whose row may not be there yet. `without_handler`: the types that others complete.
    """
    taken = {name: set(versions) for name, versions in (here or {}).items()}
    for worker in workers:
        if worker.state == "alive":
            for name, versions in worker.types.items():
                taken.setdefault(name, set()).update(versions)
    return [
        (one, sorted(taken.get(one.type_name, ())))
        for one in waiting
        if one.type_name not in without_handler
        and not is_of_queue(one.type_name)
        and one.payload_version not in taken.get(one.type_name, ())
    ]


def in_words(found: Iterable[tuple[DueType, Sequence[int]]]) -> str:
    """The same for people."""
    return ", ".join(_words(one, read) for one, read in found)


def _words(one: DueType, read: Sequence[int]) -> str:
    if not read:
        return one.type_name
    why = "newer code started it" if one.payload_version > max(read) else "an upcast is missing"
    versions = " and ".join(str(version) for version in read)
    return f"{one.type_name} of payload version {one.payload_version} (workers read {versions}: {why})"
