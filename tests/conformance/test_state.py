"""The state conformance suite over every adapter and driver."""

from onward.testing.state.locking import *  # noqa: F403
from onward.testing.state.suite import *  # noqa: F403
