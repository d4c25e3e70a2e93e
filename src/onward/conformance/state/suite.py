"""Every test of the suite, to be imported with `from onward.conformance.state.suite import *`."""

from onward.conformance.state.blocking import TestBlockers
from onward.conformance.state.cancelling import TestCancelling, TestDeleting
from onward.conformance.state.carrying import TestMeta
from onward.conformance.state.changing_races import TestRacesOfChanges
from onward.conformance.state.continuing import TestContinuing
from onward.conformance.state.counting import TestCounting, TestFailed, TestWorkLeft
from onward.conformance.state.deduplicating import TestDeduplication
from onward.conformance.state.diagnosing import TestDiagnosing, TestDueTypes
from onward.conformance.state.expiring import TestExpiring, TestGivingBack, TestTimingOut
from onward.conformance.state.failing import TestFailingBlockers, TestRetrying
from onward.conformance.state.figuring import TestFigures, TestSurvey
from onward.conformance.state.history import TestHistory, TestHistoryBesideOthers, TestOldHistory
from onward.conformance.state.leases import TestLockedJobs, TestProgress, TestReaping, TestRenewing, TestStrays
from onward.conformance.state.limiting import (
    TestChangingLimits,
    TestLimitRaces,
    TestPlaces,
    TestRates,
    TestSeveralLimits,
)
from onward.conformance.state.lines import TestLines
from onward.conformance.state.pruning import TestPruning, TestPruningBesideOthers, TestPruningTurns
from onward.conformance.state.races import TestChainsThatMoveOn, TestRaces
from onward.conformance.state.reading import TestFinding, TestListing
from onward.conformance.state.scheduling import TestSchedules
from onward.conformance.state.schema import TestSchema
from onward.conformance.state.settling import TestCompletingWithoutAWorker, TestRemoving, TestSettling, TestTheFence
from onward.conformance.state.starting import TestIds, TestScheduling, TestStarting
from onward.conformance.state.taking import TestTaking
from onward.conformance.state.working import TestWorkers

__all__ = [
    "TestBlockers",
    "TestCancelling",
    "TestChainsThatMoveOn",
    "TestChangingLimits",
    "TestCompletingWithoutAWorker",
    "TestContinuing",
    "TestCounting",
    "TestDeduplication",
    "TestDeleting",
    "TestDiagnosing",
    "TestDueTypes",
    "TestExpiring",
    "TestFailed",
    "TestFailingBlockers",
    "TestFigures",
    "TestFinding",
    "TestGivingBack",
    "TestHistory",
    "TestHistoryBesideOthers",
    "TestIds",
    "TestLimitRaces",
    "TestLines",
    "TestListing",
    "TestLockedJobs",
    "TestMeta",
    "TestOldHistory",
    "TestPlaces",
    "TestProgress",
    "TestPruning",
    "TestPruningBesideOthers",
    "TestPruningTurns",
    "TestRaces",
    "TestRacesOfChanges",
    "TestRates",
    "TestReaping",
    "TestRemoving",
    "TestRenewing",
    "TestRetrying",
    "TestSchedules",
    "TestScheduling",
    "TestSchema",
    "TestSettling",
    "TestSeveralLimits",
    "TestStarting",
    "TestStrays",
    "TestSurvey",
    "TestTaking",
    "TestTheFence",
    "TestTimingOut",
    "TestWorkLeft",
    "TestWorkers",
]
