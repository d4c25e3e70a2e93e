"""Queues in RabbitMQ, over aio-pika: jobs go in as messages, and come out by push or pull."""

from onward.queue.providers.rabbitmq.provider import RabbitMQ as RabbitMQ
