"""The memory in which a worker tells its guardian what it holds, and when a lease has to be given up."""

import os
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from onward.worker.guardian.leases import Deadlines, Lease, Leases
from onward.worker.guardian.table import Reader, Shape, TableFull, Writer, is_overdue

SHAPE = Shape(leases=2, processes=1)


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer(SHAPE)
    yield writer
    writer.close()


@pytest.fixture
def reader(writer: Writer) -> Reader:
    return Reader(writer.descriptor, SHAPE)


def test_what_is_put_is_held_until_it_is_cleared(writer: Writer, reader: Reader) -> None:
    first, second = uuid4().bytes, uuid4().bytes
    place = writer.put(first, 3, 60.0)
    writer.put(second, 1, 1.5)
    both = set(reader.held())

    writer.clear(place)

    assert both == {(first, 3, 60.0, 0.0), (second, 1, 1.5, 0.0)}
    assert reader.held() == [(second, 1, 1.5, 0.0)]


def test_a_full_table_refuses_and_a_cleared_place_can_be_used_again(writer: Writer, reader: Reader) -> None:
    place = writer.put(uuid4().bytes, 1, 60.0)
    writer.put(uuid4().bytes, 1, 60.0)
    with pytest.raises(TableFull):
        writer.put(uuid4().bytes, 1, 60.0)

    writer.clear(place)
    job_id = uuid4().bytes
    writer.put(job_id, 2, 30.0)

    assert (job_id, 2, 30.0, 0.0) in reader.held()


def test_what_is_held_is_in_the_table_until_its_own_attempt_lets_go(writer: Writer, reader: Reader) -> None:
    job_id, leases = uuid4(), Leases()
    leases.table = writer
    leases.hold(job_id, 1, 60.0, since=100.0)
    leases.hold(job_id, 2, 60.0, since=100.0, limit=5.0)  # taken again

    of_another = leases.let_go(job_id, 1)
    between = reader.held()
    of_its_own = leases.let_go(job_id, 2)

    assert (of_another, of_its_own) == (False, True)
    assert between == [(job_id.bytes, 2, 60.0, 105.0)]
    assert (dict(leases), reader.held()) == ({}, [])


def test_a_lease_for_which_the_table_has_no_place_is_held_all_the_same(writer: Writer) -> None:
    told = list[str]()
    leases = Leases(table_is_full=lambda: told.append("full"))
    leases.table = writer

    for _ in range(SHAPE.leases + 1):
        leases.hold(uuid4(), 1, 60.0, since=100.0)

    assert (told, len(leases)) == (["full"], SHAPE.leases + 1)


def test_a_process_is_seen_only_while_its_number_is_still_its_own(
    writer: Writer, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add_process(os.getpid())
    seen = reader.processes()
    monkeypatch.setattr("onward.worker.guardian.table.started_at", lambda pid: 1)
    reused = reader.processes()
    monkeypatch.undo()
    writer.remove_process(os.getpid())

    assert (seen, reused, reader.processes()) == ([os.getpid()], [], [])


def test_the_times_of_the_child_reach_the_worker(writer: Writer, reader: Reader) -> None:
    before = writer.renewed, writer.turned

    reader.renewed(12.5)
    reader.turned(13.25)

    assert before == (0.0, 0.0)
    assert (writer.renewed, writer.turned) == (12.5, 13.25)


def test_a_renewal_counts_only_for_what_was_held_when_it_began() -> None:
    lease = Lease(attempt=1, seconds=60.0, held_at=100.0, until=155.0)

    lease.renewed_at(99.0)
    before = lease.until
    lease.renewed_at(110.0)

    assert (before, lease.until) == (155.0, 170.0)


def test_a_lease_about_to_run_out_is_given_up_once() -> None:
    now = time.monotonic()
    late, fresh = uuid4(), uuid4()
    leases = Leases()
    leases.update({late: Lease(2, 60.0, now, now + 9.0), fresh: Lease(1, 60.0, now, now + 60.0)})
    deadlines = Deadlines(leases, shortest=60.0)

    assert list(deadlines.overdue()) == [(late, 2)]
    assert list(deadlines.overdue()) == []


@pytest.mark.parametrize(
    ("deadline", "beat", "now", "overdue"),
    [
        (0.0, 100.0, 200.0, False),  # it has none
        (150.0, 100.0, 149.0, False),  # it is still to come
        (150.0, 149.0, 150.5, False),  # the loop has turned just now, and sees to it
        (150.0, 151.0, 200.0, False),  # the loop has seen to it before it was blocked
        (150.0, 149.0, 151.5, True),
    ],
)
def test_an_attempt_is_overdue_when_its_time_runs_out_while_the_loop_is_blocked(
    deadline: float, beat: float, now: float, overdue: bool
) -> None:
    assert is_overdue(deadline, beat, now) == overdue
