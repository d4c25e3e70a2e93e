"""Amazon SQS, and what speaks like it. Jobs come in as messages with attributes; retries are the queue's own policy."""

from onward.queue.providers.sqs.connect import SQS
from onward.queue.providers.sqs.facts import NewQueue
from onward.queue.providers.sqs.provider import SQSProvider

__all__ = ["SQS", "NewQueue", "SQSProvider"]
