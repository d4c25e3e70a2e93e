"""The native client, which nothing else imports: a missing extra is said here."""

from onward.errors import ConfigurationError

try:
    from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
    from aiobotocore.session import get_session  # type: ignore[import-untyped]
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
        SSLError,
    )
except ImportError as missing:
    raise ConfigurationError("aiobotocore is not installed: pip install 'onward[sqs]'") from missing

__all__ = [  # noqa: RUF022 - what makes a client, then what it raises
    "AioConfig", "get_session",
    "BotoCoreError", "ClientError", "NoCredentialsError", "NoRegionError", "ParamValidationError",
    "PartialCredentialsError", "SSLError",
]  # fmt: skip
