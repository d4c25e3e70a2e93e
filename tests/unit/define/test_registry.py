"""Job types are checked together when an app is built, and one by one when they are used."""

import re
from collections.abc import Awaitable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pytest

from onward.define.attempt import Attempt
from onward.define.codec import Limits
from onward.define.job_type import Definition, JobType, Step, TypeOptions, job
from onward.define.outcome import Next, Outcome
from onward.define.registry import DEFAULT_TIMEOUT, Registry
from onward.define.request import NewChain, StartOptions
from onward.define.slice import Slice
from onward.errors import (
    ConfigurationError,
    DefinitionError,
    InternalJobType,
    PayloadError,
    UndeclaredStep,
    UnknownJobType,
)
from onward.flow.stage import Stage, StageOptions
from onward.model import Backoff, new_id


@dataclass
class Order:
    id: int
    currency: str = "EUR"


class Unstorable:
    """Nothing that can be stored as JSON."""


@job("ship", internal=True)
async def ship(attempt: Attempt[Order]) -> str:
    return "shipped"


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[Order]) -> Next[str]:
    return attempt.continue_with(ship, attempt.input)


def problems_of(*jobs: Step[Any, Any] | Slice) -> tuple[str, ...]:
    with pytest.raises(DefinitionError) as refusal:
        Registry(jobs)
    return refusal.value.problems


def test_types_that_fit_together_are_found_by_name() -> None:
    registry = Registry([charge, ship])

    assert list(registry) == ["charge", "ship"]
    assert registry["charge"].step is charge
    assert len(registry) == 2


def test_a_type_that_always_continues_has_no_output_of_its_own() -> None:
    registry = Registry([charge, ship])

    assert registry["charge"].output is None
    assert registry["ship"].output is not None


def test_an_app_without_jobs_is_fine() -> None:
    assert len(Registry([])) == 0


def test_a_name_defined_twice_is_a_problem() -> None:
    @job("ship", internal=True)
    async def other(attempt: Attempt[int]) -> str:
        return ""

    (problem,) = problems_of(charge, ship, other)
    assert problem.startswith("ship: defined 2 times: at ")
    assert problem.count(f"{__file__}:") == 2, "it says where both are"


def test_continuing_to_an_unknown_type_is_a_problem() -> None:
    assert problems_of(charge) == ("charge: continues to 'ship', which is not among the jobs of this app",)


def test_waiting_for_an_unknown_type_is_a_problem() -> None:
    report = JobType("report", input=int, output=int, blocked_by=["fetch"])

    assert problems_of(report) == ("report: blocked by 'fetch', which is not among the jobs of this app",)


def test_waiting_for_an_internal_type_is_a_problem() -> None:
    report = JobType("report", input=int, output=int, blocked_by=["ship"])

    (problem,) = problems_of(report, charge, ship)

    assert problem == "report: blocked by 'ship', which is internal and so never begins a chain"


def test_an_internal_type_that_nothing_leads_to_is_a_problem() -> None:
    @job("first", internal=True, continues_to=["second"])
    async def first(attempt: Attempt[int]) -> Outcome[int]:
        return attempt.reschedule()

    @job("second", internal=True, continues_to=["first"])
    async def second(attempt: Attempt[int]) -> Outcome[int]:
        return attempt.reschedule()

    assert problems_of(first, second) == (
        "first: internal, and no entry type leads to it",
        "second: internal, and no entry type leads to it",
    )


def test_an_internal_type_may_be_reached_by_way_of_another() -> None:
    @job("middle", internal=True, continues_to=[ship])
    async def middle(attempt: Attempt[Order]) -> Next[str]:
        return attempt.continue_with(ship, attempt.input)

    @job("begin", continues_to=[middle])
    async def begin(attempt: Attempt[Order]) -> Next[str]:
        return attempt.continue_with(middle, attempt.input)

    assert len(Registry([begin, middle, ship])) == 3


def test_a_type_may_continue_to_itself() -> None:
    @job("poll", continues_to=["poll"])
    async def poll(attempt: Attempt[int]) -> Outcome[int]:
        return attempt.continue_with(poll, attempt.input)

    Registry([poll])["poll"].may_continue_to("poll")


