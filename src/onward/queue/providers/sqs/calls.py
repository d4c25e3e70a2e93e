"""Native calls: refusals in words, batches answered entry by entry, and what has to be known of a queue."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onward.errors import ConfigurationError, QueueConfigurationError

try:
    from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
    from aiobotocore.session import get_session  # type: ignore[import-untyped]
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
        SSLError,
    )
except ImportError as missing:
    raise ConfigurationError("aiobotocore is not installed: pip install 'onward[sqs]'") from missing


MOST = 10
"""Messages or entries in one call."""
_NO_SUCH_QUEUE = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_NOT_ALLOWED = {"AccessDenied", "AccessDeniedException", "KMS.AccessDeniedException", "403"}
"""The last one where an imitation of SQS gives no code that the client can read."""
_NOT_KNOWN = {"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"}
_GONE = {
    "ReceiptHandleIsInvalid",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
    # "does not exist or is not available for visibility timeout change", or it was held for twelve hours
    "InvalidParameterValue",
}


class Refusal(Exception):
    """SQS said no, in words; asking again does not help unless `retryable`."""

    def __init__(self, words: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(words)


class NoSuchQueue(Refusal):
    """There is no queue of this name or address."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One entry of a batch was refused."""

    code: str
    message: str
    is_ours: bool
    """The fault lies with the entry: the same one will be refused again."""

    @property
    def is_gone(self) -> bool:
        """The receipt is worth nothing any more."""
        return self.is_ours and self.code in _GONE

    def as_error(self) -> Refusal:
        return Refusal(f"{self.code}: {self.message}", retryable=not self.is_ours)


class Calls:
    """A native client behind one door."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._has_answered = False

    async def __call__(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """`await calls("send_message", QueueUrl=…, …)`."""
        try:
            answer: dict[str, Any] = await getattr(self._client, operation)(**parameters)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Refusal(f"no AWS credentials: {error}") from error
        except SSLError as error:
            words = f"no TLS with SQS, or its certificate is not trusted: {error}"
            raise Refusal(words, retryable=self._has_answered) from error
        except ParamValidationError as error:
            raise Refusal(f"{operation} does not take these parameters: {error}") from error
        except ClientError as error:
            refusal = _in_words(error, parameters.get("QueueName") or parameters.get("QueueUrl"))
            if refusal is None:
                raise  # throttled, or trouble of its own: worth another try
            raise refusal from error
        self._has_answered = True
        return answer

    async def batch(
        self, operation: str, queue_url: str, entries: Sequence[dict[str, Any]], **common: Any
    ) -> list[Failed | None]:
        """What became of each entry, ten to a call."""
        outcomes: list[Failed | None] = []
        for start in range(0, len(entries), MOST):
            numbered = [{"Id": str(n), **common, **entry} for n, entry in enumerate(entries[start : start + MOST])]
            answer = await self(operation, QueueUrl=queue_url, Entries=numbered)
            failed = {
                entry["Id"]: Failed(entry["Code"], entry.get("Message", ""), entry.get("SenderFault", False))
                for entry in answer.get("Failed", [])
            }
            outcomes += [failed.get(entry["Id"]) for entry in numbered]
        return outcomes


async def connected(stack: AsyncExitStack, session: Any, options: Mapping[str, Any], *, wait: timedelta) -> Calls:
    """A client with these options of its own, which ends with the stack."""
    # A request for jobs is answered after `wait`; nothing else takes seconds.
    ours = AioConfig(
        connect_timeout=5,
        read_timeout=wait.total_seconds() + 5,
        retries={"mode": "standard", "total_max_attempts": 2},
        max_pool_connections=50,
    )
    theirs = options.get("config")
    config = ours.merge(theirs) if theirs is not None else ours
    create_client: Callable[..., Any] = (session or get_session()).create_client
    try:
        return Calls(await stack.enter_async_context(create_client("sqs", **{**options, "config": config})))
    except NoRegionError as error:
        raise Refusal("no AWS region is set: SQS(region=…), or AWS_DEFAULT_REGION") from error
    except (BotoCoreError, ValueError) as error:  # a profile that is not there, a region that cannot be
        raise Refusal(f"these settings make no client: {error}") from error


def _in_words(error: ClientError, queue: object) -> Refusal | None:
    code = error.response.get("Error", {}).get("Code", "")
    if code in _NOT_ALLOWED:
        action = f"sqs:{error.operation_name.removesuffix('Batch')}"  # rights have no batches
        return Refusal(f"not allowed: these credentials need the right {action} on {queue} ({error})")
    if code in _NOT_KNOWN:
        return Refusal(f"these AWS credentials are not valid ({error})")
    if code in _NO_SUCH_QUEUE:
        return NoSuchQueue(f"there is no queue {queue}: it was deleted, or is in another region or account")
    return None


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
class QueueFacts:
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
            queue_name=queue_name,
        )


async def found_or_made(calls: Calls, queue_name: str, create: NewQueue | None) -> QueueFacts:
    """The queue's facts; without `create`, a queue that is missing is the caller's mistake, and is said to be."""
    check_name(queue_name)
    try:
        url = (await calls("get_queue_url", QueueName=queue_name))["QueueUrl"]
    except NoSuchQueue as error:
        if create is None:
            raise QueueConfigurationError(
                f"there is no SQS queue {queue_name!r} for these credentials in this region. Create it "
                f"(aws sqs create-queue --queue-name {queue_name}), or let onward: SQS(create=NewQueue())",
                queue_name=queue_name,
                cause=error,
            ) from error
        url = await _made(calls, queue_name, create)
    return await _read(calls, queue_name, url)


async def _read(calls: Calls, queue_name: str, url: str) -> QueueFacts:
    wanted = ["VisibilityTimeout", "MaximumMessageSize", "RedrivePolicy"]
    attributes = (await calls("get_queue_attributes", QueueUrl=url, AttributeNames=wanted))["Attributes"]
    visibility = int(attributes["VisibilityTimeout"])
    if visibility == 0:
        raise QueueConfigurationError(
            "the queue's visibility timeout is 0, so that every worker gets every job: set it to 30 seconds or so",
            queue_name=queue_name,
        )
    policy: dict[str, Any] = json.loads(attributes.get("RedrivePolicy") or "{}")
    return QueueFacts(
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
