"""Encrypted payloads and secrets, client and worker together: what is stored, what is seen, what is refused."""

import asyncio
import logging
import re
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from onward import (
    Attempt,
    Backoff,
    ChainFailed,
    FailedJob,
    FailureReason,
    JobStatus,
    JobType,
    Next,
    Onward,
    WaitTimeout,
    job,
)
from onward.conformance.queue.session import arrived
from onward.crypto import Encryption, Secret
from onward.errors import DatabaseError, PayloadTampered, QueueConfigurationError, UnknownKey
from onward.observe import events
from onward.observe.logs import LogObserver
from onward.queue import Queue
from onward.queue.providers.database import Database
from programs import sealed_jobs
from support import SOON, Recorder

CARD = "4111-1111-1111-1111"
OLD_KEY, NEW_KEY = Encryption.new_key(), Encryption.new_key()
OLD = Encryption({"old": OLD_KEY})
NEW = Encryption({"new": NEW_KEY})
BOTH = Encryption({"old": OLD_KEY, "new": NEW_KEY}, current="new")
SECRETS = Encryption({"old": OLD_KEY}, only_secrets=True)
QUICK = Backoff(initial=timedelta(milliseconds=20))


@dataclass
class Payment:
    order: int
    card: Annotated[str, Secret]


@dataclass
class Receipt:
    order: int
    token: Annotated[str, Secret]


@job("pay", max_attempts=1)
async def pay(attempt: Attempt[Payment]) -> Receipt:
    attempt.progress(0.5, f"asking about {attempt.input.card}")
    return Receipt(attempt.input.order, f"token of {attempt.input.card}")


@job("upper", max_attempts=1)
async def upper(attempt: Attempt[str]) -> str:
    attempt.progress(0.5, f"reading {attempt.input}")
    if attempt.input == "fails":
        raise ValueError("it is private")
    return attempt.input.upper()


@job("refuse", max_attempts=2, backoff=QUICK)
async def refuse(attempt: Attempt[Payment]) -> str:
    if attempt.last_error is not None:
        return attempt.last_error.message
    raise ValueError(f"card {attempt.input.card!r} was refused")


def table(app: Onward) -> str:
    return f'"{app.state.schema}".job' if app.state.dialect == "postgres" else "onward_job"  # type: ignore[attr-defined]


async def run_sql(app: Onward, sql: str, **parameters: Any) -> Any:
    async with app.driver.connection() as connection:
        return await connection.fetch(sql.replace("job_table", table(app)), parameters)


async def stored(app: Onward) -> str:
    """Whatever is stored of any job."""
    rows = await run_sql(app, "SELECT input, output, errors, progress_note FROM job_table")
    return repr([tuple(row) for row in rows])


async def failure_of(chain: Any) -> ChainFailed:
    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)
    return failed.value


async def test_nothing_of_an_encrypted_job_can_be_read_in_the_database(running: Any) -> None:
    app = await running(upper, encryption=OLD)

    chain = await app.start(upper, "private")
    failing = await app.start(upper, "fails")

    assert await chain.wait(timeout=SOON) == "PRIVATE"
    failed = await failure_of(failing)
    text = await stored(app)
    assert "rivate" not in text
    assert "RIVATE" not in text
    assert text.count("onward:sealed:1:old:") == 7  # two inputs, an output, two notes, the message and the traceback
    assert failed.error is not None
    assert failed.error.message == "it is private"


