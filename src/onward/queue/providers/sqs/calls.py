"""Native calls: refusals in words, and batches answered entry by entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onward.queue.providers.sqs.native import (
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)

MOST = 10
"""Messages or entries in one call."""
_NO_SUCH_QUEUE = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
_NOT_ALLOWED = {"AccessDenied", "AccessDeniedException", "KMS.AccessDeniedException", "403"}
"""The last one where an imitation of SQS gives no code that the client can read."""
_NOT_KNOWN = {"InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"}
_GONE = {
    "ReceiptHandleIsInvalid",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
    # "does not exist or is not available for visibility timeout change", or it was held for twelve hours
    "InvalidParameterValue",
}


class Refusal(Exception):
    """SQS said no, in words; asking again does not help unless `retryable`."""

    def __init__(self, words: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(words)


class NoSuchQueue(Refusal):
    """There is no queue of this name or address."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One entry of a batch was refused."""

    code: str
    message: str
    is_ours: bool
    """The fault lies with the entry: the same one will be refused again."""

    @property
    def is_gone(self) -> bool:
        """The receipt is worth nothing any more."""
        return self.is_ours and self.code in _GONE

    def as_error(self) -> Refusal:
        return Refusal(f"{self.code}: {self.message}", retryable=not self.is_ours)


class Calls:
    """A native client behind one door."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._has_answered = False

    async def __call__(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """`await calls("send_message", QueueUrl=…, …)`."""
        try:
            answer: dict[str, Any] = await getattr(self._client, operation)(**parameters)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Refusal(f"no AWS credentials: {error}") from error
        except SSLError as error:
            words = f"no TLS with SQS, or its certificate is not trusted: {error}"
            raise Refusal(words, retryable=self._has_answered) from error
        except ParamValidationError as error:
            raise Refusal(f"{operation} does not take these parameters: {error}") from error
        except ClientError as error:
            refusal = _in_words(error, parameters.get("QueueName") or parameters.get("QueueUrl"))
            if refusal is None:
                raise  # throttled, or trouble of its own: worth another try
            raise refusal from error
        self._has_answered = True
        return answer

    async def batch(
        self, operation: str, queue_url: str, entries: Sequence[dict[str, Any]], **common: Any
    ) -> list[Failed | None]:
        """What became of each entry, ten to a call."""
        outcomes: list[Failed | None] = []
        for start in range(0, len(entries), MOST):
            numbered = [{"Id": str(n), **common, **entry} for n, entry in enumerate(entries[start : start + MOST])]
            answer = await self(operation, QueueUrl=queue_url, Entries=numbered)
            failed = {
                entry["Id"]: Failed(entry["Code"], entry.get("Message", ""), entry.get("SenderFault", False))
                for entry in answer.get("Failed", [])
            }
            outcomes += [failed.get(entry["Id"]) for entry in numbered]
        return outcomes


def _in_words(error: ClientError, queue: object) -> Refusal | None:
    code = error.response.get("Error", {}).get("Code", "")
    if code in _NOT_ALLOWED:
        action = f"sqs:{error.operation_name.removesuffix('Batch')}"  # rights have no batches
        return Refusal(f"not allowed: these credentials need the right {action} on {queue} ({error})")
    if code in _NOT_KNOWN:
        return Refusal(f"these AWS credentials are not valid ({error})")
    if code in _NO_SUCH_QUEUE:
        return NoSuchQueue(f"there is no queue {queue}: it was deleted, or is in another region or account")
    return None
