"""Passwords in addresses, wherever in them and however spelled, are in no error, traceback, repr, log line or event."""

import asyncio
import itertools
import logging
import random
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from onward import Onward
from onward.cli import commands, dashboard, place
from onward.flow import Flow
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify
from onward.queue import Queue
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.nats import Nats
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.redis import Redis
from onward.queue.providers.sqs import SQS

BETWEEN = [
    "", "/", "#", "?", "%", "@", ":", "%2F", "%40", "%zz", "%00", "%", "&", "=", "[", "]", "::", "//", "@@", "\\", " ",
    "'", '"', "\n", "\t", "ü", "℀", "／", "\udc80", "%ff", "+", ",", ";", "$", "|", "<", ">", "{", "^", "`", "~", ":1/",
]  # fmt: skip
USER_ALONE = "{scheme}://{secret}@127.0.0.1:1/0"
"""A token for NATS, a password to some; but to RabbitMQ a user, who is no secret."""
FORMS = [
    "{scheme}://u:{secret}@127.0.0.1:1/db", "{scheme}://u:{secret}@127.0.0.1:1", "{scheme}://:{secret}@127.0.0.1:1/0",
    USER_ALONE, "{scheme}://u:{secret}@127.0.0.1:port/db", "{scheme}://u:{secret}@[::1/db",
    "{scheme}://u:{secret}@127.0.0.1:99999/db", "{scheme}://127.0.0.1:1/db?user=u&password={secret}",
    "{scheme}://127.0.0.1:1/db?password={secret}&nonsense=1", "{scheme}://u:{secret}@127.0.0.1:1/db?nonsense=1",
    "{scheme}://u:{secret}@127.0.0.1:1/db?nonsense", "{scheme}:/u:{secret}@127.0.0.1:1/db",
    "{scheme}+foo://u:{secret}@127.0.0.1/db", "{scheme}://u:{secret}@127.0.0.1:1,127.0.0.1:2/db",
    "host=127.0.0.1 port=1 user=u password={secret}", "mysql://u:{secret}@127.0.0.1/db", "u:{secret}@127.0.0.1",
    "sqlite://u:{secret}@127.0.0.1/db", "memory://u:{secret}@127.0.0.1", "sqlite:///jobs.db?password={secret}",
    "{scheme}://u:{secret}@127.0.0.1:1/db#fragment", " {scheme}://u:{secret}@127.0.0.1:1/db",
]  # fmt: skip
ENGINES = ["postgresql+asyncpg", "postgresql+psycopg"]
LOOKS = [
    ["status"], ["chains", "list"], ["jobs", "list"], ["failed", "list"], ["workers"], ["health"], ["doctor"],
    ["prune", "--older-than", "30d", "--dry-run"],
]  # fmt: skip
"""Commands that say what is in a database."""


def sqlalchemy_app(address: str) -> Onward | None:
    try:
        engine = create_async_engine(make_url(address))
    except Exception:  # noqa: BLE001 - the application's own call, and SQLAlchemy's own words
        return None
    return Onward(engine, jobs=[])


async def open_app(app: Onward | None) -> None:
    if app is not None:
        async with app:
            pass


async def open_queue(factory: Any) -> None:
    async with Queue("q", provider=factory) as queue:
        await queue.stats()


async def open_notify(adapter: Any) -> None:
    async with adapter._connect():
        pass


async def open_flow(flow: Any) -> None:
    await flow.find("x")


KINDS: dict[str, tuple[list[str], Callable[[str], Any], Callable[[Any], Any]]] = {
    "postgres": (["postgresql", *ENGINES, "postgres"], lambda address: Onward(address, jobs=[]), open_app),
    "sqlalchemy": (ENGINES, sqlalchemy_app, open_app),
    "redis": (["redis", "rediss"], Redis, open_queue),
    "bullmq": (["redis"], BullMQ, open_queue),
    "rabbitmq": (["amqp", "amqps"], RabbitMQ, open_queue),
    "nats": (["nats", "tls", "ws"], Nats, open_queue),
    "sqs": (["http", "https"], lambda address: SQS(address, region="eu-west-1"), open_queue),
    "redis hints": (["redis", "redis+cluster"], RedisNotify, open_notify),
    "nats hints": (["nats", "tls"], NatsNotify, open_notify),
    "flow": (["redis", "rediss"], lambda address: Flow("access", address), open_flow),
}


def addresses(schemes: list[str], count: int, seed: str) -> list[str]:
    """So many of them, in an order of their own: every form and every odd character comes early."""
    chance = random.Random(seed)
    forms = [form for form in chance.sample(FORMS, len(FORMS)) if seed != "rabbitmq" or form != USER_ALONE]
    between = chance.sample(BETWEEN, len(BETWEEN))
    made = zip(itertools.cycle(forms), itertools.cycle(between), itertools.cycle(schemes), strict=False)
    return [form.format(scheme=scheme, secret=f"TopS{odd}3cret") for form, odd, scheme in itertools.islice(made, count)]


def assert_quiet(said: str, address: str) -> None:
    for part in ("tops", "3cret"):
        assert part not in said.lower(), f"{address!r} is told in:\n{said}"


def told_by(make: Callable[[str], Any], use: Callable[[Any], Any], address: str, runner: asyncio.Runner) -> str:
    """All that somebody could read who makes such a thing and uses it."""
    said = ""
    try:
        thing = make(address)
        said += f"{thing!r} {thing} {getattr(thing, 'driver', '')!r} {getattr(thing, 'state', '')!r}"
        runner.run(asyncio.wait_for(use(thing), 20))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
        said += "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_no_password_in_what_is_said(
    kind: str, scale: Callable[[int], int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    caplog.set_level(logging.DEBUG)
    schemes, make, use = KINDS[kind]
    with asyncio.Runner() as runner:
        for address in addresses(schemes, scale(500) // len(KINDS), kind):
            caplog.clear()

            said = told_by(make, use, address, runner)

            assert_quiet(said + caplog.text, address)


def test_no_password_on_the_command_line(
    scale: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (commands, dashboard, place):
        monkeypatch.setattr(module, "set_up_logging", lambda *_, **__: None)
    caplog.set_level(logging.DEBUG)
    id = "0199d2a1-0000-7000-8000-000000000000"
    words = (
        ["migrate", "--"],
        ["migrate", "--debug", "--"],
        ["bench", "--"],
        ["bench", "--debug", "--"],
        ["worker", "--"],
        ["migrate", "--schema", "s", "--"],
        ["dashboard", "--"],
        *([*command, *debug, "--database"] for command in LOOKS for debug in ([], ["--debug"])),
        *([*command, id, "--database"] for command in (["explain"], ["chains", "show"], ["jobs", "watch"], ["cancel"])),
    )
    chosen = addresses(["postgresql", *ENGINES], scale(200), "command line")
    for address, command in zip(chosen, itertools.cycle(words), strict=False):
        caplog.clear()

        done = CliRunner().invoke(commands.cli, [*command, address])

        assert done.exit_code != 0
        trace = "".join(traceback.format_exception(done.exception)) if done.exception else ""
        assert_quiet(done.output + trace + caplog.text, address)
