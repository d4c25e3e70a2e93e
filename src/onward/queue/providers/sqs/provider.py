"""Queues at SQS: one of them, and what users make: one native client for all its queues."""

import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from onward.addresses import wrong_address
from onward.queue.checks import ProviderArguments
from onward.queue.contract import KeepsDeadLetters, Pulls, StoredJob, TakenJob, in_words, unfit, why_for_good
from onward.queue.events import Emitter
from onward.queue.model import Capabilities, QueueFailureReason, QueueStats
from onward.queue.options import Options
from onward.queue.provider import Provider, ProviderFactory
from onward.queue.providers.grouped import Grouped
from onward.queue.providers.held import HeldReceipts
from onward.queue.providers.sqs.calls import (
    ENDLESS,
    LONGEST_HOLD,
    MOST,
    MOST_ATTEMPTS,
    Calls,
    Failed,
    NewQueue,
    NoSuchQueue,
    Refusal,
    connected,
    found_or_made,
    is_fifo,
    own_failed_name,
    url_of,
)
from onward.queue.providers.sqs.messages import (
    DeadLetters,
    Failure,
    Message,
    backoff_of,
    dead_job_of,
    dead_message_of,
    job_of,
    message_of,
    problem_with,
    received,
    size_of,
)

_LARGEST_CALL = 1 << 18
"""Bytes: what SQS took of old, and every imitation takes."""
_LARGEST = 1 << 20
"""Bytes of a message, whatever the queue."""
logger = logging.getLogger("onward.queue")


