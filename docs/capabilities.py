"""Writes the table of what each provider can do into reference/queues.md: `make docs`."""

from pathlib import Path

from onward import Onward
from onward.queue import Capabilities, Memory, ProviderFactory
from onward.queue.matrix import capability_matrix, with_matrix
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.database import Database
from onward.queue.providers.nats import Nats
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.redis import Redis
from onward.queue.providers.sqs import SQS, NewQueue

PAGE = Path(__file__).parent / "reference" / "queues.md"


def providers() -> dict[str, ProviderFactory[object]]:
    """As they are without further options; nothing is connected."""
    return {
        "memory": Memory(),
        "database": Database(Onward("memory://", jobs=[])),
        "redis": Redis("redis://localhost"),
        "bullmq": BullMQ("redis://localhost"),
        "rabbitmq": RabbitMQ("amqp://localhost"),
        "rabbitmq, classic": RabbitMQ("amqp://localhost", queue_type="classic"),
        "nats": Nats("nats://localhost"),
        "sqs": SQS(region="eu-central-1", create=NewQueue()),
    }


def page() -> str:
    """The page as it should be."""
    columns: dict[str, Capabilities] = {
        name: factory.for_queue("emails").capabilities for name, factory in providers().items()
    }
    return with_matrix(PAGE.read_text(), capability_matrix(columns))


if __name__ == "__main__":
    PAGE.write_text(page())
