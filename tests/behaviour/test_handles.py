"""A handle is of its type: through it nobody reads, completes or changes a chain of another."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onward import Attempt, ChainHandle, JobStatus, JobType, Next, Onward, job
from onward.errors import ChainOfAnotherType
from support import SOON

confirm = JobType("payments.confirm", input=int, output=bool)
promote = JobType("admins.promote", input=int, output=bool)


@job("end", internal=True)
async def end(attempt: Attempt[int]) -> str:
    return f"end {attempt.input}"


@job("begin", continues_to=[end])
async def begin(attempt: Attempt[int]) -> Next[str]:
    return attempt.continue_with(end, attempt.input)


CHANGES: dict[str, Callable[[Onward, ChainHandle[Any], Any], Awaitable[Any]]] = {
    "get": lambda app, chain, tx: chain.get(tx=tx),
    "cancel": lambda app, chain, tx: app.cancel(chain, tx=tx),
    "retry": lambda app, chain, tx: app.retry(chain, tx=tx),
    "trigger": lambda app, chain, tx: app.trigger(chain, tx=tx),
    "delete": lambda app, chain, tx: app.delete(chain, tx=tx),
    "complete": lambda app, chain, tx: app.complete(chain, tx=tx).__aenter__(),
    "blocked_by": lambda app, chain, tx: page_of(app, chain, tx),
}


async def page_of(app: Onward, chain: ChainHandle[Any], tx: Any) -> Any:
    return await app.blocked_by(chain, tx=tx)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_handle_changes_nothing_of_another_type(opened: Any, change: str) -> None:
    app: Onward = await opened(confirm, promote)
    secret = await app.start(promote, 1)
    forged = app.chain(confirm, secret.id)

    with pytest.raises(ChainOfAnotherType, match=r"is of type 'admins\.promote', not 'payments\.confirm'") as refused:
        await CHANGES[change](app, forged, None)
    async with app.transaction() as tx:
        with pytest.raises(ChainOfAnotherType):
            await CHANGES[change](app, forged, tx)
        kept = await app.start(confirm, 1, tx=tx)

    assert (refused.value.chain_id, refused.value.found) == (secret.id, "admins.promote")
    assert (await secret.get()).status is JobStatus.PENDING
    assert (await kept.get()).status is JobStatus.PENDING, "the transaction went on"


@pytest.mark.parametrize("has_ended", [True, False])
async def test_waiting_for_a_chain_of_another_type_is_refused_at_once(opened: Any, has_ended: bool) -> None:
    app: Onward = await opened(confirm, promote)
    secret = await app.start(promote, 1)
    if has_ended:
        async with app.complete(secret) as completion:
            await completion.done(True)

    with pytest.raises(ChainOfAnotherType):
        await app.chain(confirm, secret.id).wait(timeout=SOON)


async def test_the_type_is_that_with_which_the_chain_began_however_far_it_has_come(opened: Any) -> None:
    app: Onward = await opened(begin, end, promote)
    chain = await app.start(begin, 1)
    async with app.complete(chain) as completion:
        await completion.continue_with(end, 7)

    with pytest.raises(ChainOfAnotherType):
        async with app.complete(app.chain(promote, chain.id)):
            pass
    async with app.complete(app.chain(begin, chain.id)) as completion:
        assert completion.input_of(end) == 7
        await completion.done("by hand")

    assert await app.chain(begin, chain.id).wait(timeout=SOON) == "by hand"


async def test_a_chain_of_another_type_among_several_leaves_all_as_they_were(opened: Any) -> None:
    app: Onward = await opened(confirm, promote)
    mine, secret = await app.start(confirm, 1), await app.start(promote, 1)

    with pytest.raises(ChainOfAnotherType):
        await app.cancel(mine, app.chain(confirm, secret.id))

    assert [(await chain.get()).status for chain in (mine, secret)] == [JobStatus.PENDING, JobStatus.PENDING]


async def test_a_bare_id_is_not_checked(opened: Any) -> None:
    app: Onward = await opened(confirm, promote)
    chain = await app.start(promote, 41)

    async with app.complete(chain.id) as completion:
        assert completion.input == 41
        await completion.done(False)

    assert await chain.wait(timeout=SOON) is False


def test_without_an_event_loop_it_is_the_same(make_app: Any) -> None:
    app: Onward = make_app(confirm, promote)

    with app.sync as client:
        secret = client.start(promote, 1)
        forged = client.chain(confirm, secret.id)
        with pytest.raises(ChainOfAnotherType), client.complete(forged):
            pass
        for change in (client.cancel, client.retry, client.trigger, client.delete):
            with pytest.raises(ChainOfAnotherType):
                change(forged)
        for look in (forged.get, forged.wait):
            with pytest.raises(ChainOfAnotherType):
                look()

        assert secret.get().status is JobStatus.PENDING