async def test_those_who_have_the_key_see_everything_but_secrets(running: Any) -> None:
    app = await running(upper, pay, encryption=OLD)
    chains = [
        await app.start(upper, "private"),
        await app.start(upper, "fails"),
        await app.start(pay, Payment(7, CARD)),
    ]

    await chains[0].wait(timeout=SOON)
    await failure_of(chains[1])
    assert await chains[2].wait(timeout=SOON) == Receipt(7, f"token of {CARD}")

    paid, failed, done = await app.jobs()
    assert (done.input, done.output, done.progress.note) == ("private", "PRIVATE", "reading private")
    assert failed.last_error.message == "it is private"
    assert "private" in failed.last_error.traceback
    assert (paid.input, paid.output) == ({"order": 7, "card": "***"}, {"order": 7, "token": "***"})
    assert paid.progress.note == "asking about ***"
    assert (await chains[2].get()).current == paid
    assert (await app.find_job(paid.id)) == paid
    assert CARD not in repr([await app.chains(), await app.jobs(), chains])
    assert all(job.problem is None for job in (paid, failed, done))


async def test_those_who_do_not_have_the_key_see_that_it_is_encrypted(running: Any, opened: Any) -> None:
    app = await running(upper, encryption=OLD)
    await (await app.start(upper, "private")).wait(timeout=SOON)
    await failure_of(await app.start(upper, "fails"))

    for other in (await opened(upper), await opened(upper, encryption=NEW), await opened()):
        failed, done = await other.jobs()
        assert done.input == done.output == done.progress.note == "<encrypted with key 'old'>"
        assert "input: encrypted with key 'old', which is not here" in done.problem
        assert failed.last_error.message == "<encrypted with key 'old'>"
        assert failed.last_error.type == "ValueError"
        assert [one.id for one in await other.jobs(error_type="ValueError")] == [failed.id]
        assert len(await other.chains()) == 2
        msgspec.json.encode([failed, done])  # as a dashboard or the command line would


async def test_waiting_without_the_key_says_what_is_missing(running: Any, opened: Any) -> None:
    app = await running(upper, encryption=OLD)
    chain = await app.start(upper, "private")
    await chain.wait(timeout=SOON)

    for other in (await opened(upper), await opened(upper, encryption=NEW)):
        with pytest.raises(UnknownKey) as refused:
            await other.chain(upper, chain.id).wait(timeout=SOON)
        assert (refused.value.key_id, refused.value.part) == ("old", "output")


async def test_a_worker_without_the_key_fails_the_job_alone_and_a_retry_brings_it_back(
    opened: Any, running: Any, recorder: Recorder
) -> None:
    starting = await opened(upper, encryption=OLD)
    chain = await starting.start(upper, "private")
    without = await opened(upper, encryption=NEW)
    async with without.worker(concurrency=2):
        mine = await without.start(upper, "mine")
        assert await mine.wait(timeout=SOON) == "MINE"
        failure = await failure_of(chain)

    assert failure.reason is FailureReason.UNREADABLE
    assert failure.error is not None
    assert (failure.error.type, "encrypted with key 'old'" in failure.error.message) == ("UnknownKey", True)
    assert [job.id for job in await starting.jobs(reason="unreadable")] == [chain.id]
    await starting.retry(chain)
    app = await running(upper, encryption=BOTH)
    assert await app.chain(upper, chain.id).wait(timeout=SOON) == "PRIVATE"


async def test_a_worker_without_any_encryption_does_not_take_ciphertext_for_an_input(running: Any, opened: Any) -> None:
    anything: JobType[Any, str] = JobType("anything", input=Any, output=str)

    @anything.handler
    async def say(attempt: Attempt[Any]) -> str:
        return str(attempt.input)

    starting = await opened(JobType("anything", input=dict, output=str), encryption=OLD)
    chain = await starting.start(JobType("anything", input=dict, output=str), {"a": 1})

    await running(anything)

    assert (await failure_of(chain)).reason is FailureReason.UNREADABLE