class SQSProvider(Provider, Pulls, KeepsDeadLetters):
    """One queue at SQS. What depends on the queue is known once it is connected."""

    name = "sqs"
    capabilities = Capabilities(backoff=True, batching=True, ttl=True, max_job_size=_LARGEST, max_batch_size=MOST)

    def __init__(self, queue_name: str, factory: "SQS", *, events: Emitter) -> None:
        super().__init__(queue_name, events)
        self._factory = factory
        self.long_poll = factory.wait
        self.declare(
            delayed_jobs=not is_fifo(queue_name),
            ordered=is_fifo(queue_name),
            long_polling=factory.wait > timedelta(),
            dead_letters=factory.create is not None,
            max_delay=timedelta() if is_fifo(queue_name) else timedelta(minutes=15),
        )

    async def _open(self) -> None:
        self._calls = await self._factory.hold()
        try:
            self._facts = await found_or_made(self._calls, self.queue_name, self._factory.create)
        except BaseException:
            await self._factory.let_go()
            raise
        self.lease = self._facts.visibility
        if self._facts.max_attempts == 1:
            logger.warning(
                "SQS moves jobs of %r to its dead letters when their worker dies, or when an answer is lost: "
                "the maxReceiveCount of its redrive policy is 1. Set it to 4 or more.",
                self.queue_name,
            )
        self.declare(max_job_size=self._facts.max_bytes, dead_letters=self._facts.failed_arn is not None)
        self._held = HeldReceipts(self, self._facts.visibility)
        self._delete = Grouped[str, Failed | None](self._delete_all, most=MOST)
        self._dead_letters: DeadLetters | None = None

    async def _close(self) -> None:
        await self._delete.close()
        await self._factory.let_go()

    # -- adding

    def lacks(self, option: str, value: Any) -> str | None:
        if not self.is_connected:  # through an outbox: what the queue allows is not known
            return super().lacks(option, value)
        most = self._facts.max_attempts
        if option == "attempts":
            allowed = "does not limit them" if most == ENDLESS else f"allows {most}"
            words = f"{value} attempts for this job: the redrive policy of the queue {allowed}"
            return None if value == most else words
        if option == "backoff" and value.delay(most - 1) > LONGEST_HOLD:
            return "more than 12 hours between two attempts"
        return super().lacks(option, value)

    async def add(self, job: StoredJob, options: Options) -> StoredJob:
        await self._calls("send_message", QueueUrl=self._facts.url, **self._message(job, options))
        return self._stored(job)

    async def add_many(self, jobs: Sequence[tuple[StoredJob, Options]]) -> list[StoredJob]:
        ready = [(job, self._message(job, options)) for job, options in jobs]  # before anything is sent
        return await self.add_in_parts(
            ready, MOST, self._add_batch, size=lambda one: size_of(one[1]), most_size=_LARGEST_CALL
        )

    async def _add_batch(self, batch: Sequence[tuple[StoredJob, Message]]) -> list[StoredJob | Exception]:
        outcomes = await self._calls.batch("send_message_batch", self._facts.url, [message for _, message in batch])
        told = [(job, failed) for (job, _), failed in zip(batch, outcomes, strict=True)]
        words = "; ".join(f"{job.id}: {failed.message}" for job, failed in told if failed is not None)
        return [self._stored(job) if failed is None else Refusal(words) for job, failed in told]

    def _message(self, job: StoredJob, options: Options) -> Message:
        """Checked before anything is sent."""
        try:
            message = message_of(job, options)
            problem = problem_with(message, self._facts.max_bytes)
        except (TypeError, ValueError) as error:
            raise unfit(job, f"its metadata is not JSON: {error}") from error
        if problem is not None:
            raise unfit(job, problem)
        return message

    def _stored(self, job: StoredJob) -> StoredJob:
        return msgspec.structs.replace(job, max_attempts=self._facts.max_attempts)

    # -- taking and settling

    async def fetch(self, count: int, wait: timedelta = timedelta()) -> Sequence[TakenJob]:
        if count < 1:
            return []
        seconds = math.ceil(min(wait, self._factory.wait).total_seconds())
        messages = await received(self._calls, self._facts.url, count=count, wait=seconds)
        self._held.take(message["ReceiptHandle"] for message in messages)
        most = self._facts.max_attempts
        jobs = [job_of(message, queue_name=self.queue_name, max_attempts=most) for message in messages]
        now = datetime.now(UTC)
        for job in jobs:
            if job.expires_at is not None and job.expires_at <= now:
                await self._expire(job)
        return [job for job in jobs if job.expires_at is None or job.expires_at > now]

    async def _expire(self, job: TakenJob) -> None:
        """Those that came with it must not be forgotten if that fails: SQS shows it again, and it is too late still."""
        words = f"nobody began it before {job.expires_at}"
        failure = _failure(words, QueueFailureReason.EXPIRED, attempts=job.attempts)
        try:
            with self._held.settling(job):
                await self._bury(job, failure)
        except Exception as error:  # noqa: BLE001 - told; the next fetch tries again
            self.events.trouble(error, f"job {job.id!r} has expired, and cannot be moved: {error}")
        else:
            self.on_ended(dead_job_of(job.native, self.queue_name, job.max_attempts, failure))

    async def ack(self, job: TakenJob, result: Raw | None = None) -> None:
        with self._held.settling(job):
            await self._remove(job)

    async def nack(self, job: TakenJob, error: BaseException) -> timedelta | None:
        with self._held.settling(job):
            reason = why_for_good(job, error)
            if reason is not None:
                await self._bury(job, _failure(in_words(error), reason, attempts=job.attempts + 1))
                return None
            delay = self._retry_delay(job)
            [failed] = await self._change_visibility([job], delay)
            self._check(job, failed)
            return delay

    async def release(self, jobs: Sequence[TakenJob]) -> None:
        ours = [job for job in jobs if self._held.has(job)]
        outcomes = await self._change_visibility(ours, timedelta())
        refused = [failed for failed in outcomes if failed is not None and not failed.is_gone]
        for job, failed in zip(ours, outcomes, strict=True):
            if failed is None or failed.is_gone:
                self._held.drop(job)
        if refused:
            raise refused[0].as_error()

    async def renew(self, jobs: Sequence[TakenJob]) -> Sequence[TakenJob]:
        return await self._held.renew(jobs, self._hold_longer)

    async def _hold_longer(self, jobs: Sequence[TakenJob]) -> list[bool | None]:
        outcomes = await self._change_visibility(jobs, self._facts.visibility)
        return [True if failed is None else False if failed.is_gone else None for failed in outcomes]

    def _check(self, job: TakenJob, failed: Failed | None) -> None:
        if failed is not None:
            raise self.not_active(job.id) if failed.is_gone else failed.as_error()

    async def _remove(self, job: TakenJob) -> None:
        self._check(job, await self._delete(job.receipt_handle or ""))

    async def _delete_all(self, receipts: Sequence[str]) -> list[Failed | None]:
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return await self._calls.batch("delete_message_batch", self._facts.url, entries)

    async def _bury(self, job: TakenJob, failure: Failure) -> None:
        """SQS moves only what was received too often, and says nothing of why: so it is sent there, then removed here.

        Dying in between leaves it in both. Without a redrive policy there is nowhere to keep it.
        """
        receipt, dead_letters = job.receipt_handle or "", await self._failed_queue()
        if dead_letters is not None and receipt not in self._held.mourned:
            await dead_letters.send(dead_message_of(job, failure, self._facts.max_bytes))
            self._held.mourned.add(receipt)
        await self._remove(job)
        self._held.mourned.discard(receipt)

    def _retry_delay(self, job: TakenJob) -> timedelta:
        """In whole seconds, and so that SQS does not find that it was out of sight for too long."""
        backoff = backoff_of(job)
        if backoff is None:
            return timedelta()
        held = datetime.now(UTC) - (job.processed_at or datetime.now(UTC))
        seconds = min(backoff.delay(job.attempts + 1), LONGEST_HOLD - held - timedelta(seconds=1)).total_seconds()
        return timedelta(seconds=max(0, math.ceil(seconds)))

    async def _change_visibility(self, jobs: Sequence[TakenJob], visibility: timedelta) -> list[Failed | None]:
        entries = [{"ReceiptHandle": job.receipt_handle} for job in jobs]
        seconds = int(visibility.total_seconds())
        return await self._calls.batch(
            "change_message_visibility_batch", self._facts.url, entries, VisibilityTimeout=seconds
        )

    # -- the queue

    async def stats(self) -> QueueStats:
        here = await self._counts(self._facts.url)
        dead_letters = await self._failed_queue()
        return QueueStats(
            waiting=here[0],
            active=here[1],
            delayed=here[2],
            failed=None if dead_letters is None else sum(await self._counts(dead_letters.url)),
        )

    async def _counts(self, url: str) -> list[int]:
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        answer = await self._calls("get_queue_attributes", QueueUrl=url, AttributeNames=names)
        return [int(answer["Attributes"][name]) for name in names]

    async def dead_letters(self, limit: int = 100) -> Sequence[StoredJob]:
        dead_letters = await self._failed_queue()
        if dead_letters is None:
            raise self.unsupported("listing failed jobs without a redrive policy on the queue")
        most = self._facts.max_attempts
        jobs = [dead_job_of(message, self.queue_name, most) for message in await dead_letters.some(limit)]
        return sorted(jobs, key=lambda job: job.failed_at or job.created_at, reverse=True)

    async def retry(self, job_id: str) -> None:
        dead_letters = await self._failed_queue()
        if dead_letters is None:
            raise self.unsupported("retrying failed jobs without a redrive policy on the queue")
        if not await dead_letters.revive(job_id, queue_name=self.queue_name, queue_url=self._facts.url):
            raise self.not_found(job_id)

    async def delete(self) -> None:
        """The queue, and its dead letters where they are for this queue alone. SQS makes no new one for a minute."""
        await _deleted(self._calls, self._facts.url)
        arn = self._facts.failed_arn
        if arn is not None and arn.rpartition(":")[2] == own_failed_name(self.queue_name):
            dead_letters = await self._failed_queue()
            if dead_letters is not None:
                await _deleted(self._calls, dead_letters.url)

    async def _failed_queue(self) -> DeadLetters | None:
        """Asked for when it is first needed: who only adds jobs needs no rights there."""
        if self._dead_letters is None and self._facts.failed_arn is not None:
            self._dead_letters = DeadLetters(self._calls, await url_of(self._calls, self._facts.failed_arn))
        return self._dead_letters


