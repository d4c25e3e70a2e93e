"""Every test of the suite, to be imported with `from onward.testing.state.suite import *`."""

from onward.testing.state.blocking import TestBlockers
from onward.testing.state.cancelling import TestCancelling, TestDeleting
from onward.testing.state.changing_races import TestRacesOfChanges
from onward.testing.state.continuing import TestContinuing
from onward.testing.state.counting import TestCounting, TestFailed
from onward.testing.state.deduplicating import TestDeduplication
from onward.testing.state.expiring import TestExpiring, TestGivingBack, TestTimingOut
from onward.testing.state.failing import TestFailingBlockers, TestRetrying
from onward.testing.state.leases import TestLockedJobs, TestProgress, TestReaping, TestRenewing, TestStrays
from onward.testing.state.races import TestChainsThatMoveOn, TestRaces
from onward.testing.state.reading import TestFinding, TestListing
from onward.testing.state.schema import TestSchema
from onward.testing.state.settling import TestCompletingWithoutAWorker, TestRemoving, TestSettling, TestTheFence
from onward.testing.state.starting import TestIds, TestScheduling, TestStarting
from onward.testing.state.taking import TestTaking

__all__ = [
    "TestBlockers",
    "TestCancelling",
    "TestChainsThatMoveOn",
    "TestCompletingWithoutAWorker",
    "TestContinuing",
    "TestCounting",
    "TestDeduplication",
    "TestDeleting",
    "TestExpiring",
    "TestFailed",
    "TestFailingBlockers",
    "TestFinding",
    "TestGivingBack",
    "TestIds",
    "TestListing",
    "TestLockedJobs",
    "TestProgress",
    "TestRaces",
    "TestRacesOfChanges",
    "TestReaping",
    "TestRemoving",
    "TestRenewing",
    "TestRetrying",
    "TestScheduling",
    "TestSchema",
    "TestSettling",
    "TestStarting",
    "TestStrays",
    "TestTaking",
    "TestTheFence",
    "TestTimingOut",
]
