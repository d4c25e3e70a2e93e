"""Queues in RabbitMQ, over aio-pika. Jobs go in as messages and come out by push or pull; see docs/how-to/queues-rabbitmq.md."""

from onward.queue.providers.rabbitmq.factory import RabbitMQ as RabbitMQ
