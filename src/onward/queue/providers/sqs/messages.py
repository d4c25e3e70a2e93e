"""From a job to a message and back: its data is the body, the rest travels in attributes. And the dead letters."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from onward.model import Backoff
from onward.queue.contract import StoredJob, TakenJob
from onward.queue.model import ActiveJob, QueueFailureReason, QueueJob, QueueJobStatus
from onward.queue.options import Options
from onward.queue.providers.readable import as_json
from onward.queue.providers.sqs.calls import MOST, Calls, is_fifo

Message: TypeAlias = dict[str, Any]
"""As `receive_message` gives it, or as `send_message` takes it."""

_ID, _NAME, _CREATED = "onward.id", "onward.name", "onward.created_at"
_METADATA, _BACKOFF, _FAILURE = "onward.metadata", "onward.backoff", "onward.failure"
_EXPIRES = "onward.expires_at"
_MOST_ATTRIBUTES = 10
_MOST_ERROR = 2_000
_UNSENDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold, and therefore SQS does not."""
_AS_ID = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why and when a job came to the dead letters, where a worker sent it there."""

    error: str = ""
    reason: QueueFailureReason | None = None
    attempts: int
    failed_at: datetime
    group: str | None = None


def problem_with(message: Message, max_bytes: int) -> str | None:
    """Why it cannot be sent, in words."""
    attributes = message["MessageAttributes"]
    if len(attributes) >= _MOST_ATTRIBUTES:  # one is kept for the failure
        return f"a message has at most {_MOST_ATTRIBUTES - 1} attributes with those of onward, got: {len(attributes)}"
    for name, what in ((_ID, "id"), (_NAME, "name")):
        if _UNSENDABLE.search(attributes[name]["StringValue"]):
            return f"the {what} of a job must not have control characters on SQS: {attributes[name]['StringValue']!r}"
    size = size_of(message)
    if size > max_bytes:
        return f"the job has {size:,} bytes with its name, id and metadata; the queue takes {max_bytes:,}"
    return None


def size_of(message: Message) -> int:
    """As SQS counts: the body, and of each attribute its name, its type and its value."""
    return len(message["MessageBody"].encode()) + sum(
        len(name) + len(attribute["DataType"]) + len(attribute.get("StringValue", "").encode())
        + len(attribute.get("BinaryValue", b""))
        for name, attribute in message["MessageAttributes"].items()
    )  # fmt: skip


def message_of(job: StoredJob, options: Options) -> Message:
    """What to send. `provider_options["sqs"]` are parameters of SendMessage; its attributes come on top of ours."""
    ours = {_ID: job.id, _NAME: job.name, _CREATED: job.created_at.isoformat()}
    if job.metadata:
        ours[_METADATA] = _json(job.metadata)
    if job.expires_at is not None:
        ours[_EXPIRES] = job.expires_at.isoformat()
    if options.backoff is not None:
        ours[_BACKOFF] = _json(options.backoff)
    message: Message = {"MessageBody": _sendable(bytes(job.data).decode())}
    if options.delay:
        message["DelaySeconds"] = math.ceil(options.delay.total_seconds())
    if is_fifo(job.queue_name):
        message |= {"MessageGroupId": job.queue_name.removesuffix(".fifo"), "MessageDeduplicationId": _as_id(job.id)}
    message |= options.native
    message["MessageAttributes"] = {**_strings(ours), **options.native.get("MessageAttributes", {})}
    return message


def job_of(message: Message, *, queue_name: str, max_attempts: int) -> TakenJob:
    """A received message as a job. What others sent has its message id as its id, and the queue's name as its name."""
    return ActiveJob(
        **_common(message, queue_name, max_attempts),
        status=QueueJobStatus.ACTIVE,
        attempts=int(message["Attributes"]["ApproximateReceiveCount"]) - 1,
        processed_at=datetime.now(UTC),
        receipt_handle=message["ReceiptHandle"],
        native=message,
    )


def dead_job_of(message: Message, queue_name: str, max_attempts: int, failure: Failure | None = None) -> StoredJob:
    """A message as a job that has failed; one that SQS moved to the dead letters has no error: its workers died."""
    failure = failure or _failure(_texts(message))
    return QueueJob(
        **_common(message, queue_name, max_attempts),
        status=QueueJobStatus.FAILED,
        attempts=failure.attempts if failure else max_attempts,
        failed_at=failure.failed_at if failure else None,
        error=failure.error if failure else None,
        reason=failure.reason if failure else QueueFailureReason.STALLED,
    )


def _common(message: Message, queue_name: str, max_attempts: int) -> dict[str, Any]:
    texts = _texts(message)
    body = message["Body"].encode()
    return {
        "id": id_of(message),
        "name": texts.get(_NAME, queue_name),
        "queue_name": queue_name,
        "data": Raw(body) if _NAME in texts else as_json(body),
        "max_attempts": max_attempts,
        "created_at": _created(texts, message["Attributes"]),
        "expires_at": datetime.fromisoformat(texts[_EXPIRES]) if _EXPIRES in texts else None,
        "metadata": msgspec.json.decode(texts.get(_METADATA, "{}")),
    }


