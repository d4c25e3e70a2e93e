"""moto's SQS server, one request at a time: `python sqs_server.py -p PORT`.

moto keeps messages in plain lists that its threads change without a lock, so that a message sent while another one is
deleted may be lost; it looks for messages that have come due only once a second; and it forgets a deduplication id with
its message. SQS does none of this. Who waits for messages is told after a fifth of the time that there are none: tests
often wait in vain.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from moto.server import main
from moto.sqs.models import Message, Queue, SQSBackend

_turn = threading.RLock()
_receive = SQSBackend.receive_message
_add = Queue.add_message
_known: set[tuple[str, str]] = set()
"""Queue and deduplication id; five minutes are longer than any test."""


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with _turn:
            return method(*args, **kwargs)

    return alone


def _receive_as_it_comes(
    self: SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *args: Any, **kwargs: Any
) -> list[Message]:
    until = time.monotonic() + wait_seconds_timeout / 5
    while True:
        with _turn:
            messages = _receive(self, queue_name, count, 0, *args, **kwargs)
        if messages or time.monotonic() >= until:
            return messages
        time.sleep(0.02)


def _add_unless_known(self: Queue, message: Message) -> None:
    key = self.queue_arn, message.deduplication_id or message.id
    if not self.fifo_queue or key not in _known:
        _known.add(key)
        _add(self, message)


for name in (
    *("create_queue", "delete_queue", "get_queue_attributes", "set_queue_attributes", "purge_queue"),
    *("send_message", "send_message_batch", "delete_message", "delete_message_batch"),
    *("change_message_visibility", "change_message_visibility_batch"),
):
    setattr(SQSBackend, name, _alone(getattr(SQSBackend, name)))
SQSBackend.receive_message = _receive_as_it_comes  # type: ignore[method-assign]
Queue.add_message = _add_unless_known  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