def test_a_handler_that_cannot_continue_though_it_says_so_is_a_problem() -> None:
    @job("stuck", continues_to=[ship])
    async def stuck(attempt: Attempt[Order]) -> str:
        return ""

    assert problems_of(stuck, charge, ship) == (
        "stuck: declares continues_to, but its handler returns no Next or Outcome",
    )


def test_a_handler_that_must_continue_but_cannot_is_a_problem() -> None:
    @job("endless")
    async def endless(attempt: Attempt[Order]) -> Next[str]:
        return attempt.continue_with(ship, attempt.input)

    assert problems_of(endless, charge, ship) == ("endless: its handler always continues, but continues_to is empty",)


def test_payloads_that_cannot_be_stored_are_problems() -> None:
    first, second = problems_of(
        JobType("odd", input=Unstorable, output=int), JobType("off", input=int, output=Unstorable)
    )

    assert "odd: input type" in first
    assert "off: output type" in second


def test_every_problem_is_listed_in_one_error() -> None:
    @job("lonely", internal=True)
    async def lonely(attempt: Attempt[int]) -> int:
        return 0

    @job("stuck", continues_to=["nowhere"], blocked_by=["nothing", "lonely"])
    async def stuck(attempt: Attempt[Order]) -> str:
        return ""

    odd = JobType("odd", input=Unstorable, output=int)

    with pytest.raises(DefinitionError) as refusal:
        Registry([stuck, lonely, odd, odd, charge])

    listed = "\n".join(refusal.value.problems)
    for problem in (
        "odd: defined 2 times",
        "stuck: continues to 'nowhere'",
        "stuck: blocked by 'nothing'",
        "stuck: blocked by 'lonely', which is internal",
        "stuck: declares continues_to",
        "charge: continues to 'ship'",
        "lonely: internal, and no entry type leads to it",
        "odd: input type",
    ):
        assert problem in listed
        assert f"  - {problem}" in str(refusal.value)


def test_an_unknown_type_is_refused_when_it_is_used() -> None:
    with pytest.raises(UnknownJobType) as refusal:
        Registry([]).find("ship")

    assert refusal.value.job_type == "ship"


def test_an_internal_type_does_not_begin_a_chain() -> None:
    registry = Registry([charge, ship])

    assert registry.entry(charge).name == "charge"
    with pytest.raises(InternalJobType) as refusal:
        registry.entry(ship)
    assert refusal.value.job_type == "ship"


def test_steps_that_were_not_declared_are_refused_when_they_are_used() -> None:
    registered = Registry([charge, ship])["charge"]
    registered.may_continue_to("ship")

    with pytest.raises(UndeclaredStep) as continued:
        registered.may_continue_to("charge")
    with pytest.raises(UndeclaredStep) as blocked:
        registered.may_be_blocked_by("ship")

    assert (continued.value.job_type, continued.value.step, continued.value.option) == (
        "charge",
        "charge",
        "continues_to",
    )
    assert (blocked.value.step, blocked.value.option) == ("ship", "blocked_by")


def test_only_types_with_a_handler_are_handled() -> None:
    approve = JobType("approve", input=Order, output=bool)

    registry = Registry([approve, charge, ship])

    assert [registered.name for registered in registry.handled()] == ["charge", "ship"]


def test_the_limit_on_payloads_is_the_apps() -> None:
    small = Registry([charge, ship], limits=Limits(bytes=10))["charge"]

    with pytest.raises(PayloadError) as refusal:
        small.input.encode(Order(1))

    assert refusal.value.job_type == "charge"


# -- versions


def versioned() -> JobType[Order, str]:
    @job("invoice", version=3)
    async def invoice(attempt: Attempt[Order]) -> str:
        return ""

    return invoice


def test_without_upcasters_only_the_current_version_is_read() -> None:
    assert Registry([versioned()])["invoice"].versions == (3,)