async def test_rotating_goes_on_with_what_the_old_key_encrypted(running: Any, opened: Any) -> None:
    before = await opened(upper, encryption=OLD)
    old = await before.start(upper, "old")

    app = await running(upper, encryption=BOTH)

    new = await app.start(upper, "new")
    assert await new.wait(timeout=SOON) == "NEW"
    assert await app.chain(upper, old.id).wait(timeout=SOON) == "OLD"
    rows = await run_sql(app, "SELECT count(*) FROM job_table WHERE CAST(input AS text) LIKE '\"onward:sealed:1:old:%'")
    assert rows[0][0] == 1
    outputs = [str(row[0]) for row in await run_sql(app, "SELECT output FROM job_table")]
    assert all("onward:sealed:1:new:" in output for output in outputs)


async def test_the_statement_of_the_page_finds_whatever_a_key_has_encrypted(running: Any, opened: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "encryption.md").read_text()
    [statement] = re.findall(r'^LEFT = """(.*?)"""', page, re.MULTILINE | re.DOTALL)
    before = await opened(upper, encryption=OLD)
    await before.start(upper, "waits", delay=timedelta(days=1))
    app = await running(upper, encryption=BOTH)
    await failure_of(await app.start(upper, "fails"))

    async def left(key: str) -> Any:
        mark = f"%onward:sealed:1:{key}:%"
        return (await run_sql(app, statement.replace("onward_job", "job_table"), mark=mark))[0][0]

    assert (await left("old"), await left("new"), await left("another")) == (1, 1, 0)


async def test_a_row_that_was_changed_or_swapped_fails_alone(opened: Any, recorder: Recorder) -> None:
    app = await opened(upper, encryption=OLD)
    chains = [await app.start(upper, text) for text in ("first", "second", "third", "changed")]
    swapped = "(SELECT input FROM job_table WHERE id = :other)"
    await run_sql(app, f"UPDATE job_table SET input = {swapped} WHERE id = :id", **ids(app, chains[0], chains[1]))
    cut = await run_sql(app, "SELECT CAST(input AS text) FROM job_table WHERE id = :id", **ids(app, chains[3]))
    text = str(cut[0][0]).replace(":old:", ":old:AAAA")
    cast = "CAST(:text AS json)" if app.state.dialect == "postgres" else ":text"
    await run_sql(app, f"UPDATE job_table SET input = {cast} WHERE id = :id", **ids(app, chains[3]), text=text)

    async with app.worker(concurrency=4):
        assert await chains[1].wait(timeout=SOON) == "SECOND"
        assert await chains[2].wait(timeout=SOON) == "THIRD"
        failures = [await failure_of(chains[0]), await failure_of(chains[3])]

    assert {failure.reason for failure in failures} == {FailureReason.UNREADABLE}
    assert {failure.error.type for failure in failures if failure.error} == {"PayloadTampered"}
    shown = await app.find_job(chains[0].id)
    assert shown.input == "<encrypted with key 'old'>"
    assert "changed since, or moved here from another job" in shown.problem


def ids(app: Onward, chain: Any, other: Any = None) -> dict[str, Any]:
    spelled: Callable[[Any], Any] = (lambda id: id) if app.state.dialect == "postgres" else str
    return {"id": spelled(chain.id)} | ({} if other is None else {"other": spelled(other.id)})


STRANGE = [
    '"onward:sealed:"', '"onward:sealed:1:old:"', '"onward:sealed:1:old:#"', '"onward:sealed:1:old:AAAA"',
    ' "onward:sealed:9:z"', '{"order": "onward:sealed:1:old:AAAA", "a": ' + "[" * 600 + "]" * 600 + "}",
    '{"order": 7, "card": "onward:sealed:1:old:AAAA"}', '"plain"', "null", "[[]]", "[" * 600 + "]" * 600,
    '{"order": 7, "card": ' + "[" * 600 + "]" * 600 + "}", '{"card": {"card": [1, true]}}',
]  # fmt: skip


