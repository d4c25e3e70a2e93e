"""A job's way through a flow, on a single server and on a cluster."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from flows import SOON, FlowRecorder, places
from onward.errors import ConfigurationError
from onward.flow import (
    Flow,
    FlowFull,
    FlowJobExists,
    FlowJobFailed,
    FlowJobNotFailed,
    FlowJobNotFound,
    FlowPayloadError,
    FlowWaitTimeout,
    Goto,
    Permanent,
    Run,
    current_run,
    events,
)
from onward.flow.keys import Keys
from onward.model import Backoff

MakeFlow = Callable[..., Flow[Any]]


@dataclass
class Request:
    user: str
    age: int


@dataclass
class Checked:
    score: float
    tags: list[str]


class Grant(TypedDict):
    user: str
    score: float


@dataclass
class Granted:
    token: str


@dataclass
class Rejected:
    reason: str


@dataclass
class Nothing:
    pass


def three_stages(flow: Flow[Any]) -> Flow[Any]:
    @flow.stage("check", next="grant", goto=["reject"])
    async def check(job: Request) -> Checked | Goto[Rejected]:
        if job.age < 18:
            return Goto("reject", Rejected("too young"))
        return Checked(job.age / 10, ["adult"])

    @flow.stage("grant")
    async def grant(job: Grant) -> Granted:
        assert set(job) == {"user", "score"}
        return Granted(f"{job['user']}-{job['score']}")

    @flow.stage("reject")
    async def reject(job: Rejected) -> None:
        return None

    return flow


async def test_a_job_passes_through_its_stages_and_every_result_is_kept(
    make_flow: MakeFlow, redis: Any, keys: Keys
) -> None:
    flow = three_stages(make_flow(input=Request))
    async with flow:
        job_id = await flow.start(Request("ann", 30), correlation_id="request-7")
        assert await redis.lrange(keys.queue("check", "waiting"), 0, -1) == [job_id]

        async with flow.workers():
            job = await flow.wait(job_id, timeout=SOON)

    assert job.read(Granted) == Granted("ann-3.0")
    stored = await redis.hgetall(keys.job(job_id))
    assert {name: stored[name] for name in ("user", "age", "score", "tags", "token")} == {
        "user": "ann", "age": "30", "score": "3.0", "tags": '["adult"]', "token": "ann-3.0"
    }  # fmt: skip
    assert stored["done"] == "true"
    assert stored["completed-queue"] == "grant"
    assert stored["correlation-id"] == "request-7"


async def test_the_keys_have_the_names_of_the_document(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("check")
    async def check(job: Request) -> None:
        running.set()
        await go_on.wait()

    async with flow, flow.workers() as workers:
        job_id = await flow.start(Request("ann", 30))
        await running.wait()

        tag, name = ("{access}:", "{access}") if keys.tag else ("", "access")
        assert await redis.lrange(f"queue:{tag}check:processing", 0, -1) == [job_id]
        assert await redis.get(f"lock:{tag}check:{job_id}") == workers.workers[0].id
        assert 0 < await redis.pttl(f"lock:{tag}check:{job_id}") <= 30_000
        assert await redis.type(f"job:{name}:{job_id}") == "hash"
        go_on.set()


async def test_goto_leads_elsewhere_and_a_handler_may_return_nothing(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow())
    async with flow, flow.workers():
        job = await flow.wait(await flow.start({"user": "tim", "age": 9}), timeout=SOON)

    assert job.completed_queue == "reject"
    assert job.attributes == {"user": "tim", "age": 9, "reason": "too young"}


async def test_first_come_first_served(make_flow: MakeFlow) -> None:
    flow, seen = make_flow(), list[int]()

    @flow.stage("check")
    async def check(job: Request) -> None:
        seen.append(job.age)

    async with flow:
        ids = await flow.start_many(Request("ann", age) for age in range(20))
        async with flow.workers():
            await flow.wait(ids[-1], timeout=SOON)

    assert seen == list(range(20))


async def test_a_handler_that_raises_fails_the_job(
    make_flow: MakeFlow, redis: Any, keys: Keys, recorder: FlowRecorder
) -> None:
    flow = make_flow()

    @flow.stage("check")
    async def check(job: Request) -> None:
        raise RuntimeError("no answer")

    async with flow, flow.workers():
        job_id = await flow.start(Request("ann", 30), correlation_id="request-8")
        with pytest.raises(FlowJobFailed, match="failed at stage 'check': RuntimeError: no answer"):
            await flow.wait(job_id, timeout=SOON)

    stored = await redis.hgetall(keys.job(job_id))
    assert (stored["done"], stored["failed"], stored["failedQueue"]) == ("true", "true", "check")
    assert stored["failedErrorMsg"] == "RuntimeError: no answer"
    assert await redis.exists(keys.queue("check", "processing")) == 0
    assert await redis.exists(f"lock:{keys.tag}check:{job_id}") == 0
    [failed] = recorder.of(events.StageFailed)
    assert (failed.correlation_id, failed.will_retry, failed.error.type) == ("request-8", False, "RuntimeError")
    assert "no answer" in failed.error.traceback


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Odd(BaseException):
    pass


def ask_a_cancelled_future() -> None:
    """What `concurrent.futures` raises is not what asyncio raises, and loops have taken one for the other."""
    future: futures.Future[None] = futures.Future()
    future.cancel()
    future.result()


LEAVES_A_HANDLER: dict[str, Callable[[], Any]] = {
    "SystemExit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "CancelledError": lambda: _raise(asyncio.CancelledError("from within")),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "Odd": lambda: _raise(Odd()),
    "Broken": lambda: _raise(Broken()),
    "ValueError": lambda: _raise(ValueError("\ud800 \0")),
    "futures.CancelledError": ask_a_cancelled_future,
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("what", LEAVES_A_HANDLER)
async def test_whatever_leaves_a_handler_is_a_failed_try_of_its_job_and_nothing_else(
    make_flow: MakeFlow, recorder: FlowRecorder, what: str, kind: str
) -> None:
    flow, runs = make_flow(), list[str]()

    async def check(job: Request) -> None:
        runs.append(job.user)
        if job.user == "ann":
            LEAVES_A_HANDLER[what]()

    def check_in_thread(job: Request) -> None:
        runs.append(job.user)
        if job.user == "ann":
            LEAVES_A_HANDLER[what]()

    flow.stage("check", max_retries=1)(check if kind == "async" else check_in_thread)
    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match=what.removeprefix("futures.")) as failed:
            await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)
        await flow.wait(await flow.start(Request("bob", 30)), timeout=SOON)

    assert failed.value.reason == "attempts"
    assert runs == ["ann", "ann", "bob"]
    assert [event.will_retry for event in recorder.of(events.StageFailed)] == [True, False]
    assert recorder.of(events.RedisError) == []


async def test_a_handler_that_cancels_its_own_task_is_not_given_back_for_ever(make_flow: MakeFlow) -> None:
    flow, runs = make_flow(), list[str]()

    @flow.stage("check")
    async def check(job: Request) -> None:
        runs.append(job.user)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match="CancelledError"):
            await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)

    assert runs == ["ann"]


async def test_a_result_that_redis_does_not_take_is_a_failed_try(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow())
    async with flow:
        script = flow._store.server.script

        async def refuse(name: str, *words: Any) -> Any:
            if name == "complete":
                raise ResponseError("too big")
            return await script(name, *words)

        flow._store.server.script = refuse  # type: ignore[method-assign]
        async with flow.workers():
            with pytest.raises(FlowJobFailed, match="ResponseError: too big"):
                await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)


async def test_an_outcome_is_repeated_while_redis_is_away_until_the_lock_ends(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, tries = make_flow(), list[str]()

    @flow.stage("check", lock=timedelta(milliseconds=500), max_stalls=0)
    async def check(job: Request) -> None:
        return None

    async with flow:
        script = flow._store.server.script

        async def away(name: str, *words: Any) -> Any:
            if name in ("complete", "renew"):
                tries.append(name)
                raise RedisConnectionError("away")
            return await script(name, *words)

        flow._store.server.script = away  # type: ignore[method-assign]
        async with flow.workers(janitor=timedelta(milliseconds=50)):
            job_id = await flow.start(Request("ann", 30))
            with pytest.raises(FlowJobFailed, match="stalled 1 times"):
                await flow.wait(job_id, timeout=SOON)
            async with asyncio.timeout(10):
                while "settle" not in {error.doing for error in recorder.of(events.RedisError)}:
                    await asyncio.sleep(0.02)
            flow._store.server.script = script  # type: ignore[method-assign]
            await flow.wait(await flow.start(Request("bob", 30)), timeout=SOON)  # the worker is free again

    assert tries.count("complete") >= 2
    assert recorder.of(events.ResultDropped) == []  # it gave up by itself


async def test_who_repeats_an_outcome_whose_answer_was_lost_learns_what_it_was(
    make_flow: MakeFlow, recorder: FlowRecorder
) -> None:
    flow, lost = make_flow(), list[str]()

    @flow.stage("check", max_retries=1)
    async def check(job: Request, run: Run) -> None:
        if job.user == "bob":
            raise RuntimeError("never")

    async with flow:
        script = flow._store.server.script

        async def loses_every_first_answer(name: str, *words: Any) -> Any:
            answer = await script(name, *words)
            if name in ("complete", "fail") and lost.count(name) % 2 == 0:
                lost.append(name)
                raise RedisConnectionError("the answer was lost")
            lost.append(name)
            return answer

        flow._store.server.script = loses_every_first_answer  # type: ignore[method-assign]
        async with flow.workers():
            ann, bob = await flow.start_many([Request("ann", 1), Request("bob", 2)])
            await recorder.next(events.JobDone)
            failed = await recorder.next(events.JobFailed)

    assert [event.job_id for event in recorder.of(events.JobDone)] == [ann]
    assert (failed.job_id, failed.reason, failed.message) == (bob, "attempts", "RuntimeError: never")
    assert [event.will_retry for event in recorder.of(events.StageFailed)] == [True, False]
    assert recorder.of(events.ResultDropped) == []


async def test_errors_are_retried_as_often_as_the_stage_says(make_flow: MakeFlow, recorder: FlowRecorder) -> None:
    flow, retries = make_flow(), list[int]()

    @flow.stage("check", max_retries=3, backoff=Backoff(initial=timedelta(milliseconds=20)))
    async def check(job: Request, run: Run) -> None:
        retries.append(run.retries)
        if job.user == "ann" and run.retries < 2:
            raise RuntimeError("not yet")
        if job.user == "bob":
            raise RuntimeError("never")

    async with flow, flow.workers(janitor=timedelta(milliseconds=50)):
        await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)
        assert retries == [0, 1, 2]
        with pytest.raises(FlowJobFailed, match="never"):
            await flow.wait(await flow.start(Request("bob", 30)), timeout=SOON)

    assert retries[3:] == [0, 1, 2, 3]
    assert [event.will_retry for event in recorder.of(events.StageFailed)] == [True, True, True, True, True, False]


async def test_jitter_spreads_retries(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    hour = timedelta(hours=1)
    flow = make_flow()

    @flow.stage("check", max_retries=1, backoff=Backoff(initial=hour, maximum=hour, jitter=0.5))
    async def check(job: Request) -> None:
        raise RuntimeError("later")

    async with flow, flow.workers():
        await flow.start_many(Request("ann", age) for age in range(20))
        async with asyncio.timeout(10):
            while (await flow.positions()).count(place="delayed") < 20:
                await asyncio.sleep(0.02)
        until = [position.until for position in (await flow.positions()).jobs]

    now = datetime.now(UTC)
    waits = [moment - now for moment in until if moment is not None]
    assert timedelta(minutes=44) < min(waits) < timedelta(minutes=58)
    assert timedelta(minutes=62) < max(waits) < timedelta(minutes=76)


async def test_every_stage_has_its_own_retries(make_flow: MakeFlow) -> None:
    flow = make_flow()

    @flow.stage("check", next="grant", max_retries=1)
    async def check(job: Request, run: Run) -> None:
        if run.retries == 0:
            raise RuntimeError("once")

    @flow.stage("grant", max_retries=1)
    async def grant(job: Request, run: Run) -> None:
        if run.retries == 0:
            raise RuntimeError("once more")

    async with flow, flow.workers():
        job = await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)
        assert (job.status, job.error) == ("done", None)


async def test_what_cannot_help_is_not_tried_again(make_flow: MakeFlow, recorder: FlowRecorder) -> None:
    flow = make_flow()

    @flow.stage("check", max_retries=3)
    async def check(job: Request) -> Checked:
        if job.user == "ann":
            raise Permanent("blocked for good")
        return Checked("high", [])  # type: ignore[arg-type]

    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match=": blocked for good"):
            await flow.wait(await flow.start(Request("ann", 1)), timeout=SOON)
        with pytest.raises(FlowJobFailed, match="result of stage 'check' of flow 'access' at score: Expected `float`"):
            await flow.wait(await flow.start(Request("bob", 1)), timeout=SOON)

    assert [event.will_retry for event in recorder.of(events.StageFailed)] == [False, False]


async def test_an_undeclared_goto_fails_in_words(make_flow: MakeFlow) -> None:
    flow = make_flow()

    @flow.stage("check", goto=["check"])
    async def check(job: Request) -> Goto[None]:
        return Goto("nowhere")

    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match=r"Goto\('nowhere'\) is not among .* goto=\[…\] has 'check'"):
            await flow.wait(await flow.start(Request("ann", 1)), timeout=SOON)


async def test_attributes_that_do_not_fit_fail_the_job_and_name_the_field(
    make_flow: MakeFlow, redis: Any, keys: Keys
) -> None:
    flow = three_stages(make_flow())
    async with flow:
        job_id = await flow.start(Request("ann", 30))
        await redis.hset(keys.job(job_id), "age", "old")
        async with flow.workers():
            with pytest.raises(FlowJobFailed, match=r"of stage 'check' .* at age: Expected `int`, got `str`"):
                await flow.wait(job_id, timeout=SOON)


async def test_a_refused_input_starts_nothing(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow(input=Request))
    async with flow:
        with pytest.raises(FlowPayloadError, match="input of flow 'access' at age"):
            await flow.start({"user": "ann", "age": "x"})
        with pytest.raises(FlowPayloadError, match="missing required field `age`"):
            await flow.start({"user": "ann"})
        with pytest.raises(FlowPayloadError):
            await flow.start_many([Request("ann", 1), Request("bob", None)])  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="no stage of flow 'access' has priorities=True"):
            await flow.start(Request("ann", 1), priority=3)
        for options, words in (
            ({"priority": 1.5}, "priority must be a whole number from 0 to 1000, got: 1.5"),
            ({"delay": 5}, "delay must be a timedelta that is not negative, got: 5"),
            ({"delay": timedelta(seconds=-5)}, "delay must be a timedelta that is not negative"),
            ({"id": ""}, "id must be a text of at least one character"),
            ({"correlation_id": 7}, "correlation_id must be a text"),
        ):
            with pytest.raises(ConfigurationError, match=f"flow 'access': {words}"):
                await flow.start(Request("ann", 1), **options)  # type: ignore[arg-type]
        for counts, janitor in (("two", SOON), ({"check": -1}, SOON), (1, 5), (1, timedelta(0))):
            with pytest.raises(ConfigurationError, match=r"workers of flow 'access': .* must be"):
                flow.workers(counts, janitor=janitor)  # type: ignore[arg-type]
        assert (await flow.positions()).count() == 0


async def test_an_id_is_taken_once_and_many_start_together_or_not_at_all(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow(max_waiting=5))
    async with flow:
        assert await flow.start(Request("ann", 1), id="mine") == "mine"
        with pytest.raises(FlowJobExists):
            await flow.start(Request("ann", 2), id="mine")
        with pytest.raises(FlowFull) as refused:
            await flow.start_many(Request("ann", age) for age in range(5))

        assert (refused.value.waiting, refused.value.limit) == (1, 5)
        assert (await flow.get("mine")).attributes["age"] == 1
        assert len(await flow.start_many(Request("ann", age) for age in range(4))) == 4


async def test_a_start_whose_answer_was_lost_is_not_started_twice(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow(max_waiting=3))
    async with flow:
        script, lost = flow._store.server.script, list[str]()

        async def loses_the_first_answer(name: str, *words: Any) -> Any:
            answer = await script(name, *words)
            if not lost:
                lost.append(name)
                raise ConnectionError("the answer was lost")
            return answer

        flow._store.server.script = loses_the_first_answer  # type: ignore[method-assign]
        ids = await flow.start_many([Request("ann", 1), Request("bob", 2)])

        assert lost == ["start"]
        assert places(await flow.positions()) == dict.fromkeys(ids, ("check", "waiting"))


async def test_def_handlers_run_in_threads_and_know_their_run(make_flow: MakeFlow) -> None:
    flow, seen = make_flow(), list[Any]()

    @flow.stage("check")
    def check(job: Request) -> Nothing:
        seen.append((threading.current_thread().name, current_run()))
        return Nothing()

    async with flow, flow.workers():
        job_id = await flow.start(Request("ann", 1), correlation_id="c")
        await flow.wait(job_id, timeout=SOON)

    [(thread, run)] = seen
    assert thread.startswith("onward-flow")
    assert (run.job_id, run.correlation_id, run.stage, run.flow) == (job_id, "c", "check", "access")


async def test_a_worker_goes_from_ready_to_stopped_and_lets_its_job_finish(make_flow: MakeFlow) -> None:
    flow, running, go_on = make_flow(), asyncio.Event(), asyncio.Event()

    @flow.stage("check")
    async def check(job: Request) -> None:
        running.set()
        await go_on.wait()

    async with flow:
        job_id, waiting = await flow.start_many([Request("ann", 1), Request("bob", 2)])
        workers = flow.workers({"check": 1})
        [worker] = workers.workers
        assert worker.status == "ready"
        async with workers:
            await running.wait()
            assert worker.status == "running"
            workers.stop()
            assert worker.status == "stopping"
            go_on.set()
        assert worker.status == "stopped"

        assert (await flow.get(job_id)).status == "done"
        assert places(await flow.positions()) == {job_id: (None, "done"), waiting: ("check", "waiting")}


async def test_an_idle_worker_stops_at_once(make_flow: MakeFlow, recorder: FlowRecorder) -> None:
    flow = three_stages(make_flow(wait=timedelta(minutes=5)))
    async with flow:
        workers = flow.workers(2)
        async with asyncio.timeout(60), workers:
            await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)
        assert {worker.status for worker in workers.workers} == {"stopped"}


async def test_after_the_grace_a_job_is_given_back_uncounted(make_flow: MakeFlow) -> None:
    flow, runs = make_flow(), list[str]()

    @flow.stage("check")
    async def check(job: Request, run: Run) -> None:
        runs.append(run.worker)
        if len(runs) == 1:
            await asyncio.Event().wait()

    async with flow:
        first, second = await flow.start_many([Request("ann", 1), Request("bob", 2)])
        workers = flow.workers()
        async with workers:
            while not runs:
                await asyncio.sleep(0.01)
            workers.stop(grace=timedelta(milliseconds=10))
        assert [p.job_id for p in (await flow.positions()).jobs if p.place == "waiting"] == [first, second]

        async with flow.workers():
            await flow.wait(first, timeout=SOON)


async def test_what_a_thread_did_is_settled_though_it_was_told_to_stop_and_redis_stumbles(make_flow: MakeFlow) -> None:
    flow, running, go_on, cut = make_flow(), threading.Event(), threading.Event(), list[str]()

    @flow.stage("check")
    def check(job: Request) -> Nothing:
        running.set()
        go_on.wait(10)
        return Nothing()

    async with flow:
        job_id = await flow.start(Request("ann", 1))
        script = flow._store.server.script

        async def stumble(name: str, *words: Any) -> Any:
            if name == "complete" and not cut:
                cut.append(name)
                raise RedisConnectionError("away")
            return await script(name, *words)

        flow._store.server.script = stumble  # type: ignore[method-assign]
        async with flow.workers(janitor=None) as workers:
            await asyncio.to_thread(running.wait)
            workers.stop(grace=timedelta(0))
            await asyncio.sleep(0.1)
            go_on.set()
        assert cut == ["complete"]
        assert (await flow.get(job_id)).status == "done"


async def test_several_workers_of_a_stage_run_at_once(make_flow: MakeFlow) -> None:
    flow, together = make_flow(), asyncio.Barrier(3)

    @flow.stage("check")
    async def check(job: Request) -> None:
        await together.wait()

    async with flow, flow.workers({"check": 3}):
        ids = await flow.start_many(Request("ann", age) for age in range(3))
        for job_id in ids:
            await flow.wait(job_id, timeout=SOON)


async def test_waiting_has_an_end_and_unknown_jobs_are_named(make_flow: MakeFlow) -> None:
    flow = three_stages(make_flow())
    async with flow:
        job_id = await flow.start(Request("ann", 30))
        with pytest.raises(FlowWaitTimeout):
            await flow.wait(job_id, timeout=timedelta(milliseconds=30))
        with pytest.raises(FlowJobNotFound, match="no job 'nobody'"):
            await flow.get("nobody")
        with pytest.raises(FlowJobNotFailed):
            await flow.retry(job_id)
        with pytest.raises(FlowJobNotFound):
            await flow.retry("nobody")
    with pytest.raises(ConfigurationError, match="inside `async with flow`"):
        await flow.start(Request("ann", 30))
    with pytest.raises(ConfigurationError, match="flow 'access' has the stages check, grant, reject"):
        async with flow:
            flow.workers({"chek": 1})


async def test_a_failed_job_can_be_put_back(make_flow: MakeFlow, redis: Any, keys: Keys) -> None:
    flow, healthy = make_flow(index=["user"]), False

    @flow.stage("check")
    async def check(job: Request) -> None:
        if not healthy:
            raise RuntimeError("down")

    async with flow, flow.workers():
        job_id = await flow.start(Request("ann", 30))
        with pytest.raises(FlowJobFailed):
            await flow.wait(job_id, timeout=SOON)
        healthy = True
        await flow.retry(job_id)
        job = await flow.wait(job_id, timeout=SOON)

        assert (job.status, job.error) == ("done", None)
        assert places(await flow.positions()) == {job_id: (None, "done")}
        assert [found.id for found in await flow.find("user", "ann")] == [job_id]


async def test_a_retry_whose_answer_was_lost_is_not_refused(make_flow: MakeFlow) -> None:
    flow, lost = make_flow(), list[str]()

    @flow.stage("check")
    async def check(job: Request) -> None:
        raise RuntimeError("down")

    async with flow:
        job_id = await flow.start(Request("ann", 30))
        async with flow.workers():
            with pytest.raises(FlowJobFailed):
                await flow.wait(job_id, timeout=SOON)
        script = flow._store.server.script

        async def loses_the_first_answer(name: str, *words: Any) -> Any:
            answer = await script(name, *words)
            if not lost:
                lost.append(name)
                raise RedisConnectionError("the answer was lost")
            return answer

        flow._store.server.script = loses_the_first_answer  # type: ignore[method-assign]
        await flow.retry(job_id)
        assert places(await flow.positions()) == {job_id: ("check", "waiting")}


async def test_scripts_are_handed_over_again_when_redis_forgot_them(make_flow: MakeFlow, redis: Any) -> None:
    flow = three_stages(make_flow())
    async with flow, flow.workers():
        for _ in range(3):
            await redis.script_flush()
            await flow.wait(await flow.start(Request("ann", 30)), timeout=SOON)
