"""Amazon SQS, and what speaks like it. Jobs come in as messages with attributes; retries are the queue's own policy."""

from onward.queue.providers.sqs.calls import NewQueue
from onward.queue.providers.sqs.provider import SQS, SQSProvider

__all__ = ["SQS", "NewQueue", "SQSProvider"]