@pytest.mark.parametrize("encryption", [None, OLD, SECRETS])
async def test_whatever_a_hand_has_written_there_fails_alone_and_is_listed(
    opened: Any, encryption: Encryption | None
) -> None:
    app = await opened(pay, encryption=encryption)
    chains = [await app.start(pay, Payment(7, CARD)) for _ in STRANGE]
    cast = "CAST(:text AS json)" if app.state.dialect == "postgres" else ":text"
    for chain, text in zip(chains, STRANGE, strict=True):
        change = f"UPDATE job_table SET input = {cast}, progress = 0.5, progress_note = :note WHERE id = :id"
        await run_sql(app, change, **ids(app, chain), text=text, note=text)
    last = await app.start(pay, Payment(8, CARD))

    async with app.worker(concurrency=4):
        assert (await last.wait(timeout=SOON)).order == 8
        for chain in chains:
            await failure_of(chain)

    assert len(await app.jobs()) == len(STRANGE) + 1
    assert [(await chain.get()).status for chain in chains] == ["failed"] * len(STRANGE)


async def test_an_output_that_was_swapped_is_refused_to_whoever_reads_it(running: Any) -> None:
    app = await running(upper, encryption=OLD)
    chains = [await app.start(upper, text) for text in ("first", "second")]
    for chain in chains:
        await chain.wait(timeout=SOON)
    swapped = "(SELECT output FROM job_table WHERE id = :other)"
    await run_sql(app, f"UPDATE job_table SET output = {swapped} WHERE id = :id", **ids(app, *chains))

    with pytest.raises(PayloadTampered):
        await chains[0].wait(timeout=SOON)
    assert await chains[1].wait(timeout=SOON) == "SECOND"


async def test_rows_from_before_the_encryption_are_still_read(running: Any, opened: Any) -> None:
    before = await opened(upper)
    chain = await before.start(upper, "plain")

    app = await running(upper, encryption=OLD)

    assert await app.chain(upper, chain.id).wait(timeout=SOON) == "PLAIN"
    assert [job.input for job in await app.jobs()] == ["plain"]
    assert "PLAIN" not in await stored(app)


async def test_rows_from_before_are_refused_where_nothing_plain_is_accepted(running: Any, opened: Any) -> None:
    before = await opened(upper)
    chain = await before.start(upper, "plain")

    await running(upper, encryption=Encryption({"old": OLD_KEY}, accept_plain=False))

    failure = await failure_of(chain)
    assert failure.reason is FailureReason.UNREADABLE
    assert failure.error is not None
    assert failure.error.type == "PayloadNotEncrypted"


async def test_an_older_version_is_brought_up_from_what_was_encrypted(running: Any, opened: Any) -> None:
    old: JobType[str, str] = JobType("greet", input=str, output=str)
    new: JobType[list[str], str] = JobType("greet", input=list[str], output=str, version=2)
    new.upcast(1)(lambda plain: [plain])
    new.upcast_output(1)(lambda plain: plain + "!")

    @new.handler
    async def greet(attempt: Attempt[list[str]]) -> str:
        return " ".join(attempt.input)

    before = await opened(old, encryption=OLD)
    first, second = await before.start(old, "first"), await before.start(old, "second")
    async with before.complete(first) as completion:
        assert completion.input == "first"
        assert completion.job.input == "first"
        await completion.done("done")

    app = await running(new, encryption=OLD)

    assert await app.chain(new, first.id).wait(timeout=SOON) == "done!"
    assert await app.chain(new, second.id).wait(timeout=SOON) == "second"


@job("gather", internal=True, blocked_by=["pay"])
async def gather(attempt: Attempt[Payment]) -> list[Receipt]:
    assert CARD not in repr(attempt.blockers)
    return [*attempt.outputs_of(pay), Receipt(attempt.input.order, attempt.input.card)]


@job("order", continues_to=[gather])
async def order(attempt: Attempt[Payment]) -> Next[list[Receipt]]:
    return attempt.continue_with(gather, attempt.input, blockers=[pay.with_input(attempt.input)])


