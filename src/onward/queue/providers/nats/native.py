"""The native client, which nothing else imports: a missing extra is said here."""

from onward.errors import QueueConfigurationError, QueueErrorCode

try:
    from nats import errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext, api
    from nats.js import errors as js_errors
except ImportError as missing:  # pragma: no cover - the tests have it
    raise QueueConfigurationError(
        "nats-py is not installed: pip install 'onward[nats]'", code=QueueErrorCode.INVALID_OPTION
    ) from missing

__all__ = ["Client", "JetStreamContext", "Msg", "api", "errors", "js_errors"]
