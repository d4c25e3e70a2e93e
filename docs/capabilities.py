"""Writes the table of what each provider can do into reference/queues.md: `make docs`."""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec

from onward import Onward
from onward.queue import Capabilities, Memory, ProviderFactory
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.database import Database
from onward.queue.providers.nats import Nats
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.redis import Redis
from onward.queue.providers.sqs import SQS, NewQueue

_WORDS = {
    "delayed_jobs": "`delay=`",
    "priority": "`priority=`",
    "retries": "`attempts=` of each job",
    "backoff": "`backoff=`",
    "removal": "`remove_on_complete=`, `remove_on_fail=`",
    "ordered": "first in, first out",
    "batching": "several jobs per fetch",
    "long_polling": "waits for jobs instead of asking again",
    "dead_letters": "`dead_letters()`, `retry()`",
    "lookup": "`get_job()`",
    "duplicates": "refuses an id that is there",
    "pausing": "`pause()`, `resume()`",
    "stalls": "a worker's death is not an attempt (`max_stalls=`)",
    "results": "results, `wait()`",
    "progress": "progress",
    "ttl": "`ttl=`",
    "remove": "`remove()`, `purge()`",
    "listing": "`jobs()`: listing by state",
    "keeps": "`keep_completed=`, `keep_failed=`",
    "transactions": "`add(tx=…)` without an outbox",
    "push": "jobs are delivered",
    "pull": "jobs are fetched",
    "max_job_size": "largest job",
    "max_batch_size": "most jobs per fetch",
    "max_delay": "longest delay",
}
PAGE = Path(__file__).parent / "reference" / "queues.md"


def providers() -> dict[str, ProviderFactory[object]]:
    """As they are without further options; nothing is connected."""
    return {
        "memory": Memory(),
        "database": Database(Onward("memory://", jobs=[])),
        "redis": Redis("redis://localhost"),
        "bullmq": BullMQ("redis://localhost"),
        "rabbitmq": RabbitMQ("amqp://localhost"),
        "rabbitmq, classic": RabbitMQ("amqp://localhost", queue_type="classic"),
        "nats": Nats("nats://localhost"),
        "sqs": SQS(region="eu-central-1", create=NewQueue()),
    }


def page() -> str:
    """The page as it should be."""
    columns: dict[str, Capabilities] = {
        name: factory.for_queue("emails").capabilities for name, factory in providers().items()
    }
    return with_matrix(PAGE.read_text(), capability_matrix(columns))


def capability_matrix(columns: Mapping[str, Capabilities]) -> str:
    """A Markdown table: a row per capability, a column per provider.

    >>> print(capability_matrix({"plain": Capabilities(pull=True)}).splitlines()[-4])
    | jobs are fetched | yes |
    """
    rows = [["", *columns], ["---", *(":-:" for _ in columns)]]
    for field in msgspec.structs.fields(Capabilities):
        rows.append([_WORDS[field.name], *(_shown(getattr(column, field.name)) for column in columns.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_matrix(page: str, matrix: str) -> str:
    """The text of a page with this table between its two markers."""
    begin, end = "<!-- capabilities: made by `make docs` -->\n", "<!-- end of capabilities -->"
    return re.sub(f"({re.escape(begin)}).*?({re.escape(end)})", lambda m: m[1] + matrix + m[2], page, flags=re.DOTALL)


def _shown(value: bool | int | timedelta) -> str:
    match value:
        case bool():
            return "yes" if value else "–"
        case int():
            return "no limit" if value == 0 else f"{value:,}"
        case _:
            return "no limit" if not value else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
