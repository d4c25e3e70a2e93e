"""What has to be known of a queue: read from it when a provider connects. And how to make one."""

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.providers.sqs.calls import Calls, NoSuchQueue

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
ENDLESS = 1 << 31
"""Attempts where no policy limits them."""
MOST_ATTEMPTS = 1_000
LONGEST_HOLD = timedelta(hours=12)
"""What SQS allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueue:
    """What a queue is made like where there is none: `SQS(create=NewQueue(attempts=5))`.

    Jobs that were received `attempts` times without being done move to a second queue, `<name>-failed`. SQS counts
    deaths of workers like failures: the default leaves room for three of them beside one attempt.
    """

    attempts: int = 4
    visibility_timeout: timedelta = timedelta(seconds=30)
    """How long a job stays with a worker that died; while it runs, its worker extends this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One queue as it is."""

    name: str
    url: str
    visibility: timedelta
    max_bytes: int
    max_attempts: int = ENDLESS
    failed_arn: str | None = None
    """The dead-letter queue of its redrive policy."""


def is_fifo(queue_name: str) -> bool:
    return queue_name.endswith(".fifo")


def own_failed_name(queue_name: str) -> str:
    """The dead-letter queue that belongs to this queue alone."""
    return f"{queue_name.removesuffix('.fifo')}-failed{'.fifo' if is_fifo(queue_name) else ''}"


def check_name(queue_name: str) -> None:
    if not _NAME.fullmatch(queue_name):
        raise QueueConfigurationError(
            "names of SQS queues are up to 80 letters, digits, hyphens and underscores, and may end in .fifo",
            code=QueueErrorCode.INVALID_OPTION,
            queue_name=queue_name,
        )


async def found_or_made(calls: Calls, queue_name: str, create: NewQueue | None) -> Facts:
    """The queue's facts; without `create`, a queue that is missing is the caller's mistake, and is said to be."""
    check_name(queue_name)
    try:
        url = (await calls("get_queue_url", QueueName=queue_name))["QueueUrl"]
    except NoSuchQueue as error:
        if create is None:
            raise QueueConfigurationError(
                f"there is no SQS queue {queue_name!r} for these credentials in this region. Create it "
                f"(aws sqs create-queue --queue-name {queue_name}), or let onward: SQS(create=NewQueue())",
                code=QueueErrorCode.INVALID_OPTION,
                queue_name=queue_name,
                cause=error,
            ) from error
        url = await _made(calls, queue_name, create)
    return await _read(calls, queue_name, url)


async def _read(calls: Calls, queue_name: str, url: str) -> Facts:
    wanted = ["VisibilityTimeout", "MaximumMessageSize", "RedrivePolicy"]
    attributes = (await calls("get_queue_attributes", QueueUrl=url, AttributeNames=wanted))["Attributes"]
    visibility = int(attributes["VisibilityTimeout"])
    if visibility == 0:
        raise QueueConfigurationError(
            "the queue's visibility timeout is 0, so that every worker gets every job: set it to 30 seconds or so",
            code=QueueErrorCode.INVALID_OPTION,
            queue_name=queue_name,
        )
    policy: dict[str, Any] = json.loads(attributes.get("RedrivePolicy") or "{}")
    return Facts(
        name=queue_name,
        url=url,
        visibility=timedelta(seconds=visibility),
        max_bytes=int(attributes["MaximumMessageSize"]),
        max_attempts=int(policy.get("maxReceiveCount", ENDLESS)),
        failed_arn=policy.get("deadLetterTargetArn"),
    )


async def _made(calls: Calls, queue_name: str, new: NewQueue) -> str:
    kind = {"FifoQueue": "true"} if is_fifo(queue_name) else {}
    # The longest there is: a failed job is kept until somebody has looked at it.
    kept = {"MessageRetentionPeriod": str(timedelta(days=14) // timedelta(seconds=1))}
    made = await calls("create_queue", QueueName=own_failed_name(queue_name), Attributes={**kind, **kept})
    asked = await calls("get_queue_attributes", QueueUrl=made["QueueUrl"], AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": asked["Attributes"]["QueueArn"], "maxReceiveCount": new.attempts}
    attributes = {
        **kind,
        "VisibilityTimeout": str(max(1, round(new.visibility_timeout.total_seconds()))),
        "RedrivePolicy": json.dumps(policy),
    }
    queue = await calls("create_queue", QueueName=queue_name, Attributes=attributes)
    url: str = queue["QueueUrl"]
    return url


async def url_of(calls: Calls, arn: str) -> str:
    """Where the queue of this ARN is: arn:aws:sqs:<region>:<account>:<name>."""
    *_, account, name = arn.split(":")
    url: str = (await calls("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account))["QueueUrl"]
    return url
