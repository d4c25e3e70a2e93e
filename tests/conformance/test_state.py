"""The state conformance suite over every adapter and driver."""

from onward.conformance.state.locking import *  # noqa: F403
from onward.conformance.state.suite import *  # noqa: F403