@pytest.mark.parametrize("encryption", [OLD, SECRETS])
async def test_steps_and_blockers_hand_on_what_is_encrypted(running: Any, encryption: Encryption) -> None:
    app = await running(order, gather, pay, encryption=encryption)

    chain = await app.start(order, Payment(7, CARD))

    assert await chain.wait(timeout=SOON) == [Receipt(7, f"token of {CARD}"), Receipt(7, CARD)]
    assert CARD not in await stored(app)
    blockers = await app.blockers_of((await chain.get()).current.id)
    assert [msgspec.json.decode(one.output) for one in blockers] == [{"order": 7, "token": "***"}]


async def test_a_blocker_whose_output_was_changed_fails_the_job_that_reads_it(opened: Any) -> None:
    collect: JobType[None, list[str]] = JobType("collect", input=type(None), output=list[str], blocked_by=[upper])

    @collect.handler
    async def run(attempt: Attempt[None]) -> list[str]:
        return attempt.outputs_of(upper)

    app = await opened(upper, collect, encryption=OLD)
    blockers = [await app.start(upper, text) for text in ("first", "second")]
    async with app.worker(jobs=[upper]):
        for blocker in blockers:
            await blocker.wait(timeout=SOON)
    chain = await app.start(collect, None, blockers=blockers)
    swapped = "(SELECT output FROM job_table WHERE id = :other)"
    await run_sql(app, f"UPDATE job_table SET output = {swapped} WHERE id = :id", **ids(app, *blockers))

    async with app.worker():
        assert (await failure_of(chain)).reason is FailureReason.UNREADABLE


@pytest.mark.parametrize("encryption", [None, OLD, SECRETS])
async def test_secrets_are_masked_in_events_logs_and_errors(
    running: Any, recorder: Recorder, caplog: pytest.LogCaptureFixture, encryption: Encryption | None
) -> None:
    caplog.set_level(logging.DEBUG)
    app = await running(refuse, encryption=encryption, observers=[recorder, LogObserver()])

    chain = await app.start(refuse, Payment(7, CARD))

    assert await chain.wait(timeout=SOON) == "card '***' was refused"
    told = recorder.of(events.AttemptFailed)[0].error
    assert told.message == "card '***' was refused"
    assert CARD not in told.traceback
    assert CARD not in repr(recorder.events) + caplog.text
    job = (await chain.get()).current
    assert job.last_error.message == "card '***' was refused"
    assert CARD not in repr(job)
    assert encryption is None or CARD not in await stored(app)


async def test_only_the_secrets_are_encrypted_where_only_those_are_to_be(running: Any) -> None:
    app = await running(pay, encryption=SECRETS)

    chain = await app.start(pay, Payment(7, CARD))

    assert await chain.wait(timeout=SOON) == Receipt(7, f"token of {CARD}")
    text = await stored(app)
    assert CARD not in text
    assert '"order":7' in text.replace(" ", "")
    assert "asking about ***" in text


async def test_a_timeout_of_waiting_shows_no_secret(opened: Any) -> None:
    app = await opened(pay, encryption=SECRETS)
    chain = await app.start(pay, Payment(7, CARD))

    with pytest.raises(WaitTimeout) as timeout:
        await chain.wait(timeout=timedelta(0))

    assert timeout.value.job is not None
    assert timeout.value.job.input == {"order": 7, "card": "***"}


async def test_an_input_that_does_not_fit_fails_without_showing_its_secrets(opened: Any, recorder: Recorder) -> None:
    app = await opened(pay)
    chain = await app.start(pay, Payment(7, CARD))
    cast = "CAST(:text AS json)" if app.state.dialect == "postgres" else ":text"
    text = msgspec.json.encode({"order": CARD, "card": CARD}).decode()
    await run_sql(app, f"UPDATE job_table SET input = {cast} WHERE id = :id", **ids(app, chain), text=text)

    async with app.worker():
        failure = await failure_of(chain)

    assert failure.error is not None
    assert failure.error.type == "PayloadError"
    assert CARD not in repr([failure.error, recorder.events, str(failure)])


