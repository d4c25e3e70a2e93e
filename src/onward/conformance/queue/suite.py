"""Every test that every provider passes."""

from onward.conformance.queue.lasting import *  # noqa: F403
from onward.conformance.queue.managing import *  # noqa: F403
from onward.conformance.queue.providing import *  # noqa: F403
from onward.conformance.queue.session import session as session
from onward.conformance.queue.working import *  # noqa: F403
