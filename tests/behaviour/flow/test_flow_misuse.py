"""Calls of flows with what they cannot take are refused in words, and nothing is stored."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from onward.errors import ConfigurationError
from onward.flow import Flow

HALF = "\ud800"


@dataclass
class Item:
    name: str


async def test_odd_ids_delays_and_inputs_are_refused(make_flow: Callable[..., Flow[Any]]) -> None:
    flow = make_flow(input=Item)

    @flow.stage("call")
    async def call(job: Item) -> None:
        return None

    several: list[Any] = [None, 5, "", {}]
    ids: list[Any] = [HALF, 5, b"x"]
    calls: list[Any] = [
        *(lambda bad=bad: flow.start(Item("a"), **bad) for bad in ({"id": HALF}, {"correlation_id": HALF})),
        lambda: flow.start(Item("a"), delay=timedelta.max),
        *(lambda bad=bad: flow.start_many(bad) for bad in several),
        *(lambda act=act, bad=bad: act(bad) for act in (flow.get, flow.retry, flow.delete) for bad in ids),
    ]
    async with flow:
        for act in calls:
            with pytest.raises(ConfigurationError, match=r"flow '.*must be") as caught:
                await act()
            assert str(caught.value).encode()
        assert (await flow.positions()).count() == 0
