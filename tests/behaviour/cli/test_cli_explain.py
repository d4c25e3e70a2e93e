"""`onward explain` and `app.explain`: each of its reasons, on real databases."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from msgspec import Struct

from onward import Attempt, JobType, Limit, Onward, Permanent, Rate, job
from onward.client.doctor.case import examine
from onward.client.doctor.judge import judge
from onward.client.reasons import MOST_AHEAD
from onward.crypto import Encryption, Secret
from onward.errors import ChainNotFound
from onward.lifecycle.limits import rule_of
from onward.model import FailureReason, JobError, new_id
from onward.operating import Explanation, Why
from onward.state.command import Steps
from onward.state.contract import NewJob, Settlement, SettlementKind, TakenJob, TypeClaim
from onward.state.driver import Connection
from onward.state.rows import write_errors
from onward.state.workers import SignOfLife, WorkerRow
from support import SOON

WORKER, HOUR = "w-1", timedelta(hours=1)
approve = JobType("approve", input=int, output=int)


@job("charge", max_attempts=3)
async def charge(attempt: Attempt[int]) -> int:
    return 1


@job("halted")
async def halted(attempt: Attempt[int]) -> int:
    return 1


@job("lonely")
async def lonely(attempt: Attempt[int]) -> int:
    return 1


@job("few", limit=Limit("stripe", concurrency=1, key=lambda customer: f"c{customer}"))
async def few(attempt: Attempt[int]) -> int:
    return 1


@job("slow", limit=Limit("mails", rate=Rate(1, per=HOUR)))
async def slow(attempt: Attempt[int]) -> int:
    return 1


@job("fetch", blocked_by=[charge, halted, "fetch"])
async def fetch(attempt: Attempt[int]) -> int:
    return 1


@job("report", blocked_by=[fetch, charge])
async def report(attempt: Attempt[int]) -> int:
    return 1


JOBS: list[Any] = [approve, charge, halted, lonely, few, slow, fetch, report]
TYPES = {kind.name: (1,) for kind in JOBS if kind not in (approve, lonely)} | {"charge": (2, 1)}


class Shop:
    """An app, and what a worker would do for it, step by step."""

    def __init__(self, app: Onward) -> None:
        self.app, self.state, self.store = app, app.state, app.store

    async def run(self, operation: Any) -> Any:
        return await self.store.read(operation)

    async def sign(self, id: str = WORKER, *, types: dict[str, Any] | None = None, **more: Any) -> None:
        row = WorkerRow(
            id=id, host="h", pid=1, version=None, onward_version="0", types=types or TYPES, concurrency=2
        )  # fmt: skip
        await self.run(self.state.workers.sign(row, SignOfLife(**{"age": 0.0, "promise": 60.0, **more})))

    async def take(self, name: str, *, lease: float = 60.0, limit: int = 1) -> TakenJob:
        claims = [TypeClaim(name, 1, lease)]
        taken = await self.run(self.state.take(types=claims, limit=limit, worker=WORKER))
        assert len(taken) == limit
        return taken[0]  # type: ignore[no-any-return]

    async def settle(self, taken: TakenJob, kind: SettlementKind, **more: Any) -> None:
        if error := more.pop("error", None):
            trace = 'File "/srv/shop/jobs.py", line 7, in charge'
            known = JobError(type=error, message="no money", attempt=taken.attempt, traceback=trace)
            more["errors"] = write_errors(None, known)
        settlement = Settlement(
            job_id=taken.id, attempt=taken.attempt, holder=WORKER, kind=kind, completed_by=WORKER, **more
        )  # fmt: skip
        await self.run(self.state.settle([settlement]))

    async def admit(self, kind: Any) -> None:
        await self.run(self.state.set_limits([rule_of(self.app.registry[kind.name].limits[0])], declared=True))
        for _ in range(3):
            await self.run(self.state.admit())


Case = Callable[[Shop], Awaitable[tuple[UUID, Why, dict[str, Any], list[str]]]]
"""Brings a job to where it is; gives its id, and why it is there: in a word, in facts, and in parts of sentences."""


async def is_scheduled(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1, delay=HOUR)).id
    return id, Why.SCHEDULED, {"type": "charge", "max_attempts": 3}, ["It is scheduled for 20", "UTC, in 59m"]


async def is_retrying(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1)).id
    await shop.settle(await shop.take("charge"), "requeue", delay=3600.0, failures=1, error="Declined")
    words = ["It is tried again at 20", "after attempt 1 of 3 failed: Declined: no money."]
    return id, Why.RETRYING, {"error": "Declined: no money", "place": "/srv/shop/jobs.py:7 in charge"}, words


async def is_rescheduled_after_an_error(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1)).id
    await shop.settle(await shop.take("charge"), "requeue", failures=1, error="Declined")
    await shop.settle(await shop.take("charge"), "requeue", delay=3600.0)
    return id, Why.SCHEDULED, {"attempt": 2, "failures": 1}, []


async def is_paused(shop: Shop) -> Any:
    id = (await shop.app.start(halted, 1)).id
    return id, Why.PAUSED, {"paused": True}, ["its type 'halted' is paused", "`onward resume halted`"]


async def has_no_place(shop: Shop) -> Any:
    await shop.app.start(few, 7)
    await shop.admit(few)
    first = await shop.take("few")
    await shop.app.start(few, 7)
    id = (await shop.app.start(few, 7)).id
    await shop.admit(few)
    words = [f"a place of limit 'stripe', key 'c7', behind 1 more: the only one is held by {first.id} (few)."]
    facts = {"limit": "stripe", "key": "c7", "holding": 1, "concurrency": 1, "held_by": [f"{first.id} (few)"]}
    return id, Why.LIMIT, facts, words


async def has_no_slot_of_a_rate(shop: Shop) -> Any:
    await shop.app.start(slow, 1)
    await shop.admit(slow)
    id = (await shop.app.start(slow, 1)).id
    await shop.admit(slow)
    return id, Why.LIMIT, {"limit": "mails", "every": 3600.0}, ["limit 'mails': its rate has the next one at 20"]


async def has_no_worker(shop: Shop) -> Any:
    await shop.sign("w-dead", types={"lonely": (1,)}, promise=-1.0)
    id = (await shop.app.start(lonely, 1)).id
    facts = {"live_workers": 1, "would_have_taken_it": ["w-dead (dead)"]}
    words = ["takes its type 'lonely': none of 1 live worker does; w-dead (dead) would have."]
    return id, Why.NO_WORKER, facts, words


async def is_of_a_version_nobody_reads(shop: Shop) -> Any:
    id = new_id()
    newer = NewJob(id=id, chain_id=id, root_id=id, type_name="charge", payload_version=3, input="1")
    await shop.run(shop.state.start([newer]))
    words = ["reads version 3 of its type 'charge': w-1 reads versions 1 and 2."]
    return id, Why.NO_WORKER_OF_VERSION, {"version": 3, "readable": ["w-1: versions 1 and 2"]}, words


async def is_in_line(shop: Shop) -> Any:
    await shop.app.start_many([charge.with_input(1, priority=n) for n in (101, 102, 103)])
    id = (await shop.app.start(charge, 1, priority=100)).id
    await shop.app.start(charge, 1, priority=100)
    return id, Why.NEXT_IN_LINE, {"ahead": 3, "slots": 2, "workers": [WORKER]}, ["behind 3 more, due for 0s, with "]


async def is_running(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1, priority=9)).id
    await shop.take("charge")
    await shop.app.cancel(id)
    words = ["It is running, attempt 1 of 3: leased by w-1, which gave its last sign of life ", "it was asked to stop."]
    return id, Why.RUNNING, {"worker": WORKER, "worker_state": "alive", "cancel_requested": True}, words


async def has_lost_its_worker(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1, priority=9)).id
    await shop.take("charge", lease=-1.0)
    words = ["was being run by w-1, which gave", "but its lease ran out 1s ago; w-1 will take it over within moments"]
    return id, Why.LEASE_EXPIRED, {"worker": WORKER, "would_take_it": [WORKER]}, words


async def awaits_a_person(shop: Shop) -> Any:
    id = (await shop.app.start(approve, 1)).id
    return id, Why.AWAITS_COMPLETION, {}, ["It awaits completion: its type 'approve' has no handler"]


async def has_completed(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1, priority=9)).id
    await shop.settle(await shop.take("charge"), "complete", output="1")
    return id, Why.COMPLETED, {"completed_by": WORKER, "went_on_to": None}, ["It completed at 20", "by w-1."]


async def has_failed(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1, priority=9)).id
    await shop.settle(await shop.take("charge"), "fail", failures=3, reason=FailureReason.ATTEMPTS, error="Declined")
    words = ["It failed at 20", "after attempt 1 of 3: Declined: no money, at /srv/shop/jobs.py:7 in charge."]
    return id, Why.FAILED, {"reason": "attempts", "error_type": "Declined"}, words


async def was_cancelled(shop: Shop) -> Any:
    id = (await shop.app.start(charge, 1)).id
    await shop.app.cancel(id)
    return id, Why.FAILED, {"reason": "cancelled"}, ["It was cancelled at 20"]


async def has_failed_through_others(shop: Shop) -> Any:
    root = await shop.app.start(charge, 1, priority=9)
    between = await shop.app.start(fetch, 1, blockers=[root])
    id = (await shop.app.start(report, 1, blockers=[between])).id
    await shop.settle(await shop.take("charge"), "fail", reason=FailureReason.PERMANENT, error="Declined")
    words = [
        f"because chain {between.id} (fetch), which it waited for, did, through {root.id} (charge), which failed at"
    ]
    facts = {"reason": "blocker", "root_chain": root.id, "root_reason": "permanent", "root_error": "Declined: no money"}
    return id, Why.FAILED, facts, [*words, "for good: Declined: no money"]


async def has_failed_through_what_is_gone(shop: Shop) -> Any:
    root = await shop.app.start(charge, 1, delay=HOUR)
    id = (await shop.app.start(fetch, 1, blockers=[root])).id
    await shop.app.cancel(root)
    await shop.app.prune(charge, older_than=timedelta())
    assert await shop.app.find_chain(root.id) is None
    return (
        id,
        Why.FAILED,
        {"reason": "blocker"},
        ["because a chain that it waited for did, which was retried or deleted"],
    )


async def is_blocked(shop: Shop) -> Any:
    root, other = await shop.app.start(halted, 1), await shop.app.start(charge, 1, delay=HOUR)
    between = await shop.app.start(fetch, 1, blockers=[other, root])
    id = (await shop.app.start(report, 1, blockers=[between, other])).id
    way = f"{between.id} (fetch), which waits for {root.id} (halted), which waits because its type 'halted' is paused"
    also = f"It waits for chain {other.id} (charge), which is scheduled for"
    facts = {"open_blockers": 2, "root_chain": root.id, "root_why": "paused"}
    return id, Why.BLOCKED, facts, [f"It waits for 2 chains, among them {way}", also]


CASES: list[Case] = [
    is_scheduled,
    is_retrying,
    is_rescheduled_after_an_error,
    is_paused,
    has_no_place,
    has_no_slot_of_a_rate,
    has_no_worker,
    is_of_a_version_nobody_reads,
    is_running,
    has_lost_its_worker,
    awaits_a_person,
    has_completed,
    has_failed,
    was_cancelled,
    has_failed_through_others,
    has_failed_through_what_is_gone,
    is_blocked,
    is_in_line,
]


@pytest.fixture
async def shop(target: str, schema: str) -> AsyncIterator[Shop]:
    async with Onward(target, jobs=JOBS, schema=schema, migrate=True, observers=[]) as app:
        shop = Shop(app)
        await shop.sign()
        await app.pause(halted)
        yield shop


async def test_every_reason_is_found_and_told(shop: Shop, onward: Any, module: Any, at: list[str]) -> None:
    *path, name = module("approve = JobType('approve', input=int, output=int)\njobs = [approve]\n")
    found: set[Why] = set()
    for case in CASES:
        id, why, facts, words = await case(shop)
        told = await shop.app.explain(id)
        said = " ".join([told.sentence, *told.also])

        assert told.why is why, (case.__name__, told)
        assert {key: told.facts[key] for key in facts} == facts, (case.__name__, told)
        assert all(part in said for part in words), (case.__name__, words, said)
        assert (told.job_id, "  " in said, "None" in said) == (id, False, False)
        if why not in found:
            place = ["--app", name, *path] if why is Why.AWAITS_COMPLETION else at
            as_json = (await asyncio.to_thread(onward, "explain", id, *place, "--json")).json
            assert (as_json["why"], as_json["job_id"]) == (why, str(id)), (case.__name__, as_json)
        found.add(why)
    assert found == set(Why)


async def test_the_command_prints_the_sentence_then_facts_then_what_else(shop: Shop, onward: Any, at: Any) -> None:
    chain = await shop.app.start(halted, 1, delay=HOUR)

    said = await asyncio.to_thread(onward, "explain", chain.id, *at)
    missing = await asyncio.to_thread(onward, "explain", uuid4(), *at, code=1)

    sentence, empty, _, *facts = said.out.splitlines()
    assert sentence.startswith("It is scheduled for ")
    assert empty == ""
    assert facts[0].split() == ["job", str(chain.id)]
    assert facts[1].split() == ["why", "scheduled"]
    assert facts[-1].startswith("also: Then it waits because its type 'halted' is paused")
    assert "there is no chain or job" in missing.words
    unknown = await asyncio.to_thread(onward, "explain", (await shop.app.start(approve, 1)).id, *at)
    assert "none of 1 live worker does; or its type has no handler" in unknown.out


async def test_a_lease_of_a_killed_worker_ran_out_no_age_ago(shop: Shop) -> None:
    id = (await shop.app.start(charge, 1)).id
    await shop.take("charge")
    await shop.run(shop.state.expire(worker=WORKER))

    told = await shop.app.explain(id)
    found = judge(await examine(shop.app, deep=False, timeout=SOON))

    assert told.why is Why.LEASE_EXPIRED
    assert "its lease ran out 0s ago; " in told.sentence or "its lease was let go of; " in told.sentence
    assert "leases" not in [one.name for one in found if one.level != "ok"]


async def test_ids_of_chains_and_of_jobs_further_on(shop: Shop) -> None:
    chain = await shop.app.start(charge, 1)
    taken = await shop.take("charge")
    step = new_id()
    next = NewJob(
        id=step, chain_id=chain.id, chain_index=1, root_id=chain.id, type_name="few", payload_version=1, input="1"
    )
    await shop.settle(taken, "continue", next=[next])

    assert (await shop.app.explain(chain.id)).job_id == (await shop.app.explain(step)).job_id == step
    with pytest.raises(ChainNotFound):
        await shop.app.explain(new_id())
    async with shop.app.transaction() as tx:
        started = await shop.app.start(approve, 1, tx=tx)
        assert (await shop.app.explain(started.id, tx=tx)).why is Why.AWAITS_COMPLETION


async def test_what_is_committed_meanwhile_is_seen_by_all_looks_or_by_none(shop: Shop) -> None:
    id, looks = new_id(), list[int]()

    async def look(connection: Connection) -> tuple[int, int]:
        before = len(await connection.run(shop.state.find_jobs([id])))
        if not looks:
            with shop.app.sync as another:
                another.start(approve, 1, id=id)
        looks.append(before)
        return before, len(await connection.run(shop.state.find_jobs([id])))

    first, second = await shop.run(shop.state.at_one_moment(Steps(look)))

    assert first == second
    assert await shop.app.find_job(id) is not None


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_a_long_line_and_a_long_row_of_blockers_are_not_followed_to_their_end(shop: Shop) -> None:
    await shop.app.start_many([charge.with_input(1) for _ in range(MOST_AHEAD + 10)])
    last = await shop.app.start(charge, 1)
    chain: Any = await shop.app.start(halted, 1)
    for _ in range(30):
        chain = await shop.app.start(fetch, 1, blockers=[chain])

    await shop.sign(blocked_for=30.0)
    assert "; the event loop of w-1 stands still." in (await shop.app.explain(last.id)).sentence
    assert "behind more than 1,000 more" in (await shop.app.explain(last.id)).sentence
    far = await shop.app.explain(chain.id)
    assert (far.why, len(far.facts["path"])) == (Why.BLOCKED, 20)  # type: ignore[arg-type]
    assert "which is the first of more than 20 in a row" in far.sentence


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
async def test_what_is_secret_in_an_error_stays_secret(target: str, shop: Shop) -> None:
    class Card(Struct):
        number: Annotated[str, Secret]

    @job("cards.check", max_attempts=1)
    async def check(attempt: Attempt[Card]) -> int:
        raise Permanent(f"{attempt.input.number} is no card")

    follow = JobType("follow", input=int, output=int, blocked_by=[check])
    key = Encryption({"a": Encryption.new_key()}, current="a")
    async with Onward(target, jobs=[check, follow], encryption=key, observers=[]) as app, app.worker():
        chain = await app.start(check, Card("4000-1234"), delay=timedelta(milliseconds=300))
        after = await app.start(follow, 1, blockers=[chain])
        with pytest.raises(Exception, match="is no card"):
            await chain.wait(timeout=SOON)
        for told in (await app.explain(chain.id), await shop.app.explain(chain.id)):
            assert told.why is Why.FAILED
            assert "4000" not in str(told)
        assert "is no card" in (await app.explain(chain.id)).sentence
        assert "is no card" in (await app.explain(after.id)).sentence
        assert "<encrypted with key 'a'>" in (await shop.app.explain(after.id)).sentence


async def test_with_a_real_worker_and_without_an_event_loop(shop: Shop, target: str, schema: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @job("hold", limit=Limit("one", concurrency=1))
    async def hold(attempt: Attempt[int]) -> int:
        begun.set()
        await go_on.wait()
        return 1

    def told(app: Onward, *ids: UUID) -> list[Explanation]:
        with app.sync as client:
            return [client.explain(id) for id in ids]

    name = f"w-{secrets.token_hex(3)}"
    async with (
        Onward(target, jobs=[hold], schema=schema, observers=[]) as app,
        app.worker(concurrency=2, name=name, grace=SOON) as worker,
    ):
        first, second = await app.start(hold, 1), await app.start(hold, 1)
        async with asyncio.timeout(SOON.total_seconds()):
            await begun.wait()
        explained = await asyncio.to_thread(told, app, first.id, second.id)
        waiting, running = sorted(explained, key=lambda one: one.why)
        go_on.set()
        await second.wait(timeout=SOON)
        await first.wait(timeout=SOON)

    assert (waiting.why, running.why) == (Why.LIMIT, Why.RUNNING)
    assert running.facts["worker"] == worker.id
