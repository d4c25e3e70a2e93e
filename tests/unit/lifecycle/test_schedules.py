"""What the code declares against what is stored, and what becomes of ticks that are due."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward import JobType, Schedule, new_id, required
from onward.crypto import Encryption
from onward.define.registry import Registry
from onward.define.schedule import Declared, declared
from onward.errors import ConfigurationError, DefinitionError, PayloadError
from onward.lifecycle.schedules import declarations, plan_tick, shown
from onward.state.schedules import Declaration, FoundSchedules, ScheduleRow

NOW = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
report = JobType("report", input=str, output=str)
TYPES = Registry([report])


def said(**options: Any) -> Declared:
    options = {"input": "x", "every": MINUTE, **options}
    return declared(TYPES, [Schedule("reports", report, options.pop("input"), **options)])["reports"]


def stored(ours: Declared, **fields: Any) -> ScheduleRow:
    fields = {"superseded": "[]", "next_at": NOW, "declared_at": NOW, **fields}
    return ScheduleRow(
        name=ours.name,
        type_name="report",
        definition=ours.definition,
        fingerprint=ours.fingerprint,
        **fields,
    )


def declare(ours: Declared, *rows: ScheduleRow, now: datetime = NOW) -> Declaration | None:
    found = declarations([ours], FoundSchedules(now, None, rows))
    return found[0] if found else None


def after(row: ScheduleRow, said: Declaration) -> ScheduleRow:
    """The row that a declaration leaves."""
    next_at = row.next_at if said.keeps else said.next_at
    return ScheduleRow(
        **{name: getattr(said, name) for name in ("name", "type_name", "definition", "fingerprint", "superseded")},
        next_at=next_at,
        declared_at=NOW,
    )


class TestDeclaring:
    def test_what_is_new_begins_with_the_next_tick(self) -> None:
        ours = declare(said())

        assert ours is not None
        assert (ours.instead_of, ours.superseded, ours.next_at) == (None, "[]", NOW + 30 * SECOND)

    def test_what_is_stored_already_is_left_alone(self) -> None:
        assert declare(said(), stored(said(), next_at=NOW - MINUTE)) is None
        assert declare(said(), stored(said(), changed='{"cron":"0 0 * * *"}')) is None

    def test_another_time_begins_anew_and_other_rules_go_on(self) -> None:
        row = stored(said(), next_at=NOW - 10 * MINUTE)

        sooner, urgent = declare(said(every=SECOND), row), declare(said(priority=9), row)

        assert sooner is not None
        assert urgent is not None
        assert (sooner.keeps, sooner.next_at, sooner.seen_at) == (False, NOW + SECOND, row.next_at)
        assert urgent.keeps

    def test_a_change_in_the_code_ends_a_change_at_run_time(self) -> None:
        found = declare(said(priority=9), stored(said(), changed='{"every":"PT1S"}'))

        assert found is not None
        assert not found.keeps

    def test_it_never_begins_with_a_tick_that_was_started_before(self) -> None:
        ahead = NOW + 10 * MINUTE  # the database has gone back in time
        found = declare(said(every=SECOND), stored(said(), last_tick=ahead))

        assert found is not None
        assert found.next_at == ahead + SECOND

    def test_old_and_new_code_side_by_side_do_not_take_turns(self) -> None:
        old, new = said(every=MINUTE), said(every=2 * MINUTE)
        row = stored(old)
        replaced = declare(new, row)
        assert replaced is not None
        row = after(row, replaced)

        assert declare(old, row) is None
        assert declare(new, row) is None

    def test_old_code_comes_back_when_nobody_declares_the_new_any_more(self) -> None:
        old, new = said(every=MINUTE), said(every=2 * MINUTE)
        replaced = declare(new, stored(old))
        assert replaced is not None
        row = after(stored(old), replaced)

        back = declare(old, row, now=NOW + 61 * SECOND)

        assert back is not None
        assert (back.instead_of, back.fingerprint) == (new.fingerprint, old.fingerprint)
        assert declare(new, after(row, back)) is None, "and now that is the newest"

    def test_what_newer_code_has_written_is_shown_as_well_as_can_be_and_replaced(self) -> None:
        row = ScheduleRow(**{**_fields(stored(said())), "definition": '{"timing":7}', "fingerprint": "strange"})

        found = declare(said(), row)

        assert found is not None
        assert not found.keeps
        assert shown(row, NOW).error == "its definition cannot be read"


def _fields(row: ScheduleRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ScheduleRow.__struct_fields__}


class TestTicks:
    def plan(self, due: timedelta, *, is_running: bool = False, **options: Any) -> Any:
        """Of a schedule whose tick was due so long ago; the last is half a minute old."""
        ours = said(input=lambda tick: tick.isoformat(), **options)
        last = new_id() if is_running else None
        row = stored(ours, next_at=NOW - 30 * SECOND - due, is_running=is_running, last_chain_id=last)
        return plan_tick(TYPES, ours, row, NOW)

    @pytest.mark.parametrize(
        ("missed", "late", "started", "skipped"),
        [
            ("once", 0, [0], 0),
            ("once", 5, [5], 5),
            ("all", 5, [0, 1, 2, 3, 4, 5], 0),
            ("skip", 5, [5], 5),
        ],
    )
    def test_what_was_missed(self, missed: str, late: int, started: list[int], skipped: int) -> None:
        tick = self.plan(late * MINUTE, missed=missed)

        first = NOW - 30 * SECOND - late * MINUTE
        assert tick.ticks == [first + n * MINUTE for n in started]
        assert [job.input.strip('"') for job in tick.jobs] == [one.isoformat() for one in tick.ticks]
        assert (tick.move.skipped, tick.move.next_at) == (skipped, NOW + 30 * SECOND)
        assert tick.move.last_chain_id == tick.jobs[-1].id

    def test_who_skips_what_was_missed_starts_nothing_that_is_more_than_a_minute_late(self) -> None:
        tick = self.plan(31 * SECOND, missed="skip", every=timedelta(hours=1), start=NOW - 61 * SECOND)

        assert (tick.ticks, tick.jobs, tick.move.skipped) == ([], [], 1)
        assert (tick.move.last_tick, tick.move.last_chain_id) == (None, None)
        assert len(tick.events) == 1

    def test_very_many_come_in_parts(self) -> None:
        tick = self.plan(1000 * MINUTE, missed="all")

        assert len(tick.jobs) == 100
        assert tick.move.next_at == tick.ticks[-1] + MINUTE

    def test_while_the_last_chain_runs(self) -> None:
        beside = self.plan(timedelta(0), is_running=True)
        skipped = self.plan(timedelta(0), is_running=True, overlap="skip")
        waiting = self.plan(timedelta(0), is_running=True, overlap="queue")

        assert [job.blockers for job in beside.jobs] == [()]
        assert (skipped.jobs, skipped.move.skipped) == ([], 1)
        assert [(len(job.blockers), job.runs_anyway) for job in waiting.jobs] == [(1, True)]

    def test_several_at_once_do_not_overlap_either(self) -> None:
        skipped = self.plan(2 * MINUTE, missed="all", overlap="skip")
        waiting = self.plan(2 * MINUTE, missed="all", overlap="queue")

        assert (len(skipped.jobs), skipped.move.skipped) == (1, 2)
        first, second, third = waiting.jobs
        assert (first.blockers, second.blockers, third.blockers) == ((), (first.id,), (second.id,))

    def test_jitter_has_the_chain_begin_later(self) -> None:
        tick = self.plan(timedelta(0), jitter=MINUTE)

        assert tick.ticks[0] <= tick.jobs[0].at < tick.ticks[0] + MINUTE

    def test_the_input_is_made_in_the_zone_of_the_schedule(self) -> None:
        tick = self.plan(timedelta(0), tz="Europe/Oslo")

        assert tick.jobs[0].input == '"2030-01-01T13:00:00+01:00"'

    @pytest.mark.parametrize(
        ("make", "error"),
        [(lambda tick: 1 // 0, ZeroDivisionError), (lambda tick: 7, PayloadError), (lambda tick: exit(), Exception)],
    )
    def test_an_input_that_cannot_be_made_is_an_error_and_no_more(self, make: Any, error: type[Exception]) -> None:
        ours = said(input=make)

        with pytest.raises(error):
            plan_tick(TYPES, ours, stored(ours), NOW)

    def test_ticks_before_one_whose_input_cannot_be_made_are_started(self) -> None:
        wrong = NOW - 10 * MINUTE
        ours = said(input=lambda tick: tick.isoformat() if tick < wrong else 1 // 0, missed="all")
        row, started = stored(ours, next_at=NOW - 30 * SECOND - 30 * MINUTE), list[datetime]()

        with pytest.raises(ZeroDivisionError):
            for _ in range(30):
                tick = plan_tick(TYPES, ours, row, NOW)
                started += tick.ticks
                row = stored(ours, next_at=tick.move.next_at)

        assert started == [NOW - 30 * SECOND - n * MINUTE for n in range(30, 9, -1)]


class TestTheAppsOwn:
    def test_a_type_may_have_its_own(self) -> None:
        kind = JobType("own", input=str, output=str, schedule=Schedule(input="x", every=MINUTE))

        found = declared(Registry([kind, report]), [Schedule("other", report, "y", every=MINUTE)])

        assert [(one.name, one.type.name) for one in found.values()] == [("own", "own"), ("other", "report")]

    def test_every_problem_is_said(self) -> None:
        needy = JobType("needy", input=str, output=str, blocked_by=[required(report)])
        stranger = JobType("stranger", input=str, output=str)
        schedules = [
            Schedule("twice", report, "x", every=MINUTE),
            Schedule("twice", report, "x", every=MINUTE),
            Schedule("wrong", report, 7, every=MINUTE),  # type: ignore[arg-type]
            Schedule("unknown", stranger, "x", every=MINUTE),
            Schedule("needy", needy, "x", every=MINUTE),
        ]

        with pytest.raises(DefinitionError) as refusal:
            declared(Registry([report, needy]), schedules)

        text = str(refusal.value)
        for words in ("'twice': there are two", "'wrong'", "Expected `str`", "'unknown'", "'needy' needs blockers"):
            assert words in text
        assert len(refusal.value.problems) == 4

    @pytest.mark.parametrize("strange", [Schedule(every=MINUTE), "nightly", report])
    def test_what_is_no_schedule_of_an_app_is_refused(self, strange: Any) -> None:
        with pytest.raises(ConfigurationError, match="schedule"):
            declared(TYPES, [strange])

    def test_a_type_takes_one_without_name_and_type(self) -> None:
        with pytest.raises(DefinitionError, match="leave out name and job type"):
            JobType("own", input=str, output=str, schedule=Schedule("x", report, "x", every=MINUTE))
        with pytest.raises(DefinitionError, match="expected a Schedule"):
            JobType("own", input=str, output=str, schedule="0 3 * * *")  # type: ignore[arg-type]

    def test_what_is_secret_is_not_stored_with_the_schedule(self) -> None:
        sealed = JobType("sealed", input=str, output=str, encryption=Encryption({"k": bytes(32)}))

        found = declared(Registry([sealed]), [Schedule("s", sealed, "hush", every=MINUTE)])["s"]

        assert "hush" not in found.definition