def test_the_client_without_an_event_loop_encrypts_too(make_app: Any) -> None:
    approve: JobType[str, str] = JobType("approve", input=str, output=str)
    app = make_app(approve, encryption=OLD)

    with app.sync as client:
        chain = client.start(approve, "private")
        with client.complete(chain) as completion:
            assert completion.input == "private"
            completion.done("PRIVATE")
        assert chain.wait(timeout=SOON) == "PRIVATE"
        assert [one.output for one in client.jobs()] == ["PRIVATE"]
        with make_app(approve).sync as other:
            assert [one.output for one in other.jobs()] == ["<encrypted with key 'old'>"]


async def test_handlers_in_threads_and_processes_get_what_was_encrypted(running: Any) -> None:
    jobs = sealed_jobs.JOBS
    app = await running(*jobs, encryption=Encryption({"old": OLD_KEY}, accept_plain=False))

    chain = await app.start(sealed_jobs.split, ["private", "as well"])

    assert await chain.wait(timeout=timedelta(seconds=30)) == "PRIVATE & AS WELL in a process"
    failing = await app.start(sealed_jobs.fail, sealed_jobs.Login("ada", "hunter2hunter2"))
    with pytest.raises(ChainFailed) as failed:
        await failing.wait(timeout=timedelta(seconds=30))
    assert failed.value.error is not None
    assert failed.value.error.message == "*** is wrong"
    text = await stored(app)
    assert "private" not in text.lower()
    assert "hunter2" not in text
    assert (await failing.get()).current.progress.note == "trying ***"
    misfit = await failure_of(await app.start(sealed_jobs.mislead, "hunter2"))
    assert misfit.error is not None
    assert "Invalid enum value '***'" in misfit.error.message


async def test_a_queue_of_an_encrypted_job_type_is_refused(opened: Any) -> None:
    app = await opened(upper, encryption=OLD)

    with pytest.raises(QueueConfigurationError, match="'upper' is encrypted"):
        Database(app).for_queue("upper")


async def test_the_outbox_keeps_what_is_encrypted_and_publishes_it_in_plain_text(opened: Any, tmp_path: Path) -> None:
    broker = Database(Onward(f"sqlite:///{tmp_path}/broker.db", jobs=[]))
    app = await opened(upper, encryption=OLD)
    queue: Queue[Any] = Queue("emails", provider=broker, outbox=app)
    async with app.transaction() as tx:
        await queue.add("welcome", {"to": "ada.lovelace"}, tx=tx)
    waiting = await stored(app)
    provider = broker.for_queue("emails")
    await provider.connect()
    try:
        async with app.worker():
            [published] = await arrived(provider, 1)
    finally:
        await provider.disconnect()

    assert "lovelace" not in waiting
    assert bytes(published.data) == b'{"to":"ada.lovelace"}'


KINDS = [
    "asyncpg",
    "psycopg",
    "psycopg pool",
    "sqlalchemy asyncpg",
    "sqlalchemy psycopg",
    "sqlalchemy aiosqlite",
    "memory",
]