def test_upcasters_admit_older_versions_as_far_as_they_reach() -> None:
    one, both, gap = versioned(), versioned(), versioned()
    one.upcast(2)(dict)
    both.upcast(2)(dict)
    both.upcast(1)(dict)
    gap.upcast(1)(dict)

    versions = [Registry([each])["invoice"].versions for each in (one, both, gap)]

    assert versions == [(3, 2), (3, 2, 1), (3,)]


def test_an_older_input_is_brought_up_step_by_step() -> None:
    invoice = versioned()

    @invoice.upcast(1)
    def name_the_id(old: int) -> dict[str, int]:
        return {"number": old}

    @invoice.upcast(2)
    def rename_the_id(old: dict[str, int]) -> dict[str, Any]:
        return {"id": old["number"], "currency": "CHF"}

    registered = Registry([invoice])["invoice"]

    assert registered.read_input("7", 1, new_id()) == Order(7, "CHF")
    assert registered.read_input('{"number": 7}', 2, new_id()) == Order(7, "CHF")
    assert registered.read_input('{"id": 7}', 3, new_id()) == Order(7, "EUR")


def test_an_upcaster_that_gives_the_wrong_shape_is_a_payload_error() -> None:
    invoice = versioned()
    invoice.upcast(2)(lambda old: {"id": "seven"})

    with pytest.raises(PayloadError) as refusal:
        Registry([invoice])["invoice"].read_input("{}", 2, new_id())

    assert (refusal.value.job_type, refusal.value.field) == ("invoice", "$.id")


@pytest.mark.parametrize("version", [0, 3, 4])
def test_an_upcaster_that_leads_nowhere_is_refused(version: int) -> None:
    with pytest.raises(DefinitionError) as refusal:
        versioned().upcast(version)(dict)

    assert refusal.value.problems == (f"invoice: upcast({version}) leads nowhere below its version",)


# -- options, and what slices have in common


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"version": 0}, "version=0 is out of range: expected a whole number from 1 to 2147483647"),
        ({"max_attempts": 0}, "max_attempts=0 is out of range: expected a whole number from 1 on"),
        ({"max_attempts": "3"}, "max_attempts='3': expected a whole number from 1 on"),
        ({"lease": timedelta(seconds=0.5)}, "lease=0:00:00.500000 is too short: expected at least 1 seconds"),
        ({"lease": timedelta.max}, "lease is too long: expected at most 365,000 days, got 999,999,999"),
        ({"timeout": timedelta(0)}, "timeout=0:00:00 is too short: expected at least 1e-06 seconds"),
        ({"timeout": 5}, "timeout=5: expected a timedelta, such as timedelta(seconds=5)"),
        ({"backoff": 5}, "backoff=5: expected a Backoff(initial=…)"),
        (
            {"backoff": Backoff(maximum=timedelta.max)},
            "backoff: maximum is too long: expected at most 365,000 days, got 999,999,999",
        ),
        ({"executor": "proces"}, "executor='proces': use one of 'auto', 'process'; did you mean 'process'?"),
        ({"on_blocker_failure": "ru"}, "on_blocker_failure='ru': use one of 'fail', 'run'; did you mean 'run'?"),
        ({"continues_to": "ship"}, "continues_to='ship': expected a list of job types, or of their names"),
        ({"blocked_by": [7]}, "blocked_by=7: expected a job type, as @job makes it, or its name"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError) as refusal:
        JobType("work", input=int, output=int, **options)

    assert refusal.value.problems == (f"work: {problem}",)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("retries", "retries= is not an option; did you mean max_attempts=?"),
        ("timeot", "timeot= is not an option; did you mean timeout=?"),
        ("colour", "colour= is not an option: there are continues_to, blocked_by, "),
    ],
)
def test_an_option_that_does_not_exist_is_told_with_the_nearest(option: str, advice: str) -> None:
    unchecked: Any = job

    with pytest.raises(DefinitionError, match=re.escape(advice)):
        unchecked("work", **{option: 3})


def test_job_without_a_name_is_told_how_to_write_it() -> None:
    async def send_mail(attempt: Attempt[int]) -> None: ...

    unchecked: Any = job

    with pytest.raises(ConfigurationError, match=r'write @job\("name"\) above send_mail'):
        unchecked(send_mail)


