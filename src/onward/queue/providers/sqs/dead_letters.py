"""The dead-letter queue. SQS cannot be browsed: to look is to receive, and to put back what was not wanted."""

from collections.abc import Callable, Sequence
from typing import Any

from onward.queue.providers.sqs.calls import MOST, Calls
from onward.queue.providers.sqs.messages import Message, id_of, revived_message_of

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
