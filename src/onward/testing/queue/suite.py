"""Every test that every provider passes."""

from onward.testing.queue.lasting import *  # noqa: F403
from onward.testing.queue.managing import *  # noqa: F403
from onward.testing.queue.providing import *  # noqa: F403
from onward.testing.queue.session import session as session
from onward.testing.queue.working import *  # noqa: F403