def test_what_is_no_job_type_is_told_among_the_jobs() -> None:
    async def send_mail(attempt: Attempt[int]) -> None: ...

    plain: Any = send_mail

    with pytest.raises(DefinitionError, match=r'send_mail is no job type: write @job\("name"\) above it'):
        Registry([plain])
    with pytest.raises(ConfigurationError, match=r"expected a list of job types and slices"):
        Registry(ship)  # type: ignore[arg-type]


def test_a_def_handler_that_returns_an_awaitable_is_refused() -> None:
    with pytest.raises(DefinitionError, match="write async def late"):

        @job("late")
        def late(attempt: Attempt[int]) -> Awaitable[int]:
            raise NotImplementedError


@pytest.mark.parametrize("name", ["", "a\0b", "caf\udce9", "x" * 256])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError):
        JobType(name, input=int, output=int)


def test_a_timeout_is_an_hour_unless_said_otherwise() -> None:
    jobs = [
        JobType("usual", input=int, output=int),
        JobType("short", input=int, output=int, timeout=timedelta(seconds=5)),
        JobType("none", input=int, output=int, timeout=None),
    ]

    registry = Registry(jobs)

    assert [registry[each.name].timeout for each in jobs] == [DEFAULT_TIMEOUT, timedelta(seconds=5), None]


def test_the_names_of_a_slice_begin_with_its_prefix() -> None:
    orders = Slice("orders")

    @orders.job("audit", internal=True)
    async def audit(attempt: Attempt[Order]) -> str:
        return ""

    @orders.job("begin", continues_to=[audit])
    async def begin(attempt: Attempt[Order]) -> Next[str]:
        return attempt.continue_with(audit, attempt.input)

    assert list(Registry([orders])) == ["orders.audit", "orders.begin"]
    assert (type(audit), type(begin)) == (Step, JobType)


def test_slices_and_single_types_make_one_registry() -> None:
    orders, mails = Slice("orders"), Slice("mails")

    @orders.job("send")
    async def first(attempt: Attempt[int]) -> int:
        return 0

    @mails.job("send")
    async def second(attempt: Attempt[int]) -> int:
        return 0

    assert list(Registry([orders, charge, ship, mails])) == ["orders.send", "charge", "ship", "mails.send"]


def test_a_type_goes_before_its_slice() -> None:
    orders = Slice("orders", backoff=Backoff(initial=timedelta(seconds=1)), lease=timedelta(seconds=10))
    own = Backoff(initial=timedelta(seconds=2))

    @orders.job("common")
    async def common(attempt: Attempt[int]) -> int:
        return 0

    @orders.job("special", backoff=own, lease=timedelta(seconds=20))
    async def special(attempt: Attempt[int]) -> int:
        return 0

    registry = Registry([orders, charge, ship])

    assert (registry["orders.common"].backoff, registry["orders.common"].lease) == (orders.backoff, orders.lease)
    assert (registry["orders.special"].backoff, registry["orders.special"].lease) == (own, timedelta(seconds=20))
    assert (registry["charge"].backoff, registry["charge"].lease) == (None, None)


def test_types_that_come_later_are_checked_with_those_that_are_there() -> None:
    registry = Registry([charge, ship], limits=Limits(bytes=10))

    with pytest.raises(DefinitionError, match="charge: defined 2 times"):
        registry.add([charge])
    registry.add([JobType("refund", input=str, output=str)])

    assert list(registry) == ["charge", "ship", "refund"]
    with pytest.raises(PayloadError):
        registry.find("refund").input.encode("more than ten bytes")


def test_what_callers_may_say_is_what_is_kept() -> None:
    kept = {field.name for field in fields(Definition)} - {"name", "internal", "slice", "upcasters", "output_upcasters"}
    assert TypeOptions.__annotations__.keys() == kept
    assert StartOptions.__annotations__.keys() == set(NewChain.__struct_fields__) - {"job_type", "input"}
    assert StageOptions.__annotations__.keys() == {f.name for f in fields(Stage)} - {"name", "handler", "signature"}
