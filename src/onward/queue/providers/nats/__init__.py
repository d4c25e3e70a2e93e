"""NATS JetStream. Jobs come in as messages, one subject each, in a stream that workers empty together."""

from onward.queue.providers.nats.factory import Nats
from onward.queue.providers.nats.provider import NatsProvider

__all__ = ["Nats", "NatsProvider"]