@pytest.fixture
async def library(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    kind: str = request.param
    if kind == "memory":
        yield "memory://"
        return
    if kind == "sqlalchemy aiosqlite":
        url = f"sqlite+aiosqlite:///{tmp_path}/sealed.db"
    else:
        url = request.getfixturevalue("postgres_dsn").replace("postgresql://", f"postgresql+{kind.split()[-1]}://")
    async with AsyncExitStack() as stack:
        if kind == "psycopg pool":
            pool: Any = AsyncConnectionPool(request.getfixturevalue("postgres_dsn"), min_size=1, max_size=4, open=False)
            yield await stack.enter_async_context(pool)
        elif kind.startswith("sqlalchemy"):
            engine = create_async_engine(url)
            stack.push_async_callback(engine.dispose)
            yield engine
        else:
            yield url


@pytest.mark.parametrize("library", KINDS, indirect=True)
async def test_every_library_of_the_database_stores_and_reads_what_is_encrypted(library: Any, tmp_path: Path) -> None:
    app = Onward(
        library, jobs=[order, gather, pay, upper], schema=f"sealed_{tmp_path.name[-20:]}", migrate=True, encryption=OLD
    )
    async with app, app.worker(concurrency=4):
        chain, failing = await app.start(order, Payment(7, CARD)), await app.start(upper, "fails")

        assert await chain.wait(timeout=SOON) == [Receipt(7, f"token of {CARD}"), Receipt(7, CARD)]
        failure = await failure_of(failing)
        assert failure.error is not None
        assert failure.error.message == "it is private"
        assert CARD not in await stored(app)


@pytest.mark.parametrize("library", ["sqlalchemy aiosqlite"], indirect=True)
async def test_what_the_database_refuses_shows_no_parameters(library: Any, recorder: Recorder) -> None:
    async with Onward(library, jobs=[pay], observers=[recorder]) as app:
        refusing = "CREATE TRIGGER refusing BEFORE INSERT ON job_table BEGIN SELECT RAISE(ABORT, 'refused'); END"
        await run_sql(app, refusing)

        with pytest.raises(DatabaseError, match="refused") as refused:
            await app.start(pay, Payment(7, CARD))

    assert CARD not in "".join(traceback.format_exception(refused.value)) + repr(recorder.events)


@pytest.mark.parametrize("library", [kind for kind in KINDS if "psycopg" in kind or "asyncpg" in kind], indirect=True)
async def test_what_a_constraint_refuses_is_not_shown(library: Any, recorder: Recorder, tmp_path: Path) -> None:
    schema = f"refused_{tmp_path.name[-20:]}"
    app = Onward(library, jobs=[pay], schema=schema, migrate=True, observers=[recorder])
    async with app:
        await run_sql(app, "ALTER TABLE job_table ADD CHECK (output IS NULL), ADD CHECK (rank > -5)")

        with pytest.raises(DatabaseError, match="violates check") as refused:
            await app.start(pay, Payment(7, CARD), priority=9)
        async with app.worker():
            chain = await app.start(pay, Payment(7, "0000-1111"))
            failure = await failure_of(chain)

    told = "".join(traceback.format_exception(refused.value)) + repr([failure.error, recorder.events])
    assert CARD not in told
    assert "0000-1111" not in told
    assert "violates check" in repr(failure.error)


async def test_a_failed_job_keeps_its_errors_readable_through_retries(running: Any) -> None:
    @job("flaky", max_attempts=3, backoff=QUICK)
    async def flaky(attempt: Attempt[str]) -> str:
        raise ValueError(f"{attempt.input} {attempt.failures}: {attempt.last_error and attempt.last_error.message}")

    app = await running(flaky, encryption=OLD)

    chain = await app.start(flaky, "private")
    await failure_of(chain)

    job_ = (await chain.get()).current
    assert isinstance(job_, FailedJob)
    assert [error.message for error in job_.errors] == [
        "private 0: None", "private 1: private 0: None", "private 2: private 1: private 0: None",
    ]  # fmt: skip
    assert "private" not in await stored(app)
    assert job_.status is JobStatus.FAILED


async def test_encrypted_and_plain_types_run_side_by_side(running: Any) -> None:
    @job("plain", encryption=False)
    async def plain(attempt: Attempt[str]) -> str:
        return attempt.input.upper()

    app = await running(upper, plain, encryption=OLD)

    chains = [await app.start(one, "visible") for one in (upper, plain)]
    assert [await asyncio.wait_for(chain.wait(), 10) for chain in chains] == ["VISIBLE"] * 2

    assert (await stored(app)).count("visible") == 1