def dead_message_of(job: TakenJob, failure: Failure, max_bytes: int) -> Message:
    """What to send to the dead letters: the message as it came, with why it failed as far as there is room."""
    native: Message = job.native
    message = _copy_of(native, {_ID: job.id})
    words = failure.error
    failure = msgspec.structs.replace(failure, error="", group=native["Attributes"].get("MessageGroupId"))
    room = max_bytes - size_of(message) - len(_FAILURE) - len("String") - len(_json(failure)) - len('"error":"",')
    cut = _UNSENDABLE.sub("?", words).encode()[: max(0, min(room // 2, _MOST_ERROR))]  # quotes are escaped
    failure = msgspec.structs.replace(failure, error=cut.decode(errors="ignore"))
    message["MessageAttributes"] |= _strings({_FAILURE: _json(failure)})
    if is_fifo(job.queue_name):
        # A group of its own: who lists dead letters of one group sees ten of them at most.
        message |= {"MessageGroupId": native["MessageId"], "MessageDeduplicationId": native["MessageId"]}
    return message


def revived_message_of(native: Message, queue_name: str) -> Message:
    """A dead letter as a new message, which has not been received yet."""
    failure = _failure(_texts(native))
    message = _copy_of(native, {_ID: id_of(native)})
    for past in (_FAILURE, _EXPIRES):
        message["MessageAttributes"].pop(past, None)
    if is_fifo(queue_name):
        group = failure.group if failure else native["Attributes"].get("MessageGroupId")
        # Not the job's id, which SQS may still remember: it would drop this one as a duplicate.
        message |= {"MessageGroupId": group or queue_name, "MessageDeduplicationId": native["MessageId"]}
    return message


def id_of(message: Message) -> str:
    message_id: str = message["MessageId"]
    return _texts(message).get(_ID, message_id)


def backoff_of(job: TakenJob) -> Backoff | None:
    text = _texts(job.native).get(_BACKOFF)
    return None if text is None else msgspec.json.decode(text, type=Backoff)


def _copy_of(native: Message, extra: Mapping[str, str]) -> Message:
    attributes = {
        name: {key: value for key, value in attribute.items() if key in ("DataType", "StringValue", "BinaryValue")}
        for name, attribute in native.get("MessageAttributes", {}).items()
    }
    return {"MessageBody": native["Body"], "MessageAttributes": {**attributes, **_strings(extra)}}


def _failure(texts: Mapping[str, str]) -> Failure | None:
    return msgspec.json.decode(texts[_FAILURE], type=Failure) if _FAILURE in texts else None


def _created(texts: Mapping[str, str], system: Mapping[str, str]) -> datetime:
    if _CREATED in texts:
        return datetime.fromisoformat(texts[_CREATED])
    return datetime.fromtimestamp(int(system["SentTimestamp"]) / 1000, UTC)


def _texts(message: Message) -> dict[str, str]:
    attributes = message.get("MessageAttributes", {}).items()
    return {name: attribute["StringValue"] for name, attribute in attributes if "StringValue" in attribute}


def _strings(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}


def _json(value: object) -> str:
    return _sendable(msgspec.json.encode(value).decode())


def _sendable(text: str) -> str:
    """JSON in which the few characters that SQS refuses are escaped; they can only be inside strings."""
    return _UNSENDABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _as_id(job_id: str) -> str:
    """A deduplication id: as it is where SQS takes it."""
    return job_id if _AS_ID.fullmatch(job_id) else hashlib.sha256(job_id.encode()).hexdigest()


SYSTEM_ATTRIBUTES = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
_MOST_LOOKED_AT = 10_000
_HIDDEN_SECONDS = 120
"""Longer than looking takes: what has been seen must not come again."""


class DeadLetters:
    """What failed for good, for one queue."""

    def __init__(self, calls: Calls, url: str) -> None:
        self._calls, self.url = calls, url

    async def send(self, message: Message) -> None:
        await self._calls("send_message", QueueUrl=self.url, **message)

    async def some(self, limit: int) -> list[Message]:
        """At most so many; which ones, if there are more, is not for us to say."""
        seen: list[Message] = []
        try:
            await self._look(seen, limit)
            return list(seen)
        finally:
            await self._put_back(seen)

    async def revive(self, job_id: str, *, queue_name: str, queue_url: str) -> bool:
        """Send it to its queue anew, then remove it here: dying in between leaves it in both, never in none."""
        seen: list[Message] = []
        try:
            found = await self._look(seen, _MOST_LOOKED_AT, lambda message: id_of(message) == job_id)
            if found is None:
                return False
            await self._calls("send_message", QueueUrl=queue_url, **revived_message_of(found, queue_name))
            await self._calls("delete_message", QueueUrl=self.url, ReceiptHandle=found["ReceiptHandle"])
            seen.remove(found)
            return True
        finally:
            await self._put_back(seen)

    async def _look(
        self, seen: list[Message], limit: int, wanted: Callable[[Message], bool] = lambda message: False
    ) -> Message | None:
        while len(seen) < limit:
            messages = await received(
                # Waiting asks all servers of SQS; not waiting asks some, and may find nothing where there is something.
                self._calls, self.url, count=limit - len(seen), wait=1, VisibilityTimeout=_HIDDEN_SECONDS
            )  # fmt: skip
            if not messages:
                return None
            seen += messages
            for message in messages:
                if wanted(message):
                    return message
        return None

    async def _put_back(self, seen: Sequence[Message]) -> None:
        entries = [{"ReceiptHandle": message["ReceiptHandle"]} for message in seen]
        await self._calls.batch("change_message_visibility_batch", self.url, entries, VisibilityTimeout=0)


async def received(calls: Calls, url: str, *, count: int, wait: int, **options: Any) -> list[Message]:
    """Messages, with what makes them jobs."""
    answer = await calls(
        "receive_message",
        QueueUrl=url,
        MaxNumberOfMessages=min(count, MOST),
        WaitTimeSeconds=wait,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=SYSTEM_ATTRIBUTES,
        **options,
    )
    messages: list[Message] = answer.get("Messages", [])
    return messages
