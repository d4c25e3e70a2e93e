"""Queues shared with BullMQ: what is added here is run by its workers in Node.js, and the other way round."""

from onward.queue.providers.bullmq.provider import BullMQ, BullMQProvider

__all__ = ["BullMQ", "BullMQProvider"]