def _failure(words: str, reason: QueueFailureReason, *, attempts: int) -> Failure:
    return Failure(error=words, reason=reason, attempts=attempts, failed_at=datetime.now(UTC))


async def _deleted(calls: Calls, url: str) -> None:
    with suppress(NoSuchQueue):
        await calls("delete_queue", QueueUrl=url)


_LONGEST_WAIT = timedelta(seconds=20)
_DEFAULT_WAIT = timedelta(seconds=4)
"""Less than the five seconds for which a worker that is told to stop at once waits for what is under way."""
_CLIENT_OPTIONS = {
    *("api_version", "use_ssl", "verify", "config", "aws_account_id"),
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
}
_OTHER_NAMES = {"region_name": "region", "queue_url": "endpoint_url", "url": "endpoint_url", "profile": "session"}
_ELSEWHERE = {option: f"called {name} here" for option, name in _OTHER_NAMES.items()}


class SQS(ProviderFactory[Calls]):
    """Queues at Amazon SQS: `SQS(region="eu-west-1")`, with credentials from wherever AWS tools look for them.

    A queue must be there, unless `create` says what a new one is like. `wait` is how long a worker's request for jobs
    stays open; closing a worker waits for the one under way. Everything else goes to the native client untouched
    (`aws_access_key_id`, `verify`, `config`, …). It is made from `session`, an aiobotocore session, where you have one;
    or hand over a `client` that you made, and close it yourself.

    >>> queue = SQS(region="eu-west-1").for_queue("emails.fifo")
    >>> queue.capabilities.ordered, queue.capabilities.delayed_jobs
    (True, False)
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        *,
        region: str | None = None,
        create: NewQueue | None = None,
        wait: timedelta = _DEFAULT_WAIT,
        session: Any = None,
        client: Any = None,
        **client_options: Any,
    ) -> None:
        super().__init__()
        arguments = ProviderArguments("SQS")
        _check_address(arguments, endpoint_url, region)
        arguments.client_options(client_options, _CLIENT_OPTIONS, _ELSEWHERE)
        if client is not None and (endpoint_url or region or session is not None or client_options):
            arguments.refuse_because("client is complete: addresses, sessions and options besides it have no say")
        if create is not None:
            _check_new(arguments, create)
        arguments.duration("wait", wait)
        if wait > _LONGEST_WAIT:
            arguments.refuse("wait", f"at most {_LONGEST_WAIT.seconds} seconds", wait)
        self.wait, self.create = wait, create
        self._session, self._client = session, client
        self._options = {"endpoint_url": endpoint_url, "region_name": region, **client_options}
        self._stack = AsyncExitStack()

    def for_queue(self, queue_name: str) -> SQSProvider:
        return SQSProvider(queue_name, self, events=self.events_of(queue_name))

    async def _open(self) -> Calls:
        if self._client is not None:
            return Calls(self._client)
        self._stack = AsyncExitStack()  # what another event loop left open has ended with it
        return await connected(self._stack, self._session, self._options, wait=self.wait)

    async def _close(self, connection: Calls) -> None:
        await self._stack.aclose()


def _check_address(arguments: ProviderArguments, endpoint_url: object, region: object) -> None:
    if endpoint_url is not None:
        if problem := wrong_address("endpoint_url", endpoint_url, ("https", "http")):
            arguments.refuse_because(problem)
        parts = urlsplit(str(endpoint_url))
        if "@" in parts.netloc or parts.query:  # the client shows all of an address in its errors
            arguments.refuse_because("endpoint_url must have no user, password or option: credentials go beside it")
        if not parts.hostname:
            arguments.refuse_because("endpoint_url must be an address like https://sqs.eu-west-1.amazonaws.com")
    if region is not None and not (isinstance(region, str) and region):
        arguments.refuse("region", "a name like eu-west-1", region)


def _check_new(arguments: ProviderArguments, create: object) -> None:
    if not isinstance(create, NewQueue):
        arguments.refuse("create", "NewQueue(attempts=…)", create)
    arguments.whole("create.attempts", create.attempts, least=1)
    if create.attempts > MOST_ATTEMPTS:
        arguments.refuse("create.attempts", f"at most {MOST_ATTEMPTS:,}", create.attempts)
    arguments.duration("create.visibility_timeout", create.visibility_timeout, least=timedelta(seconds=1))
    if create.visibility_timeout > LONGEST_HOLD:
        arguments.refuse("create.visibility_timeout", "at most 12 hours", create.visibility_timeout)
