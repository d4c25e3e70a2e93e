"""Every page, in the order of the navigation, and everything that can be done."""

from collections.abc import Sequence

from onward.dashboard.page import Action, Page
from onward.dashboard.pages import (
    acting,
    failed,
    flows,
    graph,
    limits,
    lists,
    one,
    overview,
    queues,
    schedules,
    types,
    workers,
)

PAGES: Sequence[Page] = (
    *overview.PAGES,
    *lists.PAGES,
    *one.PAGES,
    *failed.PAGES,
    *types.PAGES,
    *workers.PAGES,
    *schedules.PAGES,
    *limits.PAGES,
    *graph.PAGES,
    *queues.PAGES,
    *flows.PAGES,
)
ACTIONS: Sequence[Action] = (
    *acting.ACTIONS,
    *types.ACTIONS,
    *schedules.ACTIONS,
    *limits.ACTIONS,
    *queues.ACTIONS,
    *flows.ACTIONS,
)
