"""Times, counts, errors and jobs in a few words, for those who look at them."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from onward.model import BlockedJob, FailedJob, Job, JobError, PendingJob, RunningJob

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration_of(text: str) -> timedelta:
    """A time that somebody wrote, such as 90s, 5m, 2h, 1d; raises ValueError.

    >>> duration_of("90s")
    datetime.timedelta(seconds=90)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhdw])", text.strip())
    if match is None:
        raise ValueError(f"{text!r}: write a number and ms, s, m, h, d or w, such as 90s or 2h")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is too long") from None


def age(moment: datetime) -> str:
    """How long ago, or in how long, in one or two units."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else span(seconds)


def ago(moment: datetime) -> str:
    """How long ago something was that has been; by a clock that is behind, just now.

    >>> ago(datetime.now(UTC) + timedelta(minutes=5))
    '0s ago'
    """
    return f"{span(max((datetime.now(UTC) - moment).total_seconds(), 0.0))} ago"


def span(seconds: float) -> str:
    """A time, roughly.

    >>> [span(0.2), span(75), span(7300), span(200_000)]
    ['0s', '1m 15s', '2h 1m', '2d 7h']
    """
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    first = next((n for n, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def lasted(time: timedelta) -> str:
    """How long something took, as short as can be said.

    >>> [lasted(timedelta(milliseconds=4)), lasted(timedelta(seconds=1.26)), lasted(timedelta(minutes=2))]
    ['4 ms', '1.3 s', '2m']
    """
    length = time.total_seconds()
    return f"{length * 1000:.0f} ms" if length < 1 else f"{length:.1f} s" if length < 60 else span(length)


def state_of(job: Job) -> str:
    """Where a job is, in a few words."""
    match job:
        case BlockedJob():
            words = f"waits for {job.open_blockers} chain{'s' * (job.open_blockers != 1)}"
        case PendingJob():
            due = job.scheduled_at > datetime.now(UTC)
            words = f"due {age(job.scheduled_at)}" if due else ""
        case RunningJob():
            words = f"by {job.leased_by}" + (", asked to stop" if job.cancel_requested else "")
        case FailedJob():
            words = f"{job.reason}"
        case _:
            words = ""
    if job.progress is not None and isinstance(job, RunningJob):
        words += f", {job.progress.fraction:.0%}" + (f" {job.progress.note}" if job.progress.note else "")
    error = "" if job.last_error is None or job.status == "completed" else in_short(job.last_error)
    return "; ".join(filter(None, [words, error, job.problem]))


def in_short(error: JobError) -> str:
    """An error on one line."""
    text = " ".join(error.message.split())
    return f"{error.type}: {text[:160]}{'…' * (len(text) > 160)}" if text else error.type


def moment(at: datetime) -> str:
    """An instant to the second.

    >>> moment(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2030-01-02 03:04:05 UTC'
    """
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def sentence(text: str) -> str:
    """A message as it stands alone.

    >>> [sentence("no worker is alive"), sentence("")]
    ['No worker is alive.', '']
    """
    return text[:1].upper() + text[1:] + "." * (text != "" and not text.endswith((".", ")", "?")))


def several(count: int, thing: str) -> str:
    """So many of something.

    >>> several(1, "job"), several(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def listed(things: Sequence[object], *, most: int = 3) -> str:
    """The first of them, as one would say it.

    >>> listed([1, 2]), listed([1, 2, 3, 4, 5])
    ('1 and 2', '1, 2, 3 and 2 more')
    """
    shown = [str(thing) for thing in things[:most]]
    if len(things) > most:
        return f"{', '.join(shown)} and {len(things) - most} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
